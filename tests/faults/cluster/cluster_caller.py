"""A client of a cluster: it asks any coordinator, and the next one if nobody takes its connection, as nginx would."""

import contextlib
import random
import socket
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from faults.caller import Answer, Caller, _decoded

_PATIENCE = aiohttp.ClientTimeout(total=90)
NewSocket = Callable[[Any], socket.socket]


@dataclass(frozen=True)
class Reply(Answer):
    """`headers` by their names in lower case."""

    headers: Mapping[str, str] = field(default_factory=dict)


class ClusterCaller(Caller):
    """`urls` are those of the coordinators."""

    def __init__(self, urls: Sequence[str], http: aiohttp.ClientSession, chance: random.Random | None = None) -> None:
        super().__init__(urls[0], http)
        self.urls = list(urls)
        self._chance = chance or random.Random(0)

    def through(self, number: int) -> "ClusterCaller":
        """The same, through one coordinator alone."""
        return ClusterCaller([self.urls[number]], self._http, self._chance)

    async def ask(self, method: str, path: str, *, key: str = "", **options: Any) -> Reply:
        headers = {**options.pop("headers", {}), **({"Idempotency-Key": key} if key else {})}
        for url in self._chance.sample(self.urls, len(self.urls)):
            try:
                async with self._http.request(method, url + path, headers=headers, **options) as response:
                    told = {name.lower(): value for name, value in response.headers.items()}
                    return Reply(response.status, _decoded(await response.read()), told)
            except aiohttp.ClientConnectorError:
                continue
            except (aiohttp.ClientError, ConnectionError, TimeoutError):
                return Reply(0)
        return Reply(0)

    async def upload(self, session_id: str, path: str, data: bytes | AsyncIterable[bytes]) -> Answer:
        return await self.ask("PUT", f"/api/sessions/{session_id}/files/content", params={"path": path}, data=data)

    async def cluster(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.ask("GET", "/api/cluster")).good()
        return found


@contextlib.asynccontextmanager
async def calling_cluster(
    urls: Sequence[str],
    chance: random.Random | None = None,
    *,
    new_socket: NewSocket | None = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[ClusterCaller]:
    # A connection of its own for every request: one that is kept dies with the coordinator.
    connector = aiohttp.TCPConnector(force_close=True, limit=0, socket_factory=new_socket)
    async with aiohttp.ClientSession(connector=connector, timeout=_PATIENCE, headers=headers) as http:
        yield ClusterCaller(urls, http, chance)
