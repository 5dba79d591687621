"""Connects to the socket of an agent that listens on this host."""

import asyncio
import os
import socket
import stat
from pathlib import Path

from warren.model.errors import SandboxLost
from warren.sandboxes.host.empty_network import unix_socket
from warren.sandboxes.host.passed_files import refuse_descriptors

SOCKET_NAME = "agent.sock"
_REDIAL_S = (0.0005, 0.005)


async def connect(directory: Path) -> socket.socket:
    """Connects to the agent's socket without following a symbolic link that may have replaced it.

    The socket is opened through descriptors, so neither the length of the path nor a change of the path in the
    meantime matters.
    """
    try:
        sock = await unix_socket()
    except OSError as exc:
        raise _unreachable(exc) from exc
    try:
        sock.setblocking(False)
        refuse_descriptors(sock)  # before the agent can send any
        await _connect_when_it_listens(sock, directory)
    except BaseException:
        sock.close()
        raise
    return sock


async def _connect_when_it_listens(sock: socket.socket, directory: Path) -> None:
    pause = _REDIAL_S[0]
    while True:
        try:
            return _connect_once(sock, directory)
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            if not directory.is_dir():
                raise SandboxLost("the sandbox is lost: its directory is gone") from None
        except OSError as exc:
            raise _unreachable(exc) from exc
        await asyncio.sleep(pause)
        pause = min(pause * 2, _REDIAL_S[1])


def _unreachable(exc: OSError) -> SandboxLost:
    return SandboxLost(f"the agent cannot be reached: {exc.strerror or exc}")


def _connect_once(sock: socket.socket, directory: Path) -> None:
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        target = os.open(SOCKET_NAME, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        if not stat.S_ISSOCK(os.fstat(target).st_mode):
            raise SandboxLost(f"{SOCKET_NAME} is not a socket: somebody put something else in its place")
        sock.connect(f"/proc/self/fd/{target}")
    finally:
        os.close(target)
