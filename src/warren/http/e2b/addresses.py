"""Recognises the requests of E2B's clients and gives them the inner form (model/e2b.py).

A request for a sandbox is recognised by E2B's headers, by a token of ours, by its host, or by the signature of a file's
URL; one for the control plane by its host, by the prefix `/e2b`, or by its path. Requests for other ports of a sandbox
are those of previews, and get the host of the preview. Who sent a request is found out later (e2b/callers.py).
"""

import re
from functools import lru_cache, partial
from typing import Final, NamedTuple
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import Scope

from warren.http.e2b.errors import E2bError, response_of_port, response_to
from warren.http.e2b.signed_urls import PATH as FILES
from warren.http.e2b.signed_urls import read_signed
from warren.http.e2b.tokens import Opens, SandboxTokens, session_named_in
from warren.http.request import E2bAddress, Kind, Request, is_call
from warren.http.server.request_origin import read_authority
from warren.model.addresses import is_loopback
from warren.model.e2b import (
    ACCESS_HEADER,
    CODE_PORT,
    DOMAIN_HEADER,
    ENVD_PORT,
    PREFIX,
    TRAFFIC_HEADER,
    Plane,
    session_id_of,
)
from warren.model.errors import InvalidRequest, WarrenError
from warren.model.preview import LOCALHOST, preview_host, read_port

_ID: Final = b"e2b-sandbox-id"
_PORT: Final = b"e2b-sandbox-port"
_HEADERS: Final = frozenset({_ID, _PORT, ACCESS_HEADER, TRAFFIC_HEADER, b"host"})
SANDBOX_HEADERS: Final = frozenset({_ID, ACCESS_HEADER, TRAFFIC_HEADER})
"""With one of these a request may be for a sandbox."""
_CREDENTIALS: Final = frozenset({ACCESS_HEADER, TRAFFIC_HEADER, b"x-api-key", b"cookie"})
_API_PATH: Final = re.compile(
    r"/(v[0-9]+|sandboxes|templates|snapshots|volumes|volumecontent|secrets|events|teams|nodes|api-keys)(/.*)?",
    re.DOTALL,
)
ANY_PATH: Final = re.compile(rf"{_API_PATH.pattern}|{PREFIX}(/.*)?|{FILES}", re.DOTALL)
"""The paths by which requests of E2B's clients are known if nothing else tells them apart."""
_CODE_PATH: Final = re.compile(r"/(execute|contexts(/.*)?)", re.DOTALL)
_HOST: Final = re.compile(r"([1-9][0-9]{0,4})-([0-9a-f]{32})", re.ASCII)
_PLANE_OF_PORT: Final = {ENVD_PORT: Plane.ENVD, CODE_PORT: Plane.CODE}
_API_HOST: Final = "api"


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
    """What a request is for. If `host` is set it replaces the request's own, which is no name of the server.

    `domain` is the one below which a client of the control plane finds ports of sandboxes.
    """

    plane: Plane
    session_id: str
    path: str
    raw_path: bytes
    host: bytes = b""
    is_signed: bool = False
    domain: str = ""


class _Port(NamedTuple):
    """A port of a sandbox, which is a preview's. If `host` is set it replaces the request's own."""

    session_id: str
    number: int
    host: bytes = b""


class E2bAddresses:
    """`domain` is the domain of previews."""

    def __init__(self, tokens: SandboxTokens, domain: str = "") -> None:
        self._tokens = tokens
        self._domain = domain
        self._named_by = lru_cache(maxsize=1024)(self._read_host)

    def recognise(self, request: Request) -> None:
        """Gives a request of E2B's clients its inner form, and one for a port of a sandbox the host of its preview. One
        that contradicts itself gets its answer in `refused`. Other requests stay as they are."""
        scope = request.scope
        named = self._named_by(request.headers.get(b"host", b""))
        sent = [(name, value.decode("latin-1")) for name, value in scope["headers"] if name in _HEADERS]
        headers = dict(sent)
        try:
            found = self._find(named, scope, headers, is_ambiguous=len(sent) != len(headers))
        except (WarrenError, E2bError) as exc:
            is_rpc = is_call(Plane.ENVD, scope["path"])
            request.refused = response_to(exc, Plane.ENVD, headers.get(_ID, ""), is_call=is_rpc)
            return
        if isinstance(found, _Port):
            self._make_preview(request, found, headers)
        elif found is not None:
            _make_inner(request, found, headers)

    def is_for_sandbox(self, host: bytes) -> bool:
        return self._named_by(host) is not None

    def _make_preview(self, request: Request, port: _Port, headers: dict[bytes, str]) -> None:
        """Makes the request one for a preview. Who may open the port is decided in previews/access.py, where it also
        shows whether E2B's clients made the sandbox."""
        if port.host:
            left_out = (b"host", _ID, _PORT)
            kept = [header for header in request.scope["headers"] if header[0] not in left_out]
            request.scope = {**request.scope}
            request.set_headers([(b"host", port.host), *kept])
        if traffic := headers.get(TRAFFIC_HEADER):
            request.traffic_token = self._tokens.opens(traffic, Opens.TRAFFIC, port.session_id)
        request.shows_e2b_errors = bool(port.host or traffic)
        request.show_error = partial(response_of_port, session_id=port.session_id, port=port.number)

    def _find(
        self, named: _Named | None, scope: Scope, headers: dict[bytes, str], *, is_ambiguous: bool
    ) -> _Found | _Port | None:
        """Raises SessionNotFound for an id that no sandbox can have, E2bError for a request that contradicts itself."""
        if named is not None:
            _check_same(named, headers, is_ambiguous=is_ambiguous)
            if not named.is_api and named.sandbox_port not in _PLANE_OF_PORT:
                return _Port(named.session_id, named.sandbox_port)
        if scope["type"] != "http":
            return None
        path, raw_path, is_prefixed = _without_prefix(scope)
        if named is not None:
            host = _with_port(LOCALHOST, named.port)
            plane = Plane.API if named.is_api else _PLANE_OF_PORT[named.sandbox_port]
            is_signed = _is_signed(scope, headers, plane, path)
            domain = _with_port(named.domain, named.port)
            return _Found(plane, named.session_id, path, raw_path, host.encode(), is_signed, domain)
        if session_id := _session_in(headers):
            if is_ambiguous:
                raise E2bError(400, "a header of this request is there twice")
            return self._addressed(session_id, scope, headers, path, raw_path)
        if path == FILES and read_signed(scope["method"], scope["query_string"]) is not None:
            return _Found(Plane.ENVD, "", path, raw_path, is_signed=True)
        if is_prefixed or _API_PATH.fullmatch(path):
            return _Found(Plane.API, "", path, raw_path, domain=self._domain_for(headers))
        return None

    def _addressed(
        self, session_id: str, scope: Scope, headers: dict[bytes, str], path: str, raw_path: bytes
    ) -> _Found | _Port:
        """Returns what E2B's headers name. Without a port, the path tells which service is meant.

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
        is_signed = _is_signed(scope, headers, plane, path)
        return _Found(plane, session_id, path, raw_path, is_signed=is_signed)

    def _read_host(self, host: bytes) -> _Named | None:
        """The control plane is `api.DOMAIN`, a service of a sandbox `PORT-ID.DOMAIN`."""
        authority = read_authority(host.decode("latin-1"))
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
        """Returns the domain of previews, or the name by which the client knows this server. Names below `localhost`
        lead to the same machine; names below an address lead nowhere."""
        host = headers.get(b"host", "")
        authority = read_authority(host)
        if self._domain or authority is None:
            return self._domain or LOCALHOST
        return _with_port(LOCALHOST, authority.port) if is_loopback(authority.host) else host


def _is_signed(scope: Scope, headers: dict[bytes, str], plane: Plane, path: str) -> bool:
    if plane is not Plane.ENVD or path != FILES or headers.get(ACCESS_HEADER):
        return False
    return read_signed(scope["method"], scope["query_string"]) is not None


def _check_same(named: _Named, headers: dict[bytes, str], *, is_ambiguous: bool) -> None:
    other = headers.get(_ID)
    if is_ambiguous or (other and not named.is_api and session_id_of(other) != named.session_id):
        raise E2bError(400, "host and headers of this request name different sandboxes, or one is there twice")


def _session_in(headers: dict[bytes, str]) -> str:
    """Returns the session that E2B's headers name. Clients of some versions send the token alone, which names it
    too."""
    if headers.get(_ID):
        return session_id_of(headers[_ID])
    return session_named_in(headers.get(ACCESS_HEADER, "")) or session_named_in(headers.get(TRAFFIC_HEADER, ""))


def _without_prefix(scope: Scope) -> tuple[str, bytes, bool]:
    """Returns the path without `/e2b`, decoded and as it was sent, and whether the prefix was there."""
    path: str = scope["path"]
    raw_path: bytes = scope["raw_path"] or b"/"
    if path != PREFIX and not path.startswith(f"{PREFIX}/"):
        return path, raw_path, False
    path, prefix = path[len(PREFIX) :] or "/", PREFIX.encode()
    if raw_path.startswith(prefix + b"/") or raw_path == prefix:
        return path, raw_path[len(prefix) :] or b"/", True
    return path, quote(path, safe="/").encode(), True  # the prefix itself was encoded


def _make_inner(request: Request, found: _Found, headers: dict[bytes, str]) -> None:
    scope = request.scope
    base = ""
    if found.plane is Plane.API:
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        base = host + scope["path"].removesuffix(found.path)
        # A client cannot choose the domain itself.
        others = (header for header in scope["headers"] if header[0] != DOMAIN_HEADER)
        kept = [*others, (DOMAIN_HEADER, found.domain.encode("latin-1"))]
    else:
        # Only the tokens in `E2bAddress` count for a sandbox's services: other credentials are not passed on.
        kept = [header for header in scope["headers"] if not _is_credential(*header)]
    if found.host:
        kept = [(name, found.host if name == b"host" else value) for name, value in kept]
    request.scope = {**scope}
    request.set_headers(kept)
    request.kind, request.shows_e2b_errors = Kind.E2B, True
    request.e2b = E2bAddress(
        found.plane,
        found.session_id,
        found.path,
        base,
        headers.get(ACCESS_HEADER, ""),
        headers.get(TRAFFIC_HEADER, ""),
        found.is_signed,
    )
    set_inner_path(request, found.session_id, found.raw_path)
    request.show_error = partial(_show_error, request)


def set_inner_path(request: Request, session_id: str, raw_path: bytes) -> None:
    """Sets the inner path. `raw_path` is what the client asked the service for, as it was sent."""
    assert request.e2b is not None
    address = request.e2b = request.e2b._replace(session_id=session_id)
    place = f"{PREFIX}/{address.plane}" + (f"/{session_id}" if session_id else "")
    request.scope["path"], request.scope["raw_path"] = place + address.path, place.encode() + raw_path


def _show_error(request: Request, exc: WarrenError | E2bError) -> Response:
    address = request.e2b
    assert address is not None
    return response_to(exc, address.plane, address.session_id, is_call=address.is_call)


def _with_port(name: str, port: int | None) -> str:
    return f"{name}:{port}" if port else name


def _is_credential(name: bytes, value: bytes) -> bool:
    """Whether the header is a credential. Basic authorization is none: it names the user of the sandbox."""
    return name in _CREDENTIALS or (name == b"authorization" and value[:6].lower() != b"basic ")
