"""Runs hostile lines by a real bash that has a `curl` which only leaves a mark."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# What a line may use besides the builtins of bash. Everything else is not there.
TOOLS = [
    "awk", "base64", "bash", "cat", "choom", "chrt", "cp", "dash", "date", "diff", "env", "find", "flock", "grep",
    "head", "i386",
    "ionice", "linux32", "linux64", "ls", "ln", "mkdir", "nice", "nohup", "printf", "prlimit", "script", "sed",
    "setarch", "setpriv", "setsid", "sh", "sleep", "sort", "split", "stdbuf", "taskset", "timeout", "true", "uclampset",
    "uname26", "uniq", "unshare", "xargs",
]  # fmt: skip
BWRAP = shutil.which("bwrap") or "bwrap"
# Runs the line, and waits for what it has started and not waited for, but not for ever.
PATIENT = """/bin/bash -c "$1"
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    set -- /proc/[0-9]*
    [ $# -gt 1 ] || exit 0
    /bin/sleep 0.1
done"""
# Each line in a directory of its own; a line that leaves something running does not hold up the next ones.
MANY = """for line in */line; do
    cd "${line%/line}/work" || exit 1
    MARK="$PWD/../mark" /usr/bin/timeout -s KILL 5 /bin/bash -c "$(/bin/cat ../line; echo)" < /dev/null > /dev/null 2>&1
    cd ../..
done
/bin/sleep 0.5"""


@contextmanager
def stub_directory() -> Iterator[Path]:
    """A directory that has a `curl` and an `evil/ls` which leave a mark, and a few tools."""
    with tempfile.TemporaryDirectory(prefix="warren-test-policy-") as place:
        directory = Path(place) / "stub"
        directory.mkdir()
        (directory / "curl").write_text('#!/bin/sh\n: > "$MARK"\n')
        (directory / "curl").chmod(0o755)
        (directory / "evil").mkdir()
        shutil.copy(directory / "curl", directory / "evil" / "ls")
        for tool in TOOLS:
            real = next((Path(at) / tool for at in ("/usr/bin", "/bin") if (Path(at) / tool).exists()), None)
            if real is not None:
                (directory / tool).symlink_to(real)
        yield directory


def runs_curl(line: str, stub: Path) -> bool:
    """Whether a real bash that is given the line runs the stub."""
    with tempfile.TemporaryDirectory(prefix="warren-test-policy-") as place:
        work, mark = Path(place) / "work", Path(place) / "mark"
        work.mkdir()
        (Path(place) / "stub").symlink_to(stub)
        environ = {"PATH": str(stub), "HERE": str(stub), "MARK": str(mark), "HOME": str(work)}
        subprocess.run(
            [*_jail(stub, place), "--as-pid-1", "/bin/sh", "-c", PATIENT, "sh", line], cwd=work, env=environ,
            timeout=60, stdin=subprocess.DEVNULL, capture_output=True, check=False,
        )  # fmt: skip
        return mark.exists()


def which_run_curl(lines: Sequence[str], stub: Path) -> list[bool]:
    """The same for many lines, with one jail for all of them."""
    with tempfile.TemporaryDirectory(prefix="warren-test-policy-") as place:
        places = [Path(place) / f"{number:06}" for number in range(len(lines))]
        for at, line in zip(places, lines, strict=True):
            (at / "work").mkdir(parents=True)
            (at / "line").write_bytes(line.encode(errors="surrogateescape"))
            (at / "stub").symlink_to(stub)
        environ = {"PATH": str(stub), "HERE": str(stub), "EVIL": f"{stub}/evil", "HOME": "."}
        subprocess.run(
            [*_jail(stub, place), "/bin/sh", "-c", MANY], cwd=place, env=environ, timeout=600, check=False,
            stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
        return [(at / "mark").exists() for at in places]


def _jail(stub: Path, place: str) -> list[str]:
    """The lines are hostile: they see this machine read-only and may write to their own directory alone, and everything
    they leave running ends with them."""
    jail = [BWRAP, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    return [*jail, "--ro-bind", str(stub), str(stub), "--bind", place, place, "--unshare-all", "--die-with-parent"]
