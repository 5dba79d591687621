"""Checks the first bytes of a client: TLS and HTTP must name the host that the connection is for.

On port 443 a client must speak TLS, on port 80 HTTP or TLS. On other ports it may speak any protocol, and the server
may speak first; what the client's first line may be is passed on while it comes, because other protocols wait for an
answer to less than a line. An HTTP/1 connection is followed to its end; of TLS only the first message is readable.
HTTP/2 without TLS hides its hosts, and is refused where the connection is for a name.
"""

from collections.abc import Callable
from typing import Final

from warren.sandboxes.egress.hello import MAX_HELLO, may_be_tls, read_server_name
from warren.sandboxes.egress.http_syntax import MAX_HEAD, Malformed
from warren.sandboxes.egress.requests import FirstLine, RequestGuard, Spoken

HTTP, TLS = 80, 443
_MAX_READS: Final = 64
_MAX_READ: Final = 16384


class Inspector:
    """Inspects one connection. `check_tls` is called with the name in a TLS hello, which may be empty; `check_http`
    with each host that a request names, and its port or 0. Both raise to refuse it."""

    def __init__(
        self, port: int, check_tls: Callable[[str], None], check_http: Callable[[str, int], None], *, strict: bool
    ) -> None:
        self._strict = strict
        self._must = port if strict and port in (HTTP, TLS) else 0
        self._check_tls, self._check_http = check_tls, check_http
        self._held = bytearray()
        self._reads = 0
        self._first_line = FirstLine()
        self._passed = 0  # how many of the held bytes were passed on already
        self._is_long = False
        self._requests: RequestGuard | None = None
        self.is_over = False

    @property
    def comes_first(self) -> bool:
        """Whether the client must send something before the server is dialled."""
        return bool(self._must)

    @property
    def most(self) -> int:
        """How many bytes should be fed at once."""
        return _MAX_READ if self._requests is None else self._requests.most

    def feed(self, data: bytes | memoryview) -> bytes:
        """Returns what may be passed on. Raises Malformed, and what the checks raise."""
        if self.is_over:
            return bytes(data)
        if self._requests is not None:
            return self._follow(self._requests, data)
        self._held += data
        self._reads += 1
        if not self._is_long and self._held[:1] == b"\x16" and may_be_tls(self._held):
            return self._read_tls()
        if self._must == TLS:
            raise Malformed("what is sent to port 443 is not TLS")
        if self._must == HTTP:
            self._requests = RequestGuard(self._check_http)
            return self._follow(self._requests, self._take())
        return self._read_first_line()

    @property
    def awaits_answer(self) -> bool:
        return self._requests is not None and self._requests.awaits_answer

    def answered(self, data: bytes | memoryview) -> bytes:
        if self._requests is None:
            return b""
        passed = self._requests.answered(data)
        self.is_over = self._requests.is_over
        return passed

    def _read_tls(self) -> bytes:
        name = read_server_name(self._held)
        if name is None:
            if self._reads > _MAX_READS or len(self._held) > 2 * MAX_HELLO:
                raise Malformed("its hello of TLS comes in too many pieces")
            return b""
        self._check_tls(name)
        self.is_over = True
        return self._take()

    def _read_first_line(self) -> bytes:
        new = bytes(self._held[self._passed :])
        spoken = self._first_line.feed(new)
        if spoken is Spoken.HTTP1:
            if self._is_long:
                raise Malformed("its request has no end")
            self._requests = RequestGuard(self._check_http)
            return self._follow(self._requests, self._take())
        if spoken is Spoken.HTTP2 and self._strict:
            raise Malformed("it speaks HTTP/2 without TLS, in which hosts cannot be seen")
        self.is_over = spoken is not Spoken.UNKNOWN
        self._passed = len(self._held)
        if self._passed > MAX_HEAD:
            self._held, self._passed, self._is_long = bytearray(), 0, True
        return new

    def _follow(self, requests: RequestGuard, data: bytes | memoryview) -> bytes:
        passed = requests.feed(data)
        self.is_over = requests.is_over
        known = min(self._passed, len(passed))
        self._passed -= known
        return passed[known:]

    def _take(self) -> bytes:
        held, self._held = bytes(self._held), bytearray()
        return held
