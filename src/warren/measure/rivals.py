"""What else can run a command apart on this machine, timed the same way: docker and bubblewrap, where they are.

Containers get this machine's own /usr, read-only, over an image of nothing but links into it, which is removed again:
so nothing has to be downloaded, and no image of the user's is needed.
"""

import contextlib
import io
import secrets
import shutil
import statistics
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from warren.measure.figures import Figure

_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64")
_BWRAP: Final = ("--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")
_RUN: Final = ("--network", "none", "--volume", "/usr:/usr:ro")
_ANSWER_S: Final = 60.0


def time_rivals(times: int, note: Callable[[Figure], None]) -> list[str]:
    """Notes what each rival takes; returns why others cannot be timed."""
    return [why for one in (_time_bubblewrap, _time_docker) if (why := one(times, note))]


def _time_bubblewrap(times: int, note: Callable[[Figure], None]) -> str:
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    return _time(times, "a command (true) in a new sandbox", "bubblewrap", ("bwrap", *_BWRAP, "true"), note)


def _time_docker(times: int, note: Callable[[Figure], None]) -> str:
    if shutil.which("docker") is None:
        return "docker is not installed"
    if problem := _try(("docker", "version")):
        return f"docker does not run: {problem}"
    if not all(Path(f"/{name}").is_symlink() for name in _LINKS if Path(f"/{name}").exists()):
        return "docker: /bin and /lib of this machine are not links into /usr"
    name = f"warren-bench-{secrets.token_hex(4)}"
    with _docker_image(name) as problem:
        if problem:
            return f"docker: {problem}"
        run = ("docker", "run", "--rm", *_RUN, name, "/usr/bin/true")
        if problem := _time(times, "a command (true) in a new container", "docker run", run, note):
            return problem
        start = ("docker", "run", "--detach", "--name", name, *_RUN, name, "/usr/bin/sleep", "600")
        if problem := _try(start):
            return f"docker: {problem}"
        return _time(times, "a command (true) in a container", "docker exec", ("docker", "exec", name, "true"), note)


@contextlib.contextmanager
def _docker_image(name: str) -> Iterator[str]:
    """Makes the image, and removes it with the container of the same name; yields why it cannot."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for link in (link for link in _LINKS if Path(f"/{link}").is_symlink()):
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, f"usr/{link}"
            tar.addfile(info)
    try:
        yield _try(("docker", "import", "-", name), buffer.getvalue())
    finally:
        _try(("docker", "rm", "--force", name))
        _try(("docker", "image", "rm", "--force", name))


def _time(times: int, what: str, of: str, argv: Sequence[str], note: Callable[[Figure], None]) -> str:
    if problem := _try(argv):
        return f"{of}: {problem}"
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        if problem := _try(argv):
            return f"{of}: {problem}"
        taken.append(time.perf_counter() - start)
    note(Figure(what, statistics.median(taken) * 1000, "ms", of))
    return ""


def _try(argv: Sequence[str], data: bytes = b"") -> str:
    """Runs a program; returns why it failed, or nothing."""
    try:
        done = subprocess.run(argv, input=data, capture_output=True, timeout=_ANSWER_S)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return str(exc)
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return "" if done.returncode == 0 else lines[-1] if lines else f"exit code {done.returncode}"
