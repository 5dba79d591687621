"""A page of the dashboard as far as the server can tell: its cookie, and the headers that browsers add."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from e2e.api_client import Api, Socket

COOKIE = "__Host-warren"
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}


class Page:
    """`cookie` is what the browser holds. Without `headers` a request is sent as the page itself would send it."""

    def __init__(self, url: str, cookie: str = "") -> None:
        self.url = url
        self.cookie = cookie
        self.attributes = ""

    @property
    def own_headers(self) -> dict[str, str]:
        return {"Origin": self.url, "X-Warren-Page": "1", **SAME_ORIGIN}

    @contextlib.asynccontextmanager
    async def api(self, headers: Mapping[str, str] | None = None) -> AsyncIterator[Api]:
        sent = dict(self.own_headers if headers is None else headers)
        if self.cookie:
            sent["Cookie"] = f"theme=dark; {COOKIE}={self.cookie}"
        async with Api(self.url, sent) as api:
            yield api

    async def sign_in(self, **credentials: str) -> dict[str, Any]:
        async with self.api() as api, api.ask("POST", "/api/ui/sign-in", credentials) as answer:
            values: dict[str, Any] = await answer.json()
            assert answer.status == 200, values
            self._take_cookie(answer)
            return values

    async def sign_out(self, path: str = "/api/ui/sign-out") -> None:
        async with self.api() as api, api.ask("POST", path) as answer:
            assert answer.status == 204, await answer.text()
            self._take_cookie(answer)

    async def account(self) -> dict[str, Any] | None:
        async with self.api() as api:
            found: dict[str, Any] = await api.get("/api/ui/session")
            account: dict[str, Any] | None = found["account"]
            return account

    async def status(self, method: str = "GET", path: str = "/api/whoami", **headers: str) -> int:
        """Of a request with the cookie and only these headers."""
        async with self.api(headers) as api, api.ask(method, path) as answer:
            return int(answer.status)

    @contextlib.asynccontextmanager
    async def socket(self, path: str, headers: Mapping[str, str] | None = None, **query: Any) -> AsyncIterator[Socket]:
        own = {"Origin": self.url} if headers is None else headers
        async with self.api(own) as api, api.socket(path, **query) as socket:
            yield socket

    async def refused_socket(self, path: str, headers: Mapping[str, str]) -> int:
        try:
            async with self.socket(path, headers):
                return 101
        except aiohttp.WSServerHandshakeError as exc:
            return exc.status

    def _take_cookie(self, answer: aiohttp.ClientResponse) -> None:
        [line] = answer.headers.getall("Set-Cookie")
        pair, _, self.attributes = line.partition("; ")
        name, _, self.cookie = pair.partition("=")
        assert name == COOKIE
