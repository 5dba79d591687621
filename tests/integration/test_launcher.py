"""The launcher: what it refuses, and what it leaves of itself."""

import subprocess
from pathlib import Path

import pytest

import warren

BIN = Path(warren.__file__).parent / "bin"
LAUNCHER = BIN / "warren-launch"


def launch(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(LAUNCHER), *words], capture_output=True, text=True, check=False, timeout=20)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    place = tmp_path / "bundle"
    for name in ("rootfs", "disk", "dev", "image", "agent", "tree0", "empty"):
        (place / name).mkdir(parents=True)
    (place / "userns").touch()
    for name in ("image", "agent", "at"):
        (tmp_path / name).mkdir()
    return place


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "disk.img"
    with path.open("xb") as file:
        file.truncate(16 * 1024 * 1024)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", str(path)], check=True)
    return path


def sandbox(bundle: Path, disk: tuple[str, ...], *command: str) -> subprocess.CompletedProcess[str]:
    above = bundle.parent
    return launch(
        *("sandbox", "--bundle", str(bundle), "--at", str(above / "at"), "--base", "2013265920"),
        *("--owner", "2013266920", "--agent", str(above / "agent"), "--root", str(above / "image"), *disk),
        *("--dir", "workspace:755", "--dir", "tmp:1777", "--nofile", "256", "--fsize", "1048576", "--", *command),
    )


def test_the_command_finds_everything_in_place(bundle: Path, image: Path) -> None:
    at = bundle.parent / "at"
    script = (
        f"cd {at}; stat -c '%u %a %n' disk/*; stat -fc %T disk; touch rootfs/x; ulimit -n; readlink /proc/self/fd/0"
    )
    outcome = sandbox(bundle, ("--disk", str(image)), "sh", "-c", script)
    assert "2013266920 1777 disk/tmp" in outcome.stderr
    assert "2013266920 755 disk/workspace" in outcome.stderr
    assert "ext2/ext3" in outcome.stderr
    assert "Read-only file system" in outcome.stderr
    assert "256" in outcome.stderr
    assert "pipe:" in outcome.stderr
    assert outcome.stdout == ""


def test_the_host_sees_no_mount_and_the_image_is_gone_at_once(bundle: Path, image: Path) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    outcome = sandbox(bundle, ("--disk", str(image)), "ls", str(image))
    assert "No such file" in outcome.stderr
    assert Path("/proc/self/mountinfo").read_text() == before


def test_a_tmpfs_takes_the_disks_place(bundle: Path) -> None:
    script = f"stat -fc %T {bundle.parent}/at/disk"
    assert "tmpfs" in sandbox(bundle, ("--tmpfs", "size=8m,nr_inodes=100"), "sh", "-c", script).stderr


def test_the_user_namespace_belongs_to_the_sandboxs_own_uid(bundle: Path) -> None:
    script = f"nsenter --user={bundle.parent}/at/userns cat /proc/self/uid_map"
    assert sandbox(bundle, ("--tmpfs", "size=8m"), "sh", "-c", script).stderr.split() == ["0", "2013265920", "65536"]


@pytest.mark.parametrize(
    ("disk", "command", "complaint"),
    [
        (("--disk", "/no/such.img"), ("true",), "opening the disk image /no/such.img: No such file or directory"),
        (("--tmpfs", "size=8m"), ("/no/such/runtime",), "starting /no/such/runtime: No such file or directory"),
        (("--tmpfs", "nonsense=1"), ("true",), "mounting a tmpfs (nonsense=1)"),
        (("--tmpfs", "size=8m"), (), "nothing to run after --"),
        (("--nofile", "many"), ("true",), "--nofile needs a number, not 'many'"),
        (("--dir", "a/b:755"), ("true",), "needs --bundle"),
    ],
)
def test_every_failure_is_one_line_and_125(
    bundle: Path, disk: tuple[str, str], command: tuple[str, ...], complaint: str
) -> None:
    outcome = sandbox(bundle, disk, *command)
    assert outcome.returncode == 125
    assert complaint in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


def test_a_root_that_is_none_is_named(bundle: Path) -> None:
    (bundle.parent / "image").rmdir()
    outcome = sandbox(bundle, ("--tmpfs", "size=8m"), "true")
    assert outcome.returncode == 125
    assert f"opening the tree {bundle.parent}/image" in outcome.stderr


def test_stdio_that_a_runtime_would_give_away_is_refused(bundle: Path) -> None:
    with open("/dev/null", "w") as null:
        argv = [
            str(LAUNCHER),
            "sandbox",
            "--bundle",
            "/b",
            "--at",
            "/a",
            "--agent",
            "/x",
            "--root",
            "/r",
            "--base",
            "9",
        ]
        outcome = subprocess.run(
            [*argv, "--base", "9", "--tmpfs", "size=8m", "--", "true"], stderr=null, check=False, timeout=20
        )
    assert outcome.returncode == 125


def test_a_mount_can_be_hidden_from_the_command_alone(bundle: Path) -> None:
    before = Path("/proc/self/mountinfo").read_text().count(" /dev/shm ")
    options = ("--tmpfs", "size=8m", "--hide", "/dev/shm")
    outcome = sandbox(bundle, options, "grep", "-c", " /dev/shm ", "/proc/self/mountinfo")
    assert int(outcome.stderr) == before - 1
    assert Path("/proc/self/mountinfo").read_text().count(" /dev/shm ") == before
