"""JSON Web Tokens: those that are right, and every way to be wrong."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from warren.access.identity import CredentialIdentity
from warren.access.keys import Keys
from warren.access.tenants import Tenants
from warren.access.tokens import LEEWAY_S, MAX_TOKEN, TokenRules, Tokens, read_claimed
from warren.http.preview_credentials import clean_request
from warren.model.access import Scope
from warren.model.errors import InvalidRequest, Unauthorized, Unavailable
from warren.model.preview import Preview, Way
from warren.stores.memory import MemoryRecords
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
OTHER = ed25519.Ed25519PrivateKey.generate()
SIGNERS: dict[str, tuple[str, Any]] = {"rsa": ("RS256", RSA), "ec": ("ES256", EC), "ed": ("EdDSA", ED)}


def jwks() -> dict[str, Any]:
    keys = [
        {**RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True), "kid": "rsa", "alg": "RS256"},
        {**ECAlgorithm.to_jwk(EC.public_key(), as_dict=True), "kid": "ec", "alg": "ES256"},
        {**OKPAlgorithm.to_jwk(ED.public_key(), as_dict=True), "kid": "ed", "alg": "EdDSA"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared", "alg": "HS256"},
    ]
    return {"keys": keys}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def tokens(tmp_path: Path, clock: ManualClock) -> Tokens:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(jwks()))
    tokens = Tokens(TokenRules(str(file), "https://issuer.example", "warren"), clock)
    await tokens.start()
    return tokens


def claims(clock: ManualClock, **changes: Any) -> dict[str, Any]:
    usual = {
        "iss": "https://issuer.example",
        "aud": "warren",
        "sub": "ada",
        "exp": clock.wall() + 600,
        "tenant": "acme",
        "scope": "exec files openid",
    }
    return {name: value for name, value in {**usual, **changes}.items() if value is not None}


def signed(clock: ManualClock, which: str = "ed", head: dict[str, Any] | None = None, **changes: Any) -> str:
    algorithm, key = SIGNERS[which]
    return jwt.encode(claims(clock, **changes), key, algorithm, headers={"kid": which, **(head or {})})


@pytest.mark.parametrize("which", SIGNERS)
async def test_a_good_token_names_tenant_and_scopes(tokens: Tokens, clock: ManualClock, which: str) -> None:
    caller, _ = await tokens.read(signed(clock, which))
    assert (caller.tenant, caller.key_id, caller.scopes) == ("acme", "jwt:ada", {Scope.EXEC, Scope.FILES})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exp": None}, "no claim 'exp'"),
        ({"iss": None}, "no claim 'iss'"),
        ({"aud": None}, "no claim 'aud'"),
        ({"iss": "https://else.example"}, "another issuer"),
        ({"aud": "other"}, "another audience"),
        ({"aud": ["other", "more"]}, "another audience"),
        ({"tenant": None}, "does not name a tenant"),
        ({"tenant": "../etc"}, "does not name a tenant"),
        ({"tenant": 7}, "does not name a tenant"),
        ({"tenant": ["acme"]}, "does not name a tenant"),
        ({"nbf": 4e9}, "not valid yet"),
        ({"iat": 4e9}, "not valid yet"),
        ({"exp": 1}, "has expired"),
    ],
)
async def test_a_token_with_wrong_claims_is_refused(
    tokens: Tokens, clock: ManualClock, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(Unauthorized, match=words):
        await tokens.read(signed(clock, **changes))


async def test_no_credential_of_this_server_reaches_a_sandbox(tokens: Tokens, clock: ManualClock) -> None:
    records = MemoryRecords()
    keys = Keys(records, clock)
    identity = CredentialIdentity(keys, Tenants(records, clock), tokens, admin_key="chosen by a person")
    preview = Preview("ses_1", 8000, by_host=True, way=Way.LINK)

    def reaches(text: str) -> bool:
        header = (b"authorization", f"Bearer {text}".encode())
        return clean_request([header], preview, identity.is_credential) == [header]

    _, key = await keys.create("ci", "acme")
    for ours in (key, "chosen by a person", signed(clock), signed(clock, "rsa", aud=["other", "warren"], exp=1)):
        assert not reaches(ours), ours
    others = [{"iss": "https://app.example"}, {"aud": "app"}, {"aud": None}, {"aud": {"warren": 1}}]
    for theirs in (*(signed(clock, **changes) for changes in others), "own", "a.b.c"):
        assert reaches(theirs), theirs


async def test_clocks_may_differ_a_little(tokens: Tokens, clock: ManualClock) -> None:
    await tokens.read(signed(clock, exp=clock.wall() - LEEWAY_S + 1, iat=clock.wall() + LEEWAY_S - 1))
    with pytest.raises(Unauthorized, match="has expired"):
        await tokens.read(signed(clock, exp=clock.wall() - LEEWAY_S - 1))
    with pytest.raises(Unauthorized, match="not valid yet"):
        await tokens.read(signed(clock, nbf=clock.wall() + LEEWAY_S + 1))


def forged(head: dict[str, Any], body: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(head).encode(), json.dumps(body).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


async def test_an_unsigned_token_is_refused(tokens: Tokens, clock: ManualClock) -> None:
    for name in ("none", "None", "NONE", "nOnE", ""):
        with pytest.raises(Unauthorized, match="must be signed"):
            await tokens.read(forged({"alg": name, "kid": "ed"}, claims(clock)))


async def test_a_public_key_is_not_taken_for_a_shared_secret(tokens: Tokens, clock: ManualClock) -> None:
    public = json.dumps(jwks()["keys"][0]).encode()
    head = {"alg": "HS256", "kid": "rsa"}
    unsigned = forged(head, claims(clock)).rpartition(".")[0]
    signature = hmac.new(public, unsigned.encode(), hashlib.sha256).digest()
    for which in ("rsa", "shared"):
        with pytest.raises(Unauthorized, match="must be signed"):
            await tokens.read(forged({**head, "kid": which}, claims(clock), signature))


async def test_a_token_signed_by_somebody_else_is_refused(tokens: Tokens, clock: ManualClock) -> None:
    theirs = jwt.encode(claims(clock), OTHER, "EdDSA", headers={"kid": "ed"})
    with pytest.raises(Unauthorized, match="signature is wrong"):
        await tokens.read(theirs)
    with pytest.raises(Unauthorized, match="key that is not known"):
        await tokens.read(jwt.encode(claims(clock), OTHER, "EdDSA", headers={"kid": "theirs"}))
    with pytest.raises(Unauthorized, match="does not say which key"):
        await tokens.read(jwt.encode(claims(clock), ED, "EdDSA"))
    with pytest.raises(Unauthorized, match="not accepted"):
        await tokens.read(signed(clock, "ed", {"kid": "rsa"}))


async def test_a_changed_token_is_refused(tokens: Tokens, clock: ManualClock) -> None:
    head, _, signature = signed(clock).split(".")
    other = base64.urlsafe_b64encode(json.dumps(claims(clock, tenant="evil")).encode()).rstrip(b"=").decode()
    with pytest.raises(Unauthorized, match="signature is wrong"):
        await tokens.read(f"{head}.{other}.{signature}")
    with pytest.raises(Unauthorized):
        await tokens.read("x" * (MAX_TOKEN + 1))


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda raw: raw.decode("latin-1")))
async def test_whatever_is_sent_is_refused_and_nothing_else(text: str) -> None:
    tokens = Tokens(TokenRules("/dev/null", "i", "a"), ManualClock(now=100_000.0))
    tokens._read_at = 100_000.0
    with pytest.raises(Unauthorized):
        await tokens.read(text)


def test_scopes_may_come_as_text_or_list_and_with_a_prefix() -> None:
    assert read_claimed("exec warren:files nothing") == {Scope.EXEC, Scope.FILES}
    assert read_claimed(["read", "warren:admin", 7, None]) == {Scope.READ, Scope.ADMIN}
    assert read_claimed("read admin") == {Scope.READ}
    assert read_claimed(None) == read_claimed({"exec": True}) == read_claimed(7) == frozenset()


@pytest.mark.parametrize("missing", [{"issuer": ""}, {"audience": ""}])
def test_without_issuer_or_audience_no_token_is_accepted(missing: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="only from a known issuer"):
        TokenRules(**{"jwks": "x", "issuer": "i", "audience": "a", **missing})


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"keys": 7}', '{"keys": [{"kty": "RSA"}]}'])
async def test_a_file_that_is_no_jwks_is_told_at_the_start(tmp_path: Path, clock: ManualClock, content: str) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(content)
    with pytest.raises(Unavailable, match="is not a JWKS"):
        await Tokens(TokenRules(str(file), "i", "a"), clock).start()
    with pytest.raises(Unavailable, match="cannot be read"):
        await Tokens(TokenRules(str(tmp_path / "none"), "i", "a"), clock).start()


class Issuer:
    """Serves a JWKS on loopback; `keys` can be changed, and it can be told to fail."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = jwks()["keys"]
        self.asked = 0
        self.status = 200

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answers in two pieces, as a network does with a long answer."""
        self.asked += 1
        text, response = json.dumps({"keys": self.keys}).encode(), web.StreamResponse(status=self.status)
        await response.prepare(request)
        await response.write(text[:100])
        await asyncio.sleep(0.05)
        await response.write(text[100:])
        return response


@pytest.fixture
async def issuer() -> AsyncIterator[tuple[Issuer, str]]:
    issuer, app = Issuer(), web.Application()
    app.router.add_get("/jwks", issuer.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield issuer, f"http://127.0.0.1:{port}/jwks"
    await runner.cleanup()


async def test_an_issuers_new_key_is_fetched_but_not_for_every_forgery(
    issuer: tuple[Issuer, str], clock: ManualClock
) -> None:
    served, url = issuer
    tokens = Tokens(TokenRules(url, "https://issuer.example", "warren"), clock)
    await tokens.start()
    newcomer = jwt.encode(claims(clock), OTHER, "EdDSA", headers={"kid": "new"})
    for _ in range(20):
        with pytest.raises(Unauthorized, match="not known"):
            await tokens.read(newcomer)
    assert served.asked == 1
    served.keys.append({**OKPAlgorithm.to_jwk(OTHER.public_key(), as_dict=True), "kid": "new", "alg": "EdDSA"})
    await clock.advance(11)
    found = await asyncio.gather(*(tokens.read(newcomer) for _ in range(3)))  # all wait for the same answer
    assert [caller.tenant for caller, _ in found] == ["acme"] * 3
    assert served.asked == 2


async def test_an_issuer_that_is_away_does_not_lock_anybody_out(issuer: tuple[Issuer, str], clock: ManualClock) -> None:
    served, url = issuer
    tokens = Tokens(TokenRules(url, "https://issuer.example", "warren"), clock)
    await tokens.start()
    served.status = 500
    await clock.advance(3600)
    assert (await tokens.read(signed(clock)))[0].tenant == "acme"
    assert served.asked == 2


async def test_an_issuer_that_was_away_at_the_start_is_asked_again(
    issuer: tuple[Issuer, str], clock: ManualClock
) -> None:
    served, url = issuer
    served.status = 503
    tokens = Tokens(TokenRules(url, "https://issuer.example", "warren"), clock)
    await tokens.start()
    with pytest.raises(Unauthorized, match="not known"):
        await tokens.read(signed(clock))
    served.status = 200
    await clock.advance(11)
    assert (await tokens.read(signed(clock)))[0].tenant == "acme"
