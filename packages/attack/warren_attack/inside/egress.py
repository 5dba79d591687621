"""Ways around the rules of an open network: raw bytes to any address, and what comes back."""

import base64
import socket
import threading
import time

from .calls import CONTAINED, THROUGH, ProbeVerdict, ready, waited_s

MARK = "warren-outside"
"""What servers outside answer."""


def talk(
    host: str, port: int, pieces: "list[str]", udp: bool = False, wait_s: float = 1.5, times: int = 1
) -> ProbeVerdict:
    """Connects, sends the pieces (in base64) and reads. Through when a server outside has answered."""
    seen = ""
    for _ in range(times):
        seen, is_through = _talk_once(host, port, [base64.b64decode(piece) for piece in pieces], udp, wait_s)
        if is_through:
            return THROUGH, f"{host}:{port} answered {seen}"
    return CONTAINED, f"{host}:{port}: {seen}"


def _talk_once(host: str, port: int, pieces: "list[bytes]", udp: bool, wait_s: float) -> "tuple[str, bool]":
    kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
    got = b""
    try:
        found = socket.getaddrinfo(host, port, type=kind)[0]
        with socket.socket(found[0], kind) as client:
            client.settimeout(wait_s)
            client.connect(found[4])
            for piece in pieces:
                client.sendall(piece)
                time.sleep(0.02)
            while MARK.encode() not in got:
                part = client.recv(65536)
                if not part:
                    break
                got += part
    except OSError as exc:
        return f"{type(exc).__name__}: {exc}"[:120], MARK.encode() in got
    return repr(got[:60]) if got else "closed without an answer", MARK.encode() in got


def ask(server: str, questions: "list[str]", tcp: bool = False) -> ProbeVerdict:
    """Asks name servers; the host tells whether something came out. Through only when an answer holds an address."""
    seen = []
    for question in questions:
        query = base64.b64decode(question)
        kind = socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM
        try:
            with socket.socket(socket.AF_INET, kind) as client:
                client.settimeout(1)
                client.connect((server, 53))
                client.sendall(len(query).to_bytes(2, "big") + query if tcp else query)
                answer = client.recv(4096)[2 if tcp else 0 :]
            if len(answer) >= 8 and int.from_bytes(answer[6:8], "big"):
                return THROUGH, f"{server} gave {int.from_bytes(answer[6:8], 'big')} records"
            seen.append(f"code {answer[3] & 15 if len(answer) > 3 else -1}")
        except OSError as exc:
            seen.append(type(exc).__name__)
    return CONTAINED, f"{server}: {', '.join(dict.fromkeys(seen))}"


def reach(host: str, port: int, piece: str, within_s: float) -> ProbeVerdict:
    """The other way round: contained when a server outside is reached in time, as an honest user must. Tells first how
    many seconds that took, without those in which this program waited for a processor."""
    begun, waited = time.monotonic(), waited_s()
    seen, answered = _talk_once(host, port, [base64.b64decode(piece)], False, within_s)
    took = time.monotonic() - begun
    if answered and took <= within_s:
        return CONTAINED, f"{took - (waited_s() - waited):.3f} s until {host} was reached"
    return THROUGH, f"{host} was not reached in {took:.1f} s: {seen}"


def hold(host: str, port: int, count: int, piece: str = "", seconds: float = 30) -> ProbeVerdict:
    """Opens many connections, sends a piece on each, and keeps them. What is not accepted at once is tried again for
    some seconds."""
    ends: list[socket.socket] = []
    data, until = base64.b64decode(piece), time.monotonic() + 10
    address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    while len(ends) < count and time.monotonic() < until:
        try:
            ends.append(socket.create_connection((address, port), 0.5))
            if data:
                ends[-1].send(data)
        except OSError:
            time.sleep(0.01)
    ready(len(ends))
    time.sleep(seconds)
    return CONTAINED, f"{len(ends)} held"


def hammer(targets: "list[tuple[str, int, str]]", seconds: float = 20) -> ProbeVerdict:
    """Connects and sends as fast as it can, whatever becomes of it."""
    ready()
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        for host, port, piece in targets:
            _talk_once(host, port, [base64.b64decode(piece)], False, 0.3)
            count += 1
    return CONTAINED, f"{count} times"


def pour(host: str, port: int, first: str, more: str, count: int = 64, seconds: float = 20) -> ProbeVerdict:
    """Sends a beginning on each of many connections, and then the same bytes again and again, as fast as they go."""
    begin, again = base64.b64decode(first), base64.b64decode(more)
    ends: list[socket.socket] = []
    ready()
    until, sent = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        if len(ends) < count:
            try:
                end = socket.create_connection((host, port), 2)
                end.sendall(begin)
                end.setblocking(False)
                ends.append(end)
            except OSError:
                time.sleep(0.01)
        for end in list(ends):
            try:
                sent += end.send(again)
            except BlockingIOError:
                pass
            except OSError:
                ends.remove(end)
    return CONTAINED, f"{sent} bytes"


def look_up_much(below: str, port: int, count: int, seconds: float = 30) -> ProbeVerdict:
    """Connects to so many names, each of which has to be looked up, and to each again when that has failed."""
    ends: dict[int, socket.socket] = {}
    until, tried = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        for number in range(count):
            if number in ends and not _is_over(ends[number]):
                continue
            try:
                end = ends[number] = socket.socket()
                end.setblocking(False)
                end.connect_ex((socket.gethostbyname(f"n{number}{below}"), port))
                tried += 1
            except OSError:
                time.sleep(0.01)
        ready()  # the first one counts
        time.sleep(0.05)
    return CONTAINED, f"{tried} times"


def _is_over(end: socket.socket) -> bool:
    try:
        return not end.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


def ask_much(name: str, seconds: float = 20, tcp: bool = False) -> ProbeVerdict:
    """Asks without waiting for answers; with `tcp` over TCP at the same time."""
    if tcp:
        threading.Thread(target=_ask_much_by_tcp, args=(name,), daemon=True).start()
    ready()
    until, count = time.monotonic() + seconds, 0
    label = bytes([len(name)]) + name.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.setblocking(False)
        while time.monotonic() < until:
            count += 1
            query = count.to_bytes(2, "big", signed=False) if count < 65536 else b"\1\1"
            try:
                client.sendto(query + b"\1\0\0\1\0\0\0\0\0\0" + label + b"\7example\0\0\1\0\1", ("8.8.8.8", 53))
            except OSError:
                time.sleep(0.001)
    return CONTAINED, f"{count} questions"


def _ask_much_by_tcp(name: str) -> None:
    query = b"\1\1\1\0\0\1\0\0\0\0\0\0" + bytes([len(name)]) + name.encode() + b"\7example\0\0\1\0\1"
    while True:
        try:
            with socket.create_connection(("8.8.8.8", 53), 2) as client:
                client.sendall((len(query).to_bytes(2, "big") + query) * 16)
                while client.recv(65536):
                    pass
        except OSError:
            time.sleep(0.001)
