"""The first part of a server that sees a request: it recognises those of E2B's clients and gives them the inner form.

A request for a sandbox is recognised by E2B's headers, by a token of ours, by its host, or by the signature of a file's
URL; one for the control plane by its host, by the prefix `/e2b`, or by its path. With the token of a sandbox no key is
needed. Requests for other ports of a sandbox are those of previews, and go on to their edge with the host of the
preview. Error answers of the rest of the server get the form that E2B's clients read.
"""

import re
from functools import lru_cache, partial
from typing import Final, NamedTuple
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from warren.access.keys import Keys
from warren.access.tenants import Tenants
from warren.http.e2b.app import find_route, is_call
from warren.http.e2b.errors import E2bError, ShapedAnswer, response_of_port, response_to
from warren.http.e2b.signed_urls import PATH as FILES
from warren.http.e2b.signed_urls import SignedRequest, SignedUrls, read_signed
from warren.http.e2b.tokens import Opens, SandboxTokens, session_named_in
from warren.http.server.http_guard import refuse_websocket
from warren.http.server.request_origin import TrustedProxies, read_authority
from warren.interfaces.store import SessionStore
from warren.kernel.clock import Clock
from warren.kernel.lru import LruDict
from warren.model.access import Caller
from warren.model.access import Scope as KeyScope
from warren.model.addresses import is_loopback
from warren.model.e2b import (
    ACCESS_HEADER,
    ADDRESS,
    CODE_PORT,
    DOMAIN_HEADER,
    ENVD_PORT,
    KNOWN_CALLER,
    PREFIX,
    TRAFFIC_HEADER,
    UPLOADS,
    Plane,
    session_id_of,
)
from warren.model.errors import InvalidRequest, SessionNotFound, Unauthorized, WarrenError
from warren.model.preview import (
    LOCALHOST,
    OF_E2B_SANDBOX,
    PREVIEW_ERROR,
    TRAFFIC_TOKEN,
    preview_host,
    read_port,
)

_ID: Final = b"e2b-sandbox-id"
_PORT: Final = b"e2b-sandbox-port"
_HEADERS: Final = frozenset({_ID, _PORT, ACCESS_HEADER, TRAFFIC_HEADER, b"host"})
_CREDENTIALS: Final = frozenset({ACCESS_HEADER, TRAFFIC_HEADER, b"x-api-key", b"cookie"})
_API_PATH: Final = re.compile(
    r"/(v[0-9]+|sandboxes|templates|snapshots|volumes|volumecontent|secrets|events|teams|nodes|api-keys)(/.*)?",
    re.DOTALL,
)
_CODE_PATH: Final = re.compile(r"/(execute|contexts(/.*)?)", re.DOTALL)
_HOST: Final = re.compile(r"([1-9][0-9]{0,4})-([0-9a-f]{32})", re.ASCII)
_PLANE_OF_PORT: Final = {ENVD_PORT: Plane.ENVD, CODE_PORT: Plane.CODE}
_MOST_CALLERS: Final = 10_000
_SCOPES: Final = frozenset({KeyScope.READ, KeyScope.EXEC})
_API_HOST: Final = "api"
_HEALTH: Final = "/health"


class _Named(NamedTuple):
    """What a host names: the control plane, or a port of a sandbox. `domain` and `port` are the host's own."""

    session_id: str
    sandbox_port: int
    domain: str
    port: int | None

    @property
    def is_api(self) -> bool:
        return not self.session_id


class _Found(NamedTuple):
    """What a request is for. With `host` it gets this one: its own is no name of the server.

    `domain` is that below which a client of the control plane finds ports of sandboxes.
    """

    plane: Plane
    session_id: str
    path: str
    raw_path: bytes
    host: bytes = b""
    signed: SignedRequest | None = None
    domain: str = ""


class _Port(NamedTuple):
    """A port of a sandbox, which is a preview's. With `host` the request gets this one."""

    session_id: str
    number: int
    host: bytes = b""


class E2bEdge:
    """`domain` is that of previews. With `without_keys` the server lets everybody in."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: SandboxTokens,
        store: SessionStore,
        tenants: Tenants,
        keys: Keys,
        clock: Clock,
        trusted_proxies: TrustedProxies,
        domain: str = "",
        without_keys: bool = False,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._store = store
        self._tenants = tenants
        self._keys = keys
        self._proxies = trusted_proxies
        self._domain = domain
        self._without_keys = without_keys
        self._signed_urls = SignedUrls(tokens, store, clock)
        self._callers = LruDict[str, Caller](_MOST_CALLERS)  # by session id
        self._named_by = lru_cache(maxsize=1024)(self._read_host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        sent = [(name, value.decode("latin-1")) for name, value in scope["headers"] if name in _HEADERS]
        headers = dict(sent)
        try:
            found = await self._recognise(scope, headers, is_ambiguous=len(sent) != len(headers))
        except (WarrenError, E2bError) as exc:
            response = response_to(exc, Plane.ENVD, headers.get(_ID, ""), is_call=is_call(Plane.ENVD, scope["path"]))
            await _refuse(response, scope, receive, send)
            return
        if found is None:
            await self._app(scope, receive, send)
        elif isinstance(found, _Port):
            await self._open_port(found, headers, scope, receive, send)
        else:
            await self._answer(found, headers, scope, receive, send)

    async def _answer(
        self, found: _Found, headers: dict[bytes, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        caller, error = None, None
        try:
            if found.signed is not None and not found.session_id:
                found = found._replace(session_id=await self._signed_urls.find(found.signed, self._client_of(scope)))
            if found.plane is not Plane.API or found.path.startswith(UPLOADS):
                caller = await self._identify(found, headers, scope)
        except WarrenError as exc:
            error = exc
        inner = _inner_scope(scope, found)
        find_route(inner)
        if error is not None:
            inner[PREVIEW_ERROR] = error  # admission records and raises it, and the guard answers
        elif caller is not None:
            inner[KNOWN_CALLER] = caller
        shape = partial(
            response_to, plane=found.plane, session_id=found.session_id, is_call=is_call(found.plane, found.path)
        )
        await self._app(inner, receive, ShapedAnswer(send, shape).send)

    async def _open_port(
        self, port: _Port, headers: dict[bytes, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """The edge of previews decides who may, and says in the scope whether E2B's clients made the sandbox."""
        if port.host:
            left_out = (b"host", _ID, _PORT)
            kept = [header for header in scope["headers"] if header[0] not in left_out]
            scope = {**scope, "headers": [(b"host", port.host), *kept]}
        if traffic := headers.get(TRAFFIC_HEADER):
            scope[TRAFFIC_TOKEN] = self._tokens.opens(traffic, Opens.TRAFFIC, port.session_id)
        is_e2b_client = bool(port.host or traffic)
        shape = partial(response_of_port, session_id=port.session_id, port=port.number)
        answer = ShapedAnswer(send, shape, lambda: is_e2b_client or bool(scope.get(OF_E2B_SANDBOX)))
        await self._app(scope, receive, answer.send)

    # -- recognising

    async def _recognise(self, scope: Scope, headers: dict[bytes, str], *, is_ambiguous: bool) -> _Found | _Port | None:
        """Raises SessionNotFound for an id that no sandbox can have, E2bError for what is contradictory."""
        named = self._named_by(headers.get(b"host", ""))
        if named is not None:
            self._check_same(named, headers, is_ambiguous=is_ambiguous)
            if not named.is_api and named.sandbox_port not in _PLANE_OF_PORT:
                return _Port(named.session_id, named.sandbox_port)
        if scope["type"] != "http":
            return None
        path, raw_path, is_prefixed = _without_prefix(scope)
        if named is not None:
            host = _with_port(LOCALHOST, named.port)
            plane = Plane.API if named.is_api else _PLANE_OF_PORT[named.sandbox_port]
            signed = self._signed(scope, headers, plane, path)
            domain = _with_port(named.domain, named.port)
            return _Found(plane, named.session_id, path, raw_path, host.encode(), signed, domain)
        if session_id := _session_in(headers):
            if is_ambiguous:
                raise E2bError(400, "a header of this request is there twice")
            return self._addressed(session_id, scope, headers, path, raw_path)
        if path == FILES and (signed := read_signed(scope["method"], scope["query_string"])) is not None:
            return _Found(Plane.ENVD, "", path, raw_path, signed=signed)
        if is_prefixed or _API_PATH.fullmatch(path):
            return _Found(Plane.API, "", path, raw_path, domain=self._domain_for(headers))
        return None

    def _addressed(
        self, session_id: str, scope: Scope, headers: dict[bytes, str], path: str, raw_path: bytes
    ) -> _Found | _Port:
        """What E2B's headers name. A request without the port is for the service that its path is of.

        Clients before 2.25 name the sandbox to the control plane as well, when they connect.
        """
        text = headers.get(_PORT, "")
        try:
            port = read_port(text) if text else CODE_PORT if _CODE_PATH.fullmatch(path) else ENVD_PORT
        except InvalidRequest as exc:
            raise E2bError(400, exc.message) from None
        if port not in _PLANE_OF_PORT:
            return _Port(session_id, port, preview_host(session_id, port, self._domain or LOCALHOST).encode())
        if _API_PATH.fullmatch(path):
            return _Found(Plane.API, "", path, raw_path, domain=self._domain_for(headers))
        plane = _PLANE_OF_PORT[port]
        return _Found(plane, session_id, path, raw_path, signed=self._signed(scope, headers, plane, path))

    def _signed(self, scope: Scope, headers: dict[bytes, str], plane: Plane, path: str) -> SignedRequest | None:
        if plane is not Plane.ENVD or path != FILES or headers.get(ACCESS_HEADER):
            return None
        return read_signed(scope["method"], scope["query_string"])

    def _check_same(self, named: _Named, headers: dict[bytes, str], *, is_ambiguous: bool) -> None:
        other = headers.get(_ID)
        if is_ambiguous or (other and not named.is_api and session_id_of(other) != named.session_id):
            raise E2bError(400, "host and headers of this request name different sandboxes, or one is there twice")

    def _read_host(self, host: str) -> _Named | None:
        """The control plane is `api.DOMAIN`, a service of a sandbox `PORT-ID.DOMAIN`."""
        authority = read_authority(host)
        if authority is None or not isinstance(authority.host, str):
            return None
        label, _, parent = authority.host.partition(".")
        if not parent or parent not in (self._domain, LOCALHOST):
            return None
        if label == _API_HOST:
            return _Named("", 0, parent, authority.port)
        match = _HOST.fullmatch(label)
        if match is None or int(match[1]) > 65535:
            return None
        return _Named(session_id_of(match[2]), int(match[1]), parent, authority.port)

    def _domain_for(self, headers: dict[bytes, str]) -> str:
        """The domain of previews, or the name by which the client knows this server. Names below `localhost` lead to
        the same machine; names below an address lead nowhere."""
        host = headers.get(b"host", "")
        authority = read_authority(host)
        if self._domain or authority is None:
            return self._domain or LOCALHOST
        return _with_port(LOCALHOST, authority.port) if is_loopback(authority.host) else host

    def _client_of(self, scope: Scope) -> str:
        seen = dict(scope)
        self._proxies.apply(seen)
        return str(seen["client"][0]) if seen.get("client") else ""

    # -- who asks

    async def _identify(self, found: _Found, headers: dict[bytes, str], scope: Scope) -> Caller:
        """Raises Unauthorized, and SessionNotFound."""
        if found.plane is Plane.API:
            upload = self._tokens.read_upload(_token_in(scope["query_string"]))
            return Caller(upload.tenant, upload.key_id, frozenset(), (await self._tenants.of(upload.tenant)).quota)
        if found.path != _HEALTH:
            self._check_token(found, headers)
        caller = self._callers.get(found.session_id) or await self._owner(found.session_id)
        if found.path == _HEALTH:  # everybody may ask, so it costs the owner nothing
            return Caller(caller.tenant, caller.key_id, frozenset())
        quota = (await self._tenants.of(caller.tenant)).quota
        if caller.quota is not quota or found.session_id not in self._callers:
            caller = self._callers[found.session_id] = caller.with_quota(quota)
        return caller

    def _check_token(self, found: _Found, headers: dict[bytes, str]) -> None:
        access, traffic = headers.get(ACCESS_HEADER, ""), headers.get(TRAFFIC_HEADER, "")
        if access:
            self._tokens.check(access, Opens.ACCESS, found.session_id)
        elif traffic and found.plane is Plane.CODE:
            self._tokens.check(traffic, Opens.TRAFFIC, found.session_id)
        elif found.signed is not None:
            self._signed_urls.check(found.signed, found.session_id)
        elif not self._without_keys:
            raise Unauthorized("this sandbox wants its access token", remedy="connect to the sandbox again")

    async def _owner(self, session_id: str) -> Caller:
        """Whoever uses a sandbox uses up the quotas of the key that made it."""
        session = await self._store.find(session_id)
        if session is None:
            raise SessionNotFound(f"there is no session {session_id}")
        return Caller(session.tenant, session.key_id, _SCOPES, key_quota=await self._keys.quota_of(session.key_id))


def _token_in(query: bytes) -> str:
    """As the client got it, with no other parameter: signed addresses are not to be changed."""
    name, _, token = query.decode("latin-1").partition("=")
    return token if name == "token" else ""


async def _refuse(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await refuse_websocket(scope, receive, send, response)
    else:
        await response(scope, receive, send)


def _session_in(headers: dict[bytes, str]) -> str:
    """The session that E2B's headers name. Clients of some versions send the token alone, which names it too."""
    if headers.get(_ID):
        return session_id_of(headers[_ID])
    return session_named_in(headers.get(ACCESS_HEADER, "")) or session_named_in(headers.get(TRAFFIC_HEADER, ""))


def _without_prefix(scope: Scope) -> tuple[str, bytes, bool]:
    """The path without `/e2b`, decoded and as it was sent, and whether it was there."""
    path: str = scope["path"]
    raw_path: bytes = scope["raw_path"] or b"/"
    if path != PREFIX and not path.startswith(f"{PREFIX}/"):
        return path, raw_path, False
    path, prefix = path[len(PREFIX) :] or "/", PREFIX.encode()
    if raw_path.startswith(prefix + b"/") or raw_path == prefix:
        return path, raw_path[len(prefix) :] or b"/", True
    return path, quote(path, safe="/").encode(), True  # the prefix itself was encoded


def _inner_scope(scope: Scope, found: _Found) -> Scope:
    place = f"{PREFIX}/{found.plane}" + (f"/{found.session_id}" if found.session_id else "")
    inner = {**scope, "path": place + found.path, "raw_path": place.encode() + found.raw_path}
    if found.plane is Plane.API:
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        inner[ADDRESS] = host + scope["path"].removesuffix(found.path)
        others = (header for header in scope["headers"] if header[0] != DOMAIN_HEADER)
        inner["headers"] = [*others, (DOMAIN_HEADER, found.domain.encode("latin-1"))]
    else:
        inner["headers"] = [header for header in scope["headers"] if not _is_credential(*header)]
    if found.host:
        inner["headers"] = [(name, found.host if name == b"host" else value) for name, value in inner["headers"]]
    return inner


def _with_port(name: str, port: int | None) -> str:
    return f"{name}:{port}" if port else name


def _is_credential(name: bytes, value: bytes) -> bool:
    """Basic authorization is none: it says as which user of the sandbox."""
    return name in _CREDENTIALS or (name == b"authorization" and value[:6].lower() != b"basic ")
