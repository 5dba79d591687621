"""Posts a webhook to where a caller wants it, and to nowhere else.

A name is looked up once for each connection, every address it has is checked, and the connection goes to one of
the addresses that were checked: no second look-up lies in between. Below that, the socket itself is made only for
an address that passes, whatever led to it. Connections are not kept, redirects are not followed, cookies are
thrown away, proxies and passwords of the environment are not used.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EACCES
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from warren.model.errors import InvalidRequest, Unavailable
from warren.tenancy.webhooks.addresses import Network, check_address
from warren.tenancy.webhooks.urls import read_url

_HEADERS: Final = {"Accept-Encoding": "identity", "Content-Type": "application/json", "User-Agent": "warren-webhooks"}
_LOOKUPS: Final = 16
_NUMERIC: Final = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
_AddrInfo = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[object, ...]]


@dataclass(frozen=True)
class ReceiverResponse:
    """What the receiver said: also a refusal is an answer. `excerpt` is how its body begins, for people to read."""

    status: int
    excerpt: str = ""
    retry_after: str = ""


class Poster:
    """Sends webhooks; safe to use from many tasks of one event loop.

    `post` raises InvalidRequest if the URL or an address behind its name may not be called: nothing was sent then.
    It raises Unavailable if no answer came; the receiver may have seen the request all the same. Once there is a
    status there is an Answer, even if the body breaks off. `timeout_s` limits the whole of it, looking up the
    name and waiting for one of the `limit` connections included. Nothing is tried twice here.
    """

    def __init__(
        self,
        allowed_networks: Sequence[Network] = (),
        *,
        timeout_s: float = 15.0,
        connect_timeout_s: float = 5.0,
        max_answer_bytes: int = 1024,
        limit: int = 50,
        resolver: AbstractResolver | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = tuple(allowed_networks)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_timeout_s)
        self._max_answer_bytes = max_answer_bytes
        self._limit = limit
        self._resolver = CheckedResolver(resolver or SystemResolver(), self._allowed)
        self._tls = tls or ssl.create_default_context()
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        allowed = ", ".join(map(str, self._allowed)) or "none"
        return f"<Poster allowed beside the public Internet: {allowed}>"

    def check(self, url: str) -> None:
        """Raises InvalidRequest if it is known already, without looking up its name, that `post` would."""
        read_url(url, self._allowed)

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> ReceiverResponse:
        target = read_url(url, self._allowed)
        with _errors(target):
            async with self._open().post(
                target, data=body, headers=headers, allow_redirects=False, timeout=self._timeout
            ) as response:
                excerpt = await _beginning(response, self._max_answer_bytes)
                response.close()
                return ReceiverResponse(response.status, excerpt, response.headers.get("Retry-After", ""))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self._resolver.close()

    def _open(self) -> aiohttp.ClientSession:
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
                read_bufsize=self._max_answer_bytes,
            )
        return self._session

    def _new_socket(self, info: _AddrInfo) -> socket.socket:
        return new_socket(info, self._allowed)


def new_socket(info: _AddrInfo, allowed: Sequence[Network]) -> socket.socket:
    """A socket for this one address; aiohttp connects it to just that. The last check before the wire."""
    family, kind, protocol, _, address = info
    try:
        check_address(_numeric(address), allowed, "this address")
    except InvalidRequest as exc:
        raise PermissionError(EACCES, str(exc)) from exc  # what aiohttp expects of who cannot be reached
    return socket.socket(family, kind, protocol)


class CheckedResolver(AbstractResolver):
    """Answers with what another resolver says, if all of it may be called: one bad address spoils the name."""

    def __init__(self, inner: AbstractResolver, allowed: Sequence[Network]) -> None:
        self._inner = inner
        self._allowed = allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        for result in found:
            check_address(result["host"], self._allowed, host)
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "it has no address")
        return found

    async def close(self) -> None:
        await self._inner.close()


class SystemResolver(AbstractResolver):
    """Asks the system, in threads of its own: a name server that is slow on purpose holds up webhooks only."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="webhook-lookup")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, _looked_up, host, port, family)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _looked_up(host: str, port: int, family: int) -> list[ResolveResult]:
    infos = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [
        ResolveResult(hostname=host, host=_numeric(address), port=port, family=found, proto=protocol, flags=_NUMERIC)
        for found, _, protocol, _, address in infos
    ]


def _numeric(address: tuple[object, ...]) -> str:
    scoped = len(address) > 3 and address[3]
    return f"{address[0]}%{scoped}" if scoped else str(address[0])


async def _beginning(response: aiohttp.ClientResponse, most: int) -> str:
    """How the body begins, made fit to be shown. A body that breaks off or does not end in time is no failure."""
    data = b""
    try:
        while len(data) < most and (part := await response.content.read(most - len(data))):
            data += part
    except (aiohttp.ClientError, TimeoutError, OSError):
        pass
    text = data.decode(errors="replace").replace("\r\n", "\n")
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


@contextmanager
def _errors(url: URL) -> Iterator[None]:
    try:
        yield
    except aiohttp.ClientConnectorDNSError as exc:
        raise Unavailable(f"the name {url.host} cannot be looked up: {_reason(exc)}") from exc
    except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as exc:
        raise Unavailable(f"no trusted TLS connection to {url.host} came about: {exc}") from exc
    except TimeoutError as exc:
        raise Unavailable(f"{url.host} did not answer in time") from exc
    except aiohttp.ClientConnectorError as exc:
        raise Unavailable(f"{url.host} cannot be reached: {_reason(exc)}") from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise Unavailable(f"{url.host} gave no answer: {exc}") from exc


def _reason(exc: aiohttp.ClientConnectorError) -> str:
    """Without the address behind the name, which some errors tell."""
    number = exc.os_error.errno
    if number is None:
        return "it failed with every address"
    return os.strerror(number) if number > 0 else exc.os_error.strerror or "no address is known"
