"""The link to an agent: what it believes (nothing), how it flows, how it ends."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from busiest_turn import busiest_turn
from this_run import patience
from unit import scripted_agent
from unit.scripted_agent import LINGER_S, exit_frame, hello, lingering, linked, output, over_guarded, pass_on, said

from warren.model.errors import FileNotFound, FileProblem, InvalidRequest, ProtocolError, SandboxLost
from warren.model.metrics import SandboxMetrics
from warren.model.operations import Command, FileEvent, Search, SearchMatch, SearchTotals
from warren.model.spec import Isolation
from warren.sandboxes.agent.channel import AgentReply, Output
from warren.sandboxes.agent.command_result import REMEMBERED
from warren.sandboxes.agent.files import AgentFiles
from warren.sandboxes.agent.link import AgentLink, Waking
from warren.sandboxes.agent.sandbox import AgentSandbox
from warren.sandboxes.agent.wire import (
    MAX_FRAME_IN,
    MAX_FRAME_OUT,
    OUTPUT_WINDOW,
    STDIN_WINDOW,
    ControlOp,
    FileOp,
    WireCode,
    WireRequest,
    WireResponse,
    WireTag,
    credit,
    fields,
    frame,
    record,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True, params=["over", "over_guarded"])
def either_transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    kind = str(request.param)
    monkeypatch.setattr(scripted_agent, "link_over", {"over": AgentLink.over, "over_guarded": over_guarded}[kind])
    return kind


@pytest.fixture(autouse=True)
async def nothing_is_raised_into_the_loop() -> object:
    raised: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: raised.append(context))
    with anyio.fail_after(patience(20)):
        yield
    loop.set_exception_handler(None)
    assert raised == []


# Dialling.


class Listener:
    """An agent's socket in a directory, answering the greeting."""

    def __init__(self, directory: Path, version: int = 1) -> None:
        self.directory, self.version = directory, version

    async def __aenter__(self) -> None:
        # Bound by a relative name: the directory's path may be too long for a socket's address.
        sock = socket.socket(socket.AF_UNIX)
        here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        os.chdir(self.directory)
        sock.bind("agent.sock")
        os.fchdir(here)
        os.close(here)
        self._server = await asyncio.start_unix_server(self._answer, sock=sock)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(12)
        writer.write(hello(self.version))
        await reader.read()
        writer.close()

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        await self._server.wait_closed()


async def test_dialling_greets_and_checks_the_version(tmp_path: Path) -> None:
    async with Listener(tmp_path):
        link = await AgentLink.dial(tmp_path, timeout_s=5)
        assert repr(link) == "<AgentLink open, 0 channels>"
        await link.close()
        assert repr(link) == "<AgentLink lost, 0 channels>"


async def test_another_version_is_refused_with_a_remedy(tmp_path: Path) -> None:
    async with Listener(tmp_path, version=9):
        with pytest.raises(ProtocolError, match="version 9") as caught:
            await AgentLink.dial(tmp_path, timeout_s=5)
        assert "destroy it" in caught.value.remedy


async def test_a_path_longer_than_a_socket_address_is_no_problem(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    async with Listener(deep):
        await (await AgentLink.dial(deep, timeout_s=5)).close()


async def test_an_agent_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    dialling = asyncio.ensure_future(AgentLink.dial(tmp_path, timeout_s=10))
    await asyncio.sleep(0.01)
    async with Listener(tmp_path):
        await (await dialling).close()


async def test_an_agent_that_never_comes_is_lost(tmp_path: Path) -> None:
    with pytest.raises(SandboxLost, match="did not answer"):
        await AgentLink.dial(tmp_path, timeout_s=0.02)


async def test_a_directory_that_is_gone_is_lost_at_once(tmp_path: Path) -> None:
    with pytest.raises(SandboxLost, match="is gone"):
        await AgentLink.dial(tmp_path / "nothing", timeout_s=60)


async def test_no_link_is_followed_to_another_socket(tmp_path: Path) -> None:
    real, trap = tmp_path / "real", tmp_path / "trap"
    real.mkdir()
    trap.mkdir()
    async with Listener(real):
        (trap / "agent.sock").symlink_to(real / "agent.sock")
        with pytest.raises(SandboxLost, match="not a socket"):
            await AgentLink.dial(trap, timeout_s=1)
        (tmp_path / "way").symlink_to(real)
        with pytest.raises(SandboxLost, match="cannot be reached"):
            await AgentLink.dial(tmp_path / "way", timeout_s=1)


async def test_an_agent_that_hangs_up_instead_of_greeting_is_lost(tmp_path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_unix_server(hang_up, str(tmp_path / "agent.sock"))
    with pytest.raises(SandboxLost):
        await AgentLink.dial(tmp_path, timeout_s=5)
    server.close()


# Requests and replies.


async def test_replies_reach_the_channel_they_are_for() -> None:
    async with linked() as (link, agent):
        one, two = await link.open(WireRequest.PING), await link.open(WireRequest.PING)
        await agent.says(
            said(WireResponse.DONE, two.number, fields([(WireTag.PID, 2)])), said(WireResponse.DONE, one.number)
        )
        assert (await two.last()).fields.number(WireTag.PID) == 2
        assert not (await one.last()).fields


async def test_an_error_is_raised_as_its_class_with_a_safe_message() -> None:
    async with linked() as (link, agent):
        channel = await link.open(WireRequest.FILE)
        payload = fields([(WireTag.CODE, WireCode.NOT_FOUND), (WireTag.MESSAGE, "no \x1b[31mfile\n" + "x" * 9000)])
        await agent.says(said(WireResponse.ERROR, channel.number, payload))
        with pytest.raises(FileNotFound) as caught:
            await channel.take()
        assert caught.value.message.startswith(r"no \x1b[31mfile\n")
        assert len(caught.value.message) < 2100


async def test_the_last_word_can_be_taken_again() -> None:
    async with linked() as (link, agent):
        channel = await link.open(WireRequest.START)
        await agent.says(exit_frame(channel.number, 3))
        for _ in range(2):
            assert (await channel.last()).fields.number(WireTag.EXIT_CODE) == 3


async def test_frames_for_a_closed_channel_are_ignored() -> None:
    async with linked() as (link, agent):
        channel = await link.open(WireRequest.ATTACH)
        channel.close()
        await agent.says(output(channel.number, 1, 0, b"late"), exit_frame(channel.number))
        other = await link.open(WireRequest.PING)
        await agent.says(said(WireResponse.DONE, other.number))
        await other.last()
        assert [await agent.heard() for _ in range(2)][1][0] == WireRequest.CLOSE


async def test_a_posted_request_wants_no_answer() -> None:
    async with linked() as (link, agent):
        link.post(WireRequest.CONTROL, b"")
        kind, number, _ = await agent.heard()
        await agent.says(said(WireResponse.DONE, number))
        other = await link.open(WireRequest.PING)
        await agent.says(said(WireResponse.DONE, other.number))
        await other.last()
        assert kind == WireRequest.CONTROL


async def test_an_agent_of_an_earlier_release_may_not_know_of_pauses() -> None:
    async with linked() as (link, agent):
        for _ in range(100):
            link.note_pause(1.5)
            number, wanted = await agent.asked(WireRequest.CONTROL)
            assert (wanted.number(WireTag.OP), wanted.number(WireTag.AGE_MS)) == (ControlOp.RESUMED, 1500)
            await agent.says(said(WireResponse.ERROR, number, fields([(WireTag.CODE, 9), (WireTag.MESSAGE, "what?")])))
        other = await link.open(WireRequest.PING)
        await agent.asked(WireRequest.PING)
        await agent.says(said(WireResponse.DONE, other.number))
        await other.last()


async def test_a_sleeping_agent_is_greeted_and_told_of_its_pause_before_it_wakes(tmp_path: Path) -> None:
    sock = socket.socket(socket.AF_UNIX)
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    os.chdir(tmp_path)
    sock.bind("agent.sock")
    os.fchdir(here)
    os.close(here)
    sock.listen(1)
    heard = list[bytes]()

    def wake() -> None:
        with sock, sock.accept()[0] as worker:
            heard.append(worker.recv(1000))
            worker.sendall(hello())

    link = await AgentLink.dial(tmp_path, timeout_s=5, waking=Waking(wake, 2.0))
    told = fields([(WireTag.OP, int(ControlOp.RESUMED)), (WireTag.AGE_MS, 2000)])
    assert heard[0].endswith(frame(WireRequest.CONTROL, 1, told))
    await link.close()


async def test_a_request_too_long_for_a_frame_is_refused() -> None:
    async with linked() as (link, _):
        with pytest.raises(InvalidRequest, match="at most"):
            await link.open(WireRequest.START, bytes(MAX_FRAME_OUT + 1))


async def test_many_small_outputs_keep_their_order_and_streams() -> None:
    async with linked() as (link, agent):
        channel = await link.open(WireRequest.ATTACH)
        frames = [output(channel.number, 1 + at % 2, at, bytes([at % 256])) for at in range(20_000)]
        await agent.says(*frames, output(channel.number, 1, 20_000, b"x" * 5000), exit_frame(channel.number))
        seen = []
        while isinstance(item := await channel.take(), Output):
            seen.append(item)
        assert [(item.stream, item.offset, item.data[:1]) for item in seen[:20_000]] == [
            (1 + at % 2, at, bytes([at % 256])) for at in range(20_000)
        ]
        assert seen[20_000].data == b"x" * 5000


async def test_a_large_frame_in_many_pieces_is_one_frame() -> None:
    async with linked() as (link, agent):
        channel = await link.open(WireRequest.FILE)
        data = os.urandom(MAX_FRAME_IN)
        raw = said(WireResponse.DATA, channel.number, data) + said(WireResponse.DONE, channel.number)
        await agent.says_in_pieces(raw[at : at + 50_001] for at in range(0, len(raw), 50_001))
        assert await channel.take() == data
        assert isinstance(await channel.take(), AgentReply)


# Flow.


async def test_credit_is_granted_back_as_data_is_taken() -> None:
    async with linked() as (link, agent):
        channel = await link.open(WireRequest.FILE)
        await agent.heard()
        block = bytes(OUTPUT_WINDOW // 4)
        await agent.says(*[said(WireResponse.DATA, channel.number, block)] * 4)
        for _ in range(2):
            await channel.take()
        kind, number, payload = await agent.heard()
        assert (kind, number, credit(memoryview(payload))) == (WireRequest.CREDIT, channel.number, OUTPUT_WINDOW // 2)
        await agent.says(*[said(WireResponse.DATA, channel.number, block)] * 2, said(WireResponse.DONE, channel.number))
        assert sum([len(await channel.take()) for _ in range(4)]) == OUTPUT_WINDOW


async def test_sending_waits_for_credit() -> None:
    async with linked() as (link, agent):
        channel = await link.open(WireRequest.FILE)
        await agent.heard()
        sending = asyncio.ensure_future(channel.send(bytes(STDIN_WINDOW + 1000)))
        size = 0
        while size < STDIN_WINDOW:
            kind, _, payload = await agent.heard()
            assert kind == WireRequest.DATA
            size += len(payload)
        assert size == STDIN_WINDOW
        assert not sending.done()
        await agent.says(said(WireResponse.CREDIT, channel.number, (600).to_bytes(4, "little")))
        assert len((await agent.heard())[2]) == 600
        await agent.says(said(WireResponse.CREDIT, channel.number, (600).to_bytes(4, "little")))
        assert len((await agent.heard())[2]) == 400
        assert await sending


async def test_a_sender_hears_that_nobody_wants_more() -> None:
    async with linked() as (link, agent):
        channel = await link.open(WireRequest.START)
        sending = asyncio.ensure_future(channel.send(bytes(STDIN_WINDOW * 2)))
        while (await agent.heard())[0] != WireRequest.DATA:
            pass
        await agent.says(exit_frame(channel.number))
        assert await sending is False


async def test_an_agent_that_does_not_read_holds_the_sender_back() -> None:
    async with linked() as (link, _):
        channels = [await link.open(WireRequest.FILE) for _ in range(8)]
        sending = [asyncio.ensure_future(channel.send(bytes(STDIN_WINDOW))) for channel in channels]
        await asyncio.wait(sending, timeout=0.1)
        assert not sending[-1].done()
        assert link._transport.get_write_buffer_size() < 2 * 1024 * 1024
        link.abort()
        with pytest.raises(SandboxLost):
            await sending[-1]
        await asyncio.gather(*sending, return_exceptions=True)


# What an agent must not say.


def bad_frames() -> dict[str, bytes]:
    return {
        "an unknown type": said(0x7F, 1),
        "a worker's own type": said(WireRequest.START, 1),
        "a frame too long": (MAX_FRAME_IN + 1).to_bytes(4, "little") + b"\1\0\0\0\x46\0\0\0",
        "a channel never opened": said(WireResponse.DONE, 77),
        "output for a file": output(1, 1, 0, b"x"),
        "an exit for a file": exit_frame(1),
        "a greeting on a channel": said(WireResponse.HELLO, 1),
        "a second life": said(WireResponse.DONE, 0),
        "broken fields": said(WireResponse.DONE, 1, b"\1\xff\xff\xff\xff"),
        "an error without a known code": said(WireResponse.ERROR, 1, fields([(WireTag.CODE, 99)])),
        "an error whose code is no number": said(WireResponse.ERROR, 1, fields([(WireTag.CODE, b"abc")])),
        "credit of three bytes": said(WireResponse.CREDIT, 1, b"abc"),
        "credit for what was never sent": said(WireResponse.CREDIT, 1, b"\1\0\0\0"),
        "credit of nothing": said(WireResponse.CREDIT, 1, bytes(4)),
        "data of nothing": said(WireResponse.DATA, 1),
        "200,000 fields": said(WireResponse.DONE, 1, b"\xc8\0\0\0\0" * 200_000),
    }


@pytest.mark.parametrize("what", bad_frames())
async def test_breaking_the_rules_cuts_the_link(what: str) -> None:
    async with linked() as (link, agent):
        channel, other = await link.open(WireRequest.FILE), await link.open(WireRequest.PING)
        await agent.says(bad_frames()[what])
        for waiting in (channel, other):
            with pytest.raises(ProtocolError, match="the link to the agent was cut"):
                await waiting.last()
        with pytest.raises(ProtocolError):
            await link.open(WireRequest.PING)
        assert repr(link).startswith("<AgentLink broken: ")


@pytest.mark.parametrize("flags", [0, socket.MSG_OOB], ids=["ordinary", "urgent"])
@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
async def test_open_files_that_an_agent_sends_hold_nobody_up(is_read: bool, flags: int, either_transport: str) -> None:
    """The kernel closes them for a reader who does not ask for them."""
    async with linked() as (link, agent):
        if not is_read:
            link._transport.pause_reading()
        with lingering() as sock, socket.socket(fileno=os.dup(agent.writer.get_extra_info("socket").fileno())) as raw:
            try:
                pass_on(raw, sock, flags)
            except PermissionError:
                assert either_transport == "over"  # from Linux 6.16 on
                return
            sock.close()  # the link has the last one
            began = time.monotonic()
            with suppress(ProtocolError, SandboxLost):
                await (await link.open(WireRequest.PING)).last() if is_read else None
            await link.close()
            assert time.monotonic() - began < LINGER_S / 3
    assert repr(link) == (
        "<AgentLink broken: it sent open files, 0 channels>" if is_read else "<AgentLink lost, 0 channels>"
    )


async def test_an_agent_that_sends_a_byte_at_a_time_takes_few_turns_of_the_loop(
    either_transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn costs as much as a read of a megabyte."""
    turns, whole = 0, AgentLink.buffer_updated

    def counted(link: AgentLink, nbytes: int) -> None:
        nonlocal turns
        turns += 1
        whole(link, nbytes)

    monkeypatch.setattr(AgentLink, "buffer_updated", counted)
    async with linked() as (link, agent):
        channel = await link.open(WireRequest.PING)
        fd = agent.writer.get_extra_info("socket").fileno()
        frame = said(WireResponse.DONE, channel.number, bytes(MAX_FRAME_IN))
        program = f"import os\nos.set_blocking({fd}, True)\nwhile True: os.write({fd}, b'x')"
        await agent.says(frame[:100])
        began, turns = time.monotonic(), 0
        dripping = await asyncio.create_subprocess_exec(sys.executable, "-c", program, pass_fds=[fd])
        try:
            await asyncio.sleep(1)
        finally:
            dripping.kill()
            await dripping.wait()
        assert 0 < turns <= 1000 + 5000 * (time.monotonic() - began)
        assert link.is_open


async def test_a_closed_channel_may_be_sent_what_was_on_its_way_and_no_more() -> None:
    """Else an agent keeps the worker busy although nobody asks for anything."""
    async with linked() as (link, agent):
        for _ in range(5):
            channel = await link.open(WireRequest.ATTACH)
            channel.close()
            await agent.says(output(channel.number, 1, 0, bytes(OUTPUT_WINDOW // 2)), exit_frame(channel.number))
        ended = await link.open(WireRequest.PING)
        await agent.says(said(WireResponse.DONE, ended.number))
        await ended.last()
        with suppress(ConnectionError):
            for _ in range(50):
                await agent.says(*[said(WireResponse.DATA, ended.number, bytes(100_000))] * 10)
        with pytest.raises(ProtocolError, match="closed"):
            await link.open(WireRequest.PING)


@asynccontextmanager
async def answered(replies: Callable[[int], Iterable[bytes]], window: int = OUTPUT_WINDOW) -> Any:
    """A sandbox whose agent answers its first request with these frames, each no sooner than there is credit."""
    async with linked() as (link, agent):

        async def answer() -> None:
            _, number, _ = await agent.heard()
            room = window
            for reply in replies(number):
                while room < len(reply):
                    kind, _, payload = await agent.heard()
                    room += int.from_bytes(payload, "little") if kind == WireRequest.CREDIT else 0
                room -= len(reply)
                await agent.says(reply)

        answering = asyncio.create_task(answer())
        yield sandbox_over(link)
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


async def no_metrics() -> SandboxMetrics:
    return SandboxMetrics()


def sandbox_over(link: AgentLink) -> AgentSandbox:
    return AgentSandbox(
        "0" * 32,
        link,
        Isolation("oci", "crun", {}, {}),
        env={},
        oom_kills=lambda: 0,
        metrics=no_metrics,
    )


async def longest_hold(work: Awaitable[object]) -> float:
    """How long the work kept all other tasks waiting; its ProtocolError is expected."""
    async with busiest_turn() as busiest:
        with suppress(ProtocolError):
            await work
    return busiest.seconds


async def test_a_list_of_processes_holds_up_nobody_and_has_an_end() -> None:
    def replies(number: int) -> Iterable[bytes]:
        yield said(WireResponse.DATA, number, bytes(4) * 250_000)

    async with answered(replies) as box:
        assert await longest_hold(box.processes()) < 0.5  # it was 3 s


async def test_long_titles_of_processes_are_cut() -> None:
    def replies(number: int) -> Iterable[bytes]:
        for _ in range(100):
            yield said(WireResponse.DATA, number, record([(WireTag.COMMAND, b"x" * 65_000), (WireTag.RUNNING, 1)]))
        yield said(WireResponse.DONE, number)

    async with answered(replies) as box:
        assert sum(len(process.command) for process in await box.processes()) <= 100_000


async def test_output_that_is_nothing_but_gaps_cuts_the_link() -> None:
    """Each would cost 170 bytes of memory for one that is kept."""

    def replies(number: int) -> Iterable[bytes]:
        for at in range(20_000):
            yield output(number, 1, 2 * at + 1, b"x")
        yield exit_frame(number, total=40_000)

    async with answered(replies) as box:
        with pytest.raises(ProtocolError, match="gaps"):
            await box.exec(Command(argv=("true",)))


async def test_an_agent_that_starts_everything_and_ends_nothing_is_cut_off() -> None:
    """Each command that runs is followed."""
    async with linked() as (link, agent):

        async def start_all() -> None:
            while True:
                kind, number, _ = await agent.heard()
                if kind == WireRequest.START:
                    await agent.says(said(WireResponse.STARTED, number))

        starting, box = asyncio.create_task(start_all()), sandbox_over(link)
        for number in range(REMEMBERED):
            await box.start(Command(argv=("true",)), process_id=f"p{number}")
        with pytest.raises(ProtocolError, match="more commands"):
            await box.start(Command(argv=("true",)))
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


async def test_a_file_is_the_one_that_was_asked_for() -> None:
    """Programs take the name of what they download from it."""

    def replies(number: int) -> Iterable[bytes]:
        yield said(WireResponse.DONE, number, fields([(WireTag.PATH, "/workspace/.ssh"), (WireTag.KIND, 1)]))

    async with answered(replies) as box:
        assert (await box.stat("project")).path == "/workspace/project"


@pytest.mark.parametrize(
    "names",
    [[("a", 2), ("a/b", 0)], [("a", 2), ("a", 1), ("a/b", 0)], [("d", 1), ("d/l", 2), ("d/l/x", 1)]],
    ids=["beneath a link", "a link becomes a directory", "beneath a deep link"],
)
async def test_a_packed_directory_has_nothing_beneath_a_link(names: list[tuple[str, int]]) -> None:
    def replies(number: int) -> Iterable[bytes]:
        for name, kind in names:
            yield said(
                WireResponse.DATA, number, record([(WireTag.PATH, name), (WireTag.KIND, kind), (WireTag.TARGET, "..")])
            )
        yield said(WireResponse.DONE, number)

    async with answered(replies) as box:
        with pytest.raises(FileProblem, match="files beneath"):
            async for _ in box.pack("/workspace"):
                pass


async def test_output_beyond_the_window_cuts_the_link() -> None:
    async with linked() as (link, agent):
        channel = await link.open(WireRequest.ATTACH)
        half = OUTPUT_WINDOW // 2
        await agent.says(*[output(channel.number, 1, at * half, bytes(half)) for at in range(2)])
        await agent.says(output(channel.number, 1, OUTPUT_WINDOW, b"x"))
        await link.lost.wait()
        assert isinstance(await channel.take(), Output)
        await channel.take()
        with pytest.raises(ProtocolError, match="window"):
            await channel.take()


@pytest.mark.parametrize(
    "frames",
    [
        [output(1, 9, 0, b"x")],
        [output(1, 1, 2**63, b"x")],
        [said(WireResponse.OUTPUT, 1, b"short")],
        [said(WireResponse.STARTED, 1), said(WireResponse.STARTED, 1)],
        [said(WireResponse.DONE, 1)],
        [said(WireResponse.DATA, 1, b"x")],
    ],
    ids=["stream 9", "an offset beyond all", "cut short", "started twice", "done", "data"],
)
async def test_a_command_that_speaks_nonsense_cuts_the_link(frames: list[bytes]) -> None:
    async with linked() as (link, agent):
        channel = await link.open(WireRequest.START)
        await agent.says(*frames)
        with pytest.raises(ProtocolError):
            await channel.last()


async def test_a_sandbox_that_discards_output_is_still_held_to_the_window() -> None:
    async with linked() as (link, agent):
        channel = await link.open(WireRequest.ATTACH, discard_output=True)
        await agent.says(*[output(channel.number, 1, 0, bytes(OUTPUT_WINDOW // 2))] * 3)
        with pytest.raises(ProtocolError):
            await channel.last()


# Searching.


@pytest.mark.parametrize(
    "frames",
    [
        [said(WireResponse.DATA, 1, record([])), said(WireResponse.DATA, 1, record([(WireTag.CHANGE, 8)]))],
        [said(WireResponse.DATA, 1, record([(WireTag.CHANGE, b"abc")]))],
        [said(WireResponse.DATA, 1, record([(WireTag.CHANGE, 9)]))],
    ],
    ids=["sync", "change", "kind"],
)
async def test_a_watch_that_answers_nonsense_cuts_the_link(frames: list[bytes]) -> None:
    async with linked() as (link, agent):
        watching = asyncio.ensure_future(_events(AgentFiles(link).watch("x")))
        await agent.asked(WireRequest.FILE)
        await agent.says(*frames)
        with pytest.raises(ProtocolError):
            await watching
        assert not link.is_open


async def _events(events: AsyncIterator[FileEvent]) -> None:
    async for _ in events:
        pass


@pytest.mark.parametrize("metadata", [b"key", b"key\0", b"key\0value", b"\0\0\0"])
async def test_metadata_that_is_cut_short_cuts_the_link(metadata: bytes) -> None:
    async with linked() as (link, agent):
        asking = asyncio.ensure_future(AgentFiles(link).stat("x", details=True))
        channel, _ = await agent.asked(WireRequest.FILE)
        await agent.says(said(WireResponse.DONE, channel, fields([(WireTag.METADATA, metadata)])))
        with pytest.raises(ProtocolError):
            await asking
        assert not link.is_open


async def test_a_search_tells_the_agent_what_it_is_for() -> None:
    async with linked() as (link, agent):
        searching = AgentFiles(link).search(
            Search(path="src", glob="*.{c,h}", pattern="x", max_matches=7, timeout_s=1.5)
        )
        first = asyncio.ensure_future(anext(searching))
        channel, asked = await agent.asked(WireRequest.FILE)
        assert asked.number(WireTag.OP) == FileOp.SEARCH
        assert (asked.text(WireTag.PATH), asked.text(WireTag.GLOB), asked.text(WireTag.PATTERN)) == (
            "/workspace/src",
            "*.h",
            "x",
        )
        assert (asked.number(WireTag.COUNT), asked.number(WireTag.TIMEOUT_MS)) == (7, 1500)
        await agent.says(
            said(WireResponse.DATA, channel, record([(WireTag.PATH, "/workspace/src/a.c"), (WireTag.LINE, 3)])),
            said(WireResponse.DONE, channel, fields([(WireTag.COUNT, 1), (WireTag.SEARCHED, 2)])),
        )
        assert await first == SearchMatch("/workspace/src/a.c", line=3)
        assert await anext(searching) == SearchTotals(1, files_searched=2)


@pytest.mark.parametrize(
    "frames",
    [
        [said(WireResponse.DATA, 1, record([(WireTag.KIND, 9)]))],
        [said(WireResponse.DATA, 1, record([(WireTag.LINE, b"abc")]))],
        [said(WireResponse.DATA, 1, record([(WireTag.PATH, "x")])[:-1]), said(WireResponse.DONE, 1)],
        [said(WireResponse.DATA, 1, record([(WireTag.PATH, "x")]) * 3)],
        [said(WireResponse.DONE, 1, fields([(WireTag.TRUNCATED, 3)]))],
        [said(WireResponse.DONE, 1, fields([(WireTag.COUNT, b"")]))],
    ],
    ids=["kind", "line", "cut short", "too many", "reason", "count"],
)
async def test_a_search_that_answers_nonsense_cuts_the_link(frames: list[bytes]) -> None:
    async with linked() as (link, agent):
        searching = asyncio.ensure_future(_all(AgentFiles(link).search(Search(glob="*", max_matches=2))))
        await agent.asked(WireRequest.FILE)
        await agent.says(*frames)
        with pytest.raises(ProtocolError):
            await searching
        assert not link.is_open


async def _all(items: AsyncIterator[SearchMatch | SearchTotals]) -> list[SearchMatch | SearchTotals]:
    return [item async for item in items]


# Losing it.


async def test_a_lost_connection_reaches_everybody_at_once_with_the_reason() -> None:
    async with linked(why_lost=lambda: "its agent was killed") as (link, agent):
        waiting = [asyncio.ensure_future((await link.open(WireRequest.PING)).last()) for _ in range(3)]
        sending = asyncio.ensure_future((await link.open(WireRequest.FILE)).send(bytes(STDIN_WINDOW * 2)))
        await asyncio.sleep(0)
        agent.hang_up()
        for task in waiting:
            with pytest.raises(SandboxLost, match="its agent was killed"):
                await task
        await asyncio.wait([sending])
        assert sending.exception() is not None or sending.result() is False
        with pytest.raises(SandboxLost, match="its agent was killed"):
            await link.open(WireRequest.PING)
        link.post(WireRequest.CONTROL, b"")


async def test_what_came_before_the_loss_can_still_be_taken() -> None:
    async with linked() as (link, agent):
        running, ended = await link.open(WireRequest.ATTACH), await link.open(WireRequest.START)
        await agent.says(output(running.number, 1, 0, b"before"), exit_frame(ended.number, 7))
        agent.hang_up()
        await link.lost.wait()
        assert (await running.take()) == Output(1, 0, b"before")
        with pytest.raises(SandboxLost):
            await running.take()
        assert (await ended.last()).fields.number(WireTag.EXIT_CODE) == 7


async def test_a_reason_that_cannot_be_found_does_not_hide_the_loss() -> None:
    def broken() -> str:
        raise OSError("no such file")

    async with linked(why_lost=broken) as (link, agent):
        agent.hang_up()
        await link.lost.wait()
        with pytest.raises(SandboxLost, match="no such file"):
            await link.open(WireRequest.PING)


async def test_closing_twice_is_harmless_and_later_calls_say_so() -> None:
    async with linked() as (link, _):
        await link.close()
        await link.close()
        with pytest.raises(SandboxLost, match="was closed"):
            await link.open(WireRequest.PING)


async def test_a_cancelled_wait_leaves_the_link_in_order() -> None:
    async with linked() as (link, agent):
        channel = await link.open(WireRequest.PING)
        task = asyncio.ensure_future(channel.last())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await agent.says(said(WireResponse.DONE, channel.number))
        assert isinstance(await channel.last(), AgentReply)
