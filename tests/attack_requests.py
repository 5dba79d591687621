"""Sends raw bytes to a server and reads its answer, for requests that no client would send."""

import contextlib
import socket


def ask(port: int, data: bytes, timeout_s: float = 10.0) -> bytes:
    """Sends one request and returns everything that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as sock:
        sock.sendall(data)
        answer = b""
        while not is_complete(answer):
            try:
                piece = sock.recv(65536)
            except (TimeoutError, ConnectionResetError):
                break
            if not piece:
                break
            answer += piece
        sock.settimeout(0.2)
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            answer += sock.recv(65536)  # a second answer would come here
        return answer


def is_complete(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length: "):
            return bool(end) and len(body) >= int(line[16:])
    return False


def split_answer(answer: bytes) -> tuple[int, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body
