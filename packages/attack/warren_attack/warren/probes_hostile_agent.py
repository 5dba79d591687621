"""Attacks on the worker by an agent in an attacker's hands. This process is the worker: it dials the agent as it dials
every other, and measures its own event loop, memory and descriptors meanwhile.

Work counts as processor time of the loop's thread, and waiting without the time for which the thread was ready and had
no processor: so other programs on the machine change neither.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warren.model.errors import WarrenError
from warren.sandboxes.agent.link import AgentLink
from warren.sandboxes.agent.wire import WireRequest
from warren_attack.probe import Group, Probe, ProbeResult, judged, within
from warren_attack.warren.arena import Arena
from warren_attack.warren.hostile_agent import LINGER_S

_G: Final = Group.HOSTILE_AGENT
_TICK_S: Final = 0.005
_WATCHED_S: Final = 2.0
_DIAL_S: Final = 20.0
_MOST_WAIT_S: Final = LINGER_S / 2
_MOST_WORK_S: Final = 0.05  # in one turn: what docs/security.md promises of requests
_MOST_SHARE: Final = 0.5  # of a processor, by an agent that nobody asked for anything
_MOST_MEMORY: Final = 64 << 20
_MOST_DESCRIPTORS: Final = 16
_CLOSED_AFTER_S: Final = 4 * LINGER_S
_SO_NETNS_COOKIE: Final = 71
_SIOCGIFCONF: Final = 0x8912
_IFREQ: Final = 40


@dataclass
class _Loop:
    """What the event loop went through: its longest wait, the most work without one, and all work."""

    wait_s: float = 0.0
    turn_s: float = 0.0
    work_s: float = 0.0
    seconds: float = 0.0

    async def watch(self) -> None:
        first = _times()
        while True:
            before = _times()
            await asyncio.sleep(_TICK_S)
            clock, work, delay = (now - then for now, then in zip(_times(), before, strict=True))
            self.wait_s = max(self.wait_s, clock - work - delay - _TICK_S)
            self.turn_s = max(self.turn_s, work)
            self.seconds, self.work_s = before[0] - first[0], before[1] - first[1]


def _times() -> tuple[float, float, float]:
    """Returns the clock, the thread's processor time, and how long it was ready without a processor."""
    delay_ns = 0
    with contextlib.suppress(FileNotFoundError):  # a kernel without CONFIG_SCHED_INFO
        delay_ns = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    return time.monotonic(), time.thread_time(), delay_ns / 1e9


async def _attacked_by(attack: str) -> ProbeResult:
    memory, descriptors = _resident(), _open_descriptors()
    loop = _Loop()
    async with _agent(attack) as link:
        watching = asyncio.ensure_future(loop.watch())
        try:
            end = await _use(link)
            await link.close()
            await asyncio.sleep(10 * _TICK_S)  # what is closed late is closed in the loop
        finally:
            watching.cancel()
            await asyncio.wait([watching])
    for _ in range(_CLOSED_AFTER_S * 20):
        if _open_descriptors() <= descriptors + _MOST_DESCRIPTORS:
            break
        await asyncio.sleep(0.05)  # a thread closes them
    grown, left = _resident() - memory, _open_descriptors() - descriptors
    share = loop.work_s / max(loop.seconds, 1.0)
    evidence = (
        f"{end}; the loop waited for {loop.wait_s * 1000:.0f} ms at most, worked for {loop.turn_s * 1000:.0f} ms in a "
        f"turn and {share:.0%} of the time; {grown >> 20} MiB and {left} descriptors more"
    )
    holds = loop.wait_s < _MOST_WAIT_S and loop.turn_s < _MOST_WORK_S and share < _MOST_SHARE
    return judged(holds and grown < _MOST_MEMORY and left <= _MOST_DESCRIPTORS, evidence)


async def _use(link: AgentLink) -> str:
    """Asks for one thing and gives it up, as a caller does; returns how the link ended."""
    try:
        channel = await link.open(WireRequest.PING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WATCHED_S):
                while True:
                    await channel.take()
        channel.close()
        await asyncio.sleep(_WATCHED_S / 2)
        link.check()
    except WarrenError as exc:
        return exc.message
    return "the link is idle"


@asynccontextmanager
async def _agent(attack: str) -> AsyncIterator[AgentLink]:
    with tempfile.TemporaryDirectory(prefix="warren-attack-") as directory:
        argv = (sys.executable, "-m", f"{__package__}.hostile_agent", directory, attack)
        process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.DEVNULL)
        try:
            link = await AgentLink.dial(Path(directory), timeout_s=_DIAL_S)
            try:
                yield link
            finally:
                await link.close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _interfaces(arena: Arena) -> ProbeResult:
    """A socket tells of the network namespace in which it was made, and an accepted one of the other end's."""
    sockets = arena.host.sockets()
    with contextlib.ExitStack() as stack, socket.socket(socket.AF_UNIX) as own:
        for one in sockets:
            stack.enter_context(one)
        ours = [one for one in sockets if _network(one) == _network(own)]
        shown = sorted({name for one in sockets for name in _interface_names(one)})
    evidence = f"{len(ours)} of the agent's {len(sockets)} sockets belong to the host's network; they list {shown}"
    return judged(bool(sockets) and not ours, evidence)


def _network(of: socket.socket) -> bytes:
    return of.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8)


def _interface_names(of: socket.socket) -> list[str]:
    room = ctypes.create_string_buffer(_IFREQ * 64)
    request = struct.pack("@iP", len(room), ctypes.addressof(room))
    used, _ = struct.unpack("@iP", fcntl.ioctl(of, _SIOCGIFCONF, request))
    return [room.raw[at : at + 16].split(b"\0")[0].decode() for at in range(0, used, _IFREQ)]


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _probe(id: str, tries: str, attack: str) -> Probe[Arena]:
    async def run(_: Arena) -> ProbeResult:
        return await _attacked_by(attack)

    return Probe(id, _G, tries, run)


PROBES: tuple[Probe[Arena], ...] = (
    _probe("agent-linger", "send sockets whose close lasts for seconds", "linger"),
    _probe("agent-urgent-files", "send them with urgent bytes, which readers skip", "urgent_files"),
    _probe("agent-memory-files", "send large files of memory for the worker to free", "memory_files"),
    _probe("agent-descriptors", "fill the worker's table of open files", "descriptors"),
    _probe("agent-empty-frames", "send frames of nothing, without end", "empty_frames"),
    _probe("agent-stray-frames", "send frames that nobody asked for, without end", "stray_frames"),
    _probe("agent-greetings", "greet without end", "greetings"),
    _probe("agent-unknown-frames", "send frames of an unknown type, without end", "unknown_frames"),
    _probe("agent-endless-frame", "send the longest frame, a byte at a time", "endless_frame"),
    _probe("agent-fields", "answer with fields without end", "fields_without_end"),
    _probe("agent-silence", "accept and say nothing", "silence"),
    Probe("agent-interfaces", _G, "list the host's interfaces by a socket of the agent (SIOCGIFCONF)", _interfaces),
    within("lingering-sockets", _G, "make a close wait (SO_LINGER)", "kernel_state:linger"),
)
