"""What a server and its makers say to each other: one message in each packet of a socket between the two.

Both ends run this very code as root, and nothing that a sandbox writes is in a message but as text of the kernel's
evidence: so values go as they are, by pickle. A connection to the new sandbox's agent goes along as an open file.
"""

import array
import io
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from warren.model.errors import WarrenError
from warren.model.spec import Isolation, SandboxSpec
from warren.sandboxes.host.record import SandboxRecord

MAX_MESSAGE: Final = 1 << 20
_ROOM: Final = 4 * MAX_MESSAGE
_SNDBUFFORCE: Final = 32
_FLAGS: Final = socket.MSG_CMSG_CLOEXEC


@dataclass(frozen=True, slots=True)
class Ready:
    """A maker's first message."""


@dataclass(frozen=True, slots=True)
class Make:
    sandbox_id: str
    spec: SandboxSpec


@dataclass(frozen=True, slots=True)
class End:
    """The end of a sandbox that was made. The answer is None."""

    sandbox_id: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """The request of this number is not wanted any more. Its answer comes all the same."""

    number: int


@dataclass(frozen=True, slots=True)
class Made:
    """The answer to Make. A connection to its agent comes along, which nobody has greeted."""

    record: SandboxRecord
    isolation: Isolation


Request = Make | End | Cancel
Answer = Made | Ready | WarrenError | None


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Returns the two ends. The kernel keeps the messages apart."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, _ROOM)
    return ends


@lru_cache(maxsize=16)
def _spec_of(data: bytes) -> SandboxSpec:
    spec: SandboxSpec = pickle.loads(data)
    return spec


_last_spec: tuple[SandboxSpec, bytes] | None = None


def _reduce_spec(spec: SandboxSpec) -> tuple[Callable[[bytes], SandboxSpec], tuple[bytes]]:
    """Most sandboxes are made like the one before: both ends keep what they have packed and unpacked last."""
    global _last_spec
    known = _last_spec
    if known is None or (known[0] is not spec and known[0] != spec):
        known = _last_spec = spec, pickle.dumps(spec, pickle.HIGHEST_PROTOCOL)
    return _spec_of, (known[1],)


_REDUCERS: Final[dict[type, Callable[[Any], Any]]] = {SandboxSpec: _reduce_spec}


def packed(number: int, value: Request | Answer) -> bytes:
    """Raises ValueError if it is too long."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _REDUCERS
    pickler.dump((number, value))
    data = file.getvalue()
    if len(data) > MAX_MESSAGE:
        raise ValueError(f"a message of {len(data)} bytes")
    return data


def send(sock: socket.socket, data: bytes, fd: int = -1) -> None:
    """Raises BlockingIOError, OSError."""
    if fd >= 0:
        socket.send_fds(sock, [data], [fd])
    else:
        sock.send(data)


def receive(sock: socket.socket, buffer: bytearray) -> tuple[int, Any, int] | None:
    """Returns the number of the request, the value and the descriptor that came with it, or -1; None at the end.
    Raises BlockingIOError, OSError."""
    size, control, _, _ = sock.recvmsg_into([buffer], socket.CMSG_SPACE(4), _FLAGS)
    if not size:
        return None
    fds = array.array("i")
    for _, _, data in control:
        fds.frombytes(data)
    number, value = pickle.loads(memoryview(buffer)[:size])
    return number, value, fds[0] if fds else -1
