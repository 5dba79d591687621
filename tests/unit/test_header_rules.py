"""Header rules: what is taken, what of an answer is blotted out, and that no value is stored or shown in the clear."""

import base64
import os
import re
import time
from dataclasses import replace
from typing import Any

import pytest
from busiest_turn import own_memory
from this_run import patience

from warren.http.e2b.control.network import read_header_rules, show_network
from warren.http.e2b.errors import E2bError
from warren.model.errors import InvalidRequest, Unavailable
from warren.model.header_rules import MAX_HEADER_RULES, HeaderRule, check_header_rules, new_header_rules
from warren.model.network import NO_NETWORK, NetworkRules, canonical_name
from warren.model.preview import PreviewRules
from warren.model.session import Session
from warren.sandboxes.egress.broker_http import Scrubber
from warren.sessions.new_session import NewSession, fingerprint
from warren.stores.encryption import KEY_BYTES, Encryption
from warren.stores.session_json import decode_session, encode_session

pytestmark = pytest.mark.anyio

VALUE = "Bearer sk-0123456789abcdef"
RULE = HeaderRule("api.example", "Authorization", VALUE)
RULES = NetworkRules(allow=("api.example",), headers=(RULE,))
SESSION = Session("ses_1", "t", "e2b", "epoch", 0.0, 0.0, 0.0, network=RULES)


def asked(host: str = "api.example", **headers: Any) -> dict[str, Any]:
    return {"rules": {host: [{"transform": {"headers": {name.replace("_", "-"): v for name, v in headers.items()}}}]}}


async def test_rules_of_a_client_are_read_in_order() -> None:
    values = asked("API.Example", X_Key="one", Authorization="first")
    values["rules"]["API.Example"] += [{}, {"transform": {}}, {"transform": {"headers": {"authorization": VALUE}}}]
    assert await read_header_rules(values) == (
        HeaderRule("api.example", "X-Key", "one"),
        HeaderRule("api.example", "authorization", VALUE),
    )
    empty: list[dict[str, Any]] = [{}, {"rules": None}, {"rules": {}}, {"rules": {"api.example": [{}]}}]
    for nothing in empty:
        assert await read_header_rules(nothing) == ()


def _set(header: str) -> dict[str, Any]:
    return {"rules": {"api.example": [{"transform": {"headers": {header: VALUE}}}]}}


@pytest.mark.parametrize(
    ("values", "status", "says"),
    [
        ({"rules": []}, 400, "object"),
        ({"rules": {"api.example": {}}}, 400, "list"),
        ({"rules": {"api.example": ["x"]}}, 400, "list of objects"),
        ({"rules": {"api.example": [{"transform": 7}]}}, 400, "transform"),
        ({"rules": {"api.example": [{"transform": {"headers": {"X-Key": 7}}}]}}, 400, "texts"),
        ({"rules": {"api.example": [{"transform": {"body": "x"}}]}}, 501, "body"),
        ({"rules": {"api.example": [{"action": "deny"}]}}, 501, "action"),
        *((asked(host, X_Key=VALUE), 400, "host") for host in ("*", "1.2.3.4", "a.test:8", "::1", "a b", "")),
        (asked("*.example", X_Key=VALUE), 501, "wildcards"),
        (asked("localhost", X_Key=VALUE), 400, "localhost"),
        (asked("x.broker.internal", X_Key=VALUE), 400, "broker"),
        *((asked(**{name: VALUE}), 400, "connection") for name in ("Host", "Content_Length", "Proxy_X", "Sec_X", "TE")),
        *((_set(name), 400, "connection") for name in ("Transfer_Encoding", "content_length", "Proxy_X")),
        (asked(**{"X Key": VALUE}), 400, "header"),
        *((asked(X_Key=f"{VALUE}{end}"), 400, "X-Key") for end in ("\r\nHost: x", "\n", " ", "é", "\0", "x" * 4096)),
        (asked(X_Key="Bearer ${e2b.identity.tokens.aws}"), 501, "iam"),
        (asked(X_Key="***"), 400, "shown"),
        (asked(**{f"X_{number}": VALUE for number in range(9)}), 400, "headers"),
        ({"rules": {f"h{number}.example": [] for number in range(41)}}, 400, "hosts"),
        ({"rules": {"api.example": [{}] * 41}}, 400, "at most"),
        ({"rules": {"api.example": 6 * [{"transform": {"headers": {f"X-{n}": VALUE for n in range(7)}}}]}}, 400, "40"),
    ],
)  # fmt: skip
async def test_what_is_wrong_with_rules_is_said_without_their_values(
    values: dict[str, Any], status: int, says: str
) -> None:
    with pytest.raises(E2bError) as refused:
        await read_header_rules(values)
    assert (refused.value.status, says in str(refused.value)) == (status, True), str(refused.value)
    assert "sk-0123" not in str(refused.value)


def test_a_session_has_so_many_and_no_more() -> None:
    rules = [HeaderRule(f"h{number}.example", "X-Key", "v") for number in range(MAX_HEADER_RULES)]
    assert len(check_header_rules(rules)) == MAX_HEADER_RULES
    with pytest.raises(InvalidRequest, match="at most"):
        check_header_rules([*rules, RULE])
    with pytest.raises(InvalidRequest, match=r"more than 8 .* api\.example"):
        check_header_rules(new_header_rules("api.example", [(f"X-{number}", "v") for number in range(9)]))
    with pytest.raises(InvalidRequest, match="characters together"):
        check_header_rules(HeaderRule(f"h{number}.example", "X-Key", "v" * 4096) for number in range(9))


async def test_reading_rules_does_not_hold_the_loop() -> None:
    name = "ä" * 50
    hosts = [f"{name}{number}.{name}.{name}.example" for number in range(40)]
    five = {host: 2 * asked(**{f"X_{each}": VALUE for each in range(4)})["rules"]["api.example"] for host in hosts[:5]}
    for rules in ({host: asked(X_Key=VALUE)["rules"]["api.example"] for host in hosts}, five):
        with own_memory():
            begun = time.thread_time()
            read = await read_header_rules({"rules": rules})
            assert time.thread_time() - begun < patience(0.01)  # one of these names takes a millisecond
        assert {rule.host for rule in read} == {canonical_name(host) for host in rules}


def test_what_a_host_may_repeat_is_known() -> None:
    assert set(RULE.traces) == {
        VALUE.encode(),
        VALUE.split()[1].encode(),
        base64.b64encode(VALUE.split()[1].encode()),
    }
    basic = base64.b64encode(b"user:pass word-1").decode()
    traces = HeaderRule("api.example", "Authorization", f"Basic {basic}").traces
    assert {basic.encode(), b"user:pass word-1", b"pass word-1", b"pass%20word-1"} <= set(traces)
    assert list(traces) == sorted(traces, key=len, reverse=True)
    assert len(HeaderRule("api.example", "Authorization", "Basic no:base64").traces) == 4
    for header, value in (("X-Flag", "on"), ("Accept", "application/json"), ("User-Agent", "our-agent/1.0"), ("X", "")):
        assert HeaderRule("api.example", header, value).traces == ()


@pytest.mark.parametrize(
    ("header", "value", "repeated"),
    [
        ("Cookie", "sid=0123456789abcdef; theme=dark", '{"cookies": {"sid": "0123456789abcdef", "theme": "dark"}}'),
        ("Cookie", "sid=0123456789abcdef", '"0123456789abcdef"'),
        ("X-Key", 'a"quoted\\key/0123', r'{"key": "a\"quoted\\key/0123", "php": "a\"quoted\\key\/0123"}'),
        ("Authorization", 'Digest username="mufasa-king", response="6629fae49393", nc=1', "mufasa-king 6629fae49393"),
        ("Authorization", "Key one-0123456789, Key two-0123456789", "one-0123456789 two-0123456789"),
    ],
)
def test_a_part_that_a_host_repeats_alone_is_blotted_out(header: str, value: str, repeated: str) -> None:
    rule = HeaderRule("api.example", header, value)
    clean = Scrubber(rule.traces).clean(repeated.encode()).decode()
    for part in re.findall(r"[a-z0-9-]{8,}|quoted|0123", repeated):
        assert part not in clean
    assert ("cookies" in clean, "dark" in clean) == ("cookies" in repeated, "dark" in repeated)


def test_so_many_parts_are_looked_for_and_no_more() -> None:
    def cookie(parts: int) -> HeaderRule:
        return HeaderRule("api.example", "Cookie", "; ".join(f"c{number}=0123456789" for number in range(parts)))

    assert check_header_rules([cookie(32)])
    with pytest.raises(InvalidRequest, match=r"api\.example have more than 32 parts"):
        check_header_rules([cookie(32), RULE])


def test_values_are_stored_encrypted_and_shown_to_nobody() -> None:
    encryption = Encryption(os.urandom(KEY_BYTES))
    text = encode_session(SESSION, encryption)
    assert "sk-0123" not in text
    assert "Authorization" not in text
    assert decode_session(text, encryption) == decode_session(encode_session(SESSION)) == SESSION
    with pytest.raises(Unavailable):
        decode_session(text.replace("ses_1", "ses_2"), encryption)
    odd = replace(SESSION, network=RULES.with_headers((HeaderRule("api.example", "Host", "of another version"),)))
    assert decode_session(encode_session(odd)) == odd
    shown = f"{SESSION!r} {RULES} {RULES.as_mapping()} {show_network(SESSION)}"
    assert "sk-0123" not in shown
    assert show_network(SESSION)["rules"] == {"api.example": [{"transform": {"headers": {"Authorization": "***"}}}]}


def test_rules_of_headers_open_nothing() -> None:
    closed = NO_NETWORK.with_headers((RULE,))
    assert (closed.is_open, closed.headers_in_force(), closed == NO_NETWORK) == (False, (), False)
    assert RULES.headers_in_force() == (RULE,)
    other = HeaderRule("other.example", "X-Key", VALUE)
    assert closed.with_headers((RULE, other)).headers_in_force({"api.example"}) == (RULE,)  # a secret opens this host
    assert closed.with_headers(()) == NO_NETWORK


def test_a_request_without_them_is_the_same_as_in_versions_that_did_not_know_them() -> None:
    plain = NewSession(network=NetworkRules(True, allow=("api.example",)), previews=PreviewRules(everything=True))
    assert fingerprint(plain) == "eabb384e235ad746c155982df2db40de5c173c492307adb10c7b9afbc7cd064d"
    assert fingerprint(replace(plain, previews=PreviewRules(everything=True, host_mask="a"))) != fingerprint(plain)
    assert fingerprint(replace(plain, network=RULES)) != fingerprint(replace(plain, network=RULES.with_headers(())))
