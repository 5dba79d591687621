"""Tokens that the installation signs: those that were given out before stay valid, and nobody else can make one."""

import pytest

from warren.http.e2b.tokens import Opens, SandboxTokens, Upload
from warren.kernel.signing import Signer, from_text, to_text
from warren.model.errors import Unauthorized
from warren.sessions.preview_links import Link, PreviewLinks

OLD, NEW = bytes(range(32)), b"k" * 32
SESSION = "ses_0123456789abcdef0123456789abcdef"
LINK = Link("acme", SESSION, 8080, 2_000_000_000, 3, True)
UPLOAD = Upload(4_000_000_000, "acme", "key_1", "ab" * 16)
# Signed by the version before there was one module for all of them.
LINK_TOKEN = (
    "MjAwMDAwMDAwMCAzIDgwODAgMSBzZXNfMDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWYgYWNtZQ"
    ".RtBpa-Yuinqbor50AAlf-EckBA_61Dlo"
)
SANDBOX_TOKENS = {
    Opens.ACCESS: "wet_0123456789abcdef0123456789abcdef_bb1375df0ecb770550e1675643f5f7084d66ae56",
    Opens.TRAFFIC: "wtt_0123456789abcdef0123456789abcdef_e9419f3d90ee2f3d0cae8ea20a9a9c7607d3ad03",
}
UPLOAD_TOKEN = (
    "WzQwMDAwMDAwMDAsICJhY21lIiwgImtleV8xIiwgImFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiIl0"
    ".4f1c23bda03b43bc30b4e611793734bd1575a6be"
)


@pytest.mark.parametrize("keys", [[OLD], [NEW, OLD]], ids=["same key", "key was changed"])
def test_tokens_that_were_given_out_are_read(keys: list[bytes]) -> None:
    assert PreviewLinks(keys).read(LINK_TOKEN, now=1_999_999_999) == LINK
    tokens = SandboxTokens(keys)
    assert tokens.read_upload(UPLOAD_TOKEN) == UPLOAD
    for opens, token in SANDBOX_TOKENS.items():
        tokens.check(token, opens, SESSION)


def test_tokens_are_still_written_the_same_way() -> None:
    assert PreviewLinks([OLD]).sign(LINK) == LINK_TOKEN
    assert SandboxTokens([OLD]).sign_upload(UPLOAD) == UPLOAD_TOKEN
    assert {opens: SandboxTokens([OLD]).sign(opens, SESSION) for opens in Opens} == SANDBOX_TOKENS


def test_a_key_that_is_no_longer_accepted_opens_nothing() -> None:
    with pytest.raises(Unauthorized):
        PreviewLinks([NEW]).read(LINK_TOKEN, now=0)
    with pytest.raises(Unauthorized):
        SandboxTokens([NEW]).read_upload(UPLOAD_TOKEN)
    for opens, token in SANDBOX_TOKENS.items():
        assert not SandboxTokens([NEW]).opens(token, opens, SESSION)


def test_a_token_of_one_kind_is_none_of_another() -> None:
    tokens = SandboxTokens([OLD])
    assert not tokens.opens(SANDBOX_TOKENS[Opens.ACCESS], Opens.TRAFFIC, SESSION)
    with pytest.raises(Unauthorized):
        tokens.read_upload(LINK_TOKEN)
    with pytest.raises(Unauthorized):
        PreviewLinks([OLD]).read(UPLOAD_TOKEN, now=0)


def test_what_is_signed_for_one_purpose_is_not_accepted_for_another() -> None:
    one, other = Signer([OLD], b"one", 20), Signer([OLD], b"other", 20)
    assert one.accepts(one.macs(b"x")[0], b"x")
    assert not one.accepts(one.macs(b"x")[0], b"y")
    assert not other.accepts(one.macs(b"x")[0], b"x")
    assert not one.accepts(b"", b"x")


@pytest.mark.parametrize("text", ["AAA=", "AB", "A", "AA\n", "A A", "_-+/", "é"])
def test_only_one_spelling_of_bytes_is_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        from_text(text)


def test_bytes_come_back_from_their_text() -> None:
    for data in (b"", b"a", b"ab", b"abc", bytes(range(256))):
        assert from_text(to_text(data)) == data
