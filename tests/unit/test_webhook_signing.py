"""Signatures that any receiver of Standard Webhooks can check, and that nobody else can make."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webhook_page import is_genuine

from warren.governance.webhooks.signing import new_secret, sign

# The example that the specification's own libraries are tested with.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"another secret, 32 bytes long...").decode()
ID, TIME, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, '{"test": 2432232314}'
SENT = BODY.encode()
SIGNED = {
    "webhook-id": ID,
    "webhook-timestamp": str(TIME),
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}


def test_the_example_of_the_specification() -> None:
    assert sign([SECRET], ID, TIME, BODY) == SIGNED


def test_a_receiver_finds_it_genuine_whatever_the_case_of_the_headers() -> None:
    assert is_genuine(SECRET, SIGNED, SENT, TIME)
    assert is_genuine(SECRET, {name.title(): value for name, value in SIGNED.items()}, SENT, TIME)


def test_while_a_secret_is_changed_both_are_good() -> None:
    headers = sign([OTHER, SECRET], ID, TIME, BODY)
    assert headers["webhook-signature"].count("v1,") == 2
    assert is_genuine(SECRET, headers, SENT, TIME)
    assert is_genuine(OTHER, headers, SENT, TIME)


def test_signatures_of_other_kinds_are_passed_over() -> None:
    signatures = f"v1a,AAAA é  {SIGNED['webhook-signature']} v2,"
    assert is_genuine(SECRET, {**SIGNED, "webhook-signature": signatures}, SENT, TIME)


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("another id", {"webhook-id": "msg_2"}),
        ("another time", {"webhook-timestamp": str(TIME + 1)}),
        ("the same time, written otherwise", {"webhook-timestamp": f"0{TIME}"}),
        ("no time", {"webhook-timestamp": ""}),
        ("a time with a sign", {"webhook-timestamp": f"+{TIME}"}),
        ("a time in other digits", {"webhook-timestamp": "١٦١٤٢٦٥٣٣٠"}),
        ("a dot moved from the id to the time", {"webhook-id": f"{ID}.1", "webhook-timestamp": "614265330"}),
        ("another version", {"webhook-signature": "v2" + SIGNED["webhook-signature"][2:]}),
        ("no version", {"webhook-signature": SIGNED["webhook-signature"][3:]}),
        ("a part of it", {"webhook-signature": SIGNED["webhook-signature"][:-4]}),
        ("nothing", {"webhook-signature": ""}),
        ("the version only", {"webhook-signature": "v1,"}),
        ("letters nobody can encode", {"webhook-signature": "v1,\udcff"}),
    ],
)
def test_what_is_not_right_is_not_genuine(why: str, change: dict[str, str]) -> None:
    assert not is_genuine(SECRET, {**SIGNED, **change}, SENT, TIME)


@pytest.mark.parametrize("missing", list(SIGNED))
def test_a_missing_header_is_not_genuine(missing: str) -> None:
    assert not is_genuine(SECRET, {name: value for name, value in SIGNED.items() if name != missing}, SENT, TIME)


@pytest.mark.parametrize(
    ("now", "good"), [(TIME - 301, False), (TIME - 300, True), (TIME + 300, True), (TIME + 301, False)]
)
def test_old_messages_and_those_of_the_future_are_not_genuine(now: float, good: bool) -> None:
    assert is_genuine(SECRET, SIGNED, SENT, now) is good


def test_new_secrets_are_of_32_bytes_and_differ() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert {len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) for secret in made} == {32}


@pytest.mark.parametrize(("keys", "message_id", "time"), [([], ID, TIME), ([SECRET], "a.b", TIME), ([SECRET], ID, -1)])
def test_what_cannot_be_signed_unmistakably_is_not_signed(keys: list[str], message_id: str, time: int) -> None:
    with pytest.raises(ValueError, match="signing needs"):
        sign(keys, message_id, time, BODY)


keys = st.binary(min_size=24, max_size=64).map(lambda key: "whsec_" + base64.b64encode(key).decode())


@given(key=keys, body=st.text(max_size=200), time=st.integers(0, 10**11), at=st.integers(0), bit=st.integers(0, 7))
def test_one_bit_of_the_body_makes_the_difference(key: str, body: str, time: int, at: int, bit: int) -> None:
    headers, sent = sign([key], "msg_1", time, body), body.encode()
    assert is_genuine(key, headers, sent, time)
    changed = bytearray(sent or b"\0")
    changed[at % len(changed)] ^= 1 << bit
    assert not is_genuine(key, headers, bytes(changed), time)


@given(one=keys, other=keys)
def test_another_secret_does_not_do(one: str, other: str) -> None:
    assert is_genuine(other, sign([one], "msg_1", TIME, BODY), SENT, TIME) is (one == other)
