"""The launcher: what it refuses, and what it leaves of itself."""

import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import this_run

import warren

BIN = Path(warren.__file__).parent / "bin"
LAUNCHER = BIN / "warren-launch"

# Of the ELF format: a type of file, types of segments, a flag of a segment.
SHARED_OBJECT, INTERPRETER, GNU_STACK, GNU_RELRO, EXECUTABLE = 3, 3, 0x6474E551, 0x6474E552, 1


def launch(*words: str, pass_fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    argv = [str(LAUNCHER), *words]
    return subprocess.run(argv, capture_output=True, input="{}", text=True, check=False, timeout=20, pass_fds=pass_fds)


@pytest.fixture
def at(tmp_path: Path) -> Path:
    for name in ("image", "agent", "at"):
        (tmp_path / name).mkdir()
    return tmp_path / "at"


@pytest.fixture
def image(tmp_path: Path) -> Iterator[int]:
    """An open image that has no name any more."""
    path = tmp_path / "disk.img"
    with path.open("xb") as file:
        file.truncate(16 * 1024 * 1024)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", str(path)], check=True)
    fd = os.open(path, os.O_RDWR)
    path.unlink()
    yield fd
    os.close(fd)


def sandbox(at: Path, disk: tuple[str, ...], *command: str) -> subprocess.CompletedProcess[str]:
    pass_fds = (int(disk[1]),) if disk[0] == "--disk-fd" and disk[1].isdigit() and int(disk[1]) < 100 else ()
    return launch(
        *("sandbox", "--at", str(at), "--base", "2013265920", "--owner", "2013266920"),
        *("--agent", str(at.parent / "agent"), "--root", str(at.parent / "image"), *disk),
        *("--dir", "workspace:755", "--dir", "tmp:1777", "--nofile", "256", "--fsize", "1048576", "--", *command),
        pass_fds=pass_fds,
    )


def test_the_command_finds_everything_in_place(at: Path, image: int) -> None:
    script = (
        f"cd {at}; cat config.json; stat -c '%u %a %n' disk/*; stat -fc %T disk; touch rootfs/x; ulimit -n; "
        "readlink /proc/self/fd/0"
    )
    outcome = sandbox(at, ("--disk-fd", str(image)), "sh", "-c", script)
    assert outcome.stderr.startswith("{}")
    assert "2013266920 1777 disk/tmp" in outcome.stderr
    assert "2013266920 755 disk/workspace" in outcome.stderr
    assert "ext2/ext3" in outcome.stderr
    assert "Read-only file system" in outcome.stderr
    assert "256" in outcome.stderr
    assert "pipe:" in outcome.stderr
    assert outcome.stdout == ""
    assert list(at.iterdir()) == []


@pytest.mark.parametrize("is_alive", [True, False])
def test_nothing_runs_for_a_worker_that_died_before_it(at: Path, image: int, is_alive: bool) -> None:
    worker = os.getpid() if is_alive else 1  # who dies leaves its children to the first process
    outcome = sandbox(at, ("--disk-fd", str(image), "--worker", str(worker)), "echo", "it runs")
    assert ("it runs" in outcome.stderr) == is_alive
    assert (outcome.returncode == 125) != is_alive


def test_the_host_sees_no_mount_and_the_runtime_no_image(at: Path, image: int) -> None:
    before = mounts_here(at)
    outcome = sandbox(at, ("--disk-fd", str(image)), "ls", "-l", "/proc/self/fd")
    assert "->" in outcome.stderr
    assert "deleted" not in outcome.stderr
    assert mounts_here(at) == before


def mounts_here(at: Path) -> list[str]:
    """The mounts that this process sees, less those of the tests beside this one."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if f"/{this_run.name()}/" not in line or str(at) in line]


def test_a_tmpfs_takes_the_disks_place(at: Path) -> None:
    script = f"stat -fc %T {at}/disk"
    assert "tmpfs" in sandbox(at, ("--tmpfs", "size=8m,nr_inodes=100"), "sh", "-c", script).stderr


def test_the_user_namespace_belongs_to_the_sandboxs_own_uid(at: Path) -> None:
    script = f"nsenter --user={at}/userns cat /proc/self/uid_map"
    assert sandbox(at, ("--tmpfs", "size=8m"), "sh", "-c", script).stderr.split() == ["0", "2013265920", "65536"]


@pytest.mark.parametrize(
    ("disk", "command", "complaint"),
    [
        (("--disk-fd", "1000"), ("true",), "attaching the disk image to loop device"),
        (("--disk-fd", "some"), ("true",), "--disk-fd needs a number, not 'some'"),
        (("--tmpfs", "size=8m"), ("/no/such/runtime",), "starting /no/such/runtime: No such file or directory"),
        (("--tmpfs", "nonsense=1"), ("true",), "mounting a tmpfs (nonsense=1)"),
        (("--tmpfs", "size=8m"), (), "nothing to run after --"),
        (("--nofile", "many"), ("true",), "--nofile needs a number, not 'many'"),
        (("--dir", "a/b:755"), ("true",), "needs --at"),
    ],
)
def test_every_failure_is_one_line_and_125(
    at: Path, disk: tuple[str, str], command: tuple[str, ...], complaint: str
) -> None:
    outcome = sandbox(at, disk, *command)
    assert outcome.returncode == 125
    assert complaint in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


def test_a_root_that_is_none_is_named(at: Path) -> None:
    (at.parent / "image").rmdir()
    outcome = sandbox(at, ("--tmpfs", "size=8m"), "true")
    assert outcome.returncode == 125
    assert f"opening the tree {at.parent}/image" in outcome.stderr


def test_stdio_that_a_runtime_would_give_away_is_refused(at: Path) -> None:
    with open("/dev/null", "w") as null:
        argv = [str(LAUNCHER), "sandbox", "--at", str(at), "--agent", str(at.parent / "agent")]
        argv += ["--root", str(at.parent / "image"), "--base", "2013265920", "--tmpfs", "size=8m", "--", "true"]
        outcome = subprocess.run(argv, stdin=subprocess.DEVNULL, stderr=null, check=False, timeout=20)
    assert outcome.returncode == 125


def test_a_mount_can_be_hidden_from_the_command_alone(at: Path) -> None:
    before = Path("/proc/self/mountinfo").read_text().count(" /dev/shm ")
    options = ("--tmpfs", "size=8m", "--hide", "/dev/shm")
    outcome = sandbox(at, options, "grep", "-c", " /dev/shm ", "/proc/self/mountinfo")
    assert int(outcome.stderr) == before - 1
    assert Path("/proc/self/mountinfo").read_text().count(" /dev/shm ") == before


def test_a_child_tries_to_move_to_the_given_cgroup(at: Path) -> None:
    """The kernel lets whoever moves first wait; the command need not."""
    procs = at.parent / "procs"
    procs.touch()
    outcome = sandbox(at, ("--tmpfs", "size=8m", "--move", str(procs)), "sh", "-c", "sleep 0.2")
    assert (outcome.returncode, procs.read_text()) == (0, "0")
    missing = sandbox(at, ("--tmpfs", "size=8m", "--move", "/no/such/file"), "true")
    assert missing.returncode == 0


@pytest.mark.parametrize("name", ["warren-agent", "warren-launch"])
def test_the_programs_are_static_and_loaded_at_an_address_that_changes(name: str) -> None:
    data = (BIN / name).read_bytes()
    (kind,) = struct.unpack_from("<H", data, 16)
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    segments = dict(struct.unpack_from("<II", data, table + size * number) for number in range(count))
    assert kind == SHARED_OBJECT
    assert INTERPRETER not in segments
    assert GNU_RELRO in segments
    assert not segments[GNU_STACK] & EXECUTABLE
