"""Finding deeds in the files, newest first. Blocking; the work of one call is bounded.

Files are read from their end, in blocks. A place is the number of a file and where a line begins in it: the next page
starts with what stands before. Files are only added to and removed whole, so a place stays good.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from warren.interfaces.audit import MOST_ON_PAGE, AuditPage, Query
from warren.model.audit import Deed
from warren.model.errors import InvalidRequest, Unavailable
from warren.tenancy.audit.deeds import LINE_MOST, deed_of, is_wanted, marks_of
from warren.tenancy.audit.journal import numbers_in, opened_directory, opened_to_read

LOOK_THROUGH_BYTES: Final = 8 * 1024 * 1024
_BLOCK: Final = 64 * 1024
_PLACE: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


class _Line(NamedTuple):
    number: int
    start: int
    text: bytes


class Gathering:
    """A page as it comes together, from lines that are given newest first."""

    def __init__(self, query: Query, look_through: int = LOOK_THROUGH_BYTES) -> None:
        self.found: list[Deed] = []
        self._query = query
        self._limit = max(1, min(query.limit, MOST_ON_PAGE))
        self._marks = marks_of(query)
        self._left = look_through

    def take(self, line: bytes) -> bool:
        """Whether this is where the page ends."""
        self._left -= len(line) + 1
        marked = all(mark in line for mark in self._marks)
        if marked and (deed := deed_of(line)) and is_wanted(self._query, deed):
            self.found.append(deed)
        return len(self.found) == self._limit or self._left <= 0


def read_page(directory: Path, query: Query, look_through: int = LOOK_THROUGH_BYTES) -> AuditPage:
    page = Gathering(query, look_through)
    try:
        for line in _lines(directory, query.after):
            if page.take(line.text):
                return AuditPage(page.found, f"{line.number}-{line.start}")
    except OSError as exc:
        raise Unavailable(f"the audit record in {directory} cannot be read: {exc.strerror}") from exc
    return AuditPage(page.found)


def _lines(directory: Path, after: str) -> Iterator[_Line]:
    number, before = read_place(after) if after else (None, None)
    with opened_directory(directory) as fd:
        for each in sorted(numbers_in(fd), reverse=True):
            if number is None or each <= number:
                yield from _lines_of(fd, each, before if each == number else None)


def _lines_of(directory: int, number: int, before: int | None) -> Iterator[_Line]:
    with opened_to_read(directory, number) as fd:
        if fd is not None:
            size = os.fstat(fd).st_size
            end = size if before is None else min(size, before)
            yield from (_Line(number, start, text) for start, text in lines_before(fd, end))


def lines_before(fd: int, end: int) -> Iterator[tuple[int, bytes]]:
    """From the end to the start: where each line begins, and its text. What is too long for a line of ours
    comes in parts."""
    rest = b""
    while end > 0:
        start = max(0, end - _BLOCK)
        first, *others = (os.pread(fd, end - start, start) + rest).split(b"\n")
        position = end + len(rest)
        for text in reversed(others):
            position -= len(text)
            yield position, text
            position -= 1
        rest, end = first, start
        if len(rest) > 2 * LINE_MOST:
            yield start, rest
            rest = b""
    if rest:
        yield 0, rest


def read_place(after: str) -> tuple[int, int]:
    """The two numbers a place is made of. Raises InvalidRequest if it is none."""
    match = _PLACE.fullmatch(after)
    if match is None:
        raise InvalidRequest(f"{after[:80]!r} is no page of the audit record", remedy="give the `after` of a page")
    return int(match[1]), int(match[2])
