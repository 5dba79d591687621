"""State that lasts: what a sandbox can make of a volume that it is given, and of being frozen and saved."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from warren.interfaces.sandbox import Sandbox
from warren.model.capability import Capability
from warren.model.errors import WarrenError
from warren.model.operations import Command
from warren.model.spec import SandboxSpec
from warren.model.volume import VolumeMount, new_volume_id
from warren_attack.probe import Group, Probe, ProbeResult, contained, got_through, judged, not_applicable
from warren_attack.warren.arena import Arena

_AT = "/workspace/attacked-volume"
_SIZE_MB = 16
_SWAPS = 25
_STORM = """cd /tmp; for kind in 'kill -STOP $$' 'while :; do sh -c :; done' 'while :; do :; done'; do
  (setsid sh -c "$kind; sleep 600" &); done
python3 -c 'import ctypes, os, time
if os.fork(): os.waitpid(-1, 2); time.sleep(600)
ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), 19); time.sleep(600)' & echo begun; wait"""


def _lacks(arena: Arena, *needed: Capability) -> ProbeResult | None:
    missing = [name for name in needed if name not in arena.provider.capabilities]
    return not_applicable(f"the provider {arena.provider.name} lacks {', '.join(missing)}") if missing else None


@asynccontextmanager
async def _volume(arena: Arena) -> AsyncIterator[str]:
    volume = new_volume_id()
    await arena.provider.volume_images.make(volume, _SIZE_MB)
    try:
        yield volume
    finally:
        for box in (arena.sandbox, arena.neighbour):
            with contextlib.suppress(WarrenError):
                await arena.provider.detach(box.id, volume)
        await arena.provider.volume_images.delete(volume)


async def _attach(arena: Arena, box: Sandbox, volume: str, *, read_only: bool = False) -> None:
    await box.exec(Command(argv=("mkdir", "-p", _AT), timeout_s=10))
    await arena.provider.attach(box.id, VolumeMount(volume, "attacked", _AT, read_only))


async def _beyond_files(arena: Arena) -> ProbeResult:
    if (lacking := _lacks(arena, Capability.VOLUMES)) is not None:
        return lacking
    async with _volume(arena) as volume:
        await _attach(arena, arena.sandbox, volume)
        return await arena.inside("volumes:beyond_files", at=_AT)


async def _read_only(arena: Arena) -> ProbeResult:
    """The neighbour has the same volume, and may write to it."""
    if (lacking := _lacks(arena, Capability.VOLUMES)) is not None:
        return lacking
    async with _volume(arena) as volume:
        await _attach(arena, arena.neighbour, volume)
        await arena.neighbour.exec(Command(shell=f"echo mine > {_AT}/file; chmod 666 {_AT}/file", timeout_s=10))
        await _attach(arena, arena.sandbox, volume, read_only=True)
        outcome = await arena.inside("volumes:write_all_ways", at=_AT)
        kept = await arena.neighbour.exec(Command(shell=f"cat {_AT}/file; ls -A {_AT}", timeout_s=10))
        same = kept.stdout.split() == ["mine", "file"]
        return outcome if same else got_through(f"the neighbour finds {kept.stdout.split()!r}; {outcome.evidence}")


async def _swapped_target(arena: Arena) -> ProbeResult:
    """While the host mounts, the sandbox replaces the directory by links to where nothing may be mounted."""
    if (lacking := _lacks(arena, Capability.VOLUMES)) is not None:
        return lacking
    loop = f"while :; do for to in /proc /dev /etc /.warren; do ln -sfn $to {_AT}.l; mv -T {_AT}.l {_AT} 2>/dev/null;"
    loop += f" rm -f {_AT}; mkdir -p {_AT}; rmdir {_AT}; done; done"
    before, tried, mounted, strays = _host_mounts(), 0, 0, set[str]()
    async with _volume(arena) as volume:
        swapping = await arena.sandbox.start(Command(shell=loop, carry_state=False))
        try:
            for _ in range(_SWAPS):
                tried += 1
                with contextlib.suppress(WarrenError):
                    await arena.provider.attach(arena.sandbox.id, VolumeMount(volume, "attacked", _AT))
                    mounted += 1
                strays |= {place for place in _places(arena, volume) if not place.startswith("/workspace/")}
                await arena.provider.detach(arena.sandbox.id, volume)
        finally:
            await swapping.kill(0)
            await arena.sandbox.exec(Command(shell=f"rm -rf {_AT} {_AT}.l", timeout_s=10))  # it may have left a link
    strays |= _host_mounts() - before
    evidence = (
        f"{mounted} of {tried} mounts while the target was swapped, elsewhere: {', '.join(sorted(strays)) or 'none'}"
    )
    return judged(not strays, evidence)


def _places(arena: Arena, volume: str) -> set[str]:
    """Where loop devices are mounted in the sandbox that are not its own disk's, which is there before."""
    lines = [line.split(" ") for line in Path(f"/proc/{arena.host.first_pid}/mountinfo").read_text().splitlines()]
    found = set()
    for words in lines:
        backing = Path(f"/sys/dev/block/{words[2]}/loop/backing_file")
        with contextlib.suppress(OSError):
            if volume in backing.read_text():
                found.add(words[4])
    return found


def _host_mounts() -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line.split(" ")[4] for line in lines if line.split(" ")[2].startswith("7:")}


async def _full_volume(arena: Arena) -> ProbeResult:
    if (lacking := _lacks(arena, Capability.VOLUMES)) is not None:
        return lacking
    fill = f"cd {_AT}; cat /dev/urandom > all; i=0; while [ $i -lt 3000 ] && : > n$i; do i=$((i+1)); done; sync"
    async with _volume(arena) as volume:
        await _attach(arena, arena.sandbox, volume)
        await arena.sandbox.exec(Command(shell=fill, timeout_s=60))
        image = await arena.provider.volume_images.find(volume)
        own = await arena.sandbox.exec(Command(shell="echo own > /workspace/own && cat /workspace/own", timeout_s=10))
        other = await arena.neighbour.exec(
            Command(shell="echo own > /workspace/own && cat /workspace/own", timeout_s=10)
        )
        used = 0 if image is None else image.used >> 20
        evidence = f"{used} MiB of the host are used by a full volume of {_SIZE_MB}; own disk: {own.stdout.strip()!r}"
        return judged(_SIZE_MB // 2 < used <= _SIZE_MB and own.stdout == other.stdout == "own\n", evidence)


async def _frozen(arena: Arena) -> ProbeResult:
    """Processes that are stopped, traced, or fork all the time: none may run on, and none may hinder its end."""
    if (lacking := _lacks(arena, Capability.PAUSE)) is not None:
        return lacking
    storm = await arena.sandbox.start(Command(shell=_STORM, carry_state=False))
    await asyncio.sleep(1)
    try:
        await arena.provider.freeze(arena.sandbox.id)
        before, pids = arena.host.cpu_s(), set(arena.host.processes())
        await asyncio.sleep(1)
        after, now = arena.host.cpu_s(), set(arena.host.processes())
        await arena.provider.thaw(arena.sandbox.id)
        await storm.kill(0)
        await arena.sandbox.kill_all()
        result = await arena.sandbox.exec(Command(argv=("echo", "alive"), timeout_s=20))
    except WarrenError as exc:
        return got_through(f"{type(exc).__name__}: {exc}")
    ran_s = 0.0 if before is None or after is None else after - before
    evidence = (
        f"{len(pids)} processes used {ran_s:.3f} s of processor in a second; then it said {result.stdout.strip()!r}"
    )
    return judged(ran_s < 0.01 and now == pids and result.stdout == "alive\n", evidence)


async def _saved(arena: Arena) -> ProbeResult:
    """A disk whose directories are links, and a file that only its own sandbox may know, in another sandbox."""
    if (lacking := _lacks(arena, Capability.SNAPSHOTS)) is not None:
        return lacking
    name = f"attack-{arena.canary}"
    spoil = "cd /workspace; mkfifo pipe; ln -s / root; ln -s /proc/1/root host; ln /tmp/x hard; rm -rf ~/* ~/.[a-z]*; "
    await arena.sandbox.exec(Command(shell=f"{spoil} cp /bin/sh suid; chmod 6755 suid; chmod 0 /tmp", timeout_s=20))
    try:
        await arena.provider.save_disk(arena.sandbox.id, name)
        try:
            begun = await arena.provider.create(_begins_with(arena, name))
        finally:
            await arena.provider.saved_disks.delete(name)
        try:
            look = "./suid -p -c 'id -u'; ls host/etc/shadow root/proc/1/root 2>&1 | head -1; echo alive"
            result = await begun.exec(Command(shell=look, timeout_s=20, cwd="/workspace"))
        finally:
            await arena.provider.destroy(begun.id)
    except WarrenError as exc:
        return got_through(f"no sandbox began with it: {type(exc).__name__}: {exc}")
    finally:
        await arena.sandbox.exec(Command(shell="chmod 1777 /tmp", timeout_s=10))
    lines = result.stdout.split("\n")
    if "alive" not in lines or lines[0] == "0":
        return got_through(f"in the next sandbox: {result.stdout[:200]!r}")
    return contained(f"a sandbox began with it as with any other: {' '.join(lines)[:150]}")


def _begins_with(arena: Arena, name: str) -> SandboxSpec:
    return replace(arena.other_spec, disk=name)


PROBES: tuple[Probe[Arena], ...] = (
    Probe(
        "volume-device",
        Group.ESCAPE,
        "reach a volume's block device, its file system as a whole, its mount",
        _beyond_files,
    ),
    Probe("volume-read-only", Group.ESCAPE, "change a volume that is mounted read-only", _read_only),
    Probe(
        "volume-target",
        Group.ESCAPE,
        "lead the mount of a volume elsewhere, by swapping its directory",
        _swapped_target,
    ),
    Probe("volume-full", Group.LIMITS, "take more of the host than a volume's size", _full_volume),
    Probe("frozen", Group.LIFECYCLE, "run on while the sandbox is frozen, or not come back", _frozen),
    Probe("saved-disk", Group.LIFECYCLE, "spoil the sandbox that begins with a saved disk", _saved),
)
