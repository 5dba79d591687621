"""Where attacks on a server take place: a session of the attacking tenant, and one of another tenant.

The keys come from the environment, because every user of the machine can read the arguments of a process:
WARREN_API_KEY (or what the SDK finds) is the attacker's, WARREN_OTHER_API_KEY that of a tenant who is attacked.
"""

import asyncio
import contextlib
import http.client
import json
import os
import secrets
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import quote, urlencode

from warren.model.errors import InvalidRequest, Unauthorized, Unavailable, WarrenError
from warren_attack.warren.api.raw_http import MAX_BYTES, Answer, RawHttp, read_answer

OTHER_KEY = "WARREN_OTHER_API_KEY"
_LIFETIME_S = 900
_CREATE_S = 120.0
_HEALTH_EVERY_S = 0.02


@dataclass(slots=True)
class Tenant:
    """A caller with a session of its own, which has a file and a process that others must not touch."""

    key: str
    name: str = ""
    scopes: frozenset[str] = frozenset()
    session: str = ""
    thread: str = ""
    process: str = ""
    marker: str = field(default_factory=lambda: f"marker{secrets.token_hex(12)}")

    @property
    def headers(self) -> dict[str, str]:
        return {"X-API-Key": self.key} if self.key else {}


MOUNTED_AT: Final = "/workspace/mounted"
VOLUME: Final = "attack-volume"
"""What the names of the attack's volumes begin with."""


def _is_of(sessions: Container[str], each: Mapping[str, Any]) -> bool:
    return each.get("session_id") in sessions or each.get("forked_from") in sessions


def _is_volume(each: Mapping[str, Any]) -> bool:
    return str(each["name"]).startswith(VOLUME)


class ApiArena:
    def __init__(self, url: str, key: str, other_key: str = "", *, environment: str = "") -> None:
        self.http = RawHttp(url)
        self.own = Tenant(key)
        self.other = Tenant(other_key)
        self._environment = {"environment": environment} if environment else {}
        self._made: list[tuple[Tenant, str]] = []

    @property
    def has_two_tenants(self) -> bool:
        return bool(self.other.session)

    async def open(self) -> None:
        """Raises what is wrong with the server or a key before the first attack."""
        try:
            await self._identify(self.own)
            if self.other.key:
                await self._identify(self.other)
        except (OSError, TimeoutError) as exc:
            raise Unavailable(f"the server at {self.http.authority} cannot be reached: {exc}") from exc
        if self.other.key and self.own.name == self.other.name:
            raise InvalidRequest(
                f"both keys are of the tenant {self.own.name!r}, so that nothing would be shown",
                remedy=f"set {OTHER_KEY} to a key of another tenant, or leave it out",
            )
        await self._settle(self.own)
        if self.other.key:
            await self._settle(self.other)

    async def close(self) -> None:
        """Ends every session that the attack made, its forks too, and deletes its snapshots and volumes."""
        async with asyncio.timeout(_CREATE_S):
            for tenant in (self.own, self.other) if self.other.key else (self.own,):
                is_ours = partial(_is_of, {session for owner, session in self._made if owner is tenant})
                await self._remove(tenant, "sessions", "session_id", is_ours)
                await self._remove(tenant, "snapshots", "snapshot_id", is_ours)
                await self._remove(tenant, "volumes", "name", _is_volume)

    async def _remove(self, tenant: Tenant, kind: str, key: str, is_ours: Callable[[Mapping[str, Any]], bool]) -> None:
        with contextlib.suppress(OSError, WarrenError):
            while True:  # a list has no more than a page
                listed = await self.call("GET", f"/api/{kind}", tenant=tenant)
                ours = [each for each in (listed.values or {}).get(kind, ()) if is_ours(each)]
                answers = [
                    await self.call("DELETE", f"/api/{kind}/{quote(str(each[key]))}", tenant=tenant) for each in ours
                ]
                if not any(answer.status in (200, 204) for answer in answers):
                    return

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        tenant: Tenant | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        most: int = MAX_BYTES,
    ) -> Answer:
        """`body` bytes are sent as they are, anything else as JSON."""
        tenant = tenant or self.own
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        target = f"{path}?{urlencode(query, errors='surrogateescape')}" if query else path
        sent = {"Content-Type": "application/json", **tenant.headers, **(headers or {})}
        return await self.http.request(method, target, sent, data, timeout_s=timeout_s, most=most)

    async def socket(self, target: str, first: bytes = b"") -> Answer:
        """Opens a WebSocket, sends a text, and returns the first message as an answer; an error by its own status."""
        head = self.http.head("GET", target, {**self.own.headers, **upgrade_headers()})
        frame = b"\x81" + bytes([0x80 | len(first)]) + bytes(4) + first if first else b""
        started = time.monotonic()
        async with asyncio.timeout(30), self.http.connection() as (reader, writer):
            writer.write(head)
            status, headers, body = await read_answer(reader, MAX_BYTES)
            if status == 101:
                writer.write(frame)
                kind, length = await reader.readexactly(2)
                size = length if length < 126 else int.from_bytes(await reader.readexactly(2 if length == 126 else 8))
                body = await reader.readexactly(size)
                with contextlib.suppress(ValueError, AttributeError):
                    values = json.loads(body) if kind == 0x81 else {}
                    status = int(values.get("status", 101)) if values.get("type") == "error" else 101
            return Answer(status, headers, body, time.monotonic() - started)

    async def new_session(self, tenant: Tenant | None = None, **values: Any) -> Answer:
        tenant = tenant or self.own
        body = {"max_lifetime_s": _LIFETIME_S, **self._environment, **values}
        answer = await self.call("POST", "/api/sessions", body, tenant=tenant, timeout_s=_CREATE_S)
        if answer.status in (200, 201):
            self._made.append((tenant, answer.values["session_id"]))
        return answer

    async def run(self, command: str, *, tenant: Tenant | None = None, **values: Any) -> Answer:
        tenant = tenant or self.own
        path = f"/api/sessions/{tenant.session}/exec"
        query = {"encoding": values.pop("encoding")} if "encoding" in values else None
        return await self.call("POST", path, {"command": command, **values}, tenant=tenant, query=query)

    async def start(self, tenant: Tenant | None = None) -> str:
        """Starts a terminal that waits, and returns the id of its process."""
        tenant = tenant or self.own
        body = {"command": "sleep 600", "terminal": {"rows": 24, "columns": 80}}
        answer = await self.call("POST", f"/api/sessions/{tenant.session}/processes", body, tenant=tenant)
        if answer.status != 201:
            raise Unavailable(f"a process could not be started: {answer}")
        return str(answer.values["process_id"])

    async def usable(self) -> str:
        """Why the server, or the attacker's own session, is of no use any more; empty if both are."""
        try:
            answer = await self.run("echo alive")
        except (OSError, TimeoutError) as exc:
            return f"{type(exc).__name__}: {exc}"
        return "" if answer.status == 200 and answer.values["stdout"] == "alive\n" else f"a command gives {answer}"

    async def renew(self) -> None:
        await self._settle(self.own)

    @contextlib.asynccontextmanager
    async def health(self) -> AsyncIterator["Health"]:
        """Asks /health again and again for the time of a `with` block: what an answer takes shows the loop's lag.

        A thread does it, so that the work of this process's own event loop is not taken for the server's.
        """
        health = Health()
        watch = asyncio.ensure_future(asyncio.to_thread(self._watch, health))
        try:
            yield health
        finally:
            health.stop.set()
            await watch

    def _watch(self, health: "Health") -> None:
        if self.http.tls is None:
            client = http.client.HTTPConnection(self.http.host, self.http.port, timeout=60)
        else:
            client = http.client.HTTPSConnection(self.http.host, self.http.port, timeout=60, context=self.http.tls)
        with contextlib.closing(client):
            while not health.stop.wait(_HEALTH_EVERY_S):
                started = time.monotonic()
                try:
                    client.request("GET", f"{self.http.prefix}/health")
                    response = client.getresponse()
                    response.read()
                    health.failures += response.status != 200
                except (OSError, http.client.HTTPException):
                    health.failures += 1
                    client.close()
                health.seconds.append(time.monotonic() - started)

    async def _identify(self, tenant: Tenant) -> None:
        answer = await self.call("GET", "/api/whoami", tenant=tenant)
        if answer.status == 401:
            raise Unauthorized(
                f"the server at {self.http.authority} does not take this API key",
                remedy=f"set WARREN_API_KEY, and {OTHER_KEY} for a second tenant",
            )
        if answer.status != 200:
            raise Unavailable(f"the server at {self.http.authority} answers with {answer}")
        tenant.name, tenant.scopes = answer.values["tenant"], frozenset(answer.values["scopes"])

    async def _settle(self, tenant: Tenant) -> None:
        tenant.thread = f"attack-{secrets.token_hex(8)}"
        answer = await self.new_session(tenant, thread_id=tenant.thread)
        if answer.status not in (200, 201):
            raise Unavailable(f"a session could not be made for {tenant.name}: {answer}")
        tenant.session = answer.values["session_id"]
        path = f"/api/sessions/{tenant.session}/files/content"
        query = {"path": "secret"}
        answer = await self.call("PUT", path, tenant.marker.encode(), tenant=tenant, query=query)
        tenant.process = await self.start(tenant)


@dataclass(slots=True)
class Health:
    seconds: list[float] = field(default_factory=list)
    failures: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def worst(self) -> float:
        return max(self.seconds, default=0.0)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) if self.seconds else 0.0


def upgrade_headers() -> dict[str, str]:
    return {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }


def segment(text: str) -> str:
    return quote(text, safe="")


def other_key() -> str:
    return os.environ.get(OTHER_KEY, "")
