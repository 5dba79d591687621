"""The processes that make sandboxes for a server: what becomes of its requests when one of them fails."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from contract.provider_kinds import BIN, new_makers
from this_run import patience

from warren.images.store.store import ImageStore
from warren.model.errors import ImageNotFound, IsolationUnavailable, ProviderUnavailable
from warren.model.operations import Command
from warren.model.spec import Layer, Limits, SandboxSpec
from warren.sandboxes.host.record import SandboxRecord
from warren.sandboxes.makers.pool import Makers
from warren.sandboxes.providers.oci import Making, OciProvider

pytestmark = [pytest.mark.anyio, pytest.mark.group_by("module")]

SPEC = SandboxSpec(image="host", limits=Limits(cpus=2))
TRUE = Command(argv=("true",))


@pytest.fixture
def makers(state_dir: Path) -> Makers:
    return new_makers(state_dir, "direct", 2, longest_s=8.0)


@pytest.fixture
async def provider(state_dir: Path, image_store: ImageStore, makers: Makers) -> AsyncIterator[OciProvider]:
    provider = OciProvider(state_dir, image_store, BIN, "direct", making=Making(makers))
    yield provider
    pids = makers.pids
    for sandbox_id in await provider.list_ids():
        await provider.destroy(sandbox_id)
    assert await provider.list_ids() == []
    await provider.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(patience(20.0)):
        while not holds():
            await asyncio.sleep(0.0005)


async def works(provider: OciProvider) -> None:
    sandbox = await provider.create(SPEC)
    assert (await sandbox.exec(TRUE)).exit_code == 0
    await provider.destroy(sandbox.id)
    assert await provider.list_ids() == []


async def test_no_more_are_started_than_are_needed(provider: OciProvider, makers: Makers) -> None:
    await works(provider)
    assert len(makers.pids) == 1
    made = await asyncio.gather(*(provider.create(SPEC) for _ in range(12)))
    await until(lambda: len(makers.pids) == 2)
    await asyncio.gather(*(provider.destroy(sandbox.id) for sandbox in made))
    assert await provider.list_ids() == []


async def test_a_sandbox_belongs_to_the_server_and_not_to_its_maker(provider: OciProvider, makers: Makers) -> None:
    sandbox = await provider.create(SPEC)
    record = provider.load_record(sandbox.id)
    assert record is not None
    assert record.maker == os.getpid() != makers.pids[0]
    os.kill(makers.pids[0], signal.SIGKILL)
    await until(lambda: not makers.pids)
    assert (await sandbox.exec(TRUE)).exit_code == 0
    await provider.destroy(sandbox.id)  # another maker is started for it
    assert await provider.list_ids() == []


@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.005, 0.01])
async def test_a_maker_that_dies_fails_what_it_made_and_nothing_else(
    provider: OciProvider, makers: Makers, after_s: float
) -> None:
    lasting = await provider.create(SPEC)
    creating = [asyncio.ensure_future(provider.create(SPEC)) for _ in range(2)]
    destroying = asyncio.ensure_future(provider.destroy((await provider.create(SPEC)).id))
    await asyncio.sleep(after_s)
    os.kill(makers.pids[0], signal.SIGKILL)
    done = await asyncio.gather(*creating, return_exceptions=True)
    await destroying
    for each in done:
        if isinstance(each, BaseException):
            assert isinstance(each, ProviderUnavailable), each
        else:
            await provider.destroy(each.id)
    assert await provider.list_ids() == [lasting.id]
    assert (await lasting.exec(TRUE)).exit_code == 0
    await provider.destroy(lasting.id)
    await works(provider)


async def test_a_maker_that_hangs_is_killed(provider: OciProvider, makers: Makers) -> None:
    await works(provider)
    os.kill(makers.pids[0], signal.SIGSTOP)
    with pytest.raises(ProviderUnavailable, match="ended while it made this one"):
        await provider.create(SPEC)
    await works(provider)


async def test_a_create_that_is_cancelled_leaves_nothing(provider: OciProvider, makers: Makers) -> None:
    await works(provider)
    for _ in range(10):
        creating = asyncio.ensure_future(provider.create(SPEC))
        await until(provider.records.names)  # it is half made
        creating.cancel()
        with suppress(asyncio.CancelledError):
            await provider.destroy((await creating).id)
        assert await provider.list_ids() == []
    assert len(makers.pids) == 1


async def test_what_is_wrong_is_told_as_if_the_server_had_found_it(provider: OciProvider) -> None:
    with pytest.raises(ImageNotFound):
        await provider.create(replace(SPEC, image="none"))
    with pytest.raises(IsolationUnavailable, match="guest_kernel"):
        await provider.create(replace(SPEC, require=frozenset({Layer.GUEST_KERNEL})))
    assert await provider.list_ids() == []


async def test_a_maker_ends_with_its_server_and_what_was_half_made_is_swept(
    state_dir: Path, image_store: ImageStore
) -> None:
    """The server is a process of its own here: this one's descriptors would keep the makers alive."""
    script = f"""
import asyncio, os, signal, sys
sys.path[:0] = {[str(Path(__file__).parents[1])]!r}
from contract.provider_kinds import BIN, new_makers
from pathlib import Path
from warren.images.store.store import ImageStore
from warren.sandboxes.providers.oci import Making, OciProvider
from warren.model.spec import Limits, SandboxSpec
async def main():
    state, spec = Path({str(state_dir)!r}), SandboxSpec(image="host", limits=Limits(cpus=2))
    makers = new_makers(state, "direct", 2)
    provider = OciProvider(state, ImageStore(state), BIN, "direct", making=Making(makers))
    await provider.create(spec)
    creating = [asyncio.ensure_future(provider.create(spec)) for _ in range(6)]
    await asyncio.sleep(0.01)
    print(*makers.pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    assert said.split()
    await until(lambda: not any(Path(f"/proc/{int(pid)}").exists() for pid in said.split()))
    provider = OciProvider(state_dir, image_store, BIN, "direct")
    await provider.sweep()
    records = [SandboxRecord.load(provider.directory(name)) for name in await provider.list_ids()]
    assert records
    assert all(record is not None and record.alive() for record in records)
    for sandbox_id in await provider.list_ids():
        await provider.destroy(sandbox_id)
    await provider.close()
