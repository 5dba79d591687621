"""What a sandbox can learn about the host and other sandboxes, and channels by which it can talk to them."""

import ctypes
import fcntl
import os
import re
import tempfile
from pathlib import Path

from warren.model.errors import UnknownUser
from warren.model.operations import Command
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
from warren_attack.warren.arena import Arena, attack_command, outcome_of

_G = Group.LEAKS
_HELD_S = 30
_KNOWN_OF_DOCKER = " (known: names that an engine cannot hide, docs/security.md#what-differs-with-docker)"


async def _host_texts(arena: Arena) -> ProbeResult:
    needles = [str(path) for path in arena.secret_paths]
    return await arena.inside("leaks:host_texts", needles=needles, host_name=arena.host_name)


async def _mount_paths(arena: Arena) -> ProbeResult:
    """mountinfo shows where a mount comes from; a path of two or more parts that exists on the host is the host's."""
    outcome = await arena.inside("leaks:mount_table")
    if outcome.verdict is not ProbeVerdict.CONTAINED or " - " not in outcome.evidence:
        return undecided(f"no mount table: {outcome.evidence[:200]}")
    found = []
    for line in outcome.evidence.splitlines():
        before, _, after = line.partition(" - ")
        root, options = before.split(" ")[3], after.split(" ")[-1]
        if root.count("/") > 1 and Path(root).exists():
            found.append(root)
        found += [word for word in options.split(",") if "dir=/" in word]
    known = _KNOWN_OF_DOCKER if found and arena.provider.name == "docker" else ""
    shown = ", ".join(sorted(set(found))[:4]) or "none"
    return judged(not found, f"paths of the host in the mount table: {shown}{known}")


async def _host_files(arena: Arena) -> ProbeResult:
    with tempfile.TemporaryDirectory(prefix="warren-attack-") as folder:
        secret = Path(folder) / arena.canary
        secret.write_text(arena.canary)
        os.chmod(folder, 0o755)
        shared = Path("/dev/shm") / f"warren-{arena.canary}"
        shared.write_text(arena.canary)
        try:
            paths = [str(secret), str(shared), *(str(path) for path in arena.secret_paths)]
            return await arena.inside("leaks:host_files", paths=paths)
        finally:
            shared.unlink()


async def _host_secrets(arena: Arena) -> ProbeResult:
    """Looks for a word that was in this process's environment before the sandbox was made."""
    return await arena.inside("leaks:find_token", token=arena.canary, timeout_s=60)


async def _neighbour_processes(arena: Arena) -> ProbeResult:
    token = f"{arena.canary}neighbour"
    await arena.neighbour.write(f"/workspace/{token}", token.encode())
    await arena.neighbour.write(f"/tmp/{token}", token.encode())
    process = await arena.neighbour.start(Command(argv=("python3", "-c", "import time; time.sleep(60)", token)))
    try:
        return await arena.inside("leaks:find_token", token=token[8:], timeout_s=60)
    finally:
        await process.kill(0)


async def _open_devices(arena: Arena) -> ProbeResult:
    evidence = " ".join(arena.sandbox.isolation.gpus.values())
    return await arena.inside("leaks:devices", granted=re.findall(r"/dev/([^\s/]+)[^\s]* \d+:\d+", evidence))


async def _touch_devices(arena: Arena) -> ProbeResult:
    names = ("null", "zero", "full", "random", "urandom", "tty")
    before = {name: _mark(f"/dev/{name}") for name in names}
    inside = await arena.inside("leaks:touch_devices")
    changed = [name for name in names if _mark(f"/dev/{name}") != before[name]]
    return judged(not changed, f"changed on the host: {', '.join(changed) or 'none'} ({inside.evidence})")


def _mark(path: str) -> tuple[int, int, int, int]:
    stat = os.stat(path)
    return stat.st_mtime_ns, stat.st_mode, stat.st_uid, stat.st_gid


async def _locks(arena: Arena) -> ProbeResult:
    async with arena.holding(arena.neighbour, "neighbour:hold_locks", seconds=_HELD_S):
        return await arena.inside("neighbour:see_locks")


async def _host_locks(arena: Arena) -> ProbeResult:
    held = []
    try:
        for path in ("/dev/null", "/dev/zero", "/dev/urandom"):
            held.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        return await arena.inside("neighbour:see_locks")
    finally:
        for fd in held:
            os.close(fd)


async def _watch(arena: Arena) -> ProbeResult:
    process = await arena.sandbox.start(_watcher())
    text = ""
    async for chunk in process.output():
        text += chunk.data.decode()
        if "ready" in text:
            break
    await arena.inside("neighbour:use_files", box=arena.neighbour)
    return outcome_of(await process.wait())


def _watcher() -> Command:
    return attack_command("neighbour:watch_files", {"seconds": 3}, 20)


async def _ipc(arena: Arena) -> ProbeResult:
    token = f"{arena.canary}shm"
    async with arena.holding(arena.neighbour, "neighbour:hold_ipc", seconds=_HELD_S, token=token):
        return await arena.inside("neighbour:see_ipc", token=token)


async def _inotify(arena: Arena) -> ProbeResult:
    """A sandbox that uses up the kernel's per-user limits must not use up those of the neighbour or the host."""
    async with arena.holding(arena.sandbox, "neighbour:use_up_inotify", seconds=_HELD_S) as line:
        beside = await arena.inside("neighbour:one_inotify", box=arena.neighbour)
        fd = ctypes.CDLL(None, use_errno=True).inotify_init1(os.O_CLOEXEC)
        if fd < 0:
            return got_through("the host's root has no inotify instance left")
        os.close(fd)
    if beside.verdict is not ProbeVerdict.CONTAINED:
        return beside
    return contained(f"{line.split()[-1]} instances were taken; neighbour and host still have theirs")


async def _environment(arena: Arena) -> ProbeResult:
    """A secret given to one command must reach neither another user's command beside it nor a command after it."""
    token = f"{arena.canary}env"
    await arena.sandbox.exec(Command(shell="true", env={"SECRET": token}, timeout_s=10))
    look = "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'"
    after = await arena.sandbox.exec(Command(shell=look, timeout_s=10))
    if token in after.stdout:
        return got_through("the secret of a command is in the environment of the next one")
    holder = Command(shell="sleep 30", env={"SECRET": token}, user="1001", carry_state=False, cwd="/tmp")
    try:
        process = await arena.sandbox.start(holder)
    except UnknownUser:
        return contained("not in the command after it (this sandbox has no second user to try beside it)")
    try:
        return await arena.inside("leaks:find_token", token=token[8:], timeout_s=60)
    finally:
        await process.kill(0)


PROBES: tuple[Probe[Arena], ...] = (
    Probe("devices", _G, "open devices beyond the harmless ones, and beyond its own GPU", _open_devices),
    Probe("host-texts", _G, "find the host's paths and name in mounts, cmdline, environ, uname", _host_texts),
    Probe("mount-paths", _G, "learn where on the host the mounts come from", _mount_paths),
    Probe("host-files", _G, "reach a file of the host by /proc/1/root, .. and the like", _host_files),
    Probe("host-secret", _G, "find a secret of the host process's environment", _host_secrets),
    Probe("neighbour-processes", _G, "find the neighbour's processes and files", _neighbour_processes),
    Probe("neighbour-ipc", _G, "find the neighbour's SysV objects and shared memory", _ipc),
    Probe("neighbour-locks", _G, "feel the neighbour's file locks (a channel between sandboxes)", _locks),
    Probe("host-locks", _G, "feel the host's file locks", _host_locks),
    Probe("neighbour-watch", _G, "watch by inotify what the neighbour opens", _watch),
    Probe("host-devices", _G, "change times or modes of the host's devices (seen from the host)", _touch_devices),
    Probe("inotify-limit", _G, "use up inotify instances for the neighbour and the host", _inotify),
    Probe("command-secret", _G, "read a secret from another command's environment", _environment),
)
