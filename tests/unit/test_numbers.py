"""Numbers in text of others: digits of ASCII, a few of them, and nothing that makes `int` raise."""

from pathlib import Path

import pytest

from warren.http.client.headers import content_length
from warren.images.trees.command_defaults import prepare_defaults
from warren.images.trees.tree import Tree
from warren.model.errors import InvalidRequest
from warren.model.image import ImageConfig
from warren.model.numbers import read_digits


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("007", 7), (b"12", 12), ("9223372036854775807", (1 << 63) - 1)),
        *((text, None) for text in ("", "²", "١", "1" * 5000, "9223372036854775808", "-1", "+1", "1_0", " 1", b"\xb2")),
    ],
)
def test_a_number_is_ascii_digits_and_not_too_many(text: str | bytes, number: int | None) -> None:
    assert read_digits(text) == number


def test_a_number_has_a_bound() -> None:
    assert (read_digits("9", 9), read_digits("10", 9)) == (9, None)


def test_a_length_of_thousands_of_digits_is_an_invalid_request() -> None:
    assert content_length([(b"content-length", b"12")]) == 12
    with pytest.raises(InvalidRequest):
        content_length([(b"content-length", b"1" * 5000)])


@pytest.mark.parametrize("line", [f"app:x:{'1' * 5000}:1::/:/bin/sh", f"app:x:1:{'1' * 5000}::/:/bin/sh"])
def test_an_image_with_ids_of_thousands_of_digits_is_an_invalid_request(line: str, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(line)
    with Tree(tmp_path) as tree, pytest.raises(InvalidRequest, match="the ids of users"):
        prepare_defaults(tree, ImageConfig(user="app"))
