"""Parts of a file: what a Range header means for a file of a certain size."""

import pytest

from warren.http.dispatch import read_range
from warren.model.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "size", "part"),
    [
        ("bytes=0-", 10, (0, 10)),
        ("bytes=3-5", 10, (3, 6)),
        ("bytes=3-500", 10, (3, 10)),
        ("bytes=9-9", 10, (9, 10)),
        ("bytes=-3", 10, (7, 10)),
        ("bytes=-10", 10, (0, 10)),
        ("bytes=-999999999999999999", 10, (0, 10)),
    ],
)
def test_a_part_lies_within_the_file(text: str, size: int, part: tuple[int, int]) -> None:
    assert read_range(text).within(size) == part


@pytest.mark.parametrize(
    ("text", "size"),
    [("bytes=10-", 10), ("bytes=10-20", 10), ("bytes=-0", 10), ("bytes=-5", 0), ("bytes=0-", 0), ("bytes=0-0", 0)],
)
def test_a_part_the_file_does_not_have_is_empty(text: str, size: int) -> None:
    start, end = read_range(text).within(size)
    assert start >= end


@pytest.mark.parametrize(
    "text",
    ["", "bytes=", "bytes=-", "bytes=5-3", "bytes=--5", "bytes=1-2,4-5", "lines=1-2", "bytes=a-b", "bytes=\u0661-",
     "bytes=1 - 2", "bytes=+1-2", "bytes=" + "9" * 19 + "-"],
)  # fmt: skip
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        read_range(text)
