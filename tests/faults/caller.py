"""A client of the server under test that knows when the server has gone away in the middle of an answer."""

import contextlib
import io
import json
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

_PATIENCE = aiohttp.ClientTimeout(total=60)


@dataclass(frozen=True)
class Answer:
    """`status` 0: the server went away before it had answered."""

    status: int
    body: Any = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def cut(self) -> bool:
        return self.status == 0

    def good(self) -> Any:
        assert self.ok, f"{self.status}: {self.body}"
        return self.body


class Caller:
    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url, self._http = url, http

    async def ask(self, method: str, path: str, *, key: str = "", **options: Any) -> Answer:
        headers = {**options.pop("headers", {}), **({"Idempotency-Key": key} if key else {})}
        try:
            async with self._http.request(method, self._url + path, headers=headers, **options) as response:
                return Answer(response.status, _decoded(await response.read()))
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            return Answer(0)

    async def create(self, key: str = "", **body: Any) -> Answer:
        return await self.ask("POST", "/api/sessions", key=key, json=body)

    async def show(self, session_id: str) -> Answer:
        return await self.ask("GET", f"/api/sessions/{session_id}")

    async def delete(self, session_id: str) -> Answer:
        return await self.ask("DELETE", f"/api/sessions/{session_id}")

    async def sessions(self, **filters: str) -> list[dict[str, Any]]:
        """Those that have not ended."""
        found: list[dict[str, Any]] = (
            await self.ask("GET", "/api/sessions", params={"limit": "1000", **filters})
        ).good()["sessions"]
        return found

    async def exec(self, session_id: str, command: str, key: str = "", **body: Any) -> Answer:
        return await self.ask(
            "POST", f"/api/sessions/{session_id}/exec", key=key, json={"command": command, "timeout_s": 50, **body}
        )

    async def output(self, session_id: str, command: str) -> str:
        """What a command that must succeed has said."""
        result = (await self.exec(session_id, command)).good()
        assert result["exit_code"] == 0, result
        return str(result["stdout"])

    async def start(self, session_id: str, command: str, process_id: str) -> Answer:
        body = {"command": command, "process_id": process_id}
        return await self.ask("POST", f"/api/sessions/{session_id}/processes", json=body)

    async def process(self, session_id: str, process_id: str) -> Answer:
        return await self.ask("GET", f"/api/sessions/{session_id}/processes/{process_id}")

    async def process_output(self, session_id: str, process_id: str) -> str:
        found = (await self.ask("GET", f"/api/sessions/{session_id}/processes/{process_id}/output")).good()
        return "".join(chunk["data"] for chunk in found["chunks"])

    async def upload(self, session_id: str, path: str, data: bytes | AsyncIterable[bytes]) -> Answer:
        body = io.BytesIO(data) if isinstance(data, bytes) else data
        return await self.ask("PUT", f"/api/sessions/{session_id}/files/content", params={"path": path}, data=body)

    async def download(self, path: str) -> bytes:
        async with self._http.get(self._url + path) as response:
            assert response.status == 200
            return await response.read()

    async def health(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.ask("GET", "/health")).good()
        return found


def _decoded(text: bytes) -> Any:
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return text.decode(errors="replace")


@contextlib.asynccontextmanager
async def calling(url: str) -> AsyncIterator[Caller]:
    # A connection of its own for every request: one that is kept dies with the server.
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=_PATIENCE) as http:
        yield Caller(url, http)
