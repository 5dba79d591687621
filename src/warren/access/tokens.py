"""JSON Web Tokens, signed by an issuer that the operator trusts, for this server.

Only asymmetric signatures are accepted, by keys of a JWKS (a file, or an address that is read again when a token names
an unknown key). A token must have the right issuer and audience, and an expiry. The tenant and the scopes are claims.
Whether a token was revoked, `CredentialIdentity` asks.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import jwt

from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.model.access import OPERATORS_SCOPES, Caller, Scope, check_tenant
from warren.model.errors import InvalidRequest, Unauthorized, Unavailable, WarrenError

ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")
LEEWAY_S: Final = 30.0
MAX_TOKEN: Final = 16 * 1024
_ASK_AGAIN_S: Final = 10.0
_FRESH_S: Final = 300.0
_MAX_JWKS: Final = 1024 * 1024
_FETCH_S: Final = 5.0
_REMEDY: Final = "get a new token from your issuer and send it as `Authorization: Bearer TOKEN`"
_log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class TokenRules:
    """`jwks` is a file or an http(s) address."""

    jwks: str
    issuer: str
    audience: str
    tenant_claim: str = "tenant"
    scopes_claim: str = "scope"

    def __post_init__(self) -> None:
        if not (self.issuer and self.audience):
            raise InvalidRequest(
                "tokens are accepted only from a known issuer and for a known audience",
                remedy="set WARREN_JWT_ISSUER and WARREN_JWT_AUDIENCE beside WARREN_JWT_JWKS",
            )


class Tokens:
    def __init__(self, rules: TokenRules, clock: Clock) -> None:
        self._rules = rules
        self._clock = clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_at = -_FRESH_S
        self._reading = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Tokens of {self._rules.issuer}: {len(self._keys)} keys>"

    async def start(self) -> None:
        """Reads the keys. A JWKS file must be readable now; one at an address may become reachable later."""
        try:
            await self._read_keys()
        except WarrenError as exc:
            if not _is_address(self._rules.jwks):
                raise
            _log.warning("jwks_not_read", jwks=self._rules.jwks, action="refuse_tokens", error=exc)

    def is_for_us(self, token: str) -> bool:
        """Whether a text says that it is a token of our issuer for our audience. Nothing is verified."""
        try:
            claims = jwt.decode(token, options={"verify_signature": False})
        except jwt.PyJWTError:
            return False
        audience = claims.get("aud")
        is_audience = self._rules.audience in (audience if isinstance(audience, list) else [audience])
        return is_audience and claims.get("iss") == self._rules.issuer

    async def read(self, token: str, *, expired: bool = False) -> tuple[Caller, Mapping[str, Any]]:
        """Returns the caller of a token, and the token's claims; with `expired`, also of one that has expired. Raises
        Unauthorized."""
        if len(token) > MAX_TOKEN:
            raise Unauthorized(f"the token is longer than {MAX_TOKEN} characters", remedy=_REMEDY)
        claims = self._verify(token, await self._key_for(token))
        self.check_times(claims, expired=expired)
        tenant = claims.get(self._rules.tenant_claim)
        try:
            check_tenant(tenant if isinstance(tenant, str) else "")
        except InvalidRequest:
            raise Unauthorized(
                f"the token's claim {self._rules.tenant_claim!r} does not name a tenant", remedy=_REMEDY
            ) from None
        assert isinstance(tenant, str)
        subject = claims.get("sub")
        name = subject if isinstance(subject, str) and subject.isprintable() else ""
        return Caller(tenant, f"jwt:{name[:128]}", read_claimed(claims.get(self._rules.scopes_claim))), claims

    def _verify(self, token: str, key: jwt.PyJWK) -> Mapping[str, Any]:
        """Checks all but the times: `check_times` compares those with our own clock, so that tests can set it."""
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._rules.audience,
                issuer=self._rules.issuer,
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.PyJWTError as exc:
            raise Unauthorized(f"the token is not accepted: {_explain(exc)}", remedy=_REMEDY) from None
        return claims

    def check_times(self, claims: Mapping[str, Any], *, expired: bool) -> None:
        """Raises Unauthorized if a token with these claims is not valid yet or, without `expired`, not any more."""
        now = self._clock.wall()
        if not _is_number(claims["exp"]) or (claims["exp"] + LEEWAY_S <= now and not expired):
            raise Unauthorized("the token has expired", remedy=_REMEDY)
        for name in ("nbf", "iat"):
            value = claims.get(name)
            if value is not None and (not _is_number(value) or value - LEEWAY_S > now):
                raise Unauthorized("the token is not valid yet: are the clocks right?", remedy=_REMEDY)

    async def _key_for(self, token: str) -> jwt.PyJWK:
        try:
            head = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise Unauthorized("this is neither a key of this server nor a token", remedy=_REMEDY) from None
        if head.get("alg") not in ALGORITHMS:
            raise Unauthorized(f"tokens must be signed with one of {', '.join(ALGORITHMS)}", remedy=_REMEDY)
        key_id = head.get("kid")
        if not isinstance(key_id, str):
            raise Unauthorized("the token does not say which key signed it (kid)", remedy=_REMEDY)
        now = self._clock.now()
        age_s = now - self._read_at
        # While the keys are being read, a token with a new one waits for them.
        is_awaited = key_id not in self._keys and (age_s >= _ASK_AGAIN_S or self._reading.locked())
        if is_awaited or age_s >= _FRESH_S:
            await self._refresh_keys()
        if (key := self._keys.get(key_id)) is None:
            raise Unauthorized("the token was signed with a key that is not known", remedy=_REMEDY)
        return key

    async def _refresh_keys(self) -> None:
        """Reads the keys again. If the JWKS cannot be read now, known keys stay valid."""
        async with self._reading:
            if self._clock.now() - self._read_at < _ASK_AGAIN_S:
                return
            try:
                await self._read_keys()
            except WarrenError as exc:
                _log.warning("jwks_not_read", jwks=self._rules.jwks, action="keep_known_keys", error=exc)

    async def _read_keys(self) -> None:
        # Before the attempt, so that a JWKS that cannot be read is not asked for with every token.
        self._read_at = self._clock.now()
        where = self._rules.jwks
        text = await _fetch(where) if _is_address(where) else await asyncio.to_thread(_read_file, where)
        self._keys = read_jwks(text, where)


def read_jwks(text: str, where: str) -> dict[str, jwt.PyJWK]:
    """Returns the keys for our algorithms, by their ids. Raises Unavailable if the text is not a JWKS."""
    try:
        entries = json.loads(text)["keys"]
        found = [jwt.PyJWK(entry) for entry in entries if _is_signing_key(entry)]
    except (ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError) as exc:
        raise Unavailable(
            f"{where} is not a JWKS ({type(exc).__name__})", remedy='it looks like {"keys": […]}'
        ) from exc
    return {str(key.key_id): key for key in found if key.key_id and key.algorithm_name in ALGORITHMS}


def _is_signing_key(entry: Mapping[str, Any]) -> bool:
    return entry.get("kty") in ("RSA", "EC", "OKP") and entry.get("use", "sig") == "sig"


def read_claimed(claim: Any) -> frozenset[Scope]:
    """Returns those of our scopes that a claim names: `exec`, or `warren:exec`, in a list or in one text.

    `admin`, `audit` and `metrics` may mean something else to the issuer, so the claim has to say `warren:admin`.
    """
    names = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    known = {str(scope): scope for scope in Scope}
    plain = (name.removeprefix("warren:") for name in names if isinstance(name, str) and name not in OPERATORS_SCOPES)
    return frozenset(known[name] for name in plain if name in known)


def _is_address(jwks: str) -> bool:
    return jwks.startswith(("http://", "https://"))


def _read_file(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise Unavailable(f"the JWKS file {path} cannot be read: {exc}", remedy="name another: --jwt-jwks") from exc


async def _fetch(url: str) -> str:
    try:
        timeout = aiohttp.ClientTimeout(total=_FETCH_S)
        async with aiohttp.ClientSession(timeout=timeout) as client, client.get(url, allow_redirects=False) as answer:
            if answer.status != 200:
                raise Unavailable(f"the JWKS at {url} cannot be read: status {answer.status}")
            found = bytearray()
            async for part in answer.content.iter_chunked(_MAX_JWKS):
                found += part
                if len(found) > _MAX_JWKS:
                    raise Unavailable(f"the JWKS at {url} is larger than {_MAX_JWKS} bytes")
            return found.decode(errors="replace")
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        raise Unavailable(f"the JWKS at {url} cannot be read: {exc or type(exc).__name__}") from exc


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12


def _explain(exc: jwt.PyJWTError) -> str:
    known = {
        jwt.InvalidSignatureError: "its signature is wrong",
        jwt.InvalidAudienceError: "it is for another audience",
        jwt.InvalidIssuerError: "it comes from another issuer",
        jwt.InvalidAlgorithmError: "its algorithm does not fit its key",
    }
    for kind, words in known.items():
        if isinstance(exc, kind):
            return words
    if isinstance(exc, jwt.MissingRequiredClaimError):
        return f"it has no claim {exc.claim!r}"
    return "it is malformed"
