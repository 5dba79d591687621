"""The pages of the dashboard and their files, with the headers that tell browsers what the pages may do.

All files are read when the server starts. A page gets a new nonce each time: of all that is served at this origin,
which includes previews by path, only scripts that the page itself names run in it. The names of files contain a hash of
their content, so browsers keep them for good.
"""

import asyncio
import gzip
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import PurePath
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from warren.http.server.http_guard import BARE, SECURITY_HEADERS

STATIC: Final = "/ui/static/"
EMBED: Final = "/embed/terminal"
INDEX: Final = "index.html"
EMBEDDED: Final = "embed.html"
NONCE: Final = b"__NONCE__"
OPENED_BY: Final = b"__OPENED_BY__"
_IMMUTABLE: Final = "public, max-age=31536000, immutable"
_MEDIA_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'nonce-{nonce}' 'strict-dynamic'; style-src 'self' 'nonce-{nonce}'; "
    "img-src 'self' blob: data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors {ancestors}; require-trusted-types-for 'script'; trusted-types warren"
)


@dataclass(slots=True)
class StaticFile:
    """`gzipped` is made when it is first asked for."""

    content: bytes
    media_type: str
    etag: str
    gzipped: bytes | None = None
    making: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def compressed(self) -> bytes:
        async with self.making:
            if self.gzipped is None:
                self.gzipped = await asyncio.to_thread(gzip.compress, self.content, 9, mtime=0)
        return self.gzipped


class Pages:
    """`embed_origins` are the sites that may show an embedded terminal in a frame, whatever its ticket says."""

    def __init__(self, embed_origins: Sequence[str] = ()) -> None:
        self._embed_origins = tuple(embed_origins)
        self._pages: dict[str, bytes] = {}
        self._files: dict[str, StaticFile] = {}
        for entry in (resources.files("warren.http.dashboard") / "static").iterdir():
            if entry.name.endswith(".html"):
                self._pages[entry.name] = entry.read_bytes()
            elif (media_type := _MEDIA_TYPES.get(PurePath(entry.name).suffix)) is not None:
                content = entry.read_bytes()
                etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                self._files[entry.name] = StaticFile(content, media_type, etag)

    def __repr__(self) -> str:
        return f"<Pages: {len(self._pages)} pages, {len(self._files)} files>"

    def index(self, *, by_person: bool) -> Response:
        """With `by_person` somebody has opened its address themselves, and no other page has led there. Only then may
        the page be signed in by the link in its address without a question."""
        headers = {"Cross-Origin-Opener-Policy": "same-origin", "Vary": "Accept"}
        return self._page(INDEX, "'none'", headers, b"person" if by_person else b"page")

    def embedded(self, origins: Sequence[str]) -> Response:
        """Returns the page of an embedded terminal, which `origins` may show in a frame."""
        allowed = " ".join(dict.fromkeys((*self._embed_origins, *origins)))
        return _Framed(self._page(EMBEDDED, allowed, {})) if allowed else self._page(EMBEDDED, "'none'", {})

    def _page(self, name: str, ancestors: str, headers: dict[str, str], opened_by: bytes = b"page") -> Response:
        nonce = secrets.token_urlsafe(18)
        policy = _POLICY.format(nonce=nonce, ancestors=ancestors)
        content = self._pages[name].replace(NONCE, nonce.encode()).replace(OPENED_BY, opened_by)
        return Response(content, headers={"Content-Security-Policy": policy, **headers}, media_type="text/html")

    async def file(self, name: str, request: Request) -> Response | None:
        """Returns None if there is no file of exactly this name."""
        found = self._files.get(name)
        if found is None:
            return None
        headers = {"Cache-Control": _IMMUTABLE, "ETag": found.etag, "Vary": "Accept-Encoding"}
        if found.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        content = found.content
        if "gzip" in request.headers.get("accept-encoding", ""):
            content = await found.compressed()
            headers["Content-Encoding"] = "gzip"
        return Response(content, headers=headers, media_type=found.media_type)


class _Framed(Response):
    """A page that others may show in a frame: its policy says who, and the guard does not add that nobody may."""

    def __init__(self, page: Response) -> None:
        super().__init__(page.body, page.status_code)
        kept = [header for header in SECURITY_HEADERS if header[0] != b"x-frame-options"]
        self.raw_headers = [*page.raw_headers, *kept, (b"cache-control", b"no-store")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers, BARE: True}
        await send(start)
        await send({"type": "http.response.body", "body": self.body})
