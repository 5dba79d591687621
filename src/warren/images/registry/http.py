"""HTTP to a registry that may lie, be slow, or point elsewhere. Blocking; called in threads.

A registry that the operator has named is trusted: its address may be private. One that a tenant has named, redirects
and token services must lead to a public address, a network that the operator allows, or the trusted registry itself;
`ImageRegistry` dials the very address that it checked. It uses plain HTTP only for a trusted registry on loopback and
for hosts that the operator has named. The password goes to the registry and to the token service it names, never to the
target of a redirect.

After its first minute a connection must have an average rate of a few kilobytes per second: a server that trickles
single bytes, in the head or in the body, is given up.
"""

import base64
import contextlib
import http.client
import io
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import IO, Any, Final, cast
from urllib.parse import SplitResult, urlencode, urljoin, urlsplit

from warren.images.registry.credentials import Credentials
from warren.kernel.own_addresses import why_not_reached
from warren.model.addresses import Network, is_loopback
from warren.model.errors import ImageNotFound, InvalidRequest, PermissionDenied, Unavailable, WarrenError
from warren.model.image_reference import Reference

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_MAX_TOKEN: Final = 1024 * 1024
_PART: Final = 256 * 1024
_CHALLENGE: Final = re.compile(r'([a-zA-Z_]+)="([^"]*)"')
_TEXT: Final = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long `Registry` waits for a registry, and how often it tries again."""

    connect_s: float = 15.0
    silence_s: float = 30.0
    slow_s: float = 60.0
    least_rate: int = 4096  # bytes a second, after `slow_s`
    tries: int = 4
    backoff_s: float = 0.5
    redirects: int = 5


class TransferBroken(Exception):
    """The connection failed in a way that may not last: try again."""


class Cancelled(Exception):
    """Another thread has called `Registry.cancel`."""


class ImageRegistry:
    """Requests about one image of a registry. Threads may share it; `cancel` ends their requests. `trusted`: the
    operator has named the registry."""

    def __init__(
        self,
        reference: Reference,
        *,
        trusted: bool = True,
        insecure: Iterable[str] = (),
        networks: Iterable[Network] = (),
        credentials: Credentials | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._reference = reference
        self._trusted = trusted
        self._insecure = frozenset(insecure)
        self._networks = tuple(networks)
        self._credentials = credentials or Credentials({})
        self._patience = patience or Patience()
        scheme = "http" if self._may_be_plain(urlsplit(f"//{reference.host}")) else "https"
        self._home = urlsplit(f"{scheme}://{reference.host}")
        self._authorization = ""
        self._cancelled = threading.Event()
        self._wires: set[_Wire] = set()
        self._lock = threading.Lock()

    def cancel(self) -> None:
        self._cancelled.set()
        with self._lock:
            for wire in self._wires:
                wire.shut()

    @contextlib.contextmanager
    def get(self, what: str, accept: str = "*/*") -> Iterator[http.client.HTTPResponse]:
        """Yields the response to GET /v2/PATH/WHAT if its status is 200. Raises Broken if trying again may help,
        otherwise the error for the caller."""
        url = f"{self._home.geturl()}/v2/{self._reference.path}/{what}"
        with self._answer(url, accept) as response:
            if response.status != 200:
                raise self._refusal(response.status, what)
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise self._lie("it packs what it was asked to send as it is")
            yield response

    def retried(self, act: Callable[[], Any]) -> Any:
        """Calls `act`, again after growing pauses while it raises Broken. Raises Unavailable after the last try."""
        for number in range(self._patience.tries):
            try:
                return act()
            except TransferBroken as exc:
                if self._cancelled.is_set():
                    raise Cancelled from exc
                if number + 1 == self._patience.tries:
                    raise Unavailable(
                        f"the registry {self._reference.host} cannot be talked to: {exc}",
                        remedy="try again later; if there is no way to it from here, set image_mirrors or "
                        "image_registry, or bring the image along with `warren image import`",
                    ) from exc
                self._cancelled.wait(self._patience.backoff_s * 2**number)
        raise AssertionError("unreachable")

    def read_small(self, what: str, most: int, accept: str) -> tuple[bytes, str]:
        """Returns a body of at most `most` bytes, and its media type. Raises InvalidRequest for a longer one."""

        def read() -> tuple[bytes, str]:
            with self.get(what, accept) as response:
                data = b"".join(self.parts(response, most + 1))
                if len(data) > most:
                    raise self._lie(f"what it sends for {what} is longer than {most} bytes")
                return data, response.headers.get("Content-Type", "").partition(";")[0].strip()

        return cast(tuple[bytes, str], self.retried(read))

    def parts(self, response: http.client.HTTPResponse, most: int) -> Iterator[bytes]:
        """Yields the body, up to `most` bytes. Raises Broken if it ends early."""
        left = most
        while left:
            if self._cancelled.is_set():
                raise Cancelled
            with _broken_explained("reading"):
                part = response.read1(min(left, _PART))
            if not part:
                break
            left -= len(part)
            yield part
        if left and response.length:  # the server announced more bytes
            raise TransferBroken("it broke off in the middle")

    # -- requests

    @contextlib.contextmanager
    def _answer(self, url: str, accept: str) -> Iterator[http.client.HTTPResponse]:
        """Yields the response after redirects, and logs in if the registry asks for it."""
        redirects, was_asked = 0, False
        with contextlib.ExitStack() as held:
            while redirects <= self._patience.redirects:
                target = self._checked_url(url)
                # The Authorization header goes to the registry alone: a redirect may lead to anybody.
                headers = {"Accept": accept, "Authorization": self._authorization if self._is_home(target) else ""}
                response = held.enter_context(self._request(target, headers))
                if response.status in _REDIRECTS:
                    url = urljoin(url, response.headers.get("Location", ""))
                    redirects += 1
                elif response.status == 401 and self._is_home(target) and not was_asked and self._log_in(response):
                    was_asked = True  # also when the token expires during a long pull
                elif response.status == 429:
                    raise TransferBroken("it allows no more pulls for now (429): log in there, or set image_mirrors")
                elif response.status >= 500:
                    raise TransferBroken(f"it answers {response.status}")
                else:
                    yield response
                    return
                held.pop_all().close()
        raise self._lie(f"it redirects more than {self._patience.redirects} times")

    @contextlib.contextmanager
    def _request(self, url: SplitResult, headers: dict[str, str]) -> Iterator[http.client.HTTPResponse]:
        # the name is never resolved: socket and Host are set below
        connection = http.client.HTTPConnection("registry", 80)
        wire = self._connect(url)
        connection.sock = cast(Any, wire)
        try:
            path = url.path + (f"?{url.query}" if url.query else "") or "/"
            with _broken_explained("asking"):
                connection.putrequest("GET", path, skip_accept_encoding=True, skip_host=True)
                sent = {"Host": url.netloc, "Accept-Encoding": "identity", "User-Agent": "warren", **headers}
                for name, value in sent.items():
                    if value:
                        connection.putheader(name, value)
                connection.endheaders()
                response = connection.getresponse()
            yield response
        finally:
            with self._lock:
                self._wires.discard(wire)
            wire.end()

    def _connect(self, url: SplitResult) -> "_Wire":
        assert url.hostname is not None
        failure: Exception | None = None
        for address in self._addresses(url):
            if self._cancelled.is_set():
                raise Cancelled
            try:
                plain = socket.create_connection(address, self._patience.connect_s)
            except OSError as exc:
                failure = exc
                continue
            try:
                # An address was dialled, but the certificate must be for the name.
                if url.scheme == "https":
                    plain = ssl.create_default_context().wrap_socket(plain, server_hostname=url.hostname)
            except ssl.SSLCertVerificationError as exc:
                plain.close()
                raise Unavailable(
                    f"{url.hostname} shows a certificate that is not trusted: {exc.verify_message}",
                    remedy="add its authority to this machine's, or to a file that SSL_CERT_FILE names",
                ) from exc
            except OSError as exc:
                plain.close()
                raise TransferBroken(f"TLS with {url.hostname}: {exc}") from exc
            wire = _Wire(plain, self._patience)
            with self._lock:
                self._wires.add(wire)
            return wire
        raise TransferBroken(f"{url.hostname} does not answer: {failure}")

    def _addresses(self, url: SplitResult) -> list[tuple[str, int]]:
        """Resolves the host's name. Unless the host is the trusted registry itself, drops addresses that only the
        operator may reach. Raises InvalidRequest if none is left."""
        port = _origin(url)[2]
        try:
            found = socket.getaddrinfo(url.hostname, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as exc:
            raise TransferBroken(f"the name {url.hostname} cannot be resolved: {exc}") from exc
        addresses = [str(info[4][0]) for info in found]
        if self._is_home(url) and self._trusted:
            return [(address, port) for address in addresses]
        kinds = {address: why_not_reached(ip_address(address), self._networks) for address in addresses}
        good = [(address, port) for address in addresses if not kinds[address]]
        if not good:
            kind = next(iter(kinds.values()), "no address")
            if self._is_home(url):
                raise InvalidRequest(
                    f"the registry {url.hostname} is {kind}, from which nothing is pulled for tenants",
                    remedy="if that is right, the operator names its images in image_pull_allowed",
                )
            raise self._lie(
                f"it sends us on to {url.hostname}, which is {kind}",
                remedy="if that is right, add its network to image_registry_networks",
            )
        return good

    def _checked_url(self, text: str) -> SplitResult:
        try:
            url = urlsplit(text)
            good = bool(url.hostname) and "@" not in url.netloc and bool(_TEXT.fullmatch(text)) and url.port != 0
        except ValueError:
            good = False
        if not good or len(text) > 16384:
            raise self._lie(f"it sends us on to {text[:200]!r}, which is no address")
        if url.scheme not in ("https", "http"):
            raise self._lie(f"it sends us on to {text[:200]!r}, which is not https")
        if url.scheme == "http" and not self._may_be_plain(url):
            raise self._lie(
                f"it sends us on to {url.hostname} without TLS",
                remedy="if that is right, add the host to image_insecure_registries",
            )
        return url

    def _may_be_plain(self, url: SplitResult) -> bool:
        is_near = self._trusted and is_loopback(url.hostname or "")
        return is_near or bool({url.hostname, url.netloc} & self._insecure)

    def _is_home(self, url: SplitResult) -> bool:
        return _origin(url) == _origin(self._home)

    # -- who we are

    def _log_in(self, response: http.client.HTTPResponse) -> bool:
        """Gets the authorization that the registry asks for. Returns False if there are no such credentials."""
        challenges = response.headers.get_all("WWW-Authenticate") or []
        for challenge in challenges:
            kind, _, rest = challenge.strip().partition(" ")
            values = {name.lower(): value for name, value in _CHALLENGE.findall(rest[:8192])}
            if kind.lower() == "bearer" and values.get("realm"):
                self._authorization = f"Bearer {self._token(values['realm'], values.get('service', ''))}"
                return True
            if kind.lower() == "basic" and (basic := self._basic()):
                self._authorization = basic
                return True
        return False

    def _basic(self) -> str:
        found = self._credentials.find(self._reference.host, self._reference.path)
        if found is None:
            return ""
        return "Basic " + base64.b64encode(f"{found[0]}:{found[1]}".encode()).decode()

    def _token(self, realm: str, service: str) -> str:
        query = {"service": service, "scope": f"repository:{self._reference.path}:pull"}
        mark = "&" if "?" in realm else "?"
        url = self._checked_url(f"{realm}{mark}{urlencode({k: v for k, v in query.items() if v})}")
        with self._request(url, {"Accept": "application/json", "Authorization": self._basic()}) as response:
            if response.status in (401, 403):
                raise self._refusal(response.status, "")
            if response.status >= 500 or response.status == 429:
                raise TransferBroken(f"its token service answers {response.status}")
            if response.status != 200:
                raise self._lie(f"its token service answers {response.status}")
            data = b"".join(self.parts(response, _MAX_TOKEN))
        try:
            values = json.loads(data)
            token = values.get("token") or values.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if not isinstance(token, str) or not _TEXT.fullmatch(token):
            raise self._lie("its token service sends no token")
        return token

    # -- errors

    def _refusal(self, status: int, what: str) -> WarrenError:
        host = self._reference.host
        if status in (401, 403):
            return PermissionDenied(
                f"the registry {host} does not let us have {self._reference.path}",
                remedy=f"see that the name is right, and log in: docker login {host}, or skopeo login {host}",
            )
        if status == 404:
            return ImageNotFound(
                f"the registry {host} has no {what} of {self._reference.path}",
                remedy="see that the name and the tag are right; image_registry is where names without a host are",
            )
        return Unavailable(f"the registry {host} answers {status} for {what} of {self._reference.path}")

    def _lie(self, what: str, remedy: str = "") -> InvalidRequest:
        return InvalidRequest(f"the registry {self._reference.host} cannot be trusted: {what}", remedy=remedy)


def _origin(url: SplitResult) -> tuple[str, str, int]:
    return url.scheme, url.hostname or "", url.port or (443 if url.scheme == "https" else 80)


class _Wire:
    """A socket for http.client that raises TimeoutError when the server is too slow."""

    def __init__(self, plain: socket.socket, patience: Patience) -> None:
        self._socket, self._patience = plain, patience
        self._began, self._received = time.monotonic(), 0
        plain.settimeout(patience.silence_s)

    def sendall(self, data: bytes) -> None:
        self._socket.sendall(data)

    def makefile(self, mode: str, *_: object) -> IO[bytes]:
        return cast(IO[bytes], io.BufferedReader(_Received(self), _PART))

    def receive(self, buffer: Any) -> int:
        patience = self._patience
        late = self._began + patience.slow_s + self._received / patience.least_rate
        left = min(late - time.monotonic(), patience.silence_s)
        if left <= 0:
            raise TimeoutError("it is too slow")
        self._socket.settimeout(left)
        count = self._socket.recv_into(buffer)
        self._received += count
        return count

    def shut(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Does nothing: http.client calls it after the head of the last response, when the body is still to be read."""

    def end(self) -> None:
        self._socket.close()


class _Received(io.RawIOBase):
    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._wire.receive(buffer)


@contextlib.contextmanager
def _broken_explained(doing: str) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as exc:
        raise TransferBroken(f"{doing}: {exc or type(exc).__name__}") from exc
