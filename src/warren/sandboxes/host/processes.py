"""Processes of the host: runs a helper program, recognizes a process again, kills one safely.

`run` does not fork this process: a fork copies the page tables of a big Python process, posix_spawn does not. It waits
for the end through a pidfd, so it needs no signal handler or thread. Processes that the program started may outlive it
and hold its stderr open, so `run` reads the text when the program has ended, not until end of file.
"""

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from warren.kernel.shielding import run_shielded
from warren.model.errors import ProviderUnavailable

ENVIRONMENT: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_MAX_STDERR: Final = 16 * 1024
_PF_EXITING: Final = 0x4
_CRASH: Final = re.compile(r"(panic|fatal error|runtime(/cgo)?|SIG[A-Z]+): ")


@cache
def boot_id() -> str:
    """Returns the id of this boot. Processes and mounts of earlier boots are gone."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """Returns the start time in clock ticks since boot; None if the process has ended, even if nobody has reaped it
    yet."""
    stat = read_stat(pid)
    return None if not stat or stat[0] in "ZX" else int(stat[19])


def is_exiting(pid: int) -> bool:
    """Returns whether the kernel has begun to end the process. It closes its sockets some time before it counts as
    dead."""
    stat = read_stat(pid)
    return not stat or bool(int(stat[6]) & _PF_EXITING)


def has_let_go(pid: int) -> bool:
    """Returns whether an ending process has given back its memory and its files. The first process of a pid namespace
    may stay like this until somebody else reaps the processes that have entered the namespace from outside."""
    stat = read_stat(pid)
    try:
        return not stat or (bool(int(stat[6]) & _PF_EXITING) and stat[20] == "0" and not os.listdir(f"/proc/{pid}/fd"))
    except FileNotFoundError:
        return True


def read_stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat after the program's name; none if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().decode(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


@contextmanager
def open_process(pid: int) -> Iterator[int | None]:
    """Yields a pidfd of the process, None if there is none. The pid alone may belong to another process by now: check
    after opening that it is the right one."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def kill_if(pid: int, is_right_one: Callable[[int], bool]) -> None:
    with open_process(pid) as pidfd, suppress(ProcessLookupError):
        if pidfd is not None and is_right_one(pid):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended. `code` is negative for a signal. `stderr` is the end of the output. `pid` is what it had."""

    code: int
    stderr: str
    pid: int = 0

    @property
    def last_line(self) -> str:
        """Why the program failed: its last line, or the first line of a Go program's crash, which ends with
        registers."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        crash = next((line for line in lines if _CRASH.match(line)), "")
        return (crash or lines[-1])[:500] if lines else f"ended with {self.code}, without a word"


class Starting:
    """The programs that `run` has started and not reaped yet. While it is entered, none of them begins or is reaped."""

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


starting = Starting()


async def run(
    argv: Sequence[str],
    *,
    stdin: int | None = None,
    pass_fds: Mapping[int, int] | None = None,
    timeout_s: float = 60.0,
) -> Finished:
    """Runs a program to its end. `pass_fds` maps descriptors of ours to their numbers in the program.

    When cancelled, or after `timeout_s`, kills and reaps the program before it raises.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.set_blocking(writer, True)
        with starting:
            pid = _spawn(argv, stdin, writer, pass_fds or {})
            starting.pids.add(pid)
        os.close(writer)
        writer = -1
        code = await _end_of(pid, timeout_s)
        return Finished(code, _read_all(reader), pid)
    except TimeoutError:
        raise ProviderUnavailable(
            f"{os.path.basename(argv[0])} did not end within {timeout_s:g} s: {_read_all(reader)[-500:]}"
        ) from None
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)


def _spawn(argv: Sequence[str], stdin: int | None, stderr: int, descriptors: Mapping[int, int]) -> int:
    actions: list[tuple[int, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)  # type: ignore[list-item]
        if stdin is None
        else (os.POSIX_SPAWN_DUP2, stdin, 0)
    ]
    actions += [(os.POSIX_SPAWN_DUP2, stderr, 1), (os.POSIX_SPAWN_DUP2, stderr, 2)]
    actions += [(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in descriptors.items()]
    try:
        return os.posix_spawnp(
            argv[0],
            list(argv),
            ENVIRONMENT,
            file_actions=actions,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
        )
    except OSError as exc:
        raise ProviderUnavailable(f"starting {os.path.basename(argv[0])}: {exc.strerror}") from exc


async def _end_of(pid: int, timeout_s: float) -> int:
    pidfd = os.pidfd_open(pid)
    try:
        async with asyncio.timeout(timeout_s):
            await readable(pidfd)
    except BaseException:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        await run_shielded(readable(pidfd))  # one that waits for a disk dies late
        raise
    finally:
        os.close(pidfd)
        code = _reap(pid)
    return code


def _reap(pid: int) -> int:
    """Reaps a process that has ended or was killed, so it hardly blocks."""
    with starting:
        status = os.waitpid(pid, 0)[1]
        starting.pids.discard(pid)
    return os.waitstatus_to_exitcode(status)


async def readable(fd: int) -> None:
    """Returns when `fd` is readable; a pidfd is readable when its process has ended."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def note_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, note_ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def _read_all(fd: int) -> str:
    parts = b""
    while True:
        try:
            part = os.read(fd, 65536)
        except BlockingIOError:
            break
        if not part:
            break
        parts = (parts + part)[-_MAX_STDERR:]
    return parts.decode(errors="replace")


async def stop_child(process: asyncio.subprocess.Process, within_s: float) -> None:
    """Sends SIGINT, so that the process can clean up; kills it if that takes too long."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
        try:
            async with asyncio.timeout(within_s):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
