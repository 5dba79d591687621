"""Sends webhooks over HTTP, only to destinations that are allowed.

The sender resolves a name once for each connection, checks every address of it, and connects to one of the addresses it
has checked: there is no second look-up in between. Below that, it makes a socket only for an address that passes the
same check. A tenant learns only whether there is a public address behind a name: a name that nobody knows and one of
the internal network fail with the same words, after the same time and with the same attempts. It keeps no connections
and no cookies, follows no redirects, and uses neither proxies nor passwords of the environment.
"""

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EACCES
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from warren.governance.webhooks.destinations import REMEDY, check_address, read_url
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.logs import get_log
from warren.model.addresses import Network
from warren.model.errors import InvalidRequest, Unavailable

_HEADERS: Final = {"Accept-Encoding": "identity", "Content-Type": "application/json", "User-Agent": "warren-webhooks"}
_LOOKUPS: Final = 16
# What a receiver sends comes in small pieces, in turns with other work: a large one could hold thousands of interim
# responses (1xx), which aiohttp reads all at once. An answer that is of use has some hundred bytes.
_RECEIVED_BYTES: Final = 4096
_LOGGED_AGAIN_S: Final = 3600.0
_MAX_LOGGED: Final = 1024
_REFUSED_AFTER_S: Final = 0.5  # longer than looking up most names takes, whether they exist or not

_log = get_log("warren.webhooks")
_NUMERIC: Final = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
_AddrInfo = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[object, ...]]


class NoPublicAddress(Unavailable):
    """The name in a URL has no address, or one that is not allowed: which of them is not told."""


@dataclass(frozen=True)
class ReceiverResponse:
    """A response with any status. `excerpt` is the beginning of its body, for people to read."""

    status: int
    excerpt: str = ""
    retry_after: str = ""


class WebhookSender:
    """Safe to use from many tasks of one event loop.

    `send` raises InvalidRequest if the URL is not allowed, and NoPublicAddress if the name in it has no address or one
    that is not allowed: then nothing was sent. It raises Unavailable if there was no response; the receiver may have
    seen the request all the same. Once there is a status `send` returns, even if the body breaks off. `timeout_s`
    limits all of it, with looking up the name and waiting for one of the `limit` connections. `send` tries nothing
    twice.
    """

    def __init__(
        self,
        allowed_networks: Sequence[Network] = (),
        *,
        timeout_s: float = 15.0,
        connect_timeout_s: float = 5.0,
        max_response_bytes: int = 1024,
        limit: int = 50,
        resolver: AbstractResolver | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = tuple(allowed_networks)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_timeout_s)
        self._max_response_bytes = max_response_bytes
        self._limit = limit
        self._resolver = CheckedResolver(resolver or SystemResolver(), self._allowed)
        self._tls = tls or ssl.create_default_context()
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        allowed = ", ".join(map(str, self._allowed)) or "none"
        return f"<WebhookSender allowed beside the public Internet: {allowed}>"

    def check(self, url: str) -> None:
        """Raises InvalidRequest if `send` would, as far as that is known without looking up the name."""
        read_url(url, self._allowed)

    async def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> ReceiverResponse:
        target = read_url(url, self._allowed)
        with _translated_errors(target):
            async with self._open_session().post(
                target, data=body, headers=headers, allow_redirects=False, timeout=self._timeout
            ) as response:
                excerpt = await _read_excerpt(response, self._max_response_bytes)
                response.close()
                return ReceiverResponse(response.status, excerpt, response.headers.get("Retry-After", ""))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self._resolver.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=self._resolver,
                socket_factory=self._new_socket,
                ssl=self._tls,
                use_dns_cache=False,
                force_close=True,
                limit=self._limit,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=_HEADERS,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                read_bufsize=self._max_response_bytes,
            )
        return self._session

    def _new_socket(self, info: _AddrInfo) -> socket.socket:
        return new_socket(info, self._allowed)


def new_socket(info: _AddrInfo, allowed: Sequence[Network]) -> socket.socket:
    """Makes a socket for this address, which aiohttp then connects to: the last check before anything is sent."""
    family, kind, protocol, _, address = info
    try:
        check_address(_numeric(address), allowed, "this address")
    except InvalidRequest as exc:
        raise PermissionError(EACCES, str(exc)) from exc  # aiohttp expects an OSError
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES)
    return made


class CheckedResolver(AbstractResolver):
    """Returns the addresses that another resolver returns, if all of them are allowed, else none. Every failure looks
    the same to the tenant; the server's log has the reason, once an hour for a name."""

    def __init__(self, inner: AbstractResolver, allowed: Sequence[Network]) -> None:
        self._inner = inner
        self._allowed = allowed
        self._logged_at = BoundedDict[str, float](_MAX_LOGGED)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        began = time.monotonic()
        try:
            found = await self._inner.resolve(host, port, family)
            for result in found:
                check_address(result["host"], self._allowed, host)
            if found:
                return found
            reason = "no address"
        except (OSError, InvalidRequest) as exc:
            reason = str(exc)
        if began - self._logged_at.get(host, -_LOGGED_AGAIN_S) >= _LOGGED_AGAIN_S:
            self._logged_at[host] = began
            _log.warning("webhook_name_refused", host=host, reason=reason)
        await asyncio.sleep(max(0.0, _REFUSED_AFTER_S - (time.monotonic() - began)))
        raise socket.gaierror(socket.EAI_NONAME, "no public address")

    async def close(self) -> None:
        await self._inner.close()


class SystemResolver(AbstractResolver):
    """Asks the system in threads of its own: a name server that is slow on purpose delays webhooks only."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="webhook-lookup")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, _look_up, host, port, family)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int, family: int) -> list[ResolveResult]:
    infos = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [
        ResolveResult(hostname=host, host=_numeric(address), port=port, family=found, proto=protocol, flags=_NUMERIC)
        for found, _, protocol, _, address in infos
    ]


def _numeric(address: tuple[object, ...]) -> str:
    scoped = len(address) > 3 and address[3]
    return f"{address[0]}%{scoped}" if scoped else str(address[0])


async def _read_excerpt(response: aiohttp.ClientResponse, most: int) -> str:
    """Returns the beginning of the body as printable text, also of one that breaks off or does not end in time."""
    data = b""
    try:
        while len(data) < most and (part := await response.content.read(most - len(data))):
            data += part
    except (aiohttp.ClientError, TimeoutError, OSError):
        pass
    text = data.decode(errors="replace").replace("\r\n", "\n")
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


@contextmanager
def _translated_errors(url: URL) -> Iterator[None]:
    try:
        yield
    except aiohttp.ClientConnectorDNSError as exc:
        raise NoPublicAddress(f"no public address is known for the name {url.host}", remedy=REMEDY) from exc
    except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as exc:
        raise Unavailable(f"no trusted TLS connection to {url.host} came about: {exc}") from exc
    except TimeoutError as exc:
        raise Unavailable(f"{url.host} did not answer in time") from exc
    except aiohttp.ClientConnectorError as exc:
        raise Unavailable(f"{url.host} cannot be reached: {_reason(exc)}") from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise Unavailable(f"{url.host} gave no answer: {exc}") from exc


def _reason(exc: aiohttp.ClientConnectorError) -> str:
    """Leaves out the address that the name resolved to, which some errors tell."""
    number = exc.os_error.errno
    if number is None:
        return "it failed with every address"
    return os.strerror(number) if number > 0 else exc.os_error.strerror or "no address is known"
