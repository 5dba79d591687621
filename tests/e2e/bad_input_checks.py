"""What holds for every refusal, and for the server after all of them."""

import io
import itertools
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from e2e.alone_or_cluster import DEAD, Place
from e2e.bad_input_routes import NOBODY, Request
from server_process import ServerProcess
from yarl import URL

from warren.model.errors import WarrenError
from warren.model.strict_json import read_json

KEPT = b"was here before"
REFUSALS = frozenset({400, 403, 404, 405, 409, 410, 413, 415, 416, 421, 422, 431})
_CODES = {*WarrenError.by_code, "method_not_allowed"} - {"internal"}
_INTERNALS = re.compile(
    r"Traceback|pydantic|starlette|fastapi|uvicorn|asyncio|ValidationError|\b\w+(Error|Exception)\(|\.py\b"
    r"|object at 0x|NoneType|<class|Input should|\bErrno\b|site-packages|src/warren|/tmp/warren"
)


_numbers = itertools.count(1)


@dataclass
class Target:
    """A server with a session that must come through everything unharmed."""

    place: Place
    http: aiohttp.ClientSession
    session_id: str
    process_id: str = "kept"
    key_id: str = "key_0"
    webhook_id: str = "wh_0"
    revocation_id: str = "rev_0"
    artifact_id: str = "art_0"
    snapshot: str = "kept"
    worker_id: str = DEAD
    ticket: str = "wtk_0"
    complaints: list[str] = field(default_factory=list)

    @property
    def server(self) -> ServerProcess:
        return self.place.server

    async def send(self, request: Request) -> tuple[int, str, bytes]:
        """Status, type and body; of a stream only the beginning."""
        url = self.url(request.path, request.query)
        headers = {"Content-Type": "application/json", **request.headers}
        data = self._data(request)
        async with self.http.request(request.method, url, data=data, headers=headers, allow_redirects=False) as answer:
            kind = answer.headers.get("Content-Type", "")
            body = await (answer.content.read(65536) if kind.startswith("text/event-stream") else answer.read())
            return answer.status, kind, body

    def url(self, path: str, query: dict[str, str] | None = None) -> URL:
        text = self.server.url + self._filled(path)
        if query:
            pairs = (f"{name}={value if '%' in value else _quoted(value)}" for name, value in query.items())
            text += "?" + "&".join(self._filled(pair) for pair in pairs)
        return URL(text, encoded=True)

    def _filled(self, text: str) -> str:
        ids = (
            "session_id",
            "process_id",
            "key_id",
            "webhook_id",
            "revocation_id",
            "worker_id",
            "artifact_id",
            "snapshot",
        )
        for name in (*ids, "ticket"):
            text = text.replace(f"{{{name}}}", getattr(self, name))
        return (
            text.replace("{name}", "kept")
            .replace("{port}", "3000")
            .replace("{kind}", "prompts")
            .replace("{context_id}", "ctx_bash")
            .replace("{execution_id}", "cell_0123456789ab")
            .replace("{entry}", "coding")
            .replace("{volume}", "kept")
            .replace("{fresh}", f"v{next(_numbers)}")
        )

    async def provide(self) -> None:
        """A tenant, a key, a webhook, a secret, a revocation and a dead worker for requests that are about one."""
        self.place.bury()
        async with self.http.put(self.url("/api/admin/tenants/{name}"), json={"quota": {"sessions": 1000}}) as answer:
            assert answer.status == 200
        secret = {"value": "bad-input", "hosts": ["api.example.com"], "header": "X-Key"}
        async with self.http.put(self.url("/api/secrets/{name}"), json=secret) as answer:
            assert answer.status == 200
        self.key_id = await self._one("/api/admin/keys", "keys", {"name": "kept"})
        self.webhook_id = await self._one("/api/webhooks", "webhooks", {"url": NOBODY, "events": ["quota.reached"]})
        self.revocation_id = await self._one("/api/admin/revocations", "revocations", {"token_id": "kept"})
        async with self.http.post(self.url("/api/sessions/{session_id}/tickets"), json={}) as answer:
            self.ticket = (await answer.json())["ticket"]
        await self._provide_artifact()
        async with self.http.post(self.url("/api/sessions/{session_id}/snapshots"), json={"name": "kept"}) as answer:
            assert answer.status == 201
        async with self.http.post(self.url("/api/volumes"), json={"name": "kept", "size_mb": 16}) as answer:
            assert answer.status in (201, 409)

    async def _provide_artifact(self) -> None:
        """Of a file of its own: other requests may have moved or removed what was saved before."""
        async with self.http.put(
            self.url("/api/sessions/{session_id}/files/content?path=artifact"), data=b"x"
        ) as answer:
            assert answer.status == 201
        place, body = "/api/sessions/{session_id}/artifacts", {"paths": ["artifact"]}
        async with self.http.post(self.url(place), json=body) as answer:
            self.artifact_id = (await answer.json())["artifacts"][0]["artifact_id"]

    async def _one(self, path: str, kind: str, body: dict[str, Any]) -> str:
        async with self.http.get(self.url(path)) as answer:
            if known := (await answer.json())[kind]:
                return str(known[0]["id"])
        async with self.http.post(self.url(path), json=body) as answer:
            return str((await answer.json())["id"])

    def _data(self, request: Request) -> Any:
        if request.raw is not None:
            raw = request.raw.replace(b"{session_id}", self.session_id.encode())
            return _in_pieces(raw) if request.chunked else io.BytesIO(raw)
        return None if request.json is None else io.BytesIO(json.dumps(self._filled_in(request.json)).encode())

    def _filled_in(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._filled_in(item) for name, item in value.items()}
        return self._filled(value) if isinstance(value, str) and len(value) < 100 else value

    async def refuses(self, request: Request, statuses: frozenset[int] = REFUSALS, code: str = "") -> None:
        """Notes down what is wrong with the answer to a bad request."""
        try:
            status, kind, body = await self.send(request)
        except aiohttp.ClientError as exc:
            self.complaints.append(f"{str(request)[:200]}: no answer ({exc!r})")
            return
        if wrong := wrong_with(status, kind, body, statuses, code):
            self.complaints.append(f"{str(request)[:200]}: {wrong}: {status} {body[:400]!r}")

    def complain(self) -> None:
        if self.complaints:
            pytest.fail(f"{len(self.complaints)} answers are wrong:\n" + "\n".join(self.complaints[:50]))

    async def sessions(self) -> int:
        async with self.http.get(f"{self.server.url}/sessions") as answer:
            return int((await answer.json())["count"])

    async def unharmed(self) -> None:
        """The session, its file and its process are as they were, and the server is well."""
        async with self.http.get(self.url("/download_file?session_id={session_id}&path=kept.txt")) as answer:
            assert (answer.status, await answer.read()) == (200, KEPT)
        async with self.http.get(self.url("/api/sessions/{session_id}/processes/{process_id}")) as answer:
            assert (await answer.json())["running"] is True
        async with self.http.get(f"{self.server.url}/health") as answer:
            assert (await answer.json())["status"] == "healthy"
        assert "internal error" not in self.server.log, self.server.log[-4000:]
        assert "Traceback" not in self.server.log, self.server.log[-4000:]

    def memory_mib(self) -> float:
        status = Path(f"/proc/{self.server.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


def wrong_with(status: int, kind: str, body: bytes, statuses: frozenset[int], code: str = "") -> str:
    """What is wrong with the answer as a refusal; nothing if it is a good one."""
    if status not in statuses:
        return "the status"
    if kind != "application/problem+json":
        return f"the type {kind!r}"
    problem = read_json(body)
    if problem.get("status") != status or problem.get("code") not in _CODES or (code and problem["code"] != code):
        return "the code"
    return wrong_with_words(problem.get("detail"), problem.get("remedy", "none is needed"))


def wrong_with_words(*texts: object) -> str:
    for text in texts:
        if not isinstance(text, str) or " " not in text or len(text) > 1000:
            return "not a sentence"
        if found := _INTERNALS.search(text):
            return f"internals: {found[0]!r}"
    return ""


def _quoted(value: str) -> str:
    return value if "{" in value else quote(value, safe="")


async def _in_pieces(raw: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(raw), 65536):
        yield raw[start : start + 65536]
