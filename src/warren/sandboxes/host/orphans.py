"""Reaps what sandboxes leave behind: their first processes, and the children of launchers that failed.

When a launcher has ended, its children get another parent: usually the first process of the machine, which may reap
them late, or never (a server that is the first process of a container). While this process makes sandboxes, it takes
that place itself. It reaps only what it knows to be such an orphan, and never waits for just any child
(`waitpid(-1)`): others in this process wait for children of their own.
"""

import ctypes
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from warren.sandboxes.host.file_locks import sandbox_of
from warren.sandboxes.host.processes import open_process, read_stat, starting

_SET_SUBREAPER, _GET_SUBREAPER = 36, 37
_START_TIME: Final = 19
_NAME_BYTES: Final = 15  # what the kernel keeps of a program's name
_libc = ctypes.CDLL(None, use_errno=True)
_lock = threading.Lock()
_users = 0
_was_subreaper = False
_names: set[str] = set()
_late: dict[int, int] = {}  # first processes that could not be reaped at once, with their start times


def adopt() -> None:
    """Lets orphans come to this process, until `disown` was called as often."""
    global _users, _was_subreaper
    with _lock:
        if _users == 0:
            now = ctypes.c_int()
            _libc.prctl(_GET_SUBREAPER, ctypes.byref(now))
            _was_subreaper = bool(now.value)
            _libc.prctl(_SET_SUBREAPER, ctypes.c_ulong(1))
        _users += 1


def disown() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0 and not _was_subreaper:
            _libc.prctl(_SET_SUBREAPER, ctypes.c_ulong(0))


def reap(pid: int, start_time: int) -> None:
    """Reaps a first process that has ended, if it is a child of this one; and those that could not be reaped before.
    One that has not quite ended yet is reaped by a later call."""
    with _lock:
        _late[pid] = start_time
        for each, began in [*_late.items()]:
            if _reap_now(each, began):
                del _late[each]


def _reap_now(pid: int, start_time: int) -> bool:
    """Returns False if the process is a child that has not ended yet."""
    with open_process(pid) as pidfd:
        # Checked after opening: the pid may belong to another process by now, whose parent waits for it.
        stat = read_stat(pid)
        if pidfd is None or not stat or int(stat[_START_TIME]) != start_time:
            return True
        try:
            return os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG) is not None
        except ChildProcessError:
            return True


def expect_from(*programs: str) -> None:
    """Notes programs that may leave children to this process."""
    _names.update(os.path.basename(path)[:_NAME_BYTES] for path in programs)


def reap_strays(after: int = 0) -> None:
    """Reaps what launchers and runtimes have left, and first processes of sandboxes that were not finished. With
    `after` it looks only at processes that were started after this one: there may be thousands of others."""
    with starting:  # no program of this process ends unknown meanwhile
        for pid in _children():
            with suppress(OSError):
                if pid > after and read_stat(pid)[:1] == ["Z"] and _is_stray(pid):
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def _is_stray(pid: int) -> bool:
    if sandbox_of(pid) is not None:
        return True  # this process starts nothing with a uid of sandboxes itself
    return pid not in starting.pids and Path(f"/proc/{pid}/comm").read_text().strip() in _names


def _children() -> list[int]:
    """Returns the children of this process; none if the kernel does not list them."""
    found: list[int] = []
    for task in os.listdir("/proc/self/task"):
        with suppress(OSError):
            found += map(int, Path(f"/proc/self/task/{task}/children").read_text().split())
    return found
