"""Finds out who sent a request: by a key or a token in its headers, or without any if the server asks for none."""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from warren.access.bindings import Binding, BoundBy
from warren.access.keys import Keys, looks_like_key
from warren.access.tenants import Tenants
from warren.model.access import ALL_SCOPES, Caller, Quota, read_scopes
from warren.model.errors import Unauthorized
from warren.model.session import DEFAULT_TENANT

if TYPE_CHECKING:
    from warren.access.revocations import Revocations
    from warren.access.tokens import Tokens

Headers = Iterable[tuple[bytes, bytes]]

_MAX_CREDENTIAL: Final = 16 * 1024
_REMEDY: Final = "send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`"
ADMIN_KEY_ID: Final = "admin"
_MAX_CALLERS: Final = 4096
_PURPOSE: Final = b"warren proof of the admin key:"
_KEPT_CLAIMS: Final = ("sub", "jti", "iat", "nbf", "exp")


class Identity(Protocol):
    """`caller` returns who sent a request, with the quota of its tenant. `check_again` is for requests that last: a key
    must still be valid, and a token must not be revoked, but may have expired since the request began. Both raise
    Unauthorized. `is_credential` tells, without waiting, whether a text may be a credential for this server: such a
    text must not reach a sandbox."""

    async def caller(self, headers: Headers) -> Caller: ...
    async def check_again(self, headers: Headers) -> None: ...
    def is_credential(self, text: str) -> bool: ...


class BindingIdentity(Identity, Protocol):
    """The Identity of a server that has pages. `bind` returns the binding of a credential. `bound_caller` returns the
    caller of a binding later, as long as its credential is valid; with `expired`, also after a token has expired. Both
    raise Unauthorized."""

    async def bind(self, credential: str) -> Binding: ...
    async def bound_caller(self, binding: Binding, *, expired: bool = False) -> Caller: ...


class AnonymousIdentity:
    """Asks for no credentials: for servers that only their own machine can reach."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._caller = Caller()

    async def caller(self, headers: Headers) -> Caller:
        """Returns the same object as before if nothing has changed: a caller computes the bounds of its quotas once."""
        quota = (await self._tenants.of(DEFAULT_TENANT)).quota
        if quota != self._caller.quota:
            self._caller = Caller(quota=quota)
        return self._caller

    async def check_again(self, headers: Headers) -> None:
        pass

    def is_credential(self, text: str) -> bool:
        return looks_like_key(text)

    async def bind(self, credential: str) -> Binding:
        return Binding(BoundBy.NOTHING, DEFAULT_TENANT, "")

    async def bound_caller(self, binding: Binding, *, expired: bool = False) -> Caller:
        return await self.caller(())


class CredentialIdentity:
    """Asks for a key or a token. `admin_key` is a key that the configuration may name; it has every scope. `secret`,
    which only this installation knows, makes the proof of the admin key that bindings keep. `revocations` are
    those of tokens."""

    def __init__(
        self,
        keys: Keys,
        tenants: Tenants,
        tokens: "Tokens | None" = None,
        admin_key: str = "",
        secret: bytes = b"",
        revocations: "Revocations | None" = None,
    ) -> None:
        self._keys = keys
        self._tenants = tenants
        self._tokens = tokens
        self._revocations = revocations
        self._admin_key = admin_key.encode()
        # Bindings are stored. With a plain hash there, whoever reads the store could try out admin keys: people choose
        # them, so they may be weak.
        self._admin_proof = hmac.digest(secret, _PURPOSE + self._admin_key, hashlib.sha256).hex()
        self._admin = Caller(DEFAULT_TENANT, ADMIN_KEY_ID, ALL_SCOPES)
        self._complete: dict[str, tuple[Caller, Caller]] = {}  # by key: the caller without and with its tenant's quota

    async def caller(self, headers: Headers) -> Caller:
        caller = await self._first(headers)
        return self._with_quota(caller, (await self._tenants.of(caller.tenant)).quota)

    async def check_again(self, headers: Headers) -> None:
        await self._first(headers, expired=True)

    def is_credential(self, text: str) -> bool:
        is_token = self._tokens is not None and self._tokens.is_for_us(text)
        return is_token or looks_like_key(text) or self._is_admin_key(text)

    async def bind(self, credential: str) -> Binding:
        if self._is_admin_key(credential):
            return Binding(BoundBy.ADMIN, self._admin.tenant, ADMIN_KEY_ID, self._admin_proof)
        if self._tokens is not None and not looks_like_key(credential):
            caller, claims = await self._tokens.read(credential)
            await self._check_not_revoked(claims)
            kept = {name: claims[name] for name in _KEPT_CLAIMS if name in claims}
            return Binding(
                BoundBy.TOKEN, caller.tenant, caller.key_id, scopes=tuple(sorted(caller.scopes)), claims=kept
            )
        key = await self._keys.identify(credential)
        return Binding(BoundBy.KEY, key.tenant, key.id, key.hashed)

    async def bound_caller(self, binding: Binding, *, expired: bool = False) -> Caller:
        caller = await self._bound(binding, expired)
        return self._with_quota(caller, (await self._tenants.of(caller.tenant)).quota)

    async def _bound(self, binding: Binding, expired: bool) -> Caller:
        if binding.by is BoundBy.KEY:
            return await self._keys.recognise_stored(binding.key_id, binding.proof)
        if binding.by is BoundBy.TOKEN and self._tokens is not None:
            self._tokens.check_times(binding.claims, expired=expired)
            await self._check_not_revoked(binding.claims)
            return Caller(binding.tenant, binding.key_id, read_scopes(binding.scopes))
        if binding.by is BoundBy.ADMIN and self._admin_key and hmac.compare_digest(binding.proof, self._admin_proof):
            return self._admin
        raise Unauthorized("the credential that this was made with is not valid any more", remedy="sign in again")

    async def _first(self, headers: Headers, *, expired: bool = False) -> Caller:
        """Returns the caller of the first credential that is valid. Raises the error of the first one if none is."""
        wrong: Unauthorized | None = None
        for text in read_credentials(headers):
            try:
                return await self._recognise(text, expired)
            except Unauthorized as exc:
                wrong = wrong or exc
        raise wrong or Unauthorized("this server wants an API key", remedy=_REMEDY)

    def _with_quota(self, caller: Caller, quota: Quota) -> Caller:
        """Returns the same object as before if nothing has changed: a caller computes the bounds of its quotas once."""
        known = self._complete.get(caller.key_id)
        if known is not None and known[0] is caller and known[1].quota is quota:
            return known[1]
        if len(self._complete) >= _MAX_CALLERS:
            self._complete.clear()
        complete = caller.with_quota(quota)
        self._complete[caller.key_id] = caller, complete
        return complete

    async def _recognise(self, text: str, expired: bool) -> Caller:
        if self._is_admin_key(text):
            return self._admin
        if self._tokens is not None and not looks_like_key(text):
            caller, claims = await self._tokens.read(text, expired=expired)
            await self._check_not_revoked(claims)
            return caller
        return await self._keys.recognise(text)

    async def _check_not_revoked(self, claims: Mapping[str, Any]) -> None:
        if self._revocations is not None:
            await self._revocations.check(claims)

    def _is_admin_key(self, text: str) -> bool:
        return bool(self._admin_key) and hmac.compare_digest(text.encode(errors="surrogatepass"), self._admin_key)


def read_credentials(headers: Headers) -> list[str]:
    """Returns the credentials in the headers of a request, without what can be neither a key nor a token."""
    found = []
    for name, value in headers:
        if name == b"authorization":
            scheme, _, value = value.partition(b" ")
            if scheme.lower() != b"bearer":
                continue
        elif name != b"x-api-key":
            continue
        value = value.strip()
        if value and len(value) <= _MAX_CREDENTIAL:
            found.append(value.decode("latin-1"))
    return found[:4]
