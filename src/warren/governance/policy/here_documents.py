"""Cuts here-documents out of a text before the grammar parses it.

A file written with `cat > x <<'EOF'` may be long, and nothing in it is for the shell. One line, a mark, replaces its
lines. The grammar decides whether that was a here-document: the parser must find every mark as the body of one, or
parse the text as it was.
"""

import re
from bisect import bisect_left
from dataclasses import dataclass

from warren.governance.policy.shell_words import in_here_document

_START = re.compile(
    r"(?<!<)<<(?P<dash>-?)[ \t]*(?:'(?P<single>[\w.-]+)'|\"(?P<double>[\w.-]+)\"|\\(?P<escaped>[\w.-]+)|(?P<plain>\w+))"
    r"(?=[\s;|&)>]|$)"
)
_LIVE = re.compile(r"(?:^|[^\\])(?:\\\\)*[$`]")
_MARK = "a-here-document-was-here-"


@dataclass(frozen=True, slots=True)
class Cut:
    text: str
    bodies: dict[str, str]  # by their marks


def cut_here_documents(text: str) -> Cut:
    if "<<" not in text or _MARK in text:
        return Cut(text, {})
    lines = text.split("\n")
    ends = _Ends(lines)
    kept: list[str] = []
    bodies: dict[str, str] = {}
    number = 0
    while number < len(lines):
        kept.append(lines[number])
        start = _only_start(lines[number])
        number += 1
        end = ends.after(number, start) if start else None
        if start is None or end is None:
            continue
        body = lines[number:end]
        if body and _is_plain(start, body):
            mark = f"{_MARK}{len(bodies)}"
            bodies[mark] = _content(start, body)
            body = [mark]
        kept += [*body, lines[end]]
        number = end + 1
    return Cut("\n".join(kept), bodies)


class _Ends:
    """Where the lines are that may end a here-document."""

    def __init__(self, lines: list[str]) -> None:
        self._exact: dict[str, list[int]] = {}
        self._indented: dict[str, list[int]] = {}
        for number, line in enumerate(lines):
            self._exact.setdefault(line, []).append(number)
            self._indented.setdefault(line.lstrip("\t"), []).append(number)

    def after(self, number: int, start: re.Match[str]) -> int | None:
        wanted = start["single"] or start["double"] or start["escaped"] or start["plain"]
        numbers = (self._indented if start["dash"] else self._exact).get(wanted, [])
        place = bisect_left(numbers, number)
        return numbers[place] if place < len(numbers) else None


def _only_start(line: str) -> re.Match[str] | None:
    return _START.search(line) if line.count("<<") == 1 else None


def _is_plain(start: re.Match[str], body: list[str]) -> bool:
    """Whether the shell changes nothing in it. A line that ends in a backslash could hide the end."""
    return not start["plain"] or not any(_LIVE.search(line) or line.endswith("\\") for line in body)


def _content(start: re.Match[str], body: list[str]) -> str:
    lines = [line.lstrip("\t") if start["dash"] else line for line in body]
    whole = "".join(f"{line}\n" for line in lines)
    return in_here_document(whole) if start["plain"] else whole
