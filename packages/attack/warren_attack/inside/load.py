"""Loads that one sandbox can put on the kernel it shares with its neighbour.

A load is a generator: each step is a piece of work, and what it holds is released when it ends. `storm` runs it in
several processes at once. `busy` and `documents` in one process are what an honest neighbour does.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import pty
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator

from .calls import CONTAINED, ProbeVerdict, libc, ready

_MIB = 1 << 20
_FOLDER = "/workspace/attack-load"
_FUTEX = {"x86_64": 202, "aarch64": 98}
Load = Callable[[int, int], Iterator[None]]


def storm(kind: str, seconds: float, count: int, mib: int = 0) -> ProbeVerdict:
    """`mib` is the memory that all processes together may use."""
    end = time.monotonic() + seconds
    folder = f"{_FOLDER}-{kind}"
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    for index in range(count):
        if os.fork() == 0:
            _work(LOADS[kind](index, mib // count), end)
            os._exit(0)
    ready()
    while time.monotonic() < end:
        time.sleep(0.1)
    return CONTAINED, "done"


def _work(load: "Iterator[None]", end: float) -> None:
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # dies with its parent
    while time.monotonic() < end:
        try:
            next(load)
        except (OSError, MemoryError):
            time.sleep(0.002)  # a limit was reached, which is what it is there for


def clear(kind: str) -> ProbeVerdict:
    """Removes what a storm left on the disk when it was ended."""
    with contextlib.suppress(FileNotFoundError):
        for place, folders, names in os.walk(f"{_FOLDER}-{kind}", topdown=False):
            for name in names:
                os.unlink(os.path.join(place, name))
            for name in folders:
                os.rmdir(os.path.join(place, name))
        os.rmdir(f"{_FOLDER}-{kind}")
    return CONTAINED, "removed"


def _busy(index: int, mib: int) -> "Iterator[None]":
    while True:
        for _ in range(10_000):
            pass
        yield


def _calls(index: int, mib: int) -> "Iterator[None]":
    random = os.open("/dev/urandom", os.O_RDONLY)
    while True:
        for _ in range(200):
            os.getppid()
        os.read(random, 65536)
        yield


# -- memory


def _memory(index: int, mib: int) -> "Iterator[None]":
    """Takes all it may have, gives it back, and takes it again."""
    while True:
        with contextlib.closing(mmap.mmap(-1, mib * _MIB)) as block:
            for at in range(0, mib * _MIB, 4096):
                block[at] = 1
                if at % (16 * _MIB) == 0:
                    yield


def _page_cache(index: int, mib: int) -> "Iterator[None]":
    """Reads a file that does not fit into the memory limit: it has holes only, so the disk is not asked."""
    fd = os.open(f"cache-{index}", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, 2 * mib * _MIB)
    while True:
        for at in range(0, 2 * mib * _MIB, _MIB):
            os.pread(fd, _MIB, at)
            yield


def _mappings(index: int, mib: int) -> "Iterator[None]":
    """Makes, protects and removes mappings: each change interrupts the other processors that had it."""
    while True:
        with contextlib.closing(mmap.mmap(-1, 2 * _MIB)) as block:
            address = ctypes.addressof(ctypes.c_char.from_buffer(block))
            for at in range(0, 2 * _MIB, 4096):
                block[at] = 1
            for protection in (1, 3) * 8:
                libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(2 * _MIB), protection)
        yield


# -- the disk


def _writes(index: int, mib: int) -> "Iterator[None]":
    fd, block = os.open(f"writes-{index}", os.O_RDWR | os.O_CREAT, 0o600), os.urandom(_MIB)
    while True:
        for at in range(64):
            os.pwrite(fd, block, at * _MIB)
            yield
        os.ftruncate(fd, 0)


def _documents(index: int, mib: int) -> "Iterator[None]":
    """An honest program that saves its work, again and again."""
    fd, block = os.open(f"document-{index}", os.O_RDWR | os.O_CREAT, 0o600), os.urandom(_MIB // 4)
    while True:
        os.pwrite(fd, block, 0)
        os.fsync(fd)
        yield


def _fsyncs(index: int, mib: int) -> "Iterator[None]":
    fd = os.open(f"fsyncs-{index}", os.O_RDWR | os.O_CREAT, 0o600)
    while True:
        os.pwrite(fd, b"x" * 4096, 0)
        os.fsync(fd)
        yield


def _syncs(index: int, mib: int) -> "Iterator[None]":
    """sync() asks the kernel to write back every file system of the machine."""
    fd = os.open(f"syncs-{index}", os.O_RDWR | os.O_CREAT, 0o600)
    while True:
        os.pwrite(fd, b"x" * 4096, 0)
        os.sync()
        yield


def _truncates(index: int, mib: int) -> "Iterator[None]":
    fd = os.open(f"truncates-{index}", os.O_RDWR | os.O_CREAT, 0o600)
    while True:
        os.posix_fallocate(fd, 0, 16 * _MIB)
        os.ftruncate(fd, 0)
        os.fsync(fd)
        yield


def _inodes(index: int, mib: int) -> "Iterator[None]":
    os.makedirs(f"inodes-{index}", exist_ok=True)
    while True:
        for name in range(100):
            os.close(os.open(f"inodes-{index}/{name}", os.O_CREAT | os.O_WRONLY, 0o600))
            os.rename(f"inodes-{index}/{name}", f"inodes-{index}/moved-{name}")
        for name in range(100):
            os.unlink(f"inodes-{index}/moved-{name}")
        yield


def _dentries(index: int, mib: int) -> "Iterator[None]":
    """Names that do not exist are remembered by the kernel, too; those of the image for all sandboxes."""
    number = 0
    while True:
        for folder in (".", "/usr/lib", "/dev/shm"):
            for _ in range(200):
                number += 1
                os.path.lexists(f"{folder}/{'n' * 180}-{index}-{number}")
        yield


def _inotify(index: int, mib: int) -> "Iterator[None]":
    """Events that nobody reads pile up in the kernel."""
    held = [fd for fd in (libc.inotify_init1(os.O_NONBLOCK) for _ in range(8)) if fd >= 0]
    os.makedirs(f"inotify-{index}", exist_ok=True)
    for fd in held:
        libc.inotify_add_watch(fd, f"inotify-{index}".encode(), 0xFFF)
    while True:
        for name in range(50):
            os.close(os.open(f"inotify-{index}/{name:0200}", os.O_CREAT | os.O_WRONLY, 0o600))
        yield


# -- processes


def _forks(index: int, mib: int) -> "Iterator[None]":
    """A bomb: every child forks too, until the limit of processes is reached."""
    while True:
        if os.fork() == 0:
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)
        yield


def _execs(index: int, mib: int) -> "Iterator[None]":
    while True:
        pid = os.posix_spawn("/bin/true", ["true"], {})
        os.waitpid(pid, 0)
        yield


def _signals(index: int, mib: int) -> "Iterator[None]":
    pid = os.fork()
    if pid == 0:
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
        while True:
            signal.pause()
    time.sleep(0.05)
    while True:
        for _ in range(200):
            os.kill(pid, signal.SIGUSR1)
        for _ in range(200):
            signal.pthread_sigmask(signal.SIG_BLOCK, [])
        yield


def _timers(index: int, mib: int) -> "Iterator[None]":
    """Hundreds of timers that fire every millisecond; each is read, so that the kernel sets it again."""
    poll, held = select.epoll(), []
    setting = ctypes.create_string_buffer(struct.pack("qqqq", 0, 1_000_000, 0, 1_000_000))
    for _ in range(200):
        fd = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK)
        if fd < 0:
            break
        libc.timerfd_settime(fd, 0, setting, None)
        poll.register(fd, select.EPOLLIN)
        held.append(fd)
    while True:
        for fd, _ in poll.poll(0.01):
            with contextlib.suppress(BlockingIOError):
                os.read(fd, 8)
        yield


def _pipes(index: int, mib: int) -> "Iterator[None]":
    """A byte that goes to and fro between two processes: a wake-up each way."""
    there, back = os.pipe(), os.pipe()
    if os.fork() == 0:
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)
        while True:
            os.write(back[1], os.read(there[0], 1))
    while True:
        for _ in range(50):
            os.write(there[1], b"x")
            os.read(back[0], 1)
        yield


def _futexes(index: int, mib: int) -> "Iterator[None]":
    word = mmap.mmap(-1, 4096)
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(word)))
    number = _FUTEX[os.uname().machine]
    short = ctypes.create_string_buffer(struct.pack("qq", 0, 50_000))
    waits = os.fork() == 0
    if waits:
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)
    while True:
        for _ in range(100):
            if waits:
                libc.syscall(number, address, 0, 0, short, None, 0)
            else:
                libc.syscall(number, address, 1, 100, None, None, 0)
        yield


def _epolls(index: int, mib: int) -> "Iterator[None]":
    """Polls within polls, over descriptors that are always ready: each wake-up walks all of them."""
    held = [socket.socketpair() for _ in range(60)]
    polls = [select.epoll() for _ in range(4)]
    for ends in held:
        ends[0].send(b"x")
        polls[0].register(ends[1], select.EPOLLIN)
    for depth in range(3):
        polls[depth + 1].register(polls[depth], select.EPOLLIN)
    while True:
        for poll in polls:
            poll.poll(0)
        for ends in held:
            ends[0].send(b"x")
            ends[1].recv(1)
        yield


def _locks(index: int, mib: int) -> "Iterator[None]":
    """Few locks, over which all processes quarrel."""
    fd = os.open("locks", os.O_RDWR | os.O_CREAT, 0o600)
    while True:
        for place in range(200):
            with contextlib.suppress(BlockingIOError, PermissionError):
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2 * place)
        fcntl.flock(fd, fcntl.LOCK_EX)
        fcntl.flock(fd, fcntl.LOCK_UN)
        fcntl.lockf(fd, fcntl.LOCK_UN)
        yield


def _open_files(index: int, mib: int) -> "Iterator[None]":
    held: list[int] = []
    while True:
        try:
            for _ in range(100):
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            for fd in held:
                os.close(fd)
            held = []
        yield


# -- terminals and sockets


def _terminals(index: int, mib: int) -> "Iterator[None]":
    """The line discipline echoes what is written to it, and works on that outside of this process."""
    held = []
    with contextlib.suppress(OSError):
        for _ in range(8):
            held.append(pty.openpty())
    for pair in held:
        for fd in pair:
            os.set_blocking(fd, False)
    text = b"a\x7f\x15\n" * 512
    while True:
        for main, other in held:
            for fd in (main, other):
                with contextlib.suppress(BlockingIOError):
                    os.write(fd, text)
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 65536)
        yield


def _sockets(index: int, mib: int) -> "Iterator[None]":
    """Data that was sent and is not read is kept by the kernel."""
    server, held = socket.create_server(("127.0.0.1", 0), backlog=512), list[socket.socket]()
    while True:
        try:
            client = socket.create_connection(server.getsockname())
            held += [client, server.accept()[0]]
            for sock in held[-2:]:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * _MIB)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * _MIB)
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        sock.send(bytes(_MIB))
                yield
        except OSError as exc:
            if exc.errno not in (errno.EMFILE, errno.ENOBUFS, errno.ENOMEM):
                raise
            for sock in held:
                sock.close()
            held = []
            yield


def _connections(index: int, mib: int) -> "Iterator[None]":
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    while True:
        for _ in range(10):
            client = socket.create_connection(server.getsockname())
            server.accept()[0].close()
            client.close()
        yield


def _output(index: int, mib: int) -> "Iterator[None]":
    block = b"\xff\0\x1b[2J" * 10_000
    while True:
        os.write(sys.stdout.fileno(), block)
        yield


LOADS: "dict[str, Load]" = {
    "busy": _busy,
    "calls": _calls,
    "memory": _memory,
    "page_cache": _page_cache,
    "mappings": _mappings,
    "writes": _writes,
    "documents": _documents,
    "fsyncs": _fsyncs,
    "syncs": _syncs,
    "truncates": _truncates,
    "inodes": _inodes,
    "dentries": _dentries,
    "inotify": _inotify,
    "forks": _forks,
    "execs": _execs,
    "signals": _signals,
    "timers": _timers,
    "pipes": _pipes,
    "futexes": _futexes,
    "epolls": _epolls,
    "locks": _locks,
    "open_files": _open_files,
    "terminals": _terminals,
    "sockets": _sockets,
    "connections": _connections,
    "output": _output,
}
