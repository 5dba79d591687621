"""Recognises requests for pages and their files, and answers them."""

import re
from typing import Final

from starlette.requests import Request as StarletteRequest
from starlette.responses import Response
from starlette.types import Receive, Send

from warren.access.tickets import Tickets
from warren.http.dashboard.pages import EMBED, STATIC, Pages
from warren.http.problems import problem
from warren.http.request import Kind, Request
from warren.model.errors import NotFound, WarrenError

_ICON: Final = "/favicon.ico"
_INDEX: Final = re.compile(r"/|/ui|/ui/.*", re.DOTALL)
PAGE_PATH: Final = re.compile(rf"{_INDEX.pattern}|{re.escape(EMBED)}|{re.escape(_ICON)}", re.DOTALL)
_NO_FILE: Final = NotFound("there is no such file", remedy="reload the page: the server has another version of it")


class PageRequests:
    def __init__(self, pages: Pages, tickets: Tickets) -> None:
        self._pages = pages
        self._tickets = tickets

    def recognise(self, request: Request) -> None:
        """Recognises requests for pages and their files. The address of a page counts as one only if a browser asks for
        HTML: else it belongs to the API, or to nothing."""
        scope = request.scope
        path = scope["path"]
        if not PAGE_PATH.fullmatch(path) or scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            return
        is_index = _INDEX.fullmatch(path) and not path.startswith(STATIC)
        if not is_index or b"text/html" in request.headers.get(b"accept", b""):
            request.kind = Kind.PAGE

    async def __call__(self, request: Request, receive: Receive, send: Send) -> None:
        answer = await self._answer(request, StarletteRequest(request.scope, receive))
        await answer(request.scope, receive, send)

    async def _answer(self, request: Request, asked: StarletteRequest) -> Response:
        path = request.scope["path"]
        if path.startswith(STATIC):
            request.route = f"{STATIC}{{name}}"
            return await self._pages.file(path.removeprefix(STATIC), asked) or problem(_NO_FILE)
        if path == EMBED:
            request.route = EMBED
            return self._pages.embedded(await self._origins_of_ticket(asked))
        if path == _ICON:  # browsers ask for it whatever a page says
            request.route = _ICON
            return Response(status_code=204, headers={"Cache-Control": "public, max-age=86400"})
        request.route = "/" if path == "/" else "/ui/…"
        return self._pages.index(by_person=request.headers.get(b"sec-fetch-site") == b"none")

    async def _origins_of_ticket(self, asked: StarletteRequest) -> tuple[str, ...]:
        try:
            ticket = await self._tickets.look_up(asked.query_params.get("ticket", ""))
        except WarrenError:
            return ()
        return ticket.origins if ticket is not None else ()
