"""Ways to get at a secret that a broker outside adds to requests: what comes back, and what lies about inside.

Texts to look for come backwards and in base64, so that the attack itself is not what is found.
"""

import base64
import os
import re
import socket
import ssl
import time

from .calls import CONTAINED, THROUGH, ProbeVerdict, ready

_PLACES = ("/etc", "/run", "/tmp", "/var", "/home", "/root", "/dev/shm", "/workspace", "/opt", "/srv", ".")
_MAX_FILES = 30_000
_MAX_BYTES = 1 << 20


def _needles(backwards: "list[str]") -> "list[bytes]":
    return [base64.b64decode(text[::-1]) for text in backwards]


def speak(
    host: str, port: int, pieces: "list[str]", backwards: "list[str]", tls: bool = True, wait_s: float = 1.5
) -> ProbeVerdict:
    """Sends the pieces (in base64) and reads all that comes, and what a redirect leads to. Through when the secret is
    in it."""
    got = _speak(host, port, [base64.b64decode(piece) for piece in pieces], tls, wait_s)
    redirect = re.search(rb"Location: http://([a-z.]+)(/\S*)", got)
    if redirect is not None:
        request = b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (redirect[2], redirect[1])
        got += _speak(redirect[1].decode(), 80, [request], False, wait_s)
    return _judged(got, backwards)


def _judged(got: bytes, backwards: "list[str]") -> ProbeVerdict:
    for needle in _needles(backwards):
        if needle in got or needle in _bodies(got) or needle in _payloads(got):
            return THROUGH, f"the secret came back among {len(got)} bytes"
    return CONTAINED, repr(got[:80])


def _bodies(got: bytes) -> bytes:
    """Joins the bodies of several answers."""
    return re.sub(rb"HTTP/1\.1 \d.*?\r\n\r\n", b"", got, flags=re.DOTALL)


def _payloads(got: bytes) -> bytes:
    """Joins what the frames of a WebSocket carry after its handshake."""
    frames, joined = got.partition(b"\r\n\r\n")[2], b""
    while len(frames) >= 2:
        start, length = 2, frames[1] & 127
        if length >= 126:
            start, length = (4, int.from_bytes(frames[2:4], "big")) if length == 126 else (10, 1 << 20)
        joined += frames[start : start + length]
        frames = frames[start + length :]
    return joined


def _speak(host: str, port: int, pieces: "list[bytes]", tls: bool, wait_s: float) -> bytes:
    got = b""
    try:
        with socket.create_connection((host, port), wait_s) as plain, _wrapped(plain, host, tls) as client:
            for piece in pieces:
                client.sendall(piece)
                time.sleep(0.02)
            while part := client.recv(65536):
                got += part
    except OSError as exc:
        return got + f" {type(exc).__name__}: {exc}".encode()
    return got


def _wrapped(plain: socket.socket, host: str, tls: bool) -> socket.socket:
    return ssl._create_unverified_context().wrap_socket(plain, server_hostname=host) if tls else plain


def keep(host: str, first: str, second: str, seconds: float) -> ProbeVerdict:
    """Sends a request, waits, and sends another one on the same connection, again and again."""
    with socket.create_connection((host, 443), 5) as plain, _wrapped(plain, host, True) as client:
        client.sendall(base64.b64decode(first))
        client.recv(65536)
        ready()
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                time.sleep(0.1)
                client.sendall(base64.b64decode(second))
        except OSError as exc:
            return CONTAINED, type(exc).__name__
    return CONTAINED, "sent"


def look(backwards: "list[str]") -> ProbeVerdict:
    """Looks through variables, command lines, mounts and files for the secret."""
    needles = _needles(backwards)
    count = 0
    for path in _paths():
        count += 1
        try:
            with open(path, "rb") as file:
                data = file.read(_MAX_BYTES)
        except (OSError, ValueError):
            continue
        if any(needle in data for needle in needles):
            return THROUGH, f"{path} has it"
    if any(needle.decode() in text for needle in needles for text in os.environ.values()):
        return THROUGH, "a variable has it"
    return CONTAINED, f"not in {count} files and variables"


def _paths() -> "list[str]":
    found = [
        f"/proc/{name}/{what}"
        for name in os.listdir("/proc")
        if name.isdigit()
        for what in ("environ", "cmdline", "mountinfo", "status", "mem")
    ]
    for place in _PLACES:
        for folder, _, names in os.walk(place):
            found += [path for path in (os.path.join(folder, name) for name in names) if os.path.isfile(path)]
            if len(found) > _MAX_FILES:
                return found
    return found
