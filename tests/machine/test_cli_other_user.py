"""The commands without root: one sentence and the remedy, never a stack trace or "internal error"."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine.cli_terminal import Terminal
from marks import first_of
from this_run import new_state_dir

_NOBODY = 65534


def as_nobody(*arguments: str, state: Path) -> list[str]:
    """The command line of `warren`, as a user without privileges.

    Where the interpreter is in a directory that only root can enter, as below /root, the user gets it there by a mount.
    """
    closed = [path for path in Path(sys.base_prefix).parents if not path.stat().st_mode & 0o001]
    setup = ""
    if closed:
        setup = (
            f'mount --bind "{sys.base_prefix}" /mnt; mount -t tmpfs -o mode=755 none "{closed[-1]}"; '
            f'mkdir -p "{sys.base_prefix}"; mount --bind /mnt "{sys.base_prefix}"; umount /mnt; '
        )
    user = f"setpriv --reuid={_NOBODY} --regid={_NOBODY} --clear-groups --no-new-privs"
    environ = ["env", "-i", f"PATH={os.environ['PATH']}", f"PYTHONPATH={':'.join(sys.path)}", "HOME=/nonexistent"]
    environ += ["TERM=xterm", "WARREN_CONFIG=/dev/null", f"WARREN_STATE_DIR={state}"]
    command = [*environ, sys.executable, "-m", "warren.cli.main", *arguments]
    return ["unshare", "--mount", "sh", "-ec", f'{setup}exec {user} "$@"', "sh", *command]


@pytest.fixture(scope="module")
def own_dir() -> Iterator[Path]:
    """A state directory that the user may write to."""
    path = new_state_dir()
    os.chown(path, _NOBODY, _NOBODY)
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)


@pytest.fixture(scope="module")
def roots_dir() -> Iterator[Path]:
    """A state directory of root's, as /var/lib/warren is."""
    path = new_state_dir()
    (path / "images").mkdir()
    path.chmod(0o700)
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)


@pytest.mark.parametrize("whose", first_of(["own_dir", "roots_dir"]))
@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--", "true"),
        ("run", "--provider", "docker", "--", "true"),
        ("serve",),
        ("doctor", "--attack"),
        ("image", "build", "base"),
        ("image", "build", "host"),
        ("cluster", "up"),
        ("bench",),
    ],
    ids=" ".join,
)
def test_what_needs_root_says_so(arguments: tuple[str, ...], whose: str, request: pytest.FixtureRequest) -> None:
    state = request.getfixturevalue(whose)
    done = subprocess.run(as_nobody(*arguments, state=state), capture_output=True, text=True, timeout=60)
    assert done.returncode == 125, done
    assert "internal error" not in done.stderr
    assert "Traceback" not in done.stderr
    message, hint = [line for line in done.stderr.splitlines() if not line.startswith("image host ")]
    assert message.startswith("warren: ")
    assert "needs root" in message or "permission" in message
    assert hint.startswith("  hint: ")
    assert "sudo" in hint or "as root" in hint


@pytest.mark.parametrize("whose", first_of(["own_dir", "roots_dir"]))
def test_the_images_are_listed_or_the_permission_is_missing(whose: str, request: pytest.FixtureRequest) -> None:
    state = request.getfixturevalue(whose)
    done = subprocess.run(as_nobody("image", "list", state=state), capture_output=True, text=True, timeout=60)
    if whose == "own_dir":
        assert (done.returncode, done.stdout) == (0, "")
        assert "no images" in done.stderr
    else:
        assert done.returncode == 125
        assert "no permission for" in done.stderr
        assert "internal error" not in done.stderr


@pytest.mark.parametrize("whose", first_of(["own_dir", "roots_dir"]))
def test_the_doctor_finishes_and_asks_for_sudo(whose: str, request: pytest.FixtureRequest) -> None:
    state = request.getfixturevalue(whose)
    done = subprocess.run(as_nobody("doctor", state=state), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
    assert "use sudo" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" failed")


def test_a_shell_needs_root_too(own_dir: Path) -> None:
    terminal = Terminal(as_nobody("shell", state=own_dir), dict(os.environ), rows=24, columns=400)
    try:
        terminal.expect("the oci provider needs root")
        terminal.expect("sudo")
        assert terminal.process.wait(20) == 125
    finally:
        terminal.close()
