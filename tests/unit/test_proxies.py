"""Whose word about the client is believed."""

from typing import Any

import pytest

from warren.http.server.request_origin import TrustedProxies
from warren.model.errors import InvalidRequest


def scope(peer: str, *forwarded_for: str, proto: str = "", kind: str = "http") -> dict[str, Any]:
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in forwarded_for]
    headers += [(b"x-forwarded-proto", proto.encode())] if proto else []
    return {"type": kind, "client": (peer, 4711), "scheme": "http" if kind == "http" else "ws", "headers": headers}


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "client"),
    [
        ("10.0.0.1", ("192.0.2.7",), "192.0.2.7"),
        ("10.0.0.1", ("6.6.6.6, 192.0.2.7",), "192.0.2.7"),
        ("10.0.0.1", ("6.6.6.6", "192.0.2.7"), "192.0.2.7"),
        ("10.0.0.1", ("6.6.6.6, 192.0.2.7, 10.9.9.9, 127.0.0.1",), "192.0.2.7"),
        ("10.0.0.1", ("10.0.0.3, 10.0.0.2",), "10.0.0.3"),
        ("10.0.0.1", ("192.0.2.7:1234",), "192.0.2.7"),
        ("10.0.0.1", ("[2001:db8::7]:1234",), "2001:db8::7"),
        ("10.0.0.1", ("2001:DB8::7",), "2001:db8::7"),
        ("10.0.0.1", ("::ffff:192.0.2.7",), "192.0.2.7"),
        ("::ffff:10.0.0.1", ("192.0.2.7",), "192.0.2.7"),
        ("::1", ("192.0.2.7",), "192.0.2.7"),
        ("10.0.0.1", (), "10.0.0.1"),
        ("10.0.0.1", ("",), "10.0.0.1"),
        ("10.0.0.1", ("unknown",), "10.0.0.1"),
        ("10.0.0.1", ("192.0.2.7, <script>",), "10.0.0.1"),
        ("10.0.0.1", ("192.0.2.7, junk, 10.0.0.2",), "10.0.0.2"),
        ("10.0.0.1", ("192.0.2.7,",), "10.0.0.1"),
        ("10.0.0.1", ("192.0.2.7, \xff\xfe",), "10.0.0.1"),
        ("10.0.0.1", (", ".join(["192.0.2.7"] + ["10.0.0.2"] * 5000),), "10.0.0.2"),
        ("192.0.2.1", ("6.6.6.6",), "192.0.2.1"),
        ("11.0.0.1", ("6.6.6.6",), "11.0.0.1"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_proxy(
    peer: str, forwarded_for: tuple[str, ...], client: str
) -> None:
    asked = scope(peer, *forwarded_for)
    TrustedProxies(["127.0.0.1", "10.0.0.0/8", "::1"]).apply(asked)
    assert asked["client"][0].removeprefix("::ffff:") == client


@pytest.mark.parametrize(
    ("peer", "proto", "kind", "scheme"),
    [
        ("10.0.0.1", "https", "http", "https"),
        ("10.0.0.1", "HTTPS", "http", "https"),
        ("10.0.0.1", "https", "websocket", "wss"),
        ("10.0.0.1", "https, http", "http", "http"),
        ("10.0.0.1", "http, https", "http", "https"),
        ("10.0.0.1", "gopher", "http", "http"),
        ("10.0.0.1", "javascript", "websocket", "ws"),
        ("192.0.2.1", "https", "http", "http"),
    ],
)
def test_the_scheme_is_the_one_the_proxy_saw(peer: str, proto: str, kind: str, scheme: str) -> None:
    asked = scope(peer, proto=proto, kind=kind)
    TrustedProxies(["10.0.0.0/8"]).apply(asked)
    assert asked["scheme"] == scheme


def test_a_connection_without_an_address_is_left_alone() -> None:
    asked = {**scope("10.0.0.1", "192.0.2.7"), "client": None}
    TrustedProxies(["10.0.0.0/8"]).apply(asked)
    assert asked["client"] is None


def test_nobody_is_trusted_unless_named() -> None:
    assert not TrustedProxies([])
    with pytest.raises(InvalidRequest, match=r"proxy\.example"):
        TrustedProxies(["proxy.example"])
