"""Channels between two sandboxes. `hold…` runs in the neighbour and keeps something there; the others look for it."""

import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import time

from .calls import CONTAINED, THROUGH, Account, ProbeVerdict, libc, ready

_SHARED = (
    "/dev/null",
    "/dev/zero",
    "/dev/urandom",
    "/etc/passwd",
    "/etc/hostname",
    "/bin/sh",
    "/usr/bin/env",
    "/.warren/agent",
    "/.warren/runners/bash/main.sh",
)
_FOLDERS = ("/", "/etc", "/usr/bin", "/dev", "/.warren", "/bin/sh", "/etc/passwd", "/dev/null")
_KEY = 0x57415252
_IPC_CREAT = 0o1000


def _stay(seconds: float) -> ProbeVerdict:
    ready()
    time.sleep(seconds)
    return CONTAINED, "held"


def hold_locks(seconds: float) -> ProbeVerdict:
    held = []
    for path in _SHARED:
        try:
            fd = os.open(path, os.O_RDONLY)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.append(fd)
        except OSError:
            continue
    if len(held) < 4:
        raise RuntimeError(f"only {len(held)} files could be locked, that shows nothing")
    return _stay(seconds)


def see_locks() -> ProbeVerdict:
    free, blocked = [], []
    for path in _SHARED:
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free.append(path)
        except OSError as exc:
            if exc.errno != errno.EWOULDBLOCK:
                raise
            blocked.append(path)
        os.close(fd)
    if blocked:
        return THROUGH, f"locks that are not ours are felt on {', '.join(blocked)}"
    return CONTAINED, f"{len(free)} files can be locked although others have locked theirs"


def watch_files(seconds: float) -> ProbeVerdict:
    fd = libc.inotify_init1(os.O_NONBLOCK)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    watched = {libc.inotify_add_watch(fd, path.encode(), 0x00000FFF): path for path in _FOLDERS}
    if len([watch for watch in watched if watch >= 0]) < 4:
        raise RuntimeError("hardly anything can be watched, that shows nothing")
    ready()
    end, events = time.monotonic() + seconds, b""
    while time.monotonic() < end:
        if select.select([fd], [], [], 0.1)[0]:
            events += os.read(fd, 65536)
    seen = []
    while events:
        watch, _, _, length = struct.unpack_from("iIII", events)
        name = events[16 : 16 + length].rstrip(b"\0").decode()
        seen.append(f"{watched.get(watch, '?')} {name}".strip())
        events = events[16 + length :]
    if seen:
        return THROUGH, f"{len(seen)} of the neighbour's accesses were seen: {', '.join(sorted(set(seen))[:5])}"
    return CONTAINED, f"none of the neighbour's accesses was seen on {len([w for w in watched if w >= 0])} watches"


def use_files() -> ProbeVerdict:
    for path in _SHARED:
        try:
            with open(path, "rb") as file:
                file.read(16)
        except OSError:
            continue
    os.spawnv(os.P_WAIT, "/bin/sh", ["sh", "-c", "/usr/bin/env >/dev/null"])
    return CONTAINED, "used"


def hold_ipc(seconds: float, token: str) -> ProbeVerdict:
    mode = _IPC_CREAT | 0o666
    if min(libc.shmget(_KEY, 4096, mode), libc.msgget(_KEY, mode), libc.semget(_KEY, 1, mode)) < 0:
        raise RuntimeError("the neighbour could not make its own SysV objects")
    with open(f"/dev/shm/{token}", "w") as file:
        file.write(token)
    return _stay(seconds)


def see_ipc(token: str) -> ProbeVerdict:
    seen = [
        name
        for name, found in (
            ("shared memory", libc.shmget(_KEY, 0, 0)),
            ("message queue", libc.msgget(_KEY, 0)),
            ("semaphore", libc.semget(_KEY, 0, 0)),
        )
        if found >= 0
    ]
    if os.path.exists(f"/dev/shm/{token}"):
        seen.append("/dev/shm")
    return (
        (THROUGH, f"the neighbour's {', '.join(seen)}") if seen else (CONTAINED, "no SysV object, nothing in /dev/shm")
    )


def hold_sockets(seconds: float, token: str, port: int) -> ProbeVerdict:
    abstract, loopback = socket.socket(socket.AF_UNIX), socket.socket()
    abstract.bind(f"\0{token}")
    loopback.bind(("127.0.0.1", port))
    abstract.listen()
    loopback.listen()
    return _stay(seconds)


def reach_sockets(names: "list[str]", ports: "list[int]") -> ProbeVerdict:
    account = Account()
    for name in names:
        account.attempt(f"abstract {name}", lambda name=name: _connect(socket.AF_UNIX, f"\0{name}"))  # type: ignore[misc]
    for port in ports:
        account.attempt(f"port {port}", lambda port=port: _connect(socket.AF_INET, ("127.0.0.1", port)))  # type: ignore[misc]
    return account.verdict()


def _connect(family: int, address: "str | tuple[str, int]") -> None:
    with socket.socket(family) as client:
        client.settimeout(2)
        client.connect(address)


def use_up_inotify(seconds: float) -> ProbeVerdict:
    """Holds every inotify instance it can get."""
    got = 0
    while libc.inotify_init1(0) >= 0:
        got += 1
    ready(got)
    time.sleep(seconds)
    return CONTAINED, str(got)


def one_inotify() -> ProbeVerdict:
    if libc.inotify_init1(0) < 0:
        return THROUGH, f"this sandbox has no inotify instance left: {errno.errorcode[ctypes.get_errno()]}"
    return CONTAINED, "an inotify instance can still be had here"
