"""A name server for programs that a test starts: names below `localhost`, and below given domains, lead to loopback.

Browsers and some systems resolve names below `localhost` by themselves; getaddrinfo of others asks a name server.
`LocalNames` is that name server, and `command` runs a program with an /etc/resolv.conf that names it.
"""

import contextlib
import secrets
import socket
import struct
import threading
from collections.abc import Sequence
from pathlib import Path

_PORT = 53
_A, _IN = 1, 1


class LocalNames:
    """Answers on a loopback address of its own until the block is left. Other names do not exist."""

    def __init__(self, folder: Path, *domains: str) -> None:
        self._domains = ("localhost", *domains)
        self._socket = _listen()
        self._file = folder / "resolv.conf"
        self._file.write_text(f"nameserver {self._socket.getsockname()[0]}\n")
        self._thread = threading.Thread(target=self._answer_all, daemon=True)

    def command(self, argv: Sequence[str]) -> list[str]:
        inside = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside, str(self._file), *argv]

    def __enter__(self) -> "LocalNames":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # raises because there is no peer, but wakes the thread
        self._thread.join()
        self._socket.close()

    def _answer_all(self) -> None:
        while True:
            question, client = self._socket.recvfrom(4096)
            if not question:
                return
            with contextlib.suppress(OSError, IndexError, struct.error, UnicodeDecodeError):
                self._socket.sendto(self._answer(question), client)

    def _answer(self, question: bytes) -> bytes:
        name, end = _name(question)
        kind, _ = struct.unpack_from("!HH", question, end)
        known = name.endswith(tuple(f".{domain}" for domain in self._domains)) or name in self._domains
        records = b"\xc0\x0c" + struct.pack("!HHIH", _A, _IN, 1, 4) + socket.inet_aton("127.0.0.1")
        has_address = known and kind == _A
        flags = 0x8580 if known else 0x8583
        head = question[:2] + struct.pack("!HHHHH", flags, 1, int(has_address), 0, 0)
        return head + question[12 : end + 4] + (records if has_address else b"")


def _listen() -> socket.socket:
    """Binds to a random address in 127/8, so that several can run at once, beside a name server of the machine."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while True:
        with contextlib.suppress(OSError):
            sock.bind(
                (f"127.{1 + secrets.randbelow(250)}.{secrets.randbelow(250)}.{1 + secrets.randbelow(250)}", _PORT)
            )
            return sock


def _name(question: bytes) -> tuple[str, int]:
    labels, at = [], 12
    while size := question[at]:
        labels.append(question[at + 1 : at + 1 + size].decode())
        at += 1 + size
    return ".".join(labels).lower(), at + 1
