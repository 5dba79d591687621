"""Processes that outlive their end, and abuses of the file API: the classic holes of hardened containers."""

import asyncio
import io
import tarfile

from warren.model.errors import InvalidPath, WarrenError
from warren.model.operations import Command, Reason
from warren_attack.probe import Group, Probe, ProbeResult, contained, got_through, judged
from warren_attack.warren.arena import Arena
from warren_attack.warren.host_view import HostView, pids_with_uid, pids_with_word

_G = Group.LIFECYCLE
_FORBIDDEN = ("/etc/shadow", "/proc/1/environ", "/proc/1/root/etc/shadow", "/proc/1/mem", "/root/.bashrc")
_UNWRITABLE = (
    "/etc/passwd",
    "/proc/1/root/etc/passwd",
    "/proc/sys/kernel/core_pattern",
    "/proc/1/oom_score_adj",
    "/usr/bin/x",
)


async def _daemons(arena: Arena) -> ProbeResult:
    """Looks for the daemons from the host: a result that says `killed` is no proof."""
    token = f"{arena.canary}daemon"
    running = asyncio.ensure_future(arena.run("limits:daemons", count=20, token=token, timeout_s=3))
    await asyncio.sleep(2.5)
    # The command itself has the token inside its arguments, but not as one.
    there = len(pids_with_word(token))
    result = await running
    left = pids_with_word(token)
    evidence = f"{there} daemons ran, {result.killed} processes were killed, {len(left)} are left, {result.reason}"
    return judged(there > 0 and not left and result.survivors == 0 and result.reason is Reason.TIMEOUT, evidence)


async def _stopped_tree(arena: Arena) -> ProbeResult:
    """A process tree that has stopped itself must end in time, too."""
    line = "(setsid sh -c 'kill -STOP $$; sleep 600' &); (trap '' TERM; sleep 600) & kill -STOP $$; sleep 600"
    command = Command(shell=line, timeout_s=1, grace_s=0.3, carry_state=False)
    started = asyncio.get_running_loop().time()
    result = await arena.sandbox.exec(command)
    took = asyncio.get_running_loop().time() - started
    evidence = f"ended after {took:.1f} s by {result.reason}, {result.killed} killed, {result.survivors} survived"
    return judged(result.reason is Reason.TIMEOUT and took < 8 and result.survivors == 0, evidence)


async def _held_output(arena: Arena) -> ProbeResult:
    command = Command(shell="(setsid sleep 20 &); echo done", timeout_s=30, carry_state=False)
    started = asyncio.get_running_loop().time()
    result = await arena.sandbox.exec(command)
    took = asyncio.get_running_loop().time() - started
    return judged(
        took < 5 and result.stdout == "done\n",
        f"the result came after {took:.2f} s, {result.background} in the background",
    )


async def _zombies(arena: Arena) -> ProbeResult:
    result = await arena.run("limits:zombie_storm", count=800, timeout_s=60)
    outcome = await arena.inside("limits:count_zombies")
    code = await arena.sandbox.exec(Command(shell="exit 42", timeout_s=10))
    if code.exit_code != 42:
        return got_through(f"the next command's exit code is {code.exit_code} instead of 42")
    return judged(result.exit_code == 0 and outcome.verdict == "contained", f"800 orphans; {outcome.evidence}")


async def _deleted_cwd(arena: Arena) -> ProbeResult:
    line = "mkdir -p /tmp/gone/deep && cd /tmp/gone/deep && rm -rf /tmp/gone"
    await arena.sandbox.exec(Command(shell=line, timeout_s=10))
    result = await arena.sandbox.exec(Command(shell="echo alive; cd /workspace", timeout_s=10))
    return judged(
        "alive" in result.stdout, f"the next command said {result.stdout.strip()!r}, exit code {result.exit_code}"
    )


async def _descriptor_cwd(arena: Arena) -> ProbeResult:
    """CVE-2024-21626: a working directory that is a descriptor of another process."""
    entered = []
    places = [f"/proc/self/fd/{fd}" for fd in range(3, 64)]
    places += [
        "/proc/1/cwd",
        "/proc/1/root",
        "/proc/self/fd/7/../../..",
        "/proc/thread-self/fd/8",
        "/.warren/../proc/1/root",
    ]
    for place in places:
        try:
            result = await arena.sandbox.exec(Command(argv=("ls", "-d", "/proc/self/cwd/."), cwd=place, timeout_s=5))
        except (InvalidPath, WarrenError):
            continue
        entered.append(f"{place} ({result.stdout.strip()})")
    return judged(not entered, f"entered: {', '.join(entered[:4]) or 'none'} of {len(places)}")


async def _read_links(arena: Arena) -> ProbeResult:
    """The file API reads with the user's rights, wherever a link points."""
    got = []
    for index, target in enumerate(_FORBIDDEN):
        link = f"/workspace/link{index}"
        await arena.sandbox.exec(Command(argv=("ln", "-sfn", target, link), timeout_s=5))
        for path in (link, target):
            try:
                content = b"".join([part async for part in arena.sandbox.read(path, length=100)])
            except WarrenError:
                continue
            if content:
                got.append(f"{target}: {content[:20]!r}")
    return judged(not got, f"read: {'; '.join(got) or 'none'} of {len(_FORBIDDEN)} forbidden files")


async def _write_links(arena: Arena) -> ProbeResult:
    """Judge0's CVE-2024-28185 and -28189: a privileged writer that follows links."""
    got = []
    for index, target in enumerate(_UNWRITABLE):
        link = f"/workspace/wlink{index}"
        before = await arena.sandbox.exec(Command(argv=("sha256sum", target), timeout_s=5))
        await arena.sandbox.exec(Command(argv=("ln", "-sfn", target, link), timeout_s=5))
        for path in (link, target, f"/workspace/wlink{index}/x"):
            try:
                await arena.sandbox.write(path, b"attack")
            except WarrenError:
                continue
        after = await arena.sandbox.exec(Command(argv=("sha256sum", target), timeout_s=5))
        if before.stdout != after.stdout:
            got.append(target)
    return judged(not got, f"changed through links: {', '.join(got) or 'none'} of {len(_UNWRITABLE)}")


async def _other_operations(arena: Arena) -> ProbeResult:
    """Remove, rename, mkdir and list through a link to a directory of the system."""
    await arena.sandbox.exec(Command(shell="ln -sfn /etc /workspace/etc; ln -sfn /root /workspace/root", timeout_s=5))
    done = []
    sandbox = arena.sandbox
    for name, work in (
        ("remove /etc/passwd", lambda: sandbox.remove("/workspace/etc/passwd")),
        ("rename /etc/passwd", lambda: sandbox.rename("/workspace/etc/passwd", "/workspace/stolen")),
        ("mkdir in /etc", lambda: sandbox.mkdir("/workspace/etc/new")),
        ("list /root", lambda: sandbox.list("/workspace/root/")),
        ("make parents in /etc", lambda: sandbox.write("/workspace/etc/new/dir/file", b"x")),
    ):
        try:
            await work()
        except WarrenError:
            continue
        done.append(name)
    await arena.sandbox.remove("/workspace/etc", recursive=True)
    still = await arena.sandbox.exec(Command(argv=("test", "-s", "/etc/passwd"), timeout_s=5))
    return judged(
        not done and still.exit_code == 0, f"done: {', '.join(done) or 'none'}; removing the link left /etc alone"
    )


async def _race(arena: Arena) -> ProbeResult:
    """A name that is now a file and the next moment a link to a forbidden one."""
    swap = "while :; do ln -sfn /etc/shadow race; ln -sfn /proc/1/environ race; rm -f race; echo mine > race; done"
    process = await arena.sandbox.start(Command(shell=f"cd /workspace; {swap}", carry_state=False))
    got, reads = set(), 0
    try:
        for _ in range(200):
            try:
                got.add(b"".join([part async for part in arena.sandbox.read("/workspace/race", length=64)]))
                reads += 1
                await arena.sandbox.write("/workspace/race", b"written")
            except WarrenError:
                continue
    finally:
        await process.kill(0)
    strange = [text for text in got if text not in (b"", b"mine\n", b"written")]
    return judged(
        not strange,
        f"{reads} of 200 reads gave something, none of it forbidden" if not strange else f"{strange!r:.200}",
    )


async def _archives(arena: Arena) -> ProbeResult:
    """`..`, absolute paths, links out, devices, and a link that was there before."""
    await arena.sandbox.exec(
        Command(shell="mkdir -p /workspace/out && ln -sfn /etc /workspace/out/planted", timeout_s=5)
    )
    for name, tar in _bad_archives().items():
        try:
            await arena.sandbox.unpack("/workspace/out", tar)
        except WarrenError:
            continue
        found = await arena.sandbox.exec(
            Command(shell="ls /tmp/evil* /workspace/evil* /evil* 2>/dev/null", timeout_s=5)
        )
        if found.stdout:
            return got_through(f"{name}: {found.stdout.split()}")
    found = await arena.sandbox.exec(
        Command(shell="ls /tmp/evil* /workspace/evil* /evil* /etc/evil* 2>/dev/null", timeout_s=5)
    )
    devices = await arena.sandbox.exec(Command(shell="find /workspace/out -type b -o -type c", timeout_s=5))
    got = (found.stdout + devices.stdout).split()
    return judged(not got, f"outside: {', '.join(got) or 'nothing'}, of {len(_bad_archives())} archives")


def _bad_archives() -> dict[str, bytes]:
    return {
        "..": _tar(("../evil1", tarfile.REGTYPE, "")),
        "deep ..": _tar(("a/../../evil2", tarfile.REGTYPE, "")),
        "absolute": _tar(("/tmp/evil3", tarfile.REGTYPE, "")),
        "link out": _tar(("l", tarfile.SYMTYPE, "/tmp"), ("l/evil4", tarfile.REGTYPE, "")),
        "relative link out": _tar(("m", tarfile.SYMTYPE, ".."), ("m/evil5", tarfile.REGTYPE, "")),
        "hard link out": _tar(("h", tarfile.LNKTYPE, "/etc/passwd"), ("h", tarfile.REGTYPE, "")),
        "device": _tar(("dev", tarfile.CHRTYPE, "")),
        "planted link": _tar(("planted/evil6", tarfile.REGTYPE, "")),
    }


def _tar(*members: tuple[str, bytes, str]) -> bytes:
    room = io.BytesIO()
    with tarfile.open(fileobj=room, mode="w") as tar:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.devmajor, info.devminor = kind, target, 1, 1
            data = b"evil" if kind == tarfile.REGTYPE else b""
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return room.getvalue()


async def _destroyed(arena: Arena) -> ProbeResult:
    """Destroys a sandbox with daemons in it, and looks on the host for anything that is left."""
    token = f"{arena.canary}left"
    sandbox, host = await arena.fresh()
    await sandbox.start(Command(argv=("python3", "-I", "-c", "import time; time.sleep(600)", token)))
    await HostView.find(token)
    cgroups = [path for path in host.cgroups.values() if path.is_dir()]
    uids = {host.uid, int(host.status("Uid").split()[0])}
    await arena.provider.destroy(sandbox.id)
    pids = [*pids_with_word(token), *(pid for uid in uids for pid in pids_with_uid(uid)), *host.processes()]
    left = [f"process {pid}" for pid in pids] + [str(path) for path in cgroups if path.is_dir()]
    if sandbox.id in await arena.provider.list_ids():
        left.append(f"sandbox {sandbox.id}")
    if not cgroups:
        return got_through("the sandbox had no cgroup of its own")
    return contained(f"no process of {sorted(uids)}, no cgroup") if not left else got_through(", ".join(left[:6]))


PROBES: tuple[Probe[Arena], ...] = (
    Probe("daemons", _G, "outlive a time-out as 20 daemons (seen from the host)", _daemons),
    Probe("stopped-tree", _G, "outlive a time-out by being stopped", _stopped_tree),
    Probe("held-output", _G, "delay a result by a child that holds stdout", _held_output),
    Probe("zombies", _G, "fill the process table with zombies, spoil exit codes", _zombies),
    Probe("deleted-cwd", _G, "wedge the session by removing its directory", _deleted_cwd),
    Probe("descriptor-cwd", _G, "start in /proc/self/fd/N, /proc/1/root … (CVE-2024-21626)", _descriptor_cwd),
    Probe("read-links", _G, "have the file API read forbidden files by links", _read_links),
    Probe("write-links", _G, "have the file API write system files by links (Judge0 CVE-2024-28185)", _write_links),
    Probe("link-operations", _G, "remove, rename, list through links", _other_operations),
    Probe("link-race", _G, "swap a file for a link while it is read and written", _race),
    Probe("archives", _G, "unpack archives with .., absolute paths, links, devices", _archives),
    Probe("destroyed", _G, "outlive the sandbox (processes by uid, cgroups: seen from the host)", _destroyed),
)
