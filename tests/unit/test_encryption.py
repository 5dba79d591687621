"""Secrets that are kept are sealed."""

from pathlib import Path

import pytest
from contract.store_values import a_session
from hypothesis import given
from hypothesis import strategies as st

from warren.model.errors import InvalidRequest, Unavailable
from warren.stores.encryption import KEY_BYTES, Encryption, key_in, read_key
from warren.stores.session_json import decode_session, encode_session

ENCRYPTION = Encryption(b"k" * KEY_BYTES)


@given(st.text(), st.text(st.characters(codec="utf-8")))
def test_what_was_sealed_opens_again(text: str, purpose: str) -> None:
    assert ENCRYPTION.decrypt(ENCRYPTION.encrypt(text, purpose), purpose) == text


def test_it_does_not_open_with_another_key_or_for_another_purpose() -> None:
    sealed = ENCRYPTION.encrypt("hunter2", "ses_1")
    for encryption, purpose in ((Encryption(b"x" * KEY_BYTES), "ses_1"), (ENCRYPTION, "ses_2")):
        with pytest.raises(Unavailable, match="cannot be read"):
            encryption.decrypt(sealed, purpose)


def test_a_row_does_not_show_the_values_of_variables() -> None:
    session = a_session(env={"TOKEN": "hunter2-\ud800"})
    row = encode_session(session, ENCRYPTION)
    assert "hunter2" not in row
    assert decode_session(row, ENCRYPTION) == session
    with pytest.raises(Unavailable, match="has no key for them"):
        decode_session(row)


def test_a_key_file_is_private_and_stays_the_same(tmp_path: Path) -> None:
    path = tmp_path / "secrets.key"
    key = key_in(path)
    assert key_in(path) == key
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "abc", "zz" * 32, "00" * 31])
def test_a_key_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="openssl rand"):
        read_key(text)


def test_a_new_key_reads_what_an_old_one_has_sealed_and_seals_it_anew() -> None:
    old, new = b"1" * KEY_BYTES, b"2" * KEY_BYTES
    sealed = Encryption(old).encrypt("hunter2", "ses_1")
    both = Encryption(new, old)
    assert both.decrypt(sealed, "ses_1") == "hunter2"
    fresh = both.renew(sealed, "ses_1")
    assert Encryption(new).decrypt(fresh, "ses_1") == "hunter2"
    assert both.renew(fresh, "ses_1") == fresh
    with pytest.raises(Unavailable):
        Encryption(old).decrypt(both.encrypt("x", "ses_1"), "ses_1")
