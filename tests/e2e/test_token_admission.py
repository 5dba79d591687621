"""Tokens at the door of a real server: the right ones name a tenant, all others get a clear refusal."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from e2e.api_client import Api
from e2e.conftest import NewState
from jwt.algorithms import OKPAlgorithm
from server_process import ServerProcess, running_server

pytestmark = pytest.mark.anyio

SIGNER = ed25519.Ed25519PrivateKey.generate()
OTHER = ed25519.Ed25519PrivateKey.generate()


@pytest.fixture(scope="module")
def server(new_state: NewState) -> Iterator[ServerProcess]:
    state = new_state()
    key = {**OKPAlgorithm.to_jwk(SIGNER.public_key(), as_dict=True), "kid": "one", "alg": "EdDSA"}
    (state / "jwks.json").write_text(json.dumps({"keys": [key]}))
    flags = ("--jwt-jwks", str(state / "jwks.json"), "--jwt-issuer", "https://id.example", "--jwt-audience", "warren")
    with running_server(state, *flags, provider="fake", WARREN_AUTH="true") as server:
        yield server


@pytest.fixture(scope="module")
def url(server: ServerProcess) -> str:
    return server.url


def token(signer: Any = SIGNER, kid: str = "one", **changes: Any) -> str:
    claims = {
        "iss": "https://id.example",
        "aud": "warren",
        "sub": "ada",
        "tenant": "acme",
        "scope": "sessions exec read",
        "exp": time.time() + 600,
        **changes,
    }
    return jwt.encode(claims, signer, "EdDSA", headers={"kid": kid})


def unsigned() -> str:
    parts = (
        {"alg": "none", "kid": "one"},
        {"iss": "https://id.example", "aud": "warren", "tenant": "acme", "exp": 4e9},
    )
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."


async def test_a_token_opens_the_door_for_its_tenant_and_scopes(url: str) -> None:
    async with Api(url, {"Authorization": f"Bearer {token()}"}) as api, api.session() as session:
        assert await session.output("echo hi") == "hi\n"
        found = await api.get("/api/whoami")
        assert (found["tenant"], found["key_id"], found["scopes"]) == ("acme", "jwt:ada", ["exec", "read", "sessions"])
        await api.refused("GET", "/api/admin/keys", status=403, code="forbidden")
        await api.refused("GET", f"/api/sessions/{session.id}/files", status=403, code="forbidden")
    async with Api(url, {"Authorization": f"Bearer {token(tenant='other')}"}) as api:
        await api.refused("GET", f"/api/sessions/{session.id}", status=404, code="session_not_found")


NOT_RIGHT: dict[str, Callable[[], str]] = {  # made when asked for: a token of the first minute has expired in the last
    "has expired": lambda: token(exp=time.time() - 600),
    "not valid yet": lambda: token(nbf=time.time() + 6000),
    "signature is wrong": lambda: token(OTHER),
    "key that is not known": lambda: token(kid="two"),
    "another issuer": lambda: token(iss="https://else.example"),
    "another audience": lambda: token(aud="else"),
    "does not name a tenant": lambda: token(tenant=""),
    "must be signed": unsigned,
    "neither a key of this server nor a token": lambda: "a.b.c",
    "API key": lambda: "x" * 20_000,
}


@pytest.mark.parametrize("words", NOT_RIGHT)
async def test_a_token_that_is_not_right_is_refused_in_words(url: str, words: str) -> None:
    shown = NOT_RIGHT[words]()
    async with Api(url, {"Authorization": f"Bearer {shown}"}) as api:
        refused = await api.refused("GET", "/api/whoami", status=401, code="unauthorized")
        assert words in refused["detail"]
        assert shown[:200] not in json.dumps(refused)


async def test_a_giant_token_is_too_large_a_header(url: str) -> None:
    async with Api(url, {"Authorization": f"Bearer {'x' * 100_000}"}) as api, api.ask("GET", "/api/whoami") as answer:
        assert answer.status == 431


def test_with_an_issuer_no_first_key_is_made(server: ServerProcess) -> None:
    assert not server.credentials.exists()
    assert "Made a key" not in server.log


async def test_a_token_that_was_revoked_is_refused_and_others_are_not(url: str) -> None:
    admin = {"Authorization": f"Bearer {token(scope='warren:admin', sub='boss')}"}
    stolen, kept = ({"Authorization": f"Bearer {token(jti=name)}"} for name in ("stolen", "kept"))
    eve = {"Authorization": f"Bearer {token(sub='eve', iat=time.time() - 5)}"}
    async with Api(url, admin) as boss, Api(url, stolen) as thief, Api(url, kept) as owner, Api(url, eve) as other:
        for api in (thief, owner, other):
            await api.get("/api/whoami")
        made = await boss.call("POST", "/api/admin/revocations", {"token_id": "stolen"}, status=201)
        await boss.call("POST", "/api/admin/revocations", {"subject": "eve"}, status=201)
        for api in (thief, other):
            refused = await api.refused("GET", "/api/whoami", status=401, code="unauthorized")
            assert "was revoked" in refused["detail"]
        await owner.get("/api/whoami")
        await owner.refused("POST", "/api/admin/revocations", {"token_id": "kept"}, status=403, code="forbidden")
        assert len((await boss.get("/api/admin/revocations"))["revocations"]) == 2
        await boss.call("DELETE", f"/api/admin/revocations/{made['id']}", status=204)
        await thief.get("/api/whoami")
