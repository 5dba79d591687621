"""The few calls that Warren makes to E2B, or to a server that speaks as E2B does, with its errors in Warren's words.

The control plane makes, finds and ends sandboxes; envd, inside each, runs programs and takes files. Calls that can be
repeated are repeated a few times when the far side is busy or out of reach. A creation is not, unless it was refused:
nobody knows whether an answer that got lost was about a new sandbox.

The far side is not trusted: what it answers is bounded, read strictly and never unpacked, and no redirection is
followed, which could lead into the operator's own network.
"""

import asyncio
import base64
import io
import json
import re
import struct
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

import aiohttp

from warren.model.errors import (
    ImageBuildFailed,
    ImageBuilding,
    ImageNotFound,
    InvalidRequest,
    NoCapacity,
    NoSpace,
    ProviderKeyRefused,
    ProviderUnavailable,
    WarrenError,
)
from warren.model.strict_json import read_in_steps
from warren.sandboxes.agent.agent_errors import printable

DOMAIN: Final = "e2b.app"
ENVD_PORT: Final = 49983
_TIMEOUT: Final = aiohttp.ClientTimeout(total=60, sock_connect=10)
_UPLOAD_TIMEOUT: Final = aiohttp.ClientTimeout(total=120, sock_connect=10)
# The far side says every few seconds that it is still there.
_PING_S: Final = 15
_STREAM_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=4 * _PING_S)
_TRIES: Final = 4
_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
_BUSY: Final = frozenset({429, 502, 503, 504})
_FRAME: Final = struct.Struct(">BI")
_LAST_FRAME: Final = 2
_MAX_FRAME: Final = 8 * 1024 * 1024
_MAX_ANSWER: Final = 4 * 1024 * 1024
_MAX_PAGES: Final = 1000
_MAX_LIST: Final = 16 * 1024 * 1024
_LONG: Final = 64 * 1024
_LONGEST_WAIT_S: Final = 3600.0
_ID: Final = re.compile(r"[A-Za-z0-9-]{1,128}", re.ASCII)
# A far Warren answers at once how far an image is, instead of waiting for it for longer than callers here wait.
_NO_IMAGE_WAIT: Final = {"X-Warren-Image-Wait": "0"}
_NO_TEMPLATE: Final = "the image of the environment is the name of a template of the far side"
_WORDS: Final = ("step", "about")
_TOKEN: Final = re.compile(r"[!-~]{0,4096}", re.ASCII)
_HOST: Final = re.compile(r"[A-Za-z0-9_.\[\]:-]{0,255}", re.ASCII)

Json = dict[str, Any]


class FarFailure(Exception):
    """The far side refused a request, or its answer cannot be used. `kind` is Connect's name of an RPC's error;
    `details` is all that the far side said."""

    def __init__(
        self, status: int, said: str, kind: str = "", retry_after_s: float | None = None, details: Json | None = None
    ) -> None:
        super().__init__(said)
        self.status, self.said, self.kind, self.retry_after_s = status, said, kind, retry_after_s
        self.details = details or {}

    @property
    def is_gone(self) -> bool:
        return self.status == 404 or self.kind == "not_found" or (self.status == 502 and "not found" in self.said)


@dataclass(frozen=True, slots=True)
class FarSandbox:
    """How the envd of a sandbox is reached."""

    id: str
    token: str = ""
    domain: str = ""


@dataclass(frozen=True, slots=True)
class FarSize:
    cpus: float
    memory_mb: int
    disk_mb: int


@dataclass(frozen=True, slots=True)
class FarMetrics:
    """`cpus` is how many cores were in use."""

    cpus: float
    memory_bytes: int
    cache_bytes: int
    disk_bytes: int


class E2bApi:
    """Connects when first used, and again after `close`. Without a `sandbox_url` each sandbox has a host of its own,
    under the `domain` that the far side named, unless an `api_url` says that everything is at one address."""

    def __init__(self, key: str, api_url: str = "", sandbox_url: str = "", domain: str = "") -> None:
        self._key = key
        self._api = (api_url or f"https://api.{domain or DOMAIN}").rstrip("/")
        self._sandboxes = (sandbox_url or (api_url if not domain else "")).rstrip("/")
        self._domain = domain or DOMAIN
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"<E2bApi {self._api}>"

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # -- the control plane

    async def create(self, template: str, timeout_s: int, metadata: Mapping[str, str]) -> FarSandbox:
        """Makes a sandbox with a closed network: nothing here can open it later, nor say what it may reach. Raises
        ImageBuilding and ImageBuildFailed if the far side is a Warren that says so of the template's image."""
        body = {"templateID": template, "timeout": timeout_s, "metadata": dict(metadata), "secure": True}
        with _errors("creating a sandbox"):
            try:
                made = await self._call("POST", "/sandboxes", {**body, "allow_internet_access": False}, again={429})
            except FarFailure as exc:
                if exc.status in (400, 403, 404) and "template" in exc.said.lower():
                    raise ImageNotFound(f"E2B has no template {template}: {exc.said}", remedy=_NO_TEMPLATE) from exc
                raise
            token, domain = _text(made, "envdAccessToken", _TOKEN), _text(made, "domain", _HOST)
            return FarSandbox(_text(made, "sandboxID"), token, domain)

    async def size(self, sandbox_id: str) -> FarSize | None:
        """Returns what the sandbox has; None if it is gone."""
        with _errors("looking at a sandbox"):
            try:
                found = await self._call("GET", f"/sandboxes/{quote(sandbox_id)}")
            except FarFailure as exc:
                if exc.is_gone:
                    return None
                raise
            if found.get("state") == "paused":
                return None
            cpus, memory_mb, disk_mb = (_number(found, name) for name in ("cpuCount", "memoryMB", "diskSizeMB"))
            return FarSize(cpus, int(memory_mb), int(disk_mb))

    async def metrics(self, sandbox_id: str, since: float) -> FarMetrics | None:
        """Returns the last metrics that were measured since then; None if there are none."""
        with _errors("reading the metrics of a sandbox"):
            found, _ = await self._exchange("GET", f"/sandboxes/{quote(sandbox_id)}/metrics?start={int(since)}")
            points = [point for point in found if isinstance(point, dict)] if isinstance(found, list) else []
            if not points:
                return None
            last = points[-1]
            used, count = _number(last, "cpuUsedPct"), _number(last, "cpuCount")
            return FarMetrics(used / 100 * count, *(_size(last, name) for name in ("memUsed", "memCache", "diskUsed")))

    async def list(self, metadata: Mapping[str, str]) -> Sequence[tuple[str, Mapping[str, str]]]:
        """Returns the ids of the sandboxes that have this metadata, each with all of its metadata."""
        query = {"metadata": urlencode({quote(name): quote(value) for name, value in metadata.items()}), "limit": "100"}
        found: list[tuple[str, Mapping[str, str]]] = []
        size = 0
        with _errors("listing sandboxes"):
            for _ in range(_MAX_PAGES):
                page, headers = await self._exchange("GET", f"/v2/sandboxes?{urlencode(query)}")
                for each in page if isinstance(page, list) else ():
                    has = _texts(each, "metadata")
                    if metadata.items() <= has.items():  # a server that ignores the filter shall do no harm
                        found.append((_text(each, "sandboxID"), has))
                        size += sum(len(name) + len(value) for name, value in has.items())
                if size > _MAX_LIST:
                    break
                query["nextToken"] = headers.get("x-next-token", "")
                if not query["nextToken"]:
                    return found
            raise ProviderUnavailable("E2B, listing sandboxes: the list has no end")

    async def prolong(self, sandbox_id: str, timeout_s: int) -> bool:
        """Makes the sandbox end `timeout_s` from now. Returns False if it is gone."""
        return await self._done("POST", f"/sandboxes/{quote(sandbox_id)}/timeout", {"timeout": timeout_s})

    async def kill(self, sandbox_id: str) -> None:
        """Idempotent."""
        await self._done("DELETE", f"/sandboxes/{quote(sandbox_id)}")

    async def _done(self, method: str, path: str, body: Json | None = None) -> bool:
        with _errors("ending a sandbox" if method == "DELETE" else "prolonging a sandbox"):
            try:
                await self._call(method, path, body)
            except FarFailure as exc:
                if exc.status != 404:
                    raise
                return False
            return True

    async def template(self, name: str) -> str:
        """Returns the id that the name stands for now, or the name if the far side does not tell. Raises
        ImageNotFound."""
        with _errors("looking for a template"):
            try:
                found = await self._call("GET", f"/templates/aliases/{quote(name, safe='')}")
            except FarFailure as exc:
                if exc.status == 404:
                    raise ImageNotFound(f"E2B has no template {name}", remedy=_NO_TEMPLATE) from exc
                if exc.status in (403, 405, 501):  # it is there, and belongs to somebody else; or it cannot be told
                    return name
                raise
            return str(found.get("templateID") or name)

    async def _call(
        self, method: str, path: str, body: Json | None = None, again: frozenset[int] | set[int] = _BUSY
    ) -> Json:
        found, _ = await self._exchange(method, path, body, again)
        return found if isinstance(found, dict) else {}

    async def _exchange(
        self, method: str, path: str, body: Json | None = None, again: frozenset[int] | set[int] = _BUSY
    ) -> tuple[Any, Mapping[str, str]]:
        """Raises FarFailure for every answer but success. Tries some times before it raises one with a status of
        `again`."""
        if not self._key:
            raise ProviderUnavailable("there is no key for E2B", remedy="set WARREN_E2B_API_KEY, or E2B_API_KEY")
        pause = _PAUSE_S
        for tries_left in reversed(range(_TRIES)):
            try:
                async with self._client().request(
                    method,
                    self._api + path,
                    json=body,
                    headers={"X-API-KEY": self._key, **_NO_IMAGE_WAIT},
                    timeout=_TIMEOUT,
                    allow_redirects=False,
                ) as response:
                    return await _answer(response), response.headers
            except FarFailure as exc:
                if exc.status not in again or not tries_left or (exc.retry_after_s or 0) > _LONGEST_PAUSE_S:
                    raise
                pause = max(pause, exc.retry_after_s or 0)
            except aiohttp.ClientConnectionError:
                # A request that makes something is not repeated if it may have arrived.
                if not tries_left or again is not _BUSY:
                    raise
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError

    # -- envd

    async def upload(self, far: FarSandbox, path: str, content: bytes) -> None:
        """Writes a file that belongs to root."""
        form = aiohttp.FormData()
        form.add_field(
            "file", io.BytesIO(content), filename=path.rpartition("/")[2], content_type="application/octet-stream"
        )
        url = f"{self._envd(far)}/files?{urlencode({'path': path, 'username': 'root'})}"
        with _errors("copying the agent into a sandbox"):
            async with self._client().post(
                url, data=form, headers=self._headers(far), timeout=_UPLOAD_TIMEOUT, allow_redirects=False
            ) as response:
                await _answer(response)

    async def send_input(self, far: FarSandbox, pid: int, data: bytes) -> None:
        """Writes to the stdin of a program. Raises FarFailure, aiohttp.ClientError, TimeoutError."""
        body = {"process": {"pid": pid}, "input": {"stdin": base64.b64encode(data).decode()}}
        headers = {**self._headers(far), "Connect-Protocol-Version": "1"}
        url = f"{self._envd(far)}/process.Process/SendInput"
        async with self._client().post(
            url, json=body, headers=headers, timeout=_TIMEOUT, allow_redirects=False
        ) as response:
            await _answer(response)

    @asynccontextmanager
    async def start(
        self, far: FarSandbox, argv: Sequence[str], *, stdin: bool = False
    ) -> AsyncIterator[AsyncIterator[Json]]:
        """Starts a program as root and yields its events, `start` the first. It runs on when nobody follows it."""
        process = {"cmd": argv[0], "args": [*argv[1:]], "envs": {}, "cwd": "/"}
        async with self._follow(far, "Start", {"process": process, "stdin": stdin}) as events:
            yield events

    @asynccontextmanager
    async def connect(self, far: FarSandbox, pid: int) -> AsyncIterator[AsyncIterator[Json]]:
        """Follows a program that runs already."""
        async with self._follow(far, "Connect", {"process": {"pid": pid}}) as events:
            yield events

    @asynccontextmanager
    async def _follow(self, far: FarSandbox, method: str, body: Json) -> AsyncIterator[AsyncIterator[Json]]:
        text = json.dumps(body).encode()
        headers = {
            **self._headers(far),
            "Content-Type": "application/connect+json",
            "Connect-Protocol-Version": "1",
            "Keepalive-Ping-Interval": str(_PING_S),
        }
        async with self._client().post(
            f"{self._envd(far)}/process.Process/{method}",
            data=_FRAME.pack(0, len(text)) + text,
            headers=headers,
            timeout=_STREAM_TIMEOUT,
            allow_redirects=False,
        ) as response:
            if response.status != 200:
                await _answer(response)
                raise FarFailure(response.status, "an answer that is no stream")
            yield _events(response.content)

    def _envd(self, far: FarSandbox) -> str:
        return self._sandboxes or f"https://{ENVD_PORT}-{far.id}.{far.domain or self._domain}"

    def _headers(self, far: FarSandbox) -> dict[str, str]:
        headers = {"E2b-Sandbox-Id": far.id, "E2b-Sandbox-Port": str(ENVD_PORT), "Authorization": "Basic cm9vdDo="}
        return {**headers, "X-Access-Token": far.token} if far.token else headers

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Every sandbox has a stream that stays open.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
            plain = {"Accept-Encoding": "identity"}
            self._session = aiohttp.ClientSession(
                connector=connector, trust_env=True, raise_for_status=False, headers=plain, auto_decompress=False
            )
        return self._session


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[Json]:
    while True:
        flags, size = _FRAME.unpack(await content.readexactly(_FRAME.size))
        if size > _MAX_FRAME:
            raise FarFailure(200, f"a frame of {size} bytes")
        found = await _object(await content.readexactly(size))
        if flags & _LAST_FRAME:
            error = found.get("error")
            if isinstance(error, dict):
                raise FarFailure(200, printable(str(error.get("message", ""))), str(error.get("code", "")))
            return
        event = found.get("event")
        yield {kind: one for kind, one in event.items() if isinstance(one, dict)} if isinstance(event, dict) else {}


async def _answer(response: aiohttp.ClientResponse) -> Any:
    raw = await response.content.read(_MAX_ANSWER)
    while len(raw) < _MAX_ANSWER and (more := await response.content.read(_MAX_ANSWER - len(raw))):
        raw += more
    if response.status < 300:
        try:
            return await _parsed(raw) if raw else {}
        except WarrenError:
            raise FarFailure(response.status, "an answer that is not JSON, or too much of it") from None
    if response.status < 400:
        raise FarFailure(response.status, "it redirects to another address, which is not followed")
    said = await _object(raw)
    kind = said.get("code") if isinstance(said.get("code"), str) else ""
    message = printable(str(said.get("message") or raw[:200].decode(errors="replace")), 300)
    retry_after_s = _retry_after(response.headers.get("Retry-After", ""))
    raise FarFailure(response.status, message, kind or "", retry_after_s, said)


async def _parsed(raw: bytes) -> Any:
    """Raises WarrenError for what is not JSON, or too much of it. Reads a long text in steps."""
    found: Any = None
    for value in read_in_steps(raw):
        found = value
        if len(raw) > _LONG:
            await asyncio.sleep(0)
    return found


async def _object(raw: bytes) -> Json:
    """Returns an empty object for everything but an object."""
    try:
        found = await _parsed(raw)
    except WarrenError:
        return {}
    return found if isinstance(found, dict) else {}


def _retry_after(text: str) -> float | None:
    try:
        return min(max(0.0, float(text)), _LONGEST_WAIT_S) if text else None
    except ValueError:
        return None


def _text(found: object, name: str, pattern: re.Pattern[str] = _ID) -> str:
    value = (found.get(name) or "") if isinstance(found, dict) else None
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise FarFailure(200, f"an answer without a proper {name}")
    return value


def _texts(found: object, name: str) -> dict[str, str]:
    values = found.get(name) if isinstance(found, dict) else None
    pairs = values.items() if isinstance(values, dict) else ()
    return {key: value for key, value in pairs if isinstance(value, str)}


def _size(found: Json, name: str) -> int:
    value = found.get(name) or 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 60:
        raise FarFailure(200, f"an answer without a proper {name}")
    return int(value)


def _number(found: Json, name: str) -> float:
    value = found.get(name) or 0
    if not isinstance(value, int | float) or not 0 <= value < 1 << 31:
        raise FarFailure(200, f"an answer without a proper {name}")
    return float(value)


@contextmanager
def _errors(doing: str) -> Iterator[None]:
    try:
        yield
    except FarFailure as exc:
        raise translated(exc, doing) from exc
    except TimeoutError as exc:
        raise ProviderUnavailable(f"E2B, {doing}: no answer in time", retry_after_s=5.0) from exc
    except (aiohttp.ClientError, asyncio.IncompleteReadError, OSError) as exc:
        said = printable(str(exc) or type(exc).__name__, 300)
        raise ProviderUnavailable(
            f"E2B, {doing}: it cannot be reached: {said}",
            remedy="check WARREN_E2B_API_URL and the network of this server",
            retry_after_s=5.0,
        ) from exc


def translated(failure: FarFailure, doing: str) -> WarrenError:
    status, said = failure.status, f"E2B, {doing}: {failure.said or f'status {failure.status}'}"
    error_code = failure.details.get("error_code")
    if error_code == ImageBuilding.code:
        return _building(failure, doing)
    if error_code == ImageBuildFailed.code:
        return ImageBuildFailed(said, retry_after_s=failure.retry_after_s)
    if error_code == ImageNotFound.code:
        return ImageNotFound(said, remedy=_NO_TEMPLATE)
    if status in (401, 403) or failure.kind in ("unauthenticated", "permission_denied"):
        remedy = "check the key (e2b_api_key, WARREN_E2B_API_KEY or E2B_API_KEY), and that it is one of the far side's"
        return ProviderKeyRefused(said, remedy=remedy)
    if status == 429 or failure.kind == "resource_exhausted":
        remedy = "try again later, or ask the far side for more"
        return NoCapacity(said, remedy=remedy, retry_after_s=failure.retry_after_s or 5.0)
    if status == 507:
        return NoSpace(said)
    if status in (400, 422) or failure.kind == "invalid_argument":
        return InvalidRequest(said)
    return ProviderUnavailable(said, retry_after_s=failure.retry_after_s or 5.0)


def _building(failure: FarFailure, doing: str) -> ImageBuilding:
    found = failure.details.get("progress")
    progress: Json = found if isinstance(found, dict) else {}
    step, about = (printable(text, 200) if isinstance(text := progress.get(name), str) else "" for name in _WORDS)
    return ImageBuilding(
        f"E2B, {doing}: the far side is still preparing the template's image{about and f'; it takes about {about}'}",
        remedy="try again in a moment",
        retry_after_s=failure.retry_after_s or 5.0,
        step=step,
        fraction=_bounded(progress.get("fraction"), 1.0),
        about=about,
        remaining_s=_bounded(progress.get("remaining_s"), _LONGEST_WAIT_S),
    )


def _bounded(value: object, most: float) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most
    return float(cast(float, value)) if is_number else None


def decoded(text: object) -> bytes:
    """Returns the output that an event carries as base64. Raises FarFailure."""
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except ValueError:
        raise FarFailure(200, "output that is not base64") from None
