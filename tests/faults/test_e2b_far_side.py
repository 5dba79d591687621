"""A far side that is slow, busy, broken or gone, under the provider e2b; and kill -9 of the process that uses it."""

import asyncio
import contextlib
import gzip
import hashlib
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from aiohttp import web
from e2b_far_side import KEY, FarSide

import warren
from warren.doctor.check import Level
from warren.doctor.parts import check_far_side
from warren.model.errors import (
    ImageNotFound,
    InvalidRequest,
    IsolationUnavailable,
    NoCapacity,
    ProviderUnavailable,
    SandboxLost,
)
from warren.model.operations import Command, Reason
from warren.model.spec import Layer, Limits, SandboxSpec
from warren.sandboxes.agent.sandbox import AgentSandbox
from warren.sandboxes.providers.e2b import STEPS, E2bProvider
from warren.sandboxes.providers.e2b_api import E2bApi

pytestmark = [pytest.mark.anyio, pytest.mark.extended]
BIN = Path(warren.__file__).parent / "bin"
New = Callable[..., E2bProvider]


@pytest.fixture
async def far() -> AsyncIterator[FarSide]:
    far = await FarSide().start()
    yield far
    await far.close()


@pytest.fixture
async def new(far: FarSide, tmp_path: Path) -> AsyncIterator[New]:
    made: list[E2bProvider] = []

    def new_provider(key: str = KEY, url: str = "", **options: object) -> E2bProvider:
        made.append(E2bProvider(tmp_path, BIN, E2bApi(key, url or far.url), **options))  # type: ignore[arg-type]
        return made[-1]

    yield new_provider
    for provider in made:
        await provider.close()


def is_clean(far: FarSide, tmp_path: Path) -> bool:
    return not far.boxes and [path.name for path in tmp_path.glob("e2b/*")] in ([], ["state-id"])


# -- a far side that means harm


@pytest.mark.parametrize("path", ["/sandboxes", "/sandboxes/far", "/files", "/process.Process/Start"])
async def test_no_redirection_is_followed(far: FarSide, new: New, tmp_path: Path, path: str) -> None:
    away = {"Location": f"{far.url}/elsewhere"}
    far.failures.append((path, web.Response(status=307, headers=away)))
    with pytest.raises(ProviderUnavailable, match="which is not followed"):
        await new().create(SandboxSpec())
    assert "POST /elsewhere" not in far.asked
    assert "GET /elsewhere" not in far.asked
    assert is_clean(far, tmp_path)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/sandboxes", '{"sandboxID": "a", "domain": "x@192.0.2.1/"}'),
        ("/sandboxes", '{"sandboxID": "a", "envdAccessToken": {"b": 1}}'),
        ("/sandboxes", "[" * 100_000),
        ("/sandboxes/far", '{"cpuCount": [1]}'),
        ("/sandboxes/far", f'{{"memoryMB": 1{"0" * 400}}}'),
        ("/sandboxes/far", f"[{'[],' * 500_000}[]]"),
    ],
    ids=["domain", "token", "deep", "list", "digits", "many"],
)
async def test_an_answer_that_makes_no_sense_is_one_clear_sentence(
    far: FarSide, new: New, tmp_path: Path, path: str, text: str
) -> None:
    far.failures.append((path, web.Response(text=text, content_type="application/json")))
    with pytest.raises(ProviderUnavailable, match=r"an answer (that is not JSON|without a proper)"):
        await new().create(SandboxSpec())
    assert is_clean(far, tmp_path)


async def test_a_list_that_makes_no_sense_names_nothing(far: FarSide, new: New) -> None:
    provider = new()
    await provider.destroy((await provider.create(SandboxSpec())).id)
    for text in ('[[], 1, {"metadata": [1]}, {"metadata": {"warren_state": 1}}]', '{"a": 1}', "[" * 100_000):
        far.failures.append(("/v2/sandboxes", web.Response(text=text, content_type="application/json")))
        assert await provider.list_ids() == []
    packed = {"Content-Encoding": "gzip"}
    far.failures.append(("/v2/sandboxes", web.Response(body=gzip.compress(b"[]"), headers=packed)))
    with pytest.raises(ProviderUnavailable, match="not JSON"):
        await provider.list_far_ids()


# -- what the far side refuses


async def test_a_wrong_key_says_what_to_check(far: FarSide, new: New, tmp_path: Path) -> None:
    with pytest.raises(ProviderUnavailable, match="Invalid API key") as refused:
        await new(key="e2b_" + "1" * 40).create(SandboxSpec())
    assert "WARREN_E2B_API_KEY" in refused.value.remedy
    with pytest.raises(ProviderUnavailable) as without:
        await new(key="").check(SandboxSpec())
    assert "WARREN_E2B_API_KEY" in without.value.remedy
    assert not far.boxes


async def test_a_busy_far_side_is_asked_again_when_it_said(far: FarSide, new: New) -> None:
    provider = new()
    far.fail("/sandboxes", 429, headers={"Retry-After": "0.3"})
    began = asyncio.get_running_loop().time()
    box = await provider.create(SandboxSpec())
    assert asyncio.get_running_loop().time() - began >= 0.3
    await provider.destroy(box.id)


async def test_a_far_side_that_stays_busy_says_when_to_come_back(far: FarSide, new: New, tmp_path: Path) -> None:
    provider = new()
    far.fail("/sandboxes", 429, headers={"Retry-After": "60"})
    with pytest.raises(NoCapacity) as refused:
        await provider.create(SandboxSpec())
    assert refused.value.retry_after_s == 60
    assert is_clean(far, tmp_path)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_creation_that_may_have_happened_is_not_repeated(
    far: FarSide, new: New, tmp_path: Path, status: int
) -> None:
    provider = new()
    far.fail("/sandboxes", status)
    with pytest.raises(ProviderUnavailable, match=f"creating a sandbox: failure {status}"):
        await provider.create(SandboxSpec())
    assert far.asked.count("POST /sandboxes") == 1
    assert is_clean(far, tmp_path)


async def test_a_sandbox_whose_answer_was_lost_is_found_and_ended(far: FarSide, new: New, tmp_path: Path) -> None:
    provider = new()
    far.lose_answers.append("POST /sandboxes")
    with pytest.raises(ProviderUnavailable, match="cannot be reached"):
        await provider.create(SandboxSpec())
    assert far.asked.count("POST /sandboxes") == 1
    assert is_clean(far, tmp_path)


@pytest.mark.parametrize("path", ["/files", "/process.Process/Start", "/sandboxes/far"])
async def test_a_failure_on_the_way_leaves_nothing(far: FarSide, new: New, tmp_path: Path, path: str) -> None:
    provider = new()
    far.fail(path, 500)
    with pytest.raises(ProviderUnavailable, match="failure 500"):
        await provider.create(SandboxSpec())
    assert is_clean(far, tmp_path)


async def test_what_cannot_be_ended_is_half_made_until_it_is_destroyed(far: FarSide, new: New, tmp_path: Path) -> None:
    """A worker destroys it again and again."""
    provider = new(timeout_s=1)
    far.fail("/files", 500)
    far.refused_kills = 5
    with pytest.raises(ProviderUnavailable, match="copying the agent"):
        await provider.create(SandboxSpec())
    [sandbox_id] = provider.half_made
    for _ in range(10):
        with contextlib.suppress(ProviderUnavailable):
            await provider.destroy(sandbox_id)
            break
    assert far.refused_kills == 0
    assert not provider.half_made
    assert is_clean(far, tmp_path)


async def test_an_unreachable_far_side_is_one_clear_sentence(new: New, tmp_path: Path) -> None:
    provider = new(url="http://127.0.0.1:9")
    with pytest.raises(ProviderUnavailable, match="E2B, looking for a template: it cannot be reached"):
        await provider.check(SandboxSpec())
    assert await provider.list_ids() == []
    await provider.destroy("0" * 32)


async def test_doctor_says_whether_the_far_side_answers(far: FarSide, new: New) -> None:
    provider = new()
    box = await provider.create(SandboxSpec())
    assert "answers, 1 sandboxes" in (await check_far_side(provider)).found
    await provider.destroy(box.id)
    away = await check_far_side(new(url="http://127.0.0.1:9"))
    assert away.level is Level.FAIL
    assert "WARREN_E2B_API_URL" in away.remedy


async def test_templates_and_limits_that_are_not_there_are_refused(far: FarSide, new: New, tmp_path: Path) -> None:
    provider = new(templates={"python": "ml"})
    with pytest.raises(ImageNotFound, match="template ml"):
        await provider.image_version("python")
    with pytest.raises(InvalidRequest, match="memory_mb 1024, less than the 2048"):
        await provider.create(SandboxSpec(limits=Limits(memory_mb=2048)))
    with pytest.raises(InvalidRequest, match="no command may be root"):
        await provider.create(SandboxSpec(sudo=True))
    assert is_clean(far, tmp_path)


async def test_isolation_is_the_operators_word_or_missing(far: FarSide, new: New) -> None:
    plain, trusted = new(), new(runtime="firecracker", guest_kernel=True)
    for provider in (plain, trusted):
        with pytest.raises(IsolationUnavailable, match="user_namespace"):
            await provider.create(SandboxSpec(require=frozenset({Layer.USER_NAMESPACE})))
    with pytest.raises(IsolationUnavailable, match="guest_kernel"):
        await plain.create(SandboxSpec(require=frozenset({Layer.GUEST_KERNEL})))
    box = await trusted.create(SandboxSpec(require=frozenset({Layer.GUEST_KERNEL})))
    assert box.isolation.runtime == "firecracker"
    assert box.isolation.layers == {Layer.GUEST_KERNEL: "by the operator's word (e2b_guest_kernel)"}
    assert "1024 MiB" in box.isolation.missing[Layer.MEMORY_LIMIT]
    await trusted.destroy(box.id)


# -- a network that breaks


@pytest.fixture
async def box(new: New) -> AsyncIterator[AgentSandbox]:
    provider = new(outage_s=8.0)
    box = await provider.create(SandboxSpec())
    yield box
    await provider.destroy(box.id)


async def test_output_is_whole_although_streams_break(far: FarSide, box: AgentSandbox) -> None:
    chance = random.Random(7)

    async def cut_often() -> None:
        while True:
            await asyncio.sleep(chance.uniform(0.005, 0.1))
            far.cut()

    cutting = asyncio.ensure_future(cut_often())
    line = "python3 -c 'import sys; [sys.stdout.buffer.write(b\"%07d\\n\" % n) for n in range(500000)]'"
    try:
        with anyio.fail_after(60):
            process = await box.start(Command(shell=line))
            found = hashlib.sha256()
            async for chunk in process.output():
                found.update(chunk.data)
    finally:
        cutting.cancel()
    assert found.digest() == hashlib.sha256(b"".join(b"%07d\n" % n for n in range(500000))).digest()


async def test_input_arrives_once_although_answers_are_lost(far: FarSide, box: AgentSandbox) -> None:
    content = random.Random(8).randbytes(3_000_000)

    async def parts() -> AsyncIterator[bytes]:
        for n in range(30):
            if n % 3 == 0:
                far.lose_answers.append("POST /process.Process/SendInput")
            elif n % 3 == 1:
                far.fail("/process.Process/SendInput", 502)
            else:
                far.fail("/process.Process/SendInput", 429, headers={"Retry-After": "0.1"})
            yield content[n * 100_000 : (n + 1) * 100_000]
            while far.failures or far.lose_answers:
                await asyncio.sleep(0.01)

    with anyio.fail_after(60):
        await box.write("big", parts())
        sums = await box.exec(Command(shell="sha256sum < big"))
    assert sums.stdout.split()[0] == hashlib.sha256(content).hexdigest()


async def test_a_command_outlives_a_far_side_that_is_away_for_a_while(far: FarSide, box: AgentSandbox) -> None:
    process = await box.start(Command(shell="for n in 1 2 3 4 5 6; do echo $n; sleep 0.2; done"))
    waiting = asyncio.ensure_future(process.wait())
    await asyncio.sleep(0.3)
    await far.go_away()
    await asyncio.sleep(1.5)
    assert not waiting.done()
    await far.start(far.port)
    with anyio.fail_after(10):
        assert (await waiting).stdout == "1\n2\n3\n4\n5\n6\n"
        assert (await box.exec(Command(shell="echo on"))).stdout == "on\n"


async def test_a_far_side_that_stays_away_loses_the_sandbox(far: FarSide, new: New) -> None:
    provider = new(outage_s=0.5)
    box = await provider.create(SandboxSpec())
    process = await box.start(Command(shell="sleep 60"))
    waiting = asyncio.ensure_future(process.wait())
    lost: list[str] = []
    box.when_lost(lost.append)
    await far.go_away()
    with anyio.fail_after(20):
        assert (await waiting).reason is Reason.SANDBOX_LOST
    assert "out of reach for 0.5 s" in lost[0]
    with pytest.raises(ProviderUnavailable):
        await provider.destroy(box.id)
    assert await provider.list_ids() == [box.id]
    await far.start(far.port)
    adopted = await provider.adopt(box.id)  # the agent inside went on
    assert [info.running for info in await adopted.processes()] == [True]
    await provider.destroy(box.id)


async def test_a_sandbox_that_the_far_side_ended_is_lost(far: FarSide, box: AgentSandbox, new: New) -> None:
    lost: list[str] = []
    box.when_lost(lost.append)
    await new().api.kill(next(iter(far.boxes)))
    with anyio.fail_after(10):
        while not lost:
            await asyncio.sleep(0.01)
    assert lost == ["the far side does not have it any more"]
    with pytest.raises(SandboxLost, match="does not have it any more"):
        await box.ping()


async def test_only_what_is_in_use_is_prolonged(far: FarSide, new: New) -> None:
    """So that a paid sandbox ends by itself when its server never comes back."""
    provider = new(timeout_s=3)
    far.stalled.clear()
    making = asyncio.ensure_future(provider.create(SandboxSpec()))
    await asyncio.sleep(0.1)
    far.stalled.set()
    box = await making
    (there,) = far.boxes.values()
    assert there.timeouts[0] == 300
    with anyio.fail_after(10):
        while len(there.timeouts) < 3:
            await asyncio.sleep(0.05)
    assert set(there.timeouts[1:]) == {3}
    await box.close()
    await provider.close()
    count = len(there.timeouts)
    await asyncio.sleep(1.2)
    assert len(there.timeouts) == count
    await new().destroy(box.id)


# -- kill -9

_CREATE = """
import asyncio, os, signal, sys
from pathlib import Path
from warren.model.spec import SandboxSpec
from warren.sandboxes.providers.e2b import E2bProvider
from warren.sandboxes.providers.e2b_api import E2bApi
url, key, state, bin, at = sys.argv[1:]

def fault(step):
    if step == at:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    provider = E2bProvider(Path(state), Path(bin), E2bApi(key, url), fault=fault)
    print((await provider.create(SandboxSpec())).id, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def creator(far: FarSide, state: Path, at: str) -> asyncio.subprocess.Process:
    arguments = (far.url, KEY, str(state), str(BIN), at)
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CREATE, *arguments, stdout=asyncio.subprocess.PIPE
    )


@pytest.mark.parametrize("step", STEPS)
async def test_a_sweep_ends_what_a_killed_creator_left(far: FarSide, new: New, tmp_path: Path, step: str) -> None:
    killed = await creator(far, tmp_path, step)
    assert await killed.wait() == -signal.SIGKILL
    provider = new()
    await provider.sweep()
    for sandbox_id in await provider.list_ids() if step == "ready" else ():
        adopted = await provider.adopt(sandbox_id)  # it was finished: whoever knows of it may use it
        assert (await adopted.exec(Command(shell="echo on"))).stdout == "on\n"
        await provider.destroy(sandbox_id)
    assert is_clean(far, tmp_path)


async def test_a_killed_server_finds_its_sandbox_again(far: FarSide, new: New, tmp_path: Path) -> None:
    process = await creator(far, tmp_path, "")
    assert process.stdout
    sandbox_id = (await process.stdout.readline()).decode().strip()
    process.kill()
    await process.wait()
    provider = new()
    assert await provider.sweep() == 0
    box = await provider.adopt(sandbox_id)
    assert (await box.exec(Command(shell="echo again"))).stdout == "again\n"
    await provider.destroy(sandbox_id)
    assert is_clean(far, tmp_path)


async def test_a_sandbox_without_a_directory_is_found_by_its_metadata(far: FarSide, new: New, tmp_path: Path) -> None:
    provider = new()
    box = await provider.create(replace(SandboxSpec(), labels={"owner": "me"}))
    await box.close()
    for path in (tmp_path / "e2b" / box.id).iterdir():
        path.unlink()
    (tmp_path / "e2b" / box.id).rmdir()
    assert await provider.list_ids({"owner": "me"}) == [box.id]
    assert await provider.list_ids({"owner": "you"}) == []
    assert await provider.sweep() == 1
    assert is_clean(far, tmp_path)


async def test_the_sandboxes_of_another_state_directory_are_left_alone(far: FarSide, new: New, tmp_path: Path) -> None:
    box = await new().create(SandboxSpec())
    other = E2bProvider(tmp_path / "other", BIN, E2bApi(KEY, far.url))
    mine = await other.create(SandboxSpec())
    assert await other.list_ids() == [mine.id]
    assert await other.sweep() == 0
    await other.destroy(box.id)
    await other.destroy(mine.id)
    await other.close()
    assert len(far.boxes) == 1
    await new().destroy(box.id)
