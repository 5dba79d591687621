"""Two threads share a TLS socket: OpenSSL is never in both at once, and neither waits for what the other waits for."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from certificates import make_certificates

from warren.sdk.blocking.tls_socket import TlsSocket

LONGEST_S = 60.0
ROUNDS = 3000


class Watched(ssl.SSLSocket):
    """Counts the calls during which another thread was in the socket too."""

    inside = 0
    meetings = 0

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        self._enter()
        try:
            return super().recv(buflen, flags)
        finally:
            self.inside -= 1

    def send(self, data: object, flags: int = 0) -> int:
        self._enter()
        try:
            return super().send(data, flags)  # type: ignore[arg-type]
        finally:
            self.inside -= 1

    def _enter(self) -> None:
        self.inside += 1
        self.meetings += self.inside > 1


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    folder: Path = tmp_path_factory.mktemp("tls")
    made = make_certificates(folder)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.cert, made.key)
    client = made.client
    client.sslsocket_class = Watched
    return server, client


@pytest.fixture
def ends(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Iterator[tuple[Watched, TlsSocket, ssl.SSLSocket]]:
    """The client's socket as it is and as it is shared, and the server's end."""
    server, client = contexts
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor(1) as other:
        accepted = other.submit(server.wrap_socket, theirs, server_side=True)
        watched = client.wrap_socket(ours, server_hostname="localhost")
        answering = accepted.result(LONGEST_S)
    assert isinstance(watched, Watched)
    shared = TlsSocket(watched)
    answering.settimeout(LONGEST_S)
    yield watched, shared, answering
    shared.close()
    answering.close()


def test_who_only_reads_does_not_keep_another_from_writing(ends: tuple[Watched, TlsSocket, ssl.SSLSocket]) -> None:
    """The end of the handshake is there to be read, and nothing after it."""
    _, shared, answering = ends
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(shared.recv, 100)
        shared.sendall(b"question")
        assert answering.recv(100) == b"question"
        answering.sendall(b"answer")
        assert read.result(LONGEST_S) == b"answer"


def test_much_in_both_directions_at_once(ends: tuple[Watched, TlsSocket, ssl.SSLSocket]) -> None:
    watched, shared, answering = ends
    sent = b"".join(b"%06d" % number * 300 for number in range(ROUNDS))

    def echo() -> None:
        left = len(sent)
        while left:
            part = answering.recv(65536)
            answering.sendall(part)
            left -= len(part)

    def read() -> bytes:
        parts = bytearray()
        while len(parts) < len(sent):
            parts += shared.recv(65536)
        return bytes(parts)

    with ThreadPoolExecutor(2) as threads:
        echoing, reading = threads.submit(echo), threads.submit(read)
        for at in range(0, len(sent), 5000):
            shared.sendall(sent[at : at + 5000])
        echoing.result(LONGEST_S)
        assert reading.result(LONGEST_S) == sent
    assert watched.meetings == 0


def test_closing_ends_the_waiting_of_a_reader(ends: tuple[Watched, TlsSocket, ssl.SSLSocket]) -> None:
    _, shared, _ = ends
    began = threading.Event()

    def read() -> bytes:
        began.set()
        return shared.recv(100)

    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(read)
        assert began.wait(LONGEST_S)
        shared.close()
        with contextlib.suppress(OSError, ValueError):
            assert reading.result(LONGEST_S) == b""
    assert shared.fileno() == -1


def test_a_server_that_takes_nothing_is_given_up(ends: tuple[Watched, TlsSocket, ssl.SSLSocket]) -> None:
    _, shared, _ = ends
    shared.settimeout(0.2)
    with pytest.raises(TimeoutError):
        shared.sendall(bytes(10_000_000))
    with pytest.raises(TimeoutError):
        shared.recv(1)
