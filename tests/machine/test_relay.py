"""The relay to an agent on another machine (agent/relay.c), fed by hand; also a program with sanitizers in it."""

import contextlib
import random
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

import warren

BIN = Path(warren.__file__).parent / "bin"
AGENTS = ["warren-agent", pytest.param("warren-agent-sanitized", marks=pytest.mark.extended)]
_FRAME = struct.Struct("<cQI")
WINDOW = 512 * 1024


def frame(kind: bytes, offset: int, data: bytes = b"") -> bytes:
    return _FRAME.pack(kind, offset, len(data)) + data


def mark(number: int) -> bytes:
    return struct.pack(">Q", number) + b"m" * 16


class Between:
    """A relay with both of its ends."""

    def __init__(self, process: "subprocess.Popen[bytes]", agent: socket.socket) -> None:
        self.process, self.agent = process, agent
        assert process.stdin
        assert process.stdout
        self.input: IO[bytes] = process.stdin
        self.output: IO[bytes] = process.stdout

    def send(self, data: bytes) -> None:
        self.input.write(data)
        self.input.flush()

    def read(self, count: int) -> bytes:
        return self.output.read(count)

    def received(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            found += self.agent.recv(count - len(found))
        return found

    def complaint(self) -> str:
        assert self.process.stderr
        assert self.process.wait(20) == 1
        return self.process.stderr.read().decode()


@pytest.fixture(params=AGENTS)
def between(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Between]:
    pipe = subprocess.PIPE
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "s"))
        door.listen()
        door.settimeout(20)
        argv = [BIN / request.param, "relay", tmp_path / "s"]
        with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            agent, _ = door.accept()
            with agent:
                agent.settimeout(20)
                yield Between(process, agent)
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()  # type: ignore[union-attr]


def test_frames_in_pieces_and_repeated_arrive_once(between: Between) -> None:
    content = random.Random(1).randbytes(300_000)
    frames = b""
    for at in range(0, len(content), 10_000):
        piece = frame(b"D", at, content[at : at + 10_000])
        frames += piece * (1 + at % 3)
        frames += frame(b"D", max(0, at - 5_000), content[max(0, at - 5_000) : at + 10_000])  # partly known
    feeding = threading.Thread(target=feed, args=(between, frames))
    feeding.start()
    assert between.received(len(content)) == content
    feeding.join()


def feed(between: Between, frames: bytes) -> None:
    chance = random.Random(2)
    while frames:
        count = chance.randrange(1, 9000)
        between.send(frames[:count])
        frames = frames[count:]


def test_nothing_is_said_before_a_mark_and_all_after_it(between: Between) -> None:
    between.agent.sendall(b"early")
    between.send(frame(b"R", 0, mark(1)))
    assert between.read(24 + 5) == mark(1) + b"early"
    between.agent.sendall(b"late")
    assert between.read(4) == b"late"
    between.send(frame(b"A", 5) + frame(b"R", 5, mark(2)))
    assert between.read(24 + 4) == mark(2) + b"late"


def test_a_mark_that_was_overtaken_or_repeated_is_ignored(between: Between) -> None:
    between.agent.sendall(b"0123456789")
    between.send(frame(b"R", 0, mark(2)))
    assert between.read(34) == mark(2) + b"0123456789"
    between.send(frame(b"R", 0, mark(1)) + frame(b"R", 0, mark(2)))
    between.agent.sendall(b"ab")
    assert between.read(2) == b"ab"


def test_no_more_than_a_window_is_out_without_an_acknowledgement(between: Between) -> None:
    content = random.Random(3).randbytes(3 * WINDOW)
    between.send(frame(b"R", 0, mark(1)))
    assert between.read(24) == mark(1)
    between.agent.setblocking(False)
    sent = got = 0
    while got < len(content):
        with contextlib.suppress(BlockingIOError):
            sent += between.agent.send(content[sent:])
        count = min(sent - got, WINDOW)
        assert between.read(count) == content[got : got + count]
        got += count
        between.send(frame(b"A", got))


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        (frame(b"D", 1, b"x"), "bytes are missing"),
        (frame(b"A", 1), "more is acknowledged"),
        (frame(b"R", 1, mark(1)), "not kept"),
        (frame(b"R", 0, b"short"), "no frame"),
        (frame(b"X", 0), "no frame"),
        (_FRAME.pack(b"D", 0, 2**32 - 1), "too long"),
        (frame(b"D", 2**64 - 1, b"xy"), "bytes are missing"),
    ],
)
def test_what_is_no_frame_ends_it(between: Between, frames: bytes, why: str) -> None:
    between.send(frames)
    assert why in between.complaint()


def test_it_ends_with_the_agent_and_with_stdin(between: Between) -> None:
    between.agent.close()
    assert "closed the connection" in between.complaint()


def test_it_ends_when_stdin_does(between: Between) -> None:
    between.input.close()
    assert "stdin has ended" in between.complaint()
