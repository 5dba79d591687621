"""Answers requests for pages, and passes requests for the API on with whom the page is signed in as."""

from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from warren.access.tickets import Tickets
from warren.http.dashboard.access import PageAccess, concerns_pages, remove_our_cookies
from warren.http.dashboard.pages import EMBED, STATIC, Pages
from warren.http.problems import problem
from warren.model.errors import NotFound, WarrenError
from warren.model.preview import PREVIEW

_UI: Final = "/ui/"
_ICON: Final = "/favicon.ico"
_NO_FILE: Final = NotFound("there is no such file", remedy="reload the page: the server has another version of it")


class _Route(NamedTuple):
    """What the log shows as the route."""

    path: str


class PageEdge:
    def __init__(self, app: ASGIApp, pages: Pages, access: PageAccess, tickets: Tickets) -> None:
        self._app = app
        self._pages = pages
        self._access = access
        self._tickets = tickets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http" and scope["method"] == "GET" and PREVIEW not in scope:
            answer = await self._page(scope, receive)
            if answer is not None:
                await answer(scope, receive, send)
                return
        if concerns_pages(scope):
            receive, send = await self._access.admit(scope, receive, send)
            remove_our_cookies(scope)
        await self._app(scope, receive, send)

    async def _page(self, scope: Scope, receive: Receive) -> Response | None:
        path = scope["path"]
        if path.startswith("/api/"):
            return None
        if path.startswith(STATIC):
            scope["route"] = _Route(f"{STATIC}{{name}}")
            return await self._pages.file(path.removeprefix(STATIC), Request(scope, receive)) or problem(_NO_FILE)
        if path == EMBED:
            scope["route"] = _Route(EMBED)
            return self._pages.embedded(await self._origins_of_ticket(scope))
        if path == _ICON:  # browsers ask for it whatever a page says
            scope["route"] = _Route(_ICON)
            return Response(status_code=204, headers={"Cache-Control": "public, max-age=86400"})
        headers = dict(scope["headers"])
        wants_page = b"text/html" in headers.get(b"accept", b"")
        if wants_page and (path in ("/", "/ui") or path.startswith(_UI)):
            scope["route"] = _Route("/" if path == "/" else "/ui/…")
            return self._pages.index(by_person=headers.get(b"sec-fetch-site") == b"none")
        return None

    async def _origins_of_ticket(self, scope: Scope) -> tuple[str, ...]:
        try:
            ticket = await self._tickets.look_up(Request(scope).query_params.get("ticket", ""))
        except WarrenError:
            return ()
        return ticket.origins if ticket is not None else ()
