"""Reads the lines of a file from its end, in blocks."""

import os
from collections.abc import Iterator
from typing import Final

from warren.governance.audit.entries import MAX_LINE

_BLOCK_BYTES: Final = 64 * 1024


def lines_before(fd: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yields, from the end to the start, where each line begins and its text. A line that is too long to be ours comes
    in parts."""
    rest = b""
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        first, *others = (os.pread(fd, end - start, start) + rest).split(b"\n")
        position = end + len(rest)
        for text in reversed(others):
            position -= len(text)
            yield position, text
            position -= 1
        rest, end = first, start
        if len(rest) > 2 * MAX_LINE:
            yield start, rest
            rest = b""
    if rest:
        yield 0, rest
