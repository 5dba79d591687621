"""Signatures that any receiver of Standard Webhooks can check, and that nobody else can make."""

import base64
import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.governance.webhooks.signing import new_secret, read_secret, sign, verify
from warren.model.errors import InvalidRequest, Unauthorized

PAGE = Path(__file__).parents[2] / "docs" / "webhooks.md"
# The example that the specification's own libraries are tested with.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"another secret, 32 bytes long...").decode()
ID, TIME, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNED = {
    "webhook-id": ID,
    "webhook-timestamp": str(TIME),
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}


def test_the_example_of_the_specification() -> None:
    assert sign([SECRET], ID, TIME, BODY) == SIGNED


def test_the_signature_is_verified_whatever_the_case_of_the_headers() -> None:
    verify(SECRET, SIGNED, BODY, TIME)
    verify(SECRET, {name.title(): value for name, value in SIGNED.items()}, BODY, TIME)


def test_while_a_secret_is_changed_both_are_good() -> None:
    headers = sign([OTHER, SECRET], ID, TIME, BODY)
    assert headers["webhook-signature"].count("v1,") == 2
    verify(SECRET, headers, BODY, TIME)
    verify(OTHER, headers, BODY, TIME)


def test_signatures_of_other_kinds_are_passed_over() -> None:
    verify(SECRET, {**SIGNED, "webhook-signature": f"v1a,AAAA é  {SIGNED['webhook-signature']} v2,"}, BODY, TIME)


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
def test_what_is_not_right_is_refused(why: str, change: dict[str, str]) -> None:
    with pytest.raises(Unauthorized):
        verify(SECRET, {**SIGNED, **change}, BODY, TIME)


@pytest.mark.parametrize("missing", list(SIGNED))
def test_a_missing_header_is_refused(missing: str) -> None:
    with pytest.raises(Unauthorized):
        verify(SECRET, {name: value for name, value in SIGNED.items() if name != missing}, BODY, TIME)


@pytest.mark.parametrize(
    ("now", "good"), [(TIME - 301, False), (TIME - 300, True), (TIME + 300, True), (TIME + 301, False)]
)
def test_old_messages_and_those_of_the_future_are_refused(now: float, good: bool) -> None:
    if good:
        verify(SECRET, SIGNED, BODY, now)
    else:
        with pytest.raises(Unauthorized, match="not of the last 300 s"):
            verify(SECRET, SIGNED, BODY, now)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whsec_",
        SECRET.removeprefix("whsec_"),
        "WHSEC_" + SECRET.removeprefix("whsec_"),
        "whsec_not base64 at all, but long enough",
        "whsec_é" * 8,
        "whsec_" + base64.b64encode(bytes(23)).decode(),
        "whsec_" + base64.b64encode(bytes(65)).decode(),
    ],
)
def test_a_secret_that_is_none_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_secret(text)
    assert len(text) < 7 or text not in str(caught.value)


def test_new_secrets_are_secrets_and_differ() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert {len(read_secret(secret)) for secret in made} == {32}


@pytest.mark.parametrize(("keys", "message_id", "time"), [([], ID, TIME), ([SECRET], "a.b", TIME), ([SECRET], ID, -1)])
def test_what_cannot_be_signed_unmistakably_is_not_signed(keys: list[str], message_id: str, time: int) -> None:
    with pytest.raises(ValueError, match="signing needs"):
        sign(keys, message_id, time, BODY)


keys = st.binary(min_size=24, max_size=64).map(lambda key: "whsec_" + base64.b64encode(key).decode())


@given(
    key=keys, body=st.binary(max_size=200), time=st.integers(0, 10**12 - 1), at=st.integers(0), bit=st.integers(0, 7)
)
def test_one_bit_of_the_body_makes_the_difference(key: str, body: bytes, time: int, at: int, bit: int) -> None:
    headers = sign([key], "msg_1", time, body)
    verify(key, headers, body, time)
    changed = bytearray(body or b"\0")
    changed[at % len(changed)] ^= 1 << bit
    with pytest.raises(Unauthorized):
        verify(key, headers, bytes(changed), time)


@given(one=keys, other=keys)
def test_another_secret_does_not_do(one: str, other: str) -> None:
    if one != other:
        with pytest.raises(Unauthorized):
            verify(other, sign([one], "msg_1", TIME, BODY), BODY, TIME)


# -- what the page shows to receivers


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bool]:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    (block,) = [block for block in blocks if "def is_genuine" in block]
    program = tmp_path_factory.mktemp("page") / "verify.py"
    program.write_text(block)
    is_genuine: Callable[..., bool] = runpy.run_path(str(program))["is_genuine"]
    return is_genuine


def test_the_page_and_the_code_agree_on_what_is_right(shown: Callable[..., bool]) -> None:
    assert shown(SECRET, SIGNED, BODY, TIME)
    assert shown(SECRET, sign([OTHER, SECRET], ID, TIME, BODY), BODY, TIME + 300)
    assert not shown(OTHER, SIGNED, BODY, TIME)
    assert not shown(SECRET, SIGNED, BODY + b" ", TIME)
    assert not shown(SECRET, SIGNED, BODY, TIME + 301)
    assert not shown(SECRET, SIGNED, BODY, TIME - 301)
    for name in SIGNED:
        assert not shown(SECRET, {**SIGNED, name: "é"}, BODY, TIME)
        assert not shown(SECRET, {key: value for key, value in SIGNED.items() if key != name}, BODY, TIME)
