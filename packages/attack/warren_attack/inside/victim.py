"""What an honest program in the neighbouring sandbox does, and how long each piece of it takes."""

import json
import mmap
import os
import pty
import socket
import sys
import time

from .calls import CONTAINED, ProbeVerdict, ready

_KIB = 1024
_FOLDER = "/workspace/victim"


def measure() -> ProbeVerdict:
    """For each line of its input: does each piece of work once. Prints as JSON how many seconds each took, and for how
    many of them it was ready to run and waited for a processor (null if unknown)."""
    os.makedirs(_FOLDER, exist_ok=True)
    disk = os.open(f"{_FOLDER}/disk", os.O_RDWR | os.O_CREAT, 0o600)
    server = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(server.getsockname())
    far = server.accept()[0]
    block = os.urandom(256 * _KIB)

    def compute() -> None:
        for _ in range(20_000):
            pass

    def allocate() -> None:
        with mmap.mmap(-1, 1 << 20) as room:
            for at in range(0, 1 << 20, 4096):
                room[at] = 1

    def write_disk() -> None:
        os.pwrite(disk, block, 0)
        os.fsync(disk)

    def make_files() -> None:
        for index in range(10):
            os.close(os.open(f"{_FOLDER}/{index}", os.O_CREAT | os.O_WRONLY, 0o600))
            os.unlink(f"{_FOLDER}/{index}")

    def send() -> None:
        for _ in range(4):
            near.sendall(block[: 16 * _KIB])
            left = 16 * _KIB
            while left:
                left -= len(far.recv(left))

    def open_terminal() -> None:
        for fd in pty.openpty():
            os.close(fd)

    pieces = {
        "cpu": compute,
        "memory": allocate,
        "disk": write_disk,
        "files": make_files,
        "loopback": send,
        "terminal": open_terminal,
    }
    ready()
    for _ in sys.stdin:
        seconds = {}
        for name, work in pieces.items():
            started, before = time.monotonic(), _waited_s()
            work()
            after = _waited_s()
            waited = None if before is None or after is None else after - before
            seconds[name] = time.monotonic() - started, waited
        sys.stdout.write(json.dumps(seconds) + "\n")
        sys.stdout.flush()
    return CONTAINED, "measured"


def _waited_s() -> "float | None":
    """Seconds for which this process was ready to run and no processor was free; None if the kernel does not tell."""
    try:
        with open("/proc/self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return None
