"""Holding what belongs to the whole machine: buffers of sockets, open files, disk space."""

import contextlib
import errno
import os
import resource
import signal
import socket
import time

from .calls import CONTAINED, THROUGH, ProbeVerdict, libc

_MIB = 1 << 20
_HOLD_S = 1.5


def hoard_buffers(kind: str) -> ProbeVerdict:
    """Sends what nobody reads, until nothing can be sent any more."""
    held = _hoard_tcp() if kind == "TCP" else _hoard_udp()
    time.sleep(_HOLD_S)
    return CONTAINED, f"{len(held)} sockets"


def _hoard_tcp() -> list[socket.socket]:
    server = socket.create_server(("127.0.0.1", 0), backlog=1000)
    held = [server]
    with contextlib.suppress(OSError):
        for _ in range(300):
            client = socket.create_connection(server.getsockname(), timeout=2)
            peer, _ = server.accept()
            for end in (client, peer):
                held.append(end)
                _fill(end)
    return held


def _hoard_udp() -> list[socket.socket]:
    held = []
    with contextlib.suppress(OSError):
        for _ in range(400):
            receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * _MIB)
            receiver.bind(("127.0.0.1", 0))
            held.append(receiver)
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sender.setblocking(False)
            with contextlib.suppress(OSError):
                for _ in range(256):
                    sender.sendto(bytes(32 * 1024), receiver.getsockname())
            sender.close()
    return held


def _fill(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * _MIB)
    end.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        for _ in range(64):
            end.send(bytes(_MIB))


def hold_files(processes: int, files: int) -> ProbeVerdict:
    children = []
    with contextlib.suppress(OSError):
        for _ in range(processes):
            pid = os.fork()
            if pid == 0:
                libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # dies with its parent
                with contextlib.suppress(OSError):
                    for _ in range(files):
                        os.open("/dev/null", os.O_RDONLY)
                time.sleep(60)
                os._exit(0)
            children.append(pid)
    time.sleep(8)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return CONTAINED, f"{len(children)} processes"


def allocate(mib: int) -> ProbeVerdict:
    path, most = "/workspace/allocated", resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    got = 0
    fds = []
    try:
        for number in range(4):
            fds.append(os.open(f"{path}{number}", os.O_RDWR | os.O_CREAT))
            for at in range(0, min(most, mib * _MIB), 8 * _MIB):
                os.posix_fallocate(fds[-1], at, 8 * _MIB)
                got += 8
    except OSError as exc:
        code = errno.errorcode[exc.errno or 0]
    else:
        code = ""
    finally:
        for number, fd in enumerate(fds):
            os.close(fd)
            os.unlink(f"{path}{number}")
    if got > mib:
        return THROUGH, f"{got} MiB could be allocated, the limit is {mib}"
    return CONTAINED, f"{code} after {got} MiB"
