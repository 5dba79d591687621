"""What the kernel has once for all sandboxes: using it up for the others, and seeing the others in it."""

import asyncio
import fcntl
import math
import os
import pty
import time
from collections.abc import Callable

from warren.interfaces.sandbox import Process
from warren.model.operations import Command, ExecResult
from warren.sandboxes.host import file_locks, kernel_queues
from warren_attack.probe import Group, Probe, ProbeResult, ProbeVerdict, got_through, judged
from warren_attack.warren.arena import Arena, attack_command, outcome_of

_HELD_S = 15.0
_WORKED_S = 2.0
_FEW_TERMINALS = 8
_LOCK_BYTES = 256
_MAX_LOCK_MIB = 48
_MAX_NETLINK_MIB = 512
_MAX_TCP_MIB = 512
_ANY_UPTIME_S = 1e12
_SLACK_S = 60.0  # a busy machine takes its time to start an attack


async def _terminals(arena: Arena) -> ProbeResult:
    """The neighbour and the host still get terminals, and the file API and commands of the attacked one go on."""
    async with arena.holding(arena.sandbox, "kernel_state:take_terminals", seconds=_HELD_S) as line:
        beside = await arena.inside("kernel_state:open_terminals", box=arena.neighbour, count=_FEW_TERMINALS)
        try:
            for fd in pty.openpty():
                os.close(fd)
        except OSError as exc:
            return got_through(f"the host has no terminal left ({exc.strerror}): {line}")
        alive = await arena.sandbox.exec(Command(argv=("true",), timeout_s=10))
    taken = int(line.split()[1])
    if beside.verdict is not ProbeVerdict.CONTAINED:
        return got_through(f"{taken} terminals were taken; in the neighbour {beside.evidence}")
    return judged(taken <= 256 and alive.exit_code == 0, f"{taken} terminals were taken; {beside.evidence} and beside")


async def _locks(arena: Arena) -> ProbeResult:
    """The kernel's memory for locks is looked at from outside, while a process takes them."""
    result, most = await _run_and_measure(arena, "take_locks", _allocated_locks, count=1_000_000, seconds=12)
    mib = most * _LOCK_BYTES >> 20
    ended = result.exit_code == 137
    return judged(ended and mib < _MAX_LOCK_MIB, f"ended by {result.reason}, after some {most} locks ({mib} MiB)")


async def _run_and_measure(
    arena: Arena, attack: str, measure: Callable[[], int], **arguments: int
) -> tuple[ExecResult, int]:
    """Runs an attack on the kernel's memory. Returns its result, and by how much at most the measure rose meanwhile."""
    before, most = measure(), 0
    command = attack_command(f"kernel_state:{attack}", arguments, 30)
    running = asyncio.ensure_future(arena.sandbox.exec(command))
    while not running.done():
        most = max(most, measure() - before)
        await asyncio.sleep(0.02)
    return running.result(), most


def _allocated_locks() -> int:
    """0 where the kernel does not tell: then only the end of the process shows that there is a bound."""
    return file_locks.allocated() or 0


async def _netlink(arena: Arena) -> ProbeResult:
    """The kernel's memory that cannot be reclaimed is looked at from outside, while the queues are filled."""
    result, most = await _run_and_measure(
        *(arena, "fill_netlink", kernel_queues.unreclaimable), sockets=900, processes=4, seconds=3
    )
    return _ended_within(result, most >> 20, _MAX_NETLINK_MIB)


async def _tcp(arena: Arena) -> ProbeResult:
    """What TCP has for the whole machine is looked at from outside, while connections pile up that nobody accepts."""
    result, most = await _run_and_measure(
        *(arena, "fill_backlog", kernel_queues.tcp_memory), connections=3000, processes=4, seconds=3
    )
    return _ended_within(result, most >> 20, max(_MAX_TCP_MIB, arena.spec.limits.memory_mb))


def _ended_within(result: ExecResult, mib: int, bound: int) -> ProbeResult:
    return judged(result.exit_code == 137 and mib < bound, f"ended by {result.reason}, after {mib} MiB")


async def _mask_locks(arena: Arena) -> ProbeResult:
    async with arena.holding(arena.neighbour, "kernel_state:hold_masks", seconds=_HELD_S):
        beside = await arena.inside("kernel_state:see_masks")
    if beside.verdict is not ProbeVerdict.CONTAINED:
        return beside
    fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return await arena.inside("kernel_state:see_masks")
    except BlockingIOError:
        return got_through("the host's /dev/null is locked by somebody")
    finally:
        os.close(fd)


async def _mask_watch(arena: Arena) -> ProbeResult:
    process = await _started(arena, "kernel_state:watch_masks")
    await arena.inside("kernel_state:see_masks", box=arena.neighbour)
    for _ in range(10):
        os.close(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC))
    return outcome_of(await process.wait())


async def _kernel_files(arena: Arena) -> ProbeResult:
    process = await _started(arena, "kernel_state:watch_kernel")
    await arena.inside("kernel_state:work", box=arena.neighbour, seconds=_WORKED_S)
    return outcome_of(await process.wait())


async def _own_figures(arena: Arena) -> ProbeResult:
    """What is shown must be this sandbox's: its memory and processors, no load, and an uptime from its own start.

    An engine gives its containers no clock of their own: their uptime is the machine's.
    """
    limits = arena.spec.limits
    return await arena.inside(
        "kernel_state:own_figures",
        memory_kb=limits.memory_mb * 1024,
        cpus=math.ceil(limits.cpus),
        most_uptime_s=time.monotonic() - arena.opened_at + _SLACK_S if arena.provider.name == "oci" else _ANY_UPTIME_S,
    )


async def _started(arena: Arena, attack: str) -> Process:
    """A process in the attacked sandbox that looks at something for a while, and is ready to see it."""
    process = await arena.sandbox.start(attack_command(attack, {"seconds": _WORKED_S + 2}, 40))
    text = ""
    async for chunk in process.output():
        text += chunk.data.decode(errors="replace")
        if "ready" in text:
            break
    return process


PROBES: tuple[Probe[Arena], ...] = (
    Probe("terminals", Group.LIMITS, "take all terminals of the machine", _terminals),
    Probe("file-locks", Group.LIMITS, "fill the kernel's memory with record locks, which nobody is charged", _locks),
    Probe("netlink-queues", Group.LIMITS, "fill the kernel's memory with unread netlink messages", _netlink),
    Probe("tcp-backlog", Group.LIMITS, "fill the memory with TCP connections that no process has", _tcp),
    Probe("mask-locks", Group.LEAKS, "feel others' locks on masked files", _mask_locks),
    Probe("mask-watch", Group.LEAKS, "watch by inotify how others use masked files", _mask_watch),
    Probe("own-figures", Group.LEAKS, "read the machine's memory, processors, load and uptime", _own_figures),
    Probe("kernel-files", Group.LEAKS, "see in /proc and /sys that the neighbour works", _kernel_files),
)
