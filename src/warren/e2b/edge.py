"""The first part of a server that sees a request: it recognises those of E2B's clients and gives them the inner form.

A request for a sandbox is recognised by E2B's headers, by a token of ours, or by its host; one for the control plane by
its host, by the prefix `/e2b`, or by its path. With the token of a sandbox no key is needed. Error answers of the rest
of the server get the form that E2B's clients read.
"""

import re
import urllib.parse
from collections import OrderedDict
from typing import Final, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warren.e2b.errors import E2bError, error_in_problem, error_response, gone_response, response_to
from warren.e2b.tokens import Opens, SandboxTokens, session_named_in
from warren.http.problems import MEDIA_TYPE
from warren.http.server.request_origin import read_authority
from warren.interfaces.store import SessionStore
from warren.model.access import Caller
from warren.model.access import Scope as KeyScope
from warren.model.e2b import ADDRESS, CODE_PORT, ENVD_PORT, KNOWN_CALLER, PREFIX, UPLOADS, Plane, session_id_of
from warren.model.errors import Unauthorized, WarrenError
from warren.model.preview import LOCALHOST
from warren.tenancy.tenants import Tenants

_ID: Final = b"e2b-sandbox-id"
_PORT: Final = b"e2b-sandbox-port"
_ACCESS: Final = b"x-access-token"
_TRAFFIC: Final = b"e2b-traffic-access-token"
_HEADERS: Final = frozenset({_ID, _PORT, _ACCESS, _TRAFFIC, b"host"})
_API_PATH: Final = re.compile(
    r"/(v[0-9]+|sandboxes|templates|snapshots|volumes|volumecontent|secrets)(/.*)?", re.DOTALL
)
_CODE_PATH: Final = re.compile(r"/(execute|contexts(/.*)?)", re.DOTALL)
_HOST: Final = re.compile(r"([1-9][0-9]{0,4})-([0-9a-f]{32})", re.ASCII)
_PLANE_OF_PORT: Final = {ENVD_PORT: Plane.ENVD, CODE_PORT: Plane.CODE}
_MAX_PROBLEM: Final = 64 * 1024
_MOST_OWNERS: Final = 10_000
_SCOPES: Final = frozenset({KeyScope.READ, KeyScope.EXEC})


class _Found(NamedTuple):
    """What a request is for. `by_host`: its host is no name of the server itself."""

    plane: Plane
    session_id: str
    path: str
    by_host: bool = False


class E2bEdge:
    """`domain` is that of previews. With `without_keys` the server lets everybody in."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: SandboxTokens,
        store: SessionStore,
        tenants: Tenants,
        domain: str = "",
        without_keys: bool = False,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._store = store
        self._tenants = tenants
        self._domain = domain
        self._without_keys = without_keys
        self._owners: OrderedDict[str, tuple[str, str]] = OrderedDict()  # tenant and key id by session id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _HEADERS}
        try:
            found = self._recognise(scope, headers)
        except WarrenError:
            await gone_response(headers.get(_ID, ""))(scope, receive, send)
            return
        if found is None:
            await self._app(scope, receive, send)
            return
        answer = _ShapedAnswer(send, found)
        inner = _inner_scope(scope, found)
        if found.plane is not Plane.API or found.path.startswith(UPLOADS):
            try:
                caller = await self._identify(found, headers, scope)
            except WarrenError as exc:
                response = response_to(exc, found.plane, found.session_id, is_call=answer.is_call)
                await response(scope, receive, send)
                return
            if caller is None:
                await gone_response(found.session_id)(scope, receive, send)
                return
            inner[KNOWN_CALLER] = caller
        await self._app(inner, receive, answer.send)

    # -- recognising

    def _recognise(self, scope: Scope, headers: dict[bytes, str]) -> _Found | None:
        """Raises SessionNotFound for an id that no sandbox can have."""
        path: str = scope["path"]
        is_prefixed = path == PREFIX or path.startswith(f"{PREFIX}/")
        if is_prefixed:
            path = path[len(PREFIX) :] or "/"
        if (found := self._by_host(headers.get(b"host", ""), path)) is not None:
            return found
        session_id = session_id_of(headers[_ID]) if headers.get(_ID) else ""
        for name in (_ACCESS, _TRAFFIC):
            session_id = session_id or session_named_in(headers.get(name, ""))
        if session_id:
            return _Found(_plane(headers.get(_PORT, ""), path), session_id, path)
        if is_prefixed or _API_PATH.fullmatch(path):
            return _Found(Plane.API, "", path)
        return None

    def _by_host(self, host: str, path: str) -> _Found | None:
        """The control plane is `api.DOMAIN`, a service of a sandbox `PORT-ID.DOMAIN`."""
        if not host.startswith("api.") and not host[:1].isdigit():
            return None
        authority = read_authority(host)
        if authority is None or not isinstance(authority.host, str):
            return None
        label, _, parent = authority.host.partition(".")
        if not parent or parent not in (self._domain, LOCALHOST):
            return None
        if label == "api":
            return _Found(Plane.API, "", path, by_host=True)
        match = _HOST.fullmatch(label)
        plane = _PLANE_OF_PORT.get(int(match[1])) if match else None
        return _Found(plane, session_id_of(match[2]), path, by_host=True) if match and plane else None

    # -- who asks

    async def _identify(self, found: _Found, headers: dict[bytes, str], scope: Scope) -> Caller | None:
        """None if there is no such sandbox. Raises Unauthorized."""
        if found.plane is Plane.API:
            query = urllib.parse.parse_qs(scope["query_string"].decode("latin-1"))
            upload = self._tokens.read_upload(query.get("token", [""])[0])
            return Caller(upload.tenant, upload.key_id, frozenset(), (await self._tenants.of(upload.tenant)).quota)
        owner = await self._owner(found.session_id)
        if owner is None:
            return None
        if found.path != "/health":
            self._check_token(found, headers)
        tenant, key_id = owner
        return Caller(tenant, key_id, _SCOPES, (await self._tenants.of(tenant)).quota)

    def _check_token(self, found: _Found, headers: dict[bytes, str]) -> None:
        access, traffic = headers.get(_ACCESS, ""), headers.get(_TRAFFIC, "")
        if access:
            self._tokens.check(access, Opens.ACCESS, found.session_id)
        elif traffic and found.plane is Plane.CODE:
            self._tokens.check(traffic, Opens.TRAFFIC, found.session_id)
        elif not self._without_keys:
            raise Unauthorized("this sandbox wants its access token", remedy="connect to the sandbox again")

    async def _owner(self, session_id: str) -> tuple[str, str] | None:
        owner = self._owners.get(session_id)
        if owner is None:
            session = await self._store.find(session_id)
            if session is None:
                return None
            owner = self._owners[session_id] = (session.tenant, session.key_id)
            if len(self._owners) > _MOST_OWNERS:
                self._owners.popitem(last=False)
        return owner


def _plane(port: str, path: str) -> Plane:
    if port == str(CODE_PORT) or (not port and _CODE_PATH.fullmatch(path)):
        return Plane.CODE
    return Plane.ENVD


def _inner_scope(scope: Scope, found: _Found) -> Scope:
    place = f"{PREFIX}/{found.plane}" + (f"/{found.session_id}" if found.session_id else "")
    inner = {**scope, "path": place + found.path, "raw_path": place.encode() + found.path.encode()}
    if found.plane is Plane.API:
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        inner[ADDRESS] = host + scope["path"].removesuffix(found.path)
    if found.by_host:
        inner["headers"] = [(name, b"localhost" if name == b"host" else value) for name, value in scope["headers"]]
    return inner


class _ShapedAnswer:
    """Passes an answer on; a problem of the server gets E2B's form."""

    def __init__(self, send: Send, found: _Found) -> None:
        self._send = send
        self._found = found
        self._problem: Message | None = None
        self._body = bytearray()

    @property
    def is_call(self) -> bool:
        return self._found.plane is Plane.ENVD and self._found.path.count("/") == 2 and "." in self._found.path

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_problem(message):
            self._problem = message
        elif self._problem is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")[:_MAX_PROBLEM]
            if not message.get("more_body"):
                await self._send_shaped(self._problem)

    async def _send_shaped(self, start: Message) -> None:
        error = error_in_problem(bytes(self._body), start["status"])
        if isinstance(error, E2bError):
            response = error_response(error)
        else:
            response = response_to(error, self._found.plane, self._found.session_id, is_call=self.is_call)
        replaced = {b"content-type", b"content-length"}
        kept = [header for header in start["headers"] if header[0].lower() not in replaced]
        await self._send({**start, "status": response.status_code, "headers": [*response.raw_headers, *kept]})
        await self._send({"type": "http.response.body", "body": response.body})


def _is_problem(message: Message) -> bool:
    wanted = MEDIA_TYPE.encode()
    return any(name.lower() == b"content-type" and value.startswith(wanted) for name, value in message["headers"])
