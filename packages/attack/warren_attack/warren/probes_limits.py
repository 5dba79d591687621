"""Using up every resource. The sandbox must hold its limits and be usable afterwards."""

import asyncio
import os
import resource
import time
from pathlib import Path

from warren.model.errors import NoSpace, WarrenError
from warren.model.operations import Command, Reason
from warren.model.spec import MIB
from warren_attack.probe import (
    Group,
    Probe,
    ProbeResult,
    ProbeVerdict,
    contained,
    got_through,
    judged,
    undecided,
)
from warren_attack.warren.arena import Arena

_G = Group.LIMITS
_FOLDERS = ["/workspace", "/tmp", "/home/sandboxuser", "/var/tmp"]
_RESERVE = 80  # processes that are the agent's own: PID 1, supervisors, file jobs


async def _fork_bomb(arena: Arena) -> ProbeResult:
    most, limit, before = 0, arena.spec.limits.pids, len(arena.host.processes())
    bomb = asyncio.ensure_future(arena.run("limits:fork_bomb", seconds=3, timeout_s=4))
    while not bomb.done():
        most = max(most, len(arena.host.processes()))
        await asyncio.sleep(0.2)
    result = await bomb
    left = len(arena.host.processes()) - before
    evidence = f"at most {most} processes (limit {limit}), {result.killed} killed, {left} left, {result.reason}"
    held = result.reason is Reason.TIMEOUT and most <= limit + _RESERVE and result.survivors == 0 and left <= 0
    return judged(held, evidence)


async def _agent_during_bomb(arena: Arena) -> ProbeResult:
    """The agent answers, and files can be read and written, while the bomb goes on."""
    bomb = asyncio.ensure_future(arena.run("limits:fork_bomb", seconds=6, timeout_s=6))
    await asyncio.sleep(2)
    started = time.monotonic()
    try:
        async with asyncio.timeout(5):
            await arena.sandbox.ping()
            ping_s = time.monotonic() - started
            await arena.sandbox.list("/workspace")
        evidence, held = f"ping took {ping_s * 1000:.0f} ms, a file list came", True
    except (TimeoutError, WarrenError) as exc:
        evidence, held = f"no answer within 5 s: {exc!r}", False
    await bomb
    return judged(held, evidence)


async def _threads(arena: Arena) -> ProbeResult:
    return await arena.inside("limits:threads", most=arena.spec.limits.pids)


async def _memory(arena: Arena) -> ProbeResult:
    result = await arena.run("limits:eat_memory", mib=arena.spec.limits.memory_mb * 2, timeout_s=40)
    first = contained if result.reason is Reason.OOM else got_through
    return first(f"the hog ended by {result.reason}, exit code {result.exit_code}")


async def _memory_many(arena: Arena) -> ProbeResult:
    """With many hogs at once the kernel must kill one of them, not the agent."""
    mib = arena.spec.limits.memory_mb
    results = await asyncio.gather(*(arena.run("limits:eat_memory", mib=mib, timeout_s=40) for _ in range(6)))
    reasons = sorted(str(result.reason) for result in results)
    return judged(arena.host.alive() and "oom" in reasons, f"six hogs ended by {', '.join(reasons)}; the agent lives")


def _kernel_memory(kind: str) -> Probe[Arena]:
    async def eat(arena: Arena) -> ProbeResult:
        mib = arena.spec.limits.memory_mb
        result = await arena.run("limits:eat_kernel_memory", kind=kind, mib=mib + 64, timeout_s=45)
        why = await arena.usable(memory_mib=48)
        await arena.run("limits:remove_ipc", timeout_s=20)
        if why:
            return got_through(f"afterwards no program gets memory any more: {why}")
        return contained(f"ended by {result.reason}, exit code {result.exit_code}; memory can be had afterwards")

    words = {
        "shm": "SysV shared memory",
        "msg": "SysV messages",
        "sem": "SysV semaphores",
        "sockets": "sockets' buffers",
    }
    return Probe(f"memory-{kind}", _G, f"fill the memory with {words[kind]}, which are no process's own", eat)


def _tmpfs(path: str) -> Probe[Arena]:
    async def fill(arena: Arena) -> ProbeResult:
        return await arena.inside("limits:fill_tmpfs", path=path, mib=arena.spec.limits.memory_mb // 2)

    return Probe(f"fill{path.replace('/', '-')}", _G, f"fill {path}", fill)


async def _disk(arena: Arena) -> ProbeResult:
    limit = arena.spec.limits.disk_mb
    free = _free_mib(arena)
    outcome = await arena.inside("limits:fill_disk", folders=_FOLDERS, mib=limit, timeout_s=80)
    used = free - _free_mib(arena)
    try:
        await arena.sandbox.write("/workspace/one-more", bytes(4 * MIB))
        full = "a further 4 MiB could be written"
    except NoSpace:
        full = ""
    await arena.inside("limits:tidy", folders=_FOLDERS)
    await arena.sandbox.write("/workspace/after", b"works again")
    if outcome.verdict is not ProbeVerdict.CONTAINED:
        return outcome
    if full or used > limit * 1.2 + 64:
        return got_through(f"{full}; the host's disk lost {used} MiB, the limit is {limit}")
    return contained(f"{outcome.evidence}; the file API says no space; usable after tidying up")


def _free_mib(arena: Arena) -> int:
    place = next((path for path in arena.secret_paths if path.is_dir()), Path("/"))
    stat = os.statvfs(place)
    return stat.f_bavail * stat.f_frsize // MIB


async def _inodes(arena: Arena) -> ProbeResult:
    most = arena.spec.limits.disk_mb * 64 * 2
    outcome = await arena.inside("limits:fill_inodes", folder="/workspace", most=most, timeout_s=80)
    await arena.inside("limits:tidy", folders=_FOLDERS, timeout_s=60)
    await arena.sandbox.write("/workspace/after", b"works again")
    return outcome


async def _shm_inodes(arena: Arena) -> ProbeResult:
    outcome = await arena.inside("limits:fill_inodes", folder="/dev/shm", most=100_000, timeout_s=60)
    await arena.inside("limits:tidy", folders=["/dev/shm"])
    return outcome


async def _cpu(arena: Arena) -> ProbeResult:
    before, started = arena.host.cpu_s(), time.monotonic()
    if before is None:
        return undecided("the kernel's account of processor time cannot be read")
    await arena.run("limits:burn", seconds=3, count=8, timeout_s=30)
    used, took = (arena.host.cpu_s() or 0) - before, time.monotonic() - started
    limit = arena.spec.limits.cpus
    evidence = f"8 processes used {used / took:.2f} cores for {took:.1f} s, the limit is {limit}"
    if limit >= (os.cpu_count() or 1):
        return undecided(f"{evidence}; that is all this machine has")
    return judged(used / took <= limit * 1.15 + 0.05, evidence)


async def _open_files(arena: Arena) -> ProbeResult:
    return await arena.inside("limits:open_files", most=arena.spec.limits.open_files)


async def _output(arena: Arena) -> ProbeResult:
    before, keep = _resident_mib(), MIB
    command = Command(
        shell="head -c 300000000 /dev/zero | tr '\\0' x", keep_bytes=keep, timeout_s=60, carry_state=False
    )
    result = await arena.sandbox.exec(command)
    grown = _resident_mib() - before
    evidence = f"{result.bytes_total} bytes came, {len(result.stdout)} were kept, this process grew by {grown} MiB"
    whole = result.bytes_total == 300_000_000 and result.truncated
    return judged(whole and len(result.stdout) <= keep + 4096 and grown < 64, evidence)


def _resident_mib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // MIB


async def _big_file(arena: Arena) -> ProbeResult:
    return await arena.inside("limits:big_file", mib=arena.spec.limits.disk_mb)


async def _own_tmpfs(arena: Arena) -> ProbeResult:
    """/dev itself is a tmpfs: it must be small, or read-only."""
    return await arena.inside("limits:fill_inodes", folder="/dev", most=200)


PROBES: tuple[Probe[Arena], ...] = (
    Probe("fork-bomb", _G, "a fork bomb whose parts ignore SIGTERM", _fork_bomb),
    Probe("agent-during-bomb", _G, "starve the agent by a fork bomb", _agent_during_bomb),
    Probe("threads", _G, "more threads than processes are allowed", _threads),
    Probe("memory-hog", _G, "twice the memory there is", _memory),
    Probe("memory-hogs", _G, "six hogs at once", _memory_many),
    *(_kernel_memory(kind) for kind in ("shm", "msg", "sem", "sockets")),
    _tmpfs("/dev/shm"),
    Probe("shm-inodes", _G, "100,000 files in /dev/shm", _shm_inodes),
    Probe("dev-inodes", _G, "files in /dev", _own_tmpfs),
    Probe("disk-fill", _G, "fill the disk, over all writable places", _disk),
    Probe("inode-fill", _G, "use up the disk's inodes", _inodes),
    Probe("big-file", _G, "a sparse file of 1 TiB", _big_file),
    Probe("cpu-hog", _G, "eight busy processes (measured by the cgroup's account)", _cpu),
    Probe("open-files", _G, "more open files than allowed", _open_files),
    Probe("huge-output", _G, "300 MB of output", _output),
)
