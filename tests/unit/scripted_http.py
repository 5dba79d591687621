"""A server that answers each connection as a test says, for the transports of the SDK: real sockets, no sandboxes."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

Connection = socket.socket
Answer = Callable[[Connection], None]


class Script:
    """`answers`: one per connection, in order; the last one serves all that follow. `seen`: the heads that came."""

    def __init__(self, *answers: Answer, context: ssl.SSLContext | None = None) -> None:
        self._answers = list(answers)
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[Connection] = []
        self.connections = 0
        self.thread = threading.Thread(target=self._run, daemon=True)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"{'https' if self._context else 'http'}://127.0.0.1:{self.port}"

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                answer = self._answers[min(self.connections, len(self._answers) - 1)]
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection, answer), daemon=True).start()

    def _serve(self, connection: Connection, answer: Answer) -> None:
        with contextlib.suppress(OSError, EOFError):
            if self._context:
                connection = self._context.wrap_socket(connection, server_side=True)
            self._open.append(connection)
            answer(connection)
        connection.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.thread.join()
        for connection in self._open:
            connection.close()


@contextlib.contextmanager
def scripted(*answers: Answer, context: ssl.SSLContext | None = None) -> Iterator[Script]:
    script = Script(*answers, context=context)
    script.thread.start()
    try:
        yield script
    finally:
        script.close()


def read_request(connection: Connection) -> bytes:
    """The head and the body of a request with a Content-Length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _more(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < (lengths[0] if lengths else 0):
        body += _more(connection)
    return head + b"\r\n\r\n" + body


def _more(connection: Connection) -> bytes:
    if not (part := connection.recv(65536)):
        raise EOFError
    return part


def message(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def always(body: bytes, status: str = "200 OK", *headers: str) -> Answer:
    """Answers every request of a connection."""

    def answer(connection: Connection) -> None:
        while read_request(connection):
            connection.sendall(message(body, status, *headers))

    return answer


def once(body: bytes, status: str = "200 OK", *headers: str) -> Answer:
    """Answers one request, says nothing of closing, and closes."""

    def answer(connection: Connection) -> None:
        read_request(connection)
        connection.sendall(message(body, status, *headers))

    return answer


def hangs_up(connection: Connection) -> None:
    """Takes the request and goes away without an answer."""
    read_request(connection)


def cut_short(connection: Connection) -> None:
    """Goes away in the middle of the answer."""
    read_request(connection)
    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"half": ')


def refuses_the_body(connection: Connection) -> None:
    """Answers 413 after the first piece of a body, and takes no more of it for a while, as a careful server does."""
    _more(connection)
    problem = b'{"code": "too_large", "detail": "too much", "remedy": "send less"}'
    connection.sendall(message(problem, "413 Payload Too Large", "Connection: close"))
    connection.shutdown(socket.SHUT_WR)
    with contextlib.suppress(EOFError):
        while _more(connection):
            pass
