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
    """For each line of its input: does each piece of work once. Prints as JSON how many seconds each took, and how
    much processor time."""
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
            started, used = time.monotonic(), time.process_time()
            work()
            seconds[name] = time.monotonic() - started, time.process_time() - used
        sys.stdout.write(json.dumps(seconds) + "\n")
        sys.stdout.flush()
    return CONTAINED, "measured"
