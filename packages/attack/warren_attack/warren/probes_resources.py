"""Taking more of the machine than its share: buffers, files, disk. The host and the neighbour are measured."""

import asyncio
import contextlib
import os
import re
from pathlib import Path

from warren.model.errors import WarrenError
from warren.model.operations import Command
from warren.model.spec import MIB
from warren.sandboxes.host.cgroups import parse_limit
from warren.sandboxes.host.machine_size import most_processes
from warren_attack.probe import Group, Probe, ProbeResult, contained, got_through, judged, undecided
from warren_attack.warren.arena import Arena

_G = Group.LIMITS
_FILES_SHARE = 0.2
_FAIR_SHARE = 0.4  # of what the neighbour has alone, beside one hog: half, and a fifth less
_TRIES = 3


def _buffers(kind: str) -> Probe[Arena]:
    async def hoard(arena: Arena) -> ProbeResult:
        """Whoever asks for memory while the buffers fill it pays for them, so other commands do."""
        before, most = _buffer_bytes(kind), 0
        hoarding = asyncio.ensure_future(arena.run("resources:hoard_buffers", kind=kind, timeout_s=40))
        while not hoarding.done():
            most = max(most, _buffer_bytes(kind) - before)
            with contextlib.suppress(WarrenError):
                await arena.sandbox.exec(Command(argv=("true",), timeout_s=10))
            await asyncio.sleep(0.02)
        result, limit = await hoarding, arena.spec.limits.memory_mb
        evidence = f"the machine's {kind} buffers grew by {most // MIB} MiB, the memory limit is {limit} MiB"
        if not result.stdout.strip() and not most:
            return undecided(f"it did not run: {result.reason}")
        if not arena.host.alive():
            return got_through(f"{evidence}; the sandbox has lost its agent")
        return judged(most <= limit * MIB, evidence)

    return Probe(f"buffers-{kind.lower()}", _G, f"hold data in the buffers of {kind} sockets", hoard)


def _buffer_bytes(kind: str) -> int:
    """What the sandboxes' sockets of this kind hold, with those of the rest of the machine."""
    found = re.search(rf"^{kind}: .*\bmem (\d+)", Path("/proc/net/sockstat").read_text(), re.MULTILINE)
    return int(found[1]) * os.sysconf("SC_PAGE_SIZE") if found else 0


async def _file_handles(arena: Arena) -> ProbeResult:
    """Every process opens all the files it may."""
    opened, _, most = (int(word) for word in Path("/proc/sys/fs/file-nr").read_text().split())
    limits, highest = arena.spec.limits, opened
    holding = asyncio.ensure_future(
        arena.run("resources:hold_files", processes=limits.pids, files=limits.open_files, timeout_s=60)
    )
    while not holding.done():
        await asyncio.sleep(0.2)
        highest = max(highest, int(Path("/proc/sys/fs/file-nr").read_text().split()[0]))
    await holding
    evidence = f"{highest - opened} files more were open, of {most} that the machine can have"
    return judged(highest - opened <= most * _FILES_SHARE, evidence)


async def _allocate(arena: Arena) -> ProbeResult:
    """Space that is allocated counts like space that is written."""
    return await arena.inside("resources:allocate", mib=arena.spec.limits.disk_mb, timeout_s=60)


async def _disk_neighbour(arena: Arena) -> ProbeResult:
    """Measured some times, because others use the machine too: an attack that works, works each time."""
    evidence = ""
    for _ in range(_TRIES):
        alone, during = await _write_speed(arena), await _write_speed_beside_hog(arena)
        evidence = f"the neighbour writes {during:.0f} MB/s beside a hog, {alone:.0f} MB/s alone"
        if during >= _FAIR_SHARE * alone:
            return contained(evidence)
    return got_through(evidence)


async def _write_speed_beside_hog(arena: Arena) -> float:
    hog = await arena.sandbox.start(Command(shell=_HOG, carry_state=False))
    try:
        await asyncio.sleep(1)
        return await _write_speed(arena)
    finally:
        await hog.kill(0)
        await hog.wait()
        await arena.sandbox.exec(Command(shell="rm -f /workspace/hog", carry_state=False))


_HOG = "while :; do dd if=/dev/zero of=/workspace/hog bs=1M count=200 conv=fsync; done 2>/dev/null"
_WRITE = "dd if=/dev/zero of=/workspace/speed bs=1M count=24 conv=fsync 2>&1; rm -f /workspace/speed"


async def _write_speed(arena: Arena) -> float:
    """The best of some tries, in MB/s: the machine has other work too."""
    speeds = []
    for _ in range(_TRIES):
        result = await arena.neighbour.exec(Command(shell=_WRITE, timeout_s=30, carry_state=False))
        if found := re.search(r"copied, ([\d.e-]+) s", result.stdout):
            speeds.append(24 * MIB / 1e6 / max(float(found[1]), 1e-6))
    return max(speeds, default=0.0)


async def _totals(arena: Arena) -> ProbeResult:
    """The cgroup above must be limited: many sandboxes at their limits are more than the machine."""
    memory, pids = _limit_above(arena, "memory", "memory.max"), _limit_above(arena, "pids", "pids.max")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if memory is None or memory >= total:
        return got_through(f"all sandboxes together may have {memory} bytes of memory, the machine has {total}")
    if pids is None or pids >= most_processes():
        return got_through(f"all sandboxes together may have {pids} processes, the machine {most_processes()}")
    return contained(f"all sandboxes together: {memory // MIB} of {total // MIB} MiB, {pids} processes")


def _limit_above(arena: Arena, controller: str, name: str) -> int | None:
    directory = arena.host.cgroups.get(controller)
    if directory is None:
        directory = arena.host.cgroups.get("", Path("/nowhere"))
    elif controller == "memory":
        name = "memory.limit_in_bytes"
    try:
        return parse_limit((directory.parent / name).read_text())
    except OSError:
        return None


PROBES: tuple[Probe[Arena], ...] = (
    _buffers("TCP"),
    _buffers("UDP"),
    Probe("all-open-files", _G, "open all files of all processes, to use up the machine's", _file_handles),
    Probe("disk-allocate", _G, "allocate more disk space than the limit, without writing", _allocate),
    Probe("disk-neighbour", Group.FAIRNESS, "write so much that the neighbour's disk gets slow", _disk_neighbour),
    Probe("totals", _G, "take the whole machine with many sandboxes that keep their limits", _totals),
)
