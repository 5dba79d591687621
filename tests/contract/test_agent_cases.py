"""Cases the agent once got wrong, with the real agent in throw-away namespaces."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from contract.namespace_provider import NamespaceProvider
from contract.provider_kinds import BIN

from warren.interfaces.sandbox import Process, Sandbox
from warren.model.errors import LimitReached
from warren.model.operations import Command, Search, SearchLimit, SearchMatch, SearchTotals
from warren.model.spec import SandboxSpec

pytestmark = pytest.mark.anyio

SLOW = "x(a|b?){60}(c|d?){60}[^x]"


@pytest.fixture(params=["warren-agent", pytest.param("warren-agent-sanitized", marks=pytest.mark.extended)])
async def box(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sandbox]:
    provider = NamespaceProvider(BIN / request.param, tmp_path)
    sandbox = await provider.create(SandboxSpec())
    yield sandbox
    await sandbox.close()
    await provider.destroy(sandbox.id)
    await provider.close()


async def test_shell_state_of_one_user_is_not_anothers(box: Sandbox) -> None:
    await box.exec(Command(shell="export SECRET=mine; cd /tmp"))
    other = await box.exec(Command(shell="echo [$SECRET]; pwd", user="1234"))
    assert other.stdout == "[]\n/workspace\n"
    assert (await box.exec(Command(shell="echo [$SECRET]; pwd"))).stdout == "[mine]\n/tmp\n"


async def test_a_long_line_runs_whatever_descriptors_are_open(box: Sandbox) -> None:
    line = ": " + "x" * 130_000 + "\necho hello"
    said = []
    for _ in range(22):
        await box.start(Command(argv=("sleep", "60")))
        said.append((await box.exec(Command(shell=line))).stdout)
    assert set(said) == {"hello\n"}


async def supervisor_of(box: Sandbox) -> str:
    return (await box.exec(Command(argv=("sh", "-c", "echo $PPID")))).stdout


async def test_one_supervisor_serves_commands_one_after_the_other(box: Sandbox) -> None:
    first = await supervisor_of(box)
    assert await supervisor_of(box) == first
    sleeping = await box.start(Command(argv=("sleep", "60")))
    assert await supervisor_of(box) != first
    await sleeping.kill(0)
    await box.exec(Command(argv=("sh", "-c", "exit 3")))
    assert (await box.exec(Command(argv=("sh", "-c", "sleep 60 & exit 3")))).background == 1
    assert (await box.exec(Command(argv=("sh", "-c", "echo well")))).stdout == "well\n"
    assert await box.kill_all() == 1  # the one that sleeps, not the supervisor that waits
    assert (await box.exec(Command(argv=("sh", "-c", "echo well")))).stdout == "well\n"


async def test_a_command_gets_nothing_of_the_one_before_it(box: Sandbox) -> None:
    await supervisor_of(box)
    files = "for fd in $(ls /proc/$$/fd); do [ -e /proc/$$/fd/$fd ] && echo $fd; done; true"
    show = ("sh", "-c", f'pwd; id -u; echo "[$WORD]"; cat; {files}')
    rich = await box.start(Command(argv=show, env={"WORD": "secret"}, cwd="/tmp", user="1234", stdin=True))
    await rich.write(b"in\n")
    await rich.close_stdin()
    assert (await rich.wait()).exit_code == 0
    plain = await box.exec(Command(argv=show))
    assert plain.stdout.split() == ["/workspace", *plain.stdout.split()[1:2], "[]", "0", "1", "2"]
    assert plain.stdout.split()[1] != "1234"
    long = await box.exec(Command(argv=("sh", "-c", 'echo ${#1} "[$WORD]"', "sh", "x" * 60_000)))
    assert long.stdout == "60000 []\n"
    missing = [await box.exec(Command(argv=("there-is-no-such-program",))) for _ in range(2)]
    assert [(each.exit_code, each.stderr.splitlines()[0]) for each in missing] == [
        (127, "there-is-no-such-program: command not found")
    ] * 2
    many = await box.exec(Command(argv=("sh", "-c", "echo $#", "sh", *["x"] * 3000)))
    assert many.stdout == "3000\n"


async def test_files_may_be_older_than_1970(box: Sandbox) -> None:
    await box.exec(Command(shell="touch -d '1960-01-01 00:00:00 UTC' old"))
    assert (await box.stat("old")).modified == -315619200


async def test_two_kills_of_an_ended_command_are_both_answered(box: Sandbox) -> None:
    process = await box.start(Command(shell="sleep 60 & echo up"))
    assert (await process.wait()).background == 1
    with anyio.fail_after(10):
        await asyncio.gather(process.kill(0), process.kill(0))
    assert (await box.exec(Command(shell="ps -e | grep -c sleep"))).stdout == "0\n"


async def test_a_command_that_ends_while_it_is_killed_tells_of_the_kill(box: Sandbox) -> None:
    for _ in range(20):
        process = await box.start(Command(shell="sleep 60 & sleep 60 & echo up; read line"))
        shown = process.output()
        await anext(shown)
        await shown.aclose()  # type: ignore[attr-defined]
        await asyncio.gather(process.close_stdin(), process.kill(0))
        result = await process.wait()
        assert result.survivors == 0
        assert result.killed >= 2 or result.background == 2
        if result.background:
            await process.kill(0)
        await box.forget(process.id)


async def echo(process: Process, shown: AsyncIterator[bytes], word: bytes) -> None:
    await process.write(word + b"\n")
    got = b""
    while not got.endswith(word + b"\n"):
        got += await anext(shown)


async def test_commands_that_speak_at_once_are_all_heard(box: Sandbox) -> None:
    async def pieces(process: Process) -> AsyncIterator[bytes]:
        async for chunk in process.output():
            yield chunk.data

    processes = [await box.start(Command(argv=("cat",))) for _ in range(4)]
    readers = [pieces(process) for process in processes]
    for turn in range(150):
        with anyio.fail_after(5):
            await asyncio.gather(
                *(echo(process, shown, b"%d" % turn) for process, shown in zip(processes, readers, strict=True))
            )
    for process, shown in zip(processes, readers, strict=True):
        await process.kill(0)
        await shown.aclose()  # type: ignore[attr-defined]


async def test_an_expression_that_needs_too_much_is_refused(box: Sandbox) -> None:
    await box.write("file", b"aaa\n")
    with anyio.fail_after(30), pytest.raises(LimitReached, match=r"the search|the regular expression"):
        await search(box, Search(pattern="((a{1,255}){1,255}){1,255}", timeout_s=2))
    await box.ping()


@pytest.mark.parametrize("pattern", ["(" * 1999 + "a" + ")" * 1999, "((a?){100}){40}", "(a*)*" * 300 + "{1,200}"])
async def test_an_expression_that_explodes_ends_its_search_alone(box: Sandbox, pattern: str) -> None:
    """Whether the search is refused, cut short or done depends on the C library; the agent lives in any case."""
    await box.write("file", b"a" * 1000 + b"\n" + b"b" * 100_000)
    with anyio.fail_after(30), contextlib.suppress(LimitReached):
        await search(box, Search(pattern=pattern, timeout_s=2))
    _, summary = await search(box, Search(pattern="b{3}"))
    assert summary.matches == 1


async def search(box: Sandbox, query: Search) -> tuple[list[SearchMatch], SearchTotals]:
    items = [item async for item in box.search(query)]
    assert isinstance(items[-1], SearchTotals)
    return [item for item in items if isinstance(item, SearchMatch)], items[-1]


async def test_a_search_ends_when_its_time_is_over(box: Sandbox) -> None:
    await box.exec(Command(shell="echo xa > a; yes xxxxxxx | head -c 9000000 > b"))
    with anyio.fail_after(10):
        matches, summary = await search(box, Search(pattern=SLOW, timeout_s=0.5))
    assert summary.truncated_by is SearchLimit.TIME
    assert [match.path for match in matches] == ["/workspace/a"]


async def wait_for_children(box: Sandbox, count: int) -> None:
    """Until the agent has so many child processes besides the one that counts them."""
    counted = Command(shell="grep -lE '^PPid:[[:space:]]+1$' /proc/[0-9]*/status | wc -l")
    with anyio.fail_after(5):
        while int((await box.exec(counted)).stdout) != count + 1:
            await asyncio.sleep(0.005)


async def test_a_search_that_nobody_waits_for_ends_at_once(box: Sandbox) -> None:
    await box.exec(Command(shell="yes xxxxxxx | head -c 9000000 > big"))
    searching = asyncio.ensure_future(search(box, Search(pattern=SLOW, timeout_s=600)))
    await wait_for_children(box, 1)
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    await wait_for_children(box, 0)


async def test_a_search_does_not_wait_for_pipes_and_leaves_the_kernels_files_alone(box: Sandbox) -> None:
    await box.exec(Command(shell="mkfifo pipe; echo needle > file"))
    matches, _ = await search(box, Search(pattern="needle"))
    assert [match.path for match in matches] == ["/workspace/file"]
    matches, _ = await search(box, Search(path="/", pattern="^processor|MemTotal", glob="*info"))
    assert matches == []
    matches, _ = await search(box, Search(path="/proc", pattern="MemTotal", glob="/meminfo"))
    assert [match.path for match in matches] == ["/proc/meminfo"]


async def test_a_search_has_the_rights_of_its_user(box: Sandbox) -> None:
    await box.write("private", b"needle", mode=0o600)
    _, summary = await search(box, Search(pattern="needle", user="1234"))
    assert (summary.matches, summary.unreadable) == (0, 1)
