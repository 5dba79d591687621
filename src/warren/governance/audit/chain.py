"""The chain of hashes that shows whether somebody has changed, removed or inserted audit entries. Pure.

Each line ends with a hash of itself and of the hash before it, so that one changed line makes every later one wrong. A
file begins with a line that repeats the last hash of the file before: a file that is missing in between shows as well.
What the chain cannot show is that its end was cut off, or that all of it was written anew. For that an operator keeps
the last hash in another place, and `verify` looks whether it is still part of the chain.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from warren.governance.audit.entries import parse_entry

BEGINNING: Final = "0" * 64  # what the first line follows
SUFFIX_BYTES: Final = 75
HEADER_BYTES: Final = 128  # more than a header has
_MARK: Final = b',"hash":"'
_MAX_PROBLEMS: Final = 20


def chain(lines: Iterable[bytes], last: str) -> tuple[list[bytes], str]:
    """Returns the lines with their hashes, and the last hash. Each line is a JSON object and ends with a newline."""
    linked = []
    for line in lines:
        last = _hash(last, line[:-1])
        linked.append(line[:-2] + _MARK + last.encode() + b'"}\n')
    return linked, last


def header(last: str) -> bytes:
    """The first line of a file."""
    return json.dumps({"chain": "sha256", "after": last}, separators=(",", ":")).encode() + b"\n"


def hash_of(line: bytes) -> str:
    """The hash that a line (without its end) carries; empty if it has none."""
    parts = _split(line)
    return parts[1] if parts else ""


@dataclass
class Verification:
    """What was found while lines were taken in their order. `problems` is empty if nobody has changed anything."""

    entries: int = 0
    unchained: int = 0  # entries of versions that did not chain them yet
    damaged: int = 0  # half lines that killed writers have left
    head: str = ""
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._last: str | None = None
        self._looked_for = ""
        self._seen = False

    def look_for(self, head: str) -> None:
        self._looked_for = head

    def take(self, line: bytes, place: str) -> None:
        """Checks the next line, which is given without its end. `place` says where it is, for people."""
        parts = _split(line)
        if parts is None:
            self._take_other(line, place)
            return
        body, found = parts
        self.entries += 1
        if self._last is None and _hash(BEGINNING, body) == found:
            self._last = BEGINNING
        if self._last is not None and _hash(self._last, body) != found:
            self._add(f"{place}: the entry was changed, or entries before it were changed, removed or inserted")
        self._last = self.head = found
        self._seen = self._seen or found == self._looked_for

    def end(self) -> None:
        if self._looked_for and not self._seen:
            self._add(f"the hash {self._looked_for} is not in the record: entries were removed, or it was written anew")

    def _take_other(self, line: bytes, place: str) -> None:
        if (after := _read_header(line)) is not None:
            if self._last is not None and after != self._last:
                self._add(f"{place}: the file does not follow the one before: files were removed or changed")
            self._last = after
        elif parse_entry(line) is None:
            self.damaged += bool(line)
        elif self._last is None:
            self.unchained += 1
        else:
            self._add(f"{place}: an entry without a hash was inserted")

    def _add(self, problem: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)


def last_hash(lines: Iterable[bytes]) -> str:
    """The hash of the last line that has one. `lines` come in reverse order."""
    for line in lines:
        if found := hash_of(line) or _read_header(line):
            return found
    return ""


def split_groups(lines: Sequence[bytes], most: int) -> Iterable[list[bytes]]:
    """Splits lines into groups that have at most `most` bytes once they are chained. A longer line is a group alone."""
    group: list[bytes] = []
    size = 0
    for line in lines:
        length = len(line) + SUFFIX_BYTES
        if group and size + length > most:
            yield group
            group, size = [], 0
        group.append(line)
        size += length
    if group:
        yield group


def _hash(last: str, body: bytes) -> str:
    return hashlib.sha256(last.encode() + b"\n" + body).hexdigest()


def _split(line: bytes) -> tuple[bytes, str] | None:
    """The line as it was before it got its hash, and the hash."""
    if len(line) <= SUFFIX_BYTES or line[-2:] != b'"}' or line[-SUFFIX_BYTES:-66] != _MARK:
        return None
    found = line[-66:-2].decode("latin-1")
    return (line[:-SUFFIX_BYTES] + b"}", found) if set(found) <= set("0123456789abcdef") else None


def _read_header(line: bytes) -> str | None:
    if len(line) > HEADER_BYTES or not line.startswith(b'{"chain":'):
        return None
    try:
        after = json.loads(line)["after"]
    except (ValueError, KeyError, TypeError):
        return None
    return after if isinstance(after, str) else None
