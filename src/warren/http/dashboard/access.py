"""Lets in requests that come without a key: from signed-in pages by their cookie, from embedded terminals by a token.

Browsers send a cookie with every request to its host, whoever caused the request. So a cookie counts only if the
request was sent by a page of this very origin, which has to be certain, not likely:

- a WebSocket must have an Origin, and it must be this server's;
- what changes something must have that too, and a header that other sites cannot send (PAGE_HEADER);
- what only reads must have `Sec-Fetch-Site: same-origin`, or that header where a browser is too old to tell; a person
  may also open such an address themselves (`none`, and a navigation).

The cookie is SameSite=Strict, but that alone is not enough: previews may be neighbours of the same site. A token of a
ticket is never sent by a browser on its own; it opens what its ticket says (access/tickets.py).
"""

import hashlib
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from warren.access.identity import read_credentials
from warren.access.page_sessions import PageSessions
from warren.access.tickets import TOKEN_PREFIX, Tickets
from warren.http.api.pages import COOKIE, PAGE_HEADER
from warren.http.preview_credentials import is_our_cookie
from warren.http.request import Request
from warren.http.server.request_origin import OriginRule, read_authority
from warren.model.errors import OriginNotAllowed, WarrenError

TOKEN_SUBPROTOCOL: Final = "warren.token."
PAGE_COOKIE: Final = COOKIE.encode()
TICKET: Final = TOKEN_PREFIX.encode()
CARRIERS: Final = frozenset({b"cookie", b"authorization", b"x-api-key", b"sec-websocket-protocol"})
"""The headers in which PAGE_COOKIE may be, or TICKET, with which a ticket begins."""
_PROTOCOLS: Final = b"sec-websocket-protocol"
_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key"})
_READING: Final = frozenset({"GET", "HEAD"})
_OWN_ORIGIN: Final = OriginRule(())


class PageAccess:
    """With `with_cookies` False (the server asks nobody for a key) there is nothing that a cookie could add."""

    def __init__(self, pages: PageSessions, tickets: Tickets, *, with_cookies: bool) -> None:
        self._pages = pages
        self._tickets = tickets
        self._with_cookies = with_cookies

    async def admit(self, request: Request, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Adds the grant to a request for the API, or as `refusal` why a credential does not count. Takes our cookies
        out of the request: nothing further on has a use for them."""
        if request.scope["path"].startswith("/api/"):
            try:
                if token := _token_of_ticket(request.scope):
                    receive, send = await self._admit_by_ticket(token, request, receive, send)
                elif self._with_cookies and not any(name in _CREDENTIALS for name in request.headers):
                    await self._admit_by_cookie(request)
            except WarrenError as exc:
                request.refusal = exc
        _remove_our_cookies(request)
        return receive, send

    async def _admit_by_cookie(self, request: Request) -> None:
        token = cookie_token(request.scope)
        if token:
            check_same_origin(request.scope)
            request.page_token = token
            request.grant = await self._pages.grant(token)
            request.page_mark = hashlib.sha256(token.encode()).hexdigest()[:16]

    async def _admit_by_ticket(
        self, token: str, request: Request, receive: Receive, send: Send
    ) -> tuple[Receive, Send]:
        scope = request.scope
        method = scope.get("method", "WEBSOCKET")
        request.grant, ticket = await self._tickets.grant(token, method, scope["path"], scope["query_string"])
        if scope["type"] != "websocket":
            return receive, send
        if ticket.process_id:
            # Else whoever comes when the process has ended could start anything under its name. Of several values for
            # one parameter the last counts.
            scope["query_string"] += b"&existing=true"
        if ticket.read_only:
            receive = _without_input(receive)
        offered = [name for name in scope["subprotocols"] if not name.startswith(TOKEN_SUBPROTOCOL)]
        if len(offered) == len(scope["subprotocols"]):
            return receive, send
        # A browser closes a socket whose server chooses none of what it was offered.
        chosen = offered[0] if offered else scope["subprotocols"][0]
        request.set_headers([header for header in scope["headers"] if header[0] != _PROTOCOLS])
        scope["subprotocols"] = []
        return receive, _with_subprotocol(send, chosen)


def cookie_token(scope: Scope) -> str:
    """Returns the token of a page session, "" if there are several: a browser sends one."""
    pairs = (pair for header, value in scope["headers"] if header == b"cookie" for pair in value.split(b";"))
    found = [value for given, _, value in (pair.strip().partition(b"=") for pair in pairs) if given == PAGE_COOKIE]
    return found[0].decode("latin-1") if len(found) == 1 else ""


def _remove_our_cookies(request: Request) -> None:
    headers = []
    for name, value in request.scope["headers"]:
        if name == b"cookie":
            value = b";".join(pair for pair in value.split(b";") if not is_our_cookie(pair)).strip()
            if not value:
                continue
        headers.append((name, value))
    request.set_headers(headers)


def check_same_origin(scope: Scope) -> None:
    """Raises OriginNotAllowed unless a page of this server has sent the request, or a person opened its address."""
    headers = dict(scope["headers"])
    site, from_page = headers.get(b"sec-fetch-site"), headers.get(PAGE_HEADER.encode()) == b"1"
    if scope["type"] == "http" and scope["method"] in _READING:
        opened = site == b"none" and headers.get(b"sec-fetch-mode") == b"navigate"
        allowed = opened or site == b"same-origin" or (site is None and from_page)
    else:
        allowed = _has_own_origin(headers) and site in (None, b"same-origin")
        allowed = allowed and (from_page or scope["type"] == "websocket")
    if not allowed:
        raise OriginNotAllowed(
            "the sign-in of this browser counts only for requests that a page of this server sends",
            remedy="programs send a key: `Authorization: Bearer KEY`",
        )


def _has_own_origin(headers: dict[bytes, bytes]) -> bool:
    authority = read_authority(headers.get(b"host", b"").decode("latin-1"))
    origin = headers.get(b"origin")
    return origin is not None and _OWN_ORIGIN.allows(origin.decode("latin-1"), authority)


def _token_of_ticket(scope: Scope) -> str:
    if scope["type"] == "websocket":
        for name in scope.get("subprotocols", ()):
            if name.startswith(TOKEN_SUBPROTOCOL):
                return str(name.removeprefix(TOKEN_SUBPROTOCOL))
    given = read_credentials(scope["headers"])
    return given[0] if len(given) == 1 and given[0].startswith(TOKEN_PREFIX) else ""


def _without_input(receive: Receive) -> Receive:
    """Drops what a client sends, and passes on only that it goes away."""

    async def receive_end() -> Message:
        while (message := await receive())["type"] == "websocket.receive":
            pass
        return message

    return receive_end


def _with_subprotocol(send: Send, name: str) -> Send:
    async def accept_with(message: Message) -> None:
        if message["type"] == "websocket.accept":
            message = {**message, "subprotocol": name}
        await send(message)

    return accept_with
