"""Finds out who sent a request of E2B's clients: with the token of a sandbox, or of a volume, no key is needed."""

from typing import Final

from warren.access.keys import Keys
from warren.access.tenants import Tenants
from warren.http.e2b.addresses import set_inner_path
from warren.http.e2b.signed_urls import SignedUrls, read_signed
from warren.http.e2b.tokens import Opens, SandboxTokens
from warren.http.request import E2bAddress, Request
from warren.interfaces.store import SessionStore
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.clock import Clock
from warren.model.access import Caller
from warren.model.access import Scope as KeyScope
from warren.model.e2b import UPLOADS, VOLUME_CONTENTS, Plane
from warren.model.errors import SessionNotFound, Unauthorized

_MAX_CALLERS: Final = 10_000
_SCOPES: Final = frozenset({KeyScope.READ, KeyScope.EXEC})
_HEALTH: Final = "/health"


class E2bCallers:
    """With `without_keys` the server lets everybody in."""

    def __init__(
        self,
        tokens: SandboxTokens,
        store: SessionStore,
        tenants: Tenants,
        keys: Keys,
        clock: Clock,
        *,
        without_keys: bool = False,
    ) -> None:
        self._tokens = tokens
        self._store = store
        self._tenants = tenants
        self._keys = keys
        self._without_keys = without_keys
        self._signed_urls = SignedUrls(tokens, store, clock)
        self._callers = BoundedDict[str, Caller](_MAX_CALLERS)  # by session id

    async def find_session(self, request: Request) -> None:
        """Gives a request whose signature alone names its sandbox the path of that sandbox. Raises Unauthorized."""
        address, scope = request.e2b, request.scope
        assert address is not None
        signed = read_signed(scope["method"], scope["query_string"])
        assert signed is not None
        client = str(scope["client"][0]) if scope.get("client") else ""
        session_id = await self._signed_urls.find(signed, client)
        set_inner_path(request, session_id, scope["raw_path"].removeprefix(b"/e2b/envd"))

    async def find_caller(self, request: Request) -> Caller | None:
        """Returns None for the control plane, which wants a key. Raises Unauthorized, and SessionNotFound."""
        address = request.e2b
        assert address is not None
        if address.plane is not Plane.API:
            return await self._user_of(address, request)
        if address.path.startswith(VOLUME_CONTENTS):
            return await self._user_of_volume(address.path, request)
        if not address.path.startswith(UPLOADS):
            return None
        upload = self._tokens.read_upload(_token_in(request.scope["query_string"]))
        return Caller(upload.tenant, upload.key_id, frozenset(), (await self._tenants.of(upload.tenant)).quota)

    async def _user_of_volume(self, path: str, request: Request) -> Caller:
        kind, _, token = request.headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        grant = self._tokens.read_volume(token if kind.lower() == "bearer" else "")
        if path.split("/")[2] != grant.volume:
            raise Unauthorized("this token opens another volume", remedy="connect to this volume")
        scopes = _SCOPES if grant.writes else _SCOPES - {KeyScope.EXEC}
        quota, key_quota = (await self._tenants.of(grant.tenant)).quota, await self._keys.quota_of(grant.key_id)
        return Caller(grant.tenant, grant.key_id, scopes, quota, key_quota=key_quota)

    async def _user_of(self, address: E2bAddress, request: Request) -> Caller:
        if address.path != _HEALTH:
            self._check_token(address, request)
        caller = self._callers.get(address.session_id) or await self._owner(address.session_id)
        if address.path == _HEALTH:  # everybody may ask, so it costs the owner nothing
            return Caller(caller.tenant, caller.key_id, frozenset())
        quota = (await self._tenants.of(caller.tenant)).quota
        if caller.quota is not quota or address.session_id not in self._callers:
            caller = self._callers[address.session_id] = caller.with_quota(quota)
        return caller

    def _check_token(self, address: E2bAddress, request: Request) -> None:
        if address.access:
            self._tokens.check(address.access, Opens.ACCESS, address.session_id)
        elif address.traffic and address.plane is Plane.CODE:
            self._tokens.check(address.traffic, Opens.TRAFFIC, address.session_id)
        elif address.is_signed:
            signed = read_signed(request.scope["method"], request.scope["query_string"])
            assert signed is not None
            self._signed_urls.check(signed, address.session_id)
        elif not self._without_keys:
            raise Unauthorized("this sandbox wants its access token", remedy="connect to the sandbox again")

    async def _owner(self, session_id: str) -> Caller:
        """Returns the caller whose quotas the use of a sandbox counts against: the key that made it."""
        session = await self._store.find(session_id)
        if session is None:
            raise SessionNotFound(f"there is no session {session_id}")
        return Caller(session.tenant, session.key_id, _SCOPES, key_quota=await self._keys.quota_of(session.key_id))


def _token_in(query: bytes) -> str:
    """Returns the token as the client got it. No other parameter may come with it: signed addresses are not to be
    changed."""
    name, _, token = query.decode("latin-1").partition("=")
    return token if name == "token" else ""
