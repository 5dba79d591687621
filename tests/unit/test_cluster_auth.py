"""How processes of a cluster know each other, and how one tells the other for whom it asks."""

import hmac
import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.cluster import auth as module
from warren.cluster.auth import (
    CALLER_HEADER,
    PROTOCOL_HEADER,
    SECRET_HEADER,
    ClusterAuth,
    CoordinatorIdentity,
    decode_caller,
    encode_caller,
    sealing_key,
)
from warren.cluster.roster import PROTOCOL
from warren.model.access import ALL_SCOPES, ANY_TENANT, Caller, Quota, Scope
from warren.model.errors import Conflict, Unauthorized
from warren.stores.encryption import read_key

AUTH = ClusterAuth("a-secret-of-the-cluster")


@pytest.mark.parametrize(
    "caller",
    [
        Caller(),
        Caller("acme", "key_1", frozenset({Scope.READ})),
        Caller("acme", "", frozenset()),
        Caller("acme", "key_1", ALL_SCOPES, Quota(sessions=5), Quota(requests_per_minute=0)),
        Caller(ANY_TENANT, "key_1", ALL_SCOPES),
        Caller("ünï-çødé 🐇", "key\n\r\0", ALL_SCOPES),
    ],
    ids=lambda caller: ascii(caller.tenant),
)
def test_a_caller_comes_over_as_he_is(caller: Caller) -> None:
    text = encode_caller(caller)
    assert decode_caller(text) == caller
    assert text.isascii()
    assert not any(char < 32 for char in text), "it goes into a header"


@given(
    tenant=st.text(max_size=40),
    scopes=st.frozensets(st.sampled_from(list(Scope))),
    values=st.fixed_dictionaries(
        {},
        optional={
            **{name: st.integers(0, 10**9) for name in ("sessions", "disk_mb", "requests_per_minute")},
            "max_lifetime_s": st.floats(1, 1000),
            "environments": st.lists(st.text(min_size=1), max_size=3).map(tuple),
            "limits": st.just({"memory_mb": 1024.0}),
        },
    ),
)
def test_any_caller_with_any_quota_comes_over(tenant: str, scopes: frozenset[Scope], values: dict[str, Any]) -> None:
    quota = Quota(**values)
    for caller in (Caller(tenant, "k", scopes, quota), Caller(tenant, "k", scopes, key_quota=quota)):
        assert decode_caller(encode_caller(caller)) == caller


def test_who_shows_the_secret_and_speaks_the_same_is_let_in() -> None:
    AUTH.check(AUTH.headers())
    ClusterAuth("a-secret-of-the-cluster").check([(b"host", b"x"), *AUTH.headers()])


@pytest.mark.parametrize(
    "given_secret", [None, b"", b"a-secret", b"a-secret-of-the-cluster ", b"A-secret-of-the-cluster", b"\xff" * 23]
)
def test_whoever_does_not_know_the_secret_is_refused_without_hearing_it(given_secret: bytes | None) -> None:
    headers = [(PROTOCOL_HEADER, b"%d" % PROTOCOL), *([] if given_secret is None else [(SECRET_HEADER, given_secret)])]
    with pytest.raises(Unauthorized, match="know the cluster's secret") as caught:
        AUTH.check(headers)
    assert "WARREN_CLUSTER_SECRET" in caught.value.remedy
    assert "a-secret" not in f"{caught.value} {caught.value.remedy}"


def test_secrets_are_compared_in_constant_time() -> None:
    assert "hmac.compare_digest" in inspect.getsource(module.ClusterAuth.check)
    assert module.hmac is hmac


@pytest.mark.parametrize("spoken", [None, b"", b"0", b"2", b"1.0", b" 1", b"\xff", b"9" * 5000])
def test_another_protocol_is_refused_in_words(spoken: bytes | None) -> None:
    headers = [AUTH.headers()[0], *([] if spoken is None else [(PROTOCOL_HEADER, spoken)])]
    with pytest.raises(Conflict, match=f"this process uses protocol {PROTOCOL}") as caught:
        AUTH.check(headers)
    assert "same version of Warren" in caught.value.remedy
    assert len(caught.value.message) < 200


@pytest.mark.anyio
async def test_a_worker_believes_a_coordinator_about_the_caller_and_nobody_else() -> None:
    caller = Caller("acme", "key_1", frozenset({Scope.EXEC}), Quota(sessions=2))
    said = (CALLER_HEADER, encode_caller(caller))
    trusted = CoordinatorIdentity(AUTH)
    assert await trusted.caller([*AUTH.headers(), said]) == caller
    for headers in ([said], [(SECRET_HEADER, b"wrong"), said], [*ClusterAuth("another secret").headers(), said]):
        with pytest.raises(Unauthorized):
            await trusted.caller(headers)
    with pytest.raises(Unauthorized, match="does not name its caller"):
        await trusted.caller(AUTH.headers())


def test_what_is_sealed_with_is_another_for_every_secret_and_does_not_tell_it() -> None:
    keys = {sealing_key(secret) for secret in ("a", "b", "a-secret-of-the-cluster")}
    assert len(keys) == 3
    for key in keys:
        assert len(read_key(key)) == 32
        assert "secret" not in key
    assert sealing_key("a") == sealing_key("a")


def test_while_the_secret_is_changed_both_are_accepted() -> None:
    old, new = "an-old-secret-of-the-cluster", "a-new-secret-of-the-cluster"
    first, second, last = ClusterAuth(old, new), ClusterAuth(new, old), ClusterAuth(new)
    for one in (first, second):
        for other in (first, second):
            one.check(other.headers())
    last.check(second.headers())
    with pytest.raises(Unauthorized):
        last.check(first.headers())
