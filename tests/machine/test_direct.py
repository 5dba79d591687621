"""The runtime `direct` beside crun and runc: what a sandbox gets from each, and what the launcher refuses."""

import asyncio
import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import warren
from warren.images.store.store import ImageStore
from warren.model.operations import Command
from warren.model.spec import Layer, SandboxSpec
from warren.sandboxes.host.cgroups import Hierarchies
from warren.sandboxes.host.device_rules import read_rules
from warren.sandboxes.host.seccomp_program import read_programs
from warren.sandboxes.providers import direct, oci_bundle
from warren.sandboxes.providers.oci import OciProvider

BIN = Path(warren.__file__).parent / "bin"
SPEC = SandboxSpec(image="host")
WRITABLE = SandboxSpec(image="base", writable_root=True, sudo=True)

_CHANGING = re.compile(r"(Vm|Rss|NS|Pid|PPid|Tgid|Uid|Gid|FDSize|voluntary|nonvoluntary|HugetlbPages|State|Mems_|SigQ)")
_LOOK = """
cat /proc/self/mountinfo | sed 's/^[0-9]* [0-9]* [0-9]*:[0-9]* /mount /'
sed 's/^/status /' /proc/self/status; sed 's/^/limit /' /proc/self/limits
ls -l /dev | sed 's/  */ /g' | cut -d' ' -f1,5- | sed 's/ [A-Z][a-z][a-z] [0-9 ]*:[0-9]* / /; s/^/dev /'
ls /proc/self/fd | sed 's/^/descriptor /'; env | grep -v LINENO | sed 's/^/env /'
for name in shmmax shmall msgmni msgmnb sem hostname; do echo "sysctl $name $(cat /proc/sys/kernel/$name)"; done
cat /proc/net/dev | cut -d: -f1 | sed 's/^/net /'; echo "namespaces $(ls /proc/self/ns | tr '\\n' ' ')"
echo "uid map $(tr -s ' ' </proc/self/uid_map | cut -d' ' -f2,4)"; sed 's/^/cgroup /; s/:[0-9]*:/:/' /proc/self/cgroup
"""

pytestmark = pytest.mark.anyio


async def seen(state_dir: Path, images: ImageStore, runtime: str, spec: SandboxSpec) -> set[str]:
    """What a command sees of its sandbox, and the host of its agent, without what differs from sandbox to sandbox."""
    provider = OciProvider(state_dir, images, BIN, runtime)
    box = await provider.create(spec)
    try:
        record = provider.load_record(box.id)
        assert record is not None
        lines = [*agent_facts(record.pid), *(await box.exec(Command(shell=_LOOK))).stdout.splitlines()]
    finally:
        await provider.destroy(box.id)
        await provider.close()
    lines = [in_common_terms(re.sub(r"(uid|gid)=[0-9]+|loop[0-9]+", "", line)) for line in lines]
    return {line for line in lines if not _CHANGING.match(line.removeprefix("agent ").removeprefix("status "))}


def agent_facts(pid: int) -> Iterator[str]:
    agent = Path(f"/proc/{pid}")
    yield from (f"agent status {line}" for line in (agent / "status").read_text().splitlines())
    yield from (f"agent limit {line}" for line in (agent / "limits").read_text().splitlines())
    yield from (f"agent env {word}" for word in (agent / "environ").read_text().split("\0"))
    for descriptor in (agent / "fd").iterdir():
        yield f"agent descriptor {descriptor.name} {os.readlink(descriptor).partition('[')[0]}"
    yield f"agent oom {(agent / 'oom_score_adj').read_text()} nice {os.getpriority(os.PRIO_PROCESS, pid)}"
    yield f"agent has a session of its own: {os.getsid(pid) == pid}"


def in_common_terms(line: str) -> str:
    """Masks are made in different ways, and read-only paths have the flags of /proc or not."""
    if found := re.match(r"mount (?:/null (/proc/\S+)|/ (/proc/\S+) \S*\bro\b.* - tmpfs )", line):
        return f"masked {found[1] or found[2]}"
    return re.sub(r"^mount (/sys /proc/sys) ro\S*", r"mount \1 ro", line)


def known_difference(line: str) -> bool:
    return (
        line == "agent env HOME=/root"  # runtimes look it up
        or "status SigIgn:" in line  # Go's runtime takes a signal that was ignored
        or line.startswith("cgroup ")  # runtimes join every hierarchy of v1, and none of v2 beside it
    )


@pytest.mark.parametrize("other", ["crun", "runc"])
@pytest.mark.parametrize("spec", [SPEC, WRITABLE], ids=["plain", "writable"])
async def test_a_sandbox_sees_the_same_as_with_a_runtime(
    state_dir: Path, image_store: ImageStore, other: str, spec: SandboxSpec
) -> None:
    ours, theirs = [await seen(state_dir, image_store, runtime, spec) for runtime in ("direct", other)]
    differences = {line for line in ours ^ theirs if not known_difference(line)}
    assert differences == set()


@pytest.mark.parametrize("ptrace", [False, True])
async def test_the_filter_is_the_one_that_crun_loads(state_dir: Path, image_store: ImageStore, ptrace: bool) -> None:
    loaded = {}
    for runtime in ("direct", "crun"):
        provider = OciProvider(state_dir, image_store, BIN, runtime)
        box = await provider.create(SandboxSpec(image="host", ptrace=ptrace))
        record = provider.load_record(box.id)
        assert record is not None
        loaded[runtime] = await read_programs(record.pid)
        await provider.destroy(box.id)
        await provider.close()
    compiled = direct.compiled_filter(ptrace)
    assert loaded["direct"] == loaded["crun"] == (os.pread(compiled.fd, 1 << 16, 0),)


async def test_on_cgroup_v2_a_program_refuses_other_devices(state_dir: Path, image_store: ImageStore) -> None:
    """Without the hierarchy of devices the v2 tree is used for them, which every machine with both has."""
    provider = OciProvider(state_dir, image_store, BIN, "direct")
    await provider.runtime_report()
    mounts = {name: mount for name, mount in provider._hierarchies.mounts.items() if name != "devices"}
    provider._hierarchies = provider._launcher._hierarchies = Hierarchies(mounts)
    box = await provider.create(SPEC)
    rules = read_rules(provider._hierarchies.at(oci_bundle.cgroup_path(box.id)))
    works = (await box.exec(Command(shell="echo x >/dev/null && head -c 4 /dev/urandom | wc -c"))).stdout.strip()
    await provider.destroy(box.id)
    await provider.close()
    assert [rules.allows(*at) for at in ((1, 3), (5, 2), (136, 7), (5, 1), (1, 1))] == [True, True, True, False, False]
    assert (rules.allows_all, works) == (False, "4")


async def test_limits_count_only_where_the_sandbox_is(state_dir: Path, image_store: ImageStore) -> None:
    provider = OciProvider(state_dir, image_store, BIN, "direct")
    box = await provider.create(SPEC)
    record = provider.load_record(box.id)
    assert record is not None
    before = (await provider.read_isolation(box.id)).layers.keys()
    memory = Path(provider._hierarchies.at(oci_bundle.cgroup_path(box.id)).directories["memory"])
    (memory.parent / "cgroup.procs").write_text(str(record.pid))
    after = (await provider.read_isolation(box.id)).layers.keys()
    await provider.destroy(box.id)
    await provider.close()
    limits = {Layer.MEMORY_LIMIT, Layer.PIDS_LIMIT, Layer.CPU_LIMIT}
    assert (limits & before, limits & after) == (limits, limits - {Layer.MEMORY_LIMIT})


# -- options


def words(*more: str, without: Sequence[str] = ()) -> bytes:
    """Options that are good, with the values of `more` instead of their own."""
    given = {
        "--at": "/run/warren/bundle",
        "--agent": "/nonexistent/agent",
        "--root": "/nonexistent/root",
        "--base": "2013265920",
        "--tmpfs": "size=8m",
        "--id": "0" * 32,
        "--keep": "2",
        "--pid-file": "/nonexistent/pid",
        "--hostname": "sandbox",
        "--filter": "99",
        "--filter-sha256": "0" * 64,
        "--cgroup": "/nonexistent/cgroup",
        "--mount": "proc:proc:/proc:nosuid,noexec,nodev:",
        **dict(zip(more[::2], more[1::2], strict=True)),
    }
    options = [word for name, value in given.items() if name not in without for word in (name, value)]
    return b"".join(word.encode() + b"\0" for word in (*options, "--", "/.warren/agent"))


def refused(plan: bytes) -> str:
    outcome = subprocess.run(
        [BIN / "warren-launch", "direct", "--try"], input=plan, capture_output=True, check=False, timeout=30
    )
    assert outcome.returncode == 125, outcome
    assert outcome.stderr.count(b"\n") == 1, outcome.stderr
    return outcome.stderr.decode().strip()


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        (b"", "direct needs --at"),
        (b"--at\0/x", "do not end with a NUL"),
        (b"--at\0", "--at needs a value"),
        (words("--exec", "/bin/sh"), "unknown option --exec"),
        (words(without=["--mount"]), "direct needs --id, --hostname"),
        (words(without=["--filter-sha256"]), "--filter-sha256"),
        (words(without=["--cgroup"]), "direct needs --cgroup or --into"),
        (words("--into", "/x", without=["--cgroup"]), "--into alone needs --allow-device"),
        (words("--base", "1000"), "--base and --owner are no uids of a sandbox"),
        (words("--base", str(1 << 32)), "--base and --owner are no uids of a sandbox"),
        (words("--base", " -5"), "--base needs a number"),
        (words("--mask", "proc/keys"), "--mask needs a path, not 'proc/keys'"),
        (words("--mask", "/proc/../etc"), "--mask needs a path"),
        (words("--set", "/sys/fs/cgroup/memory"), "--set needs FILE=VALUE"),
        (words("--set", "memory.max=1"), "--set needs FILE=VALUE"),
        (words("--sysctl", "../../etc/passwd=1"), "--sysctl needs NAME=VALUE"),
        (words("--capability", "64"), "there is no capability 64"),
        (words("--mount", "bind:/etc:/etc:ro:"), "--mount needs KIND"),
        (words("--mount", "bind:disk/../..:/x:ro:"), "--mount needs KIND"),
        (words("--mount", "nfs:disk:/x:ro:"), "'nfs' is no kind of mount"),
        (words("--mount", "bind:disk:/x:suid:"), "'suid' is no flag of a mount"),
        (words("--allow-device", "c:1:3:rw"), "--allow-device needs --into"),
        (words("--into", "/x", "--allow-device", "c:1:3:rwx"), "--allow-device needs KIND:MAJOR"),
        (words("--keep", "1"), "--keep needs"),
        (words("--hostname", "h" * 65), "--id and --hostname need a name"),
        (words() + b"\0" * 300_000, "longer than"),
        (words(), "reading the filter of system calls: Bad file descriptor"),
    ],
)
def test_bad_options_are_refused_before_anything_is_made(plan: bytes, complaint: str) -> None:
    assert complaint in refused(plan)


def test_a_filter_of_another_hash_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "filter"
    program.write_bytes(bytes(8))
    with program.open("rb") as file:
        argv = [f"{BIN}/warren-launch", "direct", "--try"]
        plan = words("--filter", str(file.fileno()))
        outcome = subprocess.run(argv, input=plan, capture_output=True, check=False, pass_fds=[file.fileno()])
    assert (outcome.returncode, b"is another one: af5570f5" in outcome.stderr) == (125, True)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.extended
def test_the_sanitized_launcher_stands_noise_in_its_options(seed: int) -> None:
    dice = random.Random(seed)
    names = re.findall(rb'"(--[a-z0-9-]+)"', (Path(__file__).parents[2] / "launcher/options.c").read_bytes())
    values = [
        b"",
        b"/",
        b"a:b",
        b"c:1:*:rwm",
        b"x" * 5000,
        b"1",
        b"18446744073709551615",
        b"/a=b",
        b"a=b",
        b":::::",
        b"-",
    ]
    for _ in range(60):
        plan = bytearray(words("--into", "/x", "--allow-device", "c:136:*:rw", "--sysctl", "kernel/sem=1 2 3 4"))
        head = bytearray()
        for _ in range(dice.randrange(300)):
            head += dice.choice(names) + b"\0" + dice.choice(values) + b"\0"
        for _ in range(dice.randrange(4)):
            plan[dice.randrange(len(plan))] = dice.randrange(256)
        argv = [f"{BIN}/warren-launch-sanitized", "direct", "--try"]
        outcome = subprocess.run(argv, input=bytes(head + plan), capture_output=True, check=False, timeout=30)
        assert (outcome.returncode, outcome.stderr.startswith(b"warren-launch: ")) == (125, True), outcome.stderr


@pytest.mark.extended
async def test_the_sanitized_launcher_makes_sandboxes(state_dir: Path, image_store: ImageStore, tmp_path: Path) -> None:
    shutil.copy(BIN / "warren-agent", tmp_path)
    shutil.copy(BIN / "warren-launch-sanitized", tmp_path / "warren-launch")
    provider = OciProvider(state_dir, image_store, tmp_path, "direct", keep_changes=True)
    specs = (SPEC, SandboxSpec(image="base", writable_root=True, sudo=True), SandboxSpec(image="host", ptrace=True))
    boxes = await asyncio.gather(*(provider.create(spec) for spec in specs))
    outputs = [(await box.exec(Command(shell="touch /tmp/x && echo good"))).stdout for box in boxes]
    for box in boxes:
        await provider.destroy(box.id)
    await provider.close()
    assert outputs == ["good\n"] * 3
