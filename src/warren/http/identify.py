"""Decides what a request is, and who sends it: each once, here.

`recognise` looks at a request without waiting for anything: whether it is in the words of E2B's clients, for a preview,
for a page or of the API, and which operation of the table it asks for. It gives requests of E2B's clients their inner
form. `find_caller` then finds out by which credential the request comes: a token of a sandbox, a link to a preview, a
signed-in page, a ticket, or a key.
"""

import re
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

from starlette.types import Receive, Send

from warren.access.identity import Identity
from warren.http.dashboard.access import CARRIERS, PAGE_COOKIE, TICKET, PageAccess
from warren.http.dashboard.page_requests import PAGE_PATH, PageRequests
from warren.http.e2b.addresses import ANY_PATH, SANDBOX_HEADERS, E2bAddresses
from warren.http.e2b.callers import E2bCallers
from warren.http.previews.access import PreviewAccess
from warren.http.request import Kind, Request
from warren.model.access import Caller
from warren.model.api import FINDER, Reads, Wire
from warren.model.e2b import named_session

OPEN_PATHS: Final = frozenset(
    {
        *("/", "/health", "/ready", "/version", "/docs", "/openapi.json"),
        *("/api/ui/session", "/api/ui/sign-in", "/api/ui/sign-out", "/api/ui/tickets/redeem"),
    }
)
"""What needs no caller."""
_OTHER_PATH: Final = re.compile(rf"(?:{ANY_PATH.pattern}|{PAGE_PATH.pattern})\Z|.*/ports/", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Clients:
    """Whom a server has beside those that send a key: E2B's clients, those of previews, and pages, if it has any."""

    e2b: E2bAddresses
    e2b_callers: E2bCallers
    previews: PreviewAccess
    pages: PageRequests | None = None
    page_access: PageAccess | None = None


class Identify:
    def __init__(self, identity: Identity, clients: Clients) -> None:
        self._identity = identity
        self._e2b, self._e2b_callers, self._previews = clients.e2b, clients.e2b_callers, clients.previews
        self._pages, self._page_access = clients.pages, clients.page_access
        self._is_other_host = lru_cache(maxsize=1024)(self._names_sandbox)

    def recognise(self, request: Request) -> None:
        """One look tells of nearly all requests that they are of the API: neither their host nor their headers nor
        their path are of anything else."""
        scope, headers = request.scope, request.headers
        path = scope["path"]
        if (
            headers.keys().isdisjoint(SANDBOX_HEADERS)
            and not _OTHER_PATH.match(path)
            and not self._is_other_host(headers.get(b"host", b""))
        ):
            find_operation(request)
            return
        self._e2b.recognise(request)
        self._previews.recognise(request)
        if request.kind is Kind.PREVIEW:
            request.streams = True
            return
        if self._pages is not None:
            self._pages.recognise(request)
        find_operation(request)
        if request.e2b is not None and request.e2b.is_signed and not request.e2b.session_id:
            request.streams = request.scope["method"] == "POST"  # only its caller can tell which operation it is

    def _names_sandbox(self, host: bytes) -> bool:
        return self._e2b.is_for_sandbox(host) or self._previews.is_for_preview(host)

    async def find_caller(self, request: Request, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Finds the caller of a request, unless it needs none. Raises Unauthorized, SessionNotFound, and what is wrong
        with the credentials of a page."""
        known: Caller | None = None
        if request.kind is Kind.E2B:
            assert request.e2b is not None
            if request.e2b.is_signed and not request.e2b.session_id:
                await self._e2b_callers.find_session(request)
                find_operation(request)
            known = request.known = await self._e2b_callers.find_caller(request)
        elif request.kind is Kind.PREVIEW:
            if not request.own_origin:
                assert request.preview is not None
                await self._previews.let_in_by_path(request, request.preview)
            known = request.known
        elif self._page_access is not None:
            for name, value in request.scope["headers"]:  # nearly all have neither cookie nor ticket
                if name in CARRIERS and (PAGE_COOKIE in value or TICKET in value):
                    receive, send = await self._page_access.admit(request, receive, send)
                    break
        if request.scope["path"] in OPEN_PATHS and request.scope["type"] == "http":
            return receive, send
        if request.refusal is not None:
            raise request.refusal
        if known is None and request.grant is not None:
            known, request.check_again = request.grant.caller, request.grant.check_again
        if known is None:
            headers = request.scope["headers"]
            known = await self._identity.caller(headers)
            request.check_again = partial(self._identity.check_again, headers)
        request.caller = known
        return receive, send


def find_operation(request: Request) -> None:
    """Finds the row of the table that a request asks for, and what its path names."""
    scope = request.scope
    method = scope["method"] if scope["type"] == "http" else "WEBSOCKET"
    found = FINDER.find("GET" if method == "HEAD" else method, scope["path"])
    if found is not None and (found[0].wire is Wire.E2B) == (request.kind is Kind.E2B):
        operation, request.params = found
        request.operation = operation
        request.streams = operation.reads is Reads.RAW or operation.reads is Reads.FORM
    if request.kind is Kind.E2B:
        if session_id := named_session(scope["path"]):
            request.params = {**request.params, "session_id": session_id}
        if request.operation is not None:
            request.action = request.operation.action or request.operation.name
