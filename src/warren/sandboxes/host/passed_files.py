"""Keeps open files that a sandbox's process sends along with its bytes out of the worker.

A unix socket carries open files (SCM_RIGHTS). A reader that does not ask for them has the kernel close them in its own
thread, at the latest when it closes the socket, and a close lasts as long as the sender has prepared: until the data of
a lingering TCP socket is sent, until the pages of a large memory file are freed. No program that the worker reads from
has a reason to send any. From Linux 6.16 on a socket can refuse them (SO_PASSRIGHTS), and the sender gets an error.
"""

import socket
from typing import Final

_SO_PASSRIGHTS: Final = 83


def refuse_descriptors(sock: socket.socket) -> bool:
    """Returns whether the socket refuses open files from now on; call it before connecting. False before Linux 6.16."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
    except OSError:
        return False
    return True
