"""Recognises requests for previews, and decides who may send them.

A request by path goes on to the checks of every request, and with a token it needs no key. A request by host is let in
here: the rules about Host and Origin of the API do not fit it, because its host is an origin of its own. It is let in
by a link (in a cookie, a header or the query), by a key of the API, because its port is public, or by the traffic token
of the sandbox, which was checked when the request was recognised (e2b/addresses.py).

A browser that opens a link gets its token as a cookie, and is sent to the same address without the token, which so
does not stay in its history and is never sent to other sites. Cookies alone do not let in what pages of other origins
send: neighbours of a preview are other sandboxes.
"""

from functools import lru_cache, partial
from typing import Final

from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from warren.access.identity import read_credentials
from warren.access.tenants import Tenants
from warren.http.preview_credentials import COOKIE, SECURE_COOKIE, clean_query, token_in_query
from warren.http.request import Kind, Request
from warren.http.server.request_origin import OriginRule, read_authority
from warren.interfaces.store import SessionStore
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.clock import Clock
from warren.model.access import Caller
from warren.model.errors import NotFound, OriginNotAllowed, Unauthorized
from warren.model.preview import (
    HOST_HEADER,
    NO_PREVIEW_RULES,
    TOKEN_HEADER,
    Preview,
    PreviewRules,
    Way,
    preview_of_host,
    preview_of_path,
)
from warren.sessions.preview_links import Link, PreviewLinks

LINK_KEY: Final = "preview"
"""Stands in the audit record for the id of a key, if a link or a public port let the caller in."""
_MAX_TOKENS: Final = 8
_MAX_REMEMBERED: Final = 10_000
_NAVIGATION: Final = (b"navigate", b"")


class PreviewAccess:
    """With `without_keys` the server lets everybody in. `all_ports_allowed`: sandboxes may have all of their ports
    public."""

    def __init__(
        self,
        links: PreviewLinks,
        store: SessionStore,
        tenants: Tenants,
        clock: Clock,
        *,
        without_keys: bool = False,
        all_ports_allowed: bool = True,
    ) -> None:
        self._links = links
        self._store = store
        self._tenants = tenants
        self._clock = clock
        self._without_keys = without_keys
        self._all_ports_allowed = all_ports_allowed
        self._remembered = BoundedDict[str, tuple[str, PreviewRules]](_MAX_REMEMBERED)  # by session id
        self._own_origin = OriginRule(())
        self._preview_of_host = lru_cache(maxsize=1024)(self._find_preview)

    def recognise(self, request: Request) -> None:
        """Finds out whether a request is for a preview: by its host, or by its path."""
        scope = request.scope
        host = request.headers.get(b"host")
        found = None if host is None else self._preview_of_host(host)
        if found is not None and len(request.headers) != len(scope["headers"]):
            hosts = [value for name, value in scope["headers"] if name == b"host"]
            found = found if len(hosts) == 1 else None
        if isinstance(found, NotFound):
            request.kind, request.own_origin = Kind.PREVIEW, True
            request.refusal = NotFound(found.message, remedy=found.remedy)
        elif found is not None:
            request.kind, request.own_origin, request.preview = Kind.PREVIEW, True, found
        elif b"/ports/" in scope["raw_path"] and (preview := preview_of_path(scope["raw_path"])) is not None:
            request.kind, request.preview = Kind.PREVIEW, preview

    def is_for_preview(self, host: bytes) -> bool:
        """Whether the host is that of a preview, or has the form of one."""
        return self._preview_of_host(host) is not None

    def _find_preview(self, host: bytes) -> Preview | NotFound | None:
        authority = read_authority(host.decode("latin-1"))
        if authority is None or not isinstance(authority.host, str):
            return None
        try:
            return preview_of_host(authority.host, self._links.domain)
        except NotFound as exc:
            return exc

    async def let_in_by_path(self, request: Request, preview: Preview) -> None:
        """Lets a request in by its token, if it has one; without one it needs a key. Raises Unauthorized."""
        if token := request.headers.get(TOKEN_HEADER) or token_in_query(request.scope["query_string"]):
            preview = await self._let_in_by(self._read_token(preview, token), preview, request)
        _make_inner(preview, request)

    async def let_in_by_host(self, request: Request, preview: Preview) -> Response | None:
        """Lets a request in, or returns the answer to a browser that opens a link. Raises Unauthorized, and
        OriginNotAllowed."""
        scope, headers = request.scope, request.headers
        if scope["type"] == "websocket":
            self._check_origin(request)
        in_query = token_in_query(scope["query_string"])
        if in_query:
            link = self._read_token(preview, in_query)
            if _is_page_view(request):
                return self._leave_cookie(link, in_query, request)
            preview = await self._let_in_by(link, preview, request)
        elif TOKEN_HEADER in headers:
            preview = await self._let_in_by(self._read_token(preview, headers[TOKEN_HEADER]), preview, request)
        else:
            preview = await self._let_in_without_token(preview, request)
        _make_inner(preview, request)
        return None

    async def _let_in_without_token(self, preview: Preview, request: Request) -> Preview:
        """Lets a request in by a cookie, because the port is public, by the sandbox's traffic token, or by a key, which
        admission checks. Raises Unauthorized."""
        link, refusal = self._link_in_cookies(preview, request.scope)
        if link is not None:
            self._check_not_cross_site(request)
            return await self._let_in_by(link, preview, request)
        tenant, rules = await self._rules_of(preview.session_id)
        request.shows_e2b_errors |= rules.of_e2b
        if tenant and (self._is_public(rules, preview.port) or request.traffic_token):
            await self._set_caller(request, tenant)
            return preview.let_in(Way.PUBLIC if self._is_public(rules, preview.port) else Way.TOKEN)
        if self._without_keys:
            self._check_not_cross_site(request)
        elif not read_credentials(request.scope["headers"]):
            private = Unauthorized(
                "this preview is private", remedy="open a link that was made for it (warren open), or send an API key"
            )
            raise refusal or private
        return preview

    async def _let_in_by(self, link: Link, preview: Preview, request: Request) -> Preview:
        await self._set_caller(request, link.tenant)
        request.check_again = partial(self._check_not_revoked, link)
        return preview.let_in(Way.LINK, link.generation, local_host=link.local_host)

    async def _set_caller(self, request: Request, tenant: str) -> None:
        request.known = Caller(tenant, LINK_KEY, frozenset(), (await self._tenants.of(tenant)).quota)

    async def _rules_of(self, session_id: str) -> tuple[str, PreviewRules]:
        """Returns the session's tenant, "" if there is no such session, and its rules. What holds for all ports never
        changes, and is remembered: it does not need the store."""
        known = self._remembered.get(session_id)
        if known is not None and (known[1].of_e2b or not self._links.public_allowed):
            return known
        session = await self._store.find(session_id)
        if session is None:
            return "", NO_PREVIEW_RULES
        self._remembered[session_id] = session.tenant, session.previews
        return session.tenant, session.previews

    def _is_public(self, rules: PreviewRules, port: int) -> bool:
        return (rules.everything and self._all_ports_allowed) or (self._links.public_allowed and port in rules.public)

    async def _check_not_revoked(self, link: Link) -> None:
        session = await self._store.get(link.tenant, link.session_id)
        if session is not None and session.previews.generation != link.generation:
            raise Unauthorized("this link to a preview was revoked")

    def _read_token(self, preview: Preview, token: bytes) -> Link:
        """Raises Unauthorized for a token that does not open this very port."""
        link = self._links.read(token.decode("latin-1"), self._clock.wall())
        if not link.opens(preview):
            raise Unauthorized("this link opens another preview", remedy="open a link that was made for this one")
        return link

    def _link_in_cookies(self, preview: Preview, scope: Scope) -> tuple[Link | None, Unauthorized | None]:
        """Returns the first link that is valid, or why the first is not."""
        refusal: Unauthorized | None = None
        for token in _cookie_tokens(scope)[:_MAX_TOKENS]:
            try:
                return self._read_token(preview, token), None
            except Unauthorized as exc:
                refusal = refusal or exc
        return None, refusal

    # -- what browsers send

    def _leave_cookie(self, link: Link, token: bytes, request: Request) -> Response:
        scope, headers = request.scope, request.headers
        secure = scope["scheme"] == "https"
        query = clean_query(scope["query_string"]).decode("latin-1")
        path = scope["raw_path"].decode("latin-1") or "/"
        # With the host in it: a path of two slashes would be taken for another host.
        url = f"{scope['scheme']}://{headers[b'host'].decode('latin-1')}{path}{'?' if query else ''}{query}"
        name = (SECURE_COOKIE if secure else COOKIE).decode()
        lasts_s = max(1, round(link.expires_at - self._clock.wall()))
        cookie = f"{name}={token.decode('latin-1')}; Path=/; Max-Age={lasts_s}; HttpOnly; SameSite=Lax"
        response = RedirectResponse(url, 302)
        response.raw_headers += [
            (b"set-cookie", f"{cookie}{'; Secure' if secure else ''}".encode("latin-1")),
            (b"cache-control", b"no-store"),
            (b"referrer-policy", b"no-referrer"),
        ]
        return response

    def _check_origin(self, request: Request) -> None:
        """A page of another origin must not use this one's WebSockets. Programs send no Origin."""
        headers = request.headers
        origin, authority = headers.get(b"origin"), read_authority(headers[b"host"].decode("latin-1"))
        if origin is not None and not self._own_origin.allows(origin.decode("latin-1"), authority):
            raise OriginNotAllowed("pages of other sites may not use this preview")

    def _check_not_cross_site(self, request: Request) -> None:
        scope, headers = request.scope, request.headers
        # A link on another site may lead here: a navigation shows the page to a person, not to a script of that site.
        if headers.get(b"sec-fetch-mode", b"") in _NAVIGATION and scope.get("method", "GET") in ("GET", "HEAD"):
            return
        if b"origin" in headers:
            self._check_origin(request)
        if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            raise OriginNotAllowed("pages of other sites may not use this preview")


def _cookie_tokens(scope: Scope) -> list[bytes]:
    """Returns the tokens in our cookies. Other pages below the same domain may set cookies of the same name, but none
    that begins with __Host-."""
    wanted = SECURE_COOKIE if scope["scheme"] in ("https", "wss") else COOKIE
    pairs = (pair for name, value in scope["headers"] if name == b"cookie" for pair in value.split(b";"))
    split = (pair.strip().partition(b"=") for pair in pairs)
    return [value for name, _, value in split if name == wanted]


def _make_inner(preview: Preview, request: Request) -> None:
    """Gives a request the form that the rest of the server sees: by path, and without the token of a link."""
    if request.headers.get(HOST_HEADER) == b"localhost":
        preview = preview.let_in(preview.way, preview.generation, local_host=True)
    request.preview = preview
    scope = request.scope = {**request.scope, "query_string": clean_query(request.scope["query_string"])}
    if preview.by_host:
        scope["raw_path"] = preview.prefix + (scope["raw_path"] or b"/")
        scope["path"] = preview.prefix.decode() + (scope["path"] or "/")


def _is_page_view(request: Request) -> bool:
    scope = request.scope
    return scope["type"] == "http" and scope["method"] == "GET" and b"text/html" in request.headers.get(b"accept", b"")
