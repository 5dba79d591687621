"""Long JSON that is read in steps is what the decoder of the standard library makes of it at once."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.model import strict_json
from warren.model.errors import InvalidJson, TooLarge, WarrenError
from warren.model.long_json import LongTexts

_TEXTS = st.text(max_size=300) | st.text(alphabet='ab\\"\n\x01é😀\ud7ff', min_size=60, max_size=300)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner),
    max_leaves=20,
)


@pytest.fixture(autouse=True)
def _every_body_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "_WHOLE", 0)
    monkeypatch.setattr(strict_json, "LongTexts", lambda body: LongTexts(body, piece=20))


def _read(body: bytes) -> Any:
    *steps, value = strict_json.read_in_steps(body)
    assert not any(steps)
    return value


@given(value=_VALUES, in_ascii=st.booleans(), indent=st.none() | st.just(1))
def test_values_are_what_they_were(value: Any, in_ascii: bool, indent: int | None) -> None:
    body = json.dumps(value, ensure_ascii=in_ascii, indent=indent).encode()
    assert _read(body) == value


_PIECES = ['"', "\\", "u", "d83d", "de00", "é", "a" * 70, ":", ",", "{", "}", "[", "1", "NaN"]


@given(pieces=st.lists(st.sampled_from(_PIECES)))
def test_what_is_wrong_is_refused_as_it_is_at_once(pieces: list[str]) -> None:
    body = "".join(pieces).encode()
    try:
        expected = strict_json.read_json(body)
    except WarrenError:
        with pytest.raises(WarrenError):
            _read(body)
    else:
        assert _read(body) == expected


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'"' + b"x" * 100, InvalidJson),
        (b'["' + b"x" * 100 + b'", NaN]', InvalidJson),
        (b'"' + b"x" * 30 + b"\xff" * 100 + b'"', InvalidJson),
        (b'"' + b"x" * 100 + b'\\ud83d and no more"', InvalidJson),
        (b'"' + b"\\ud83d" * 100 + b'"', InvalidJson),
        (b'"' + b"x" * 100 + b'\n"', InvalidJson),
        (b'"' + b"\\\\" * 400_001 + b'"', TooLarge),
        (b"{" + b'"%0100d":1,' * 90_000 % tuple(range(90_000)) + b'"":1}', WarrenError),
        (b"[" + b'"x",' * 60_000 + b'"x"]', TooLarge),
    ],
)
def test_mistakes_and_too_much_are_refused(body: bytes, kind: type[WarrenError]) -> None:
    with pytest.raises(kind):
        _read(body)
