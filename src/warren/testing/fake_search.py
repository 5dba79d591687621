"""Search in the fake's file system: the rules of agent/search.c, but with Python's regular expressions.

An expression that means the same to Python and to POSIX finds the same. A search never runs out of time.
"""

import re
from collections import Counter
from collections.abc import Iterator

from warren.model.errors import InvalidRequest, PermissionDenied
from warren.model.operations import FileKind, Search, SearchLimit, SearchMatch, SearchTotals
from warren.testing.fake_files import FakeFiles, FakeNode, normalize_path, uid_of

_LINE_BYTES = 1024 * 1024
_TEXT_BYTES = 500
_CLASSES = {
    "[:alpha:]": "a-zA-Z",
    "[:digit:]": "0-9",
    "[:alnum:]": "a-zA-Z0-9",
    "[:space:]": r"\s",
    "[:upper:]": "A-Z",
    "[:lower:]": "a-z",
}


class FakeSearch:
    """One search. `run` yields its matches and then the summary."""

    def __init__(self, files: FakeFiles, query: Search) -> None:
        self._files, self._query = files, query
        self._uid = uid_of(query.user)
        self._root = normalize_path(query.path).rstrip("/")
        case = re.IGNORECASE if query.ignore_case else 0
        self._globs = [(re.compile(_translate(glob), case), "/" in glob) for glob in query.globs()]
        self._pattern = _compile(query.pattern, case) if query.pattern else None
        self._counts = Counter[str]()

    def run(self) -> Iterator[SearchMatch | SearchTotals]:
        matches, limit = 0, None
        for match in self._start():
            if matches == self._query.max_matches:
                limit = SearchLimit.MAX_MATCHES
                break
            matches += 1
            yield match
        yield SearchTotals(matches, **self._counts, truncated_by=limit)

    def _start(self) -> Iterator[SearchMatch]:
        node = self._files.find(self._root or "/", self._uid)
        if node.kind is not FileKind.DIRECTORY:
            yield from self._entry(self._root, self._root.rsplit("/", 1)[-1], node)
        elif node.allows(self._uid, 4):
            yield from self._directory(self._root, node)
        else:
            raise PermissionDenied(f"{self._query.path!r} is not yours to read")

    def _directory(self, path: str, node: FakeNode) -> Iterator[SearchMatch]:
        for name, child in sorted(node.children.items()):
            if name.startswith(".") and not self._query.hidden:
                self._counts["hidden"] += 1
                continue
            below = f"{path}/{name}"
            yield from self._entry(below, below[len(self._root) + 1 :], child)
            if child.kind is FileKind.DIRECTORY:
                if child.allows(self._uid, 4):
                    yield from self._directory(below, child)
                else:
                    self._counts["unreadable"] += 1

    def _entry(self, path: str, relative: str, node: FakeNode) -> Iterator[SearchMatch]:
        name = relative.rsplit("/", 1)[-1]
        if self._globs and not any(glob.fullmatch(relative if whole else name) for glob, whole in self._globs):
            return
        if self._pattern is None:
            yield SearchMatch(path, node.kind)
        elif node.kind is FileKind.FILE:
            yield from self._contents(path, node, self._pattern)

    def _contents(self, path: str, node: FakeNode, pattern: re.Pattern[str]) -> Iterator[SearchMatch]:
        if len(node.data) > self._query.max_file_bytes:
            self._counts["too_large"] += 1
        elif not node.allows(self._uid, 4):
            self._counts["unreadable"] += 1
        elif b"\0" in node.data:
            self._counts["binary"] += 1
        else:
            self._counts["files_searched"] += 1
            for number, line in enumerate(node.data.removesuffix(b"\n").split(b"\n") if node.data else [], 1):
                self._counts["long_lines"] += len(line) > _LINE_BYTES
                text = line[:_LINE_BYTES].removesuffix(b"\r").decode("utf-8", "surrogateescape")
                if (match := pattern.search(text)) is not None:
                    yield _line_match(path, number, text, match.start())


def _line_match(path: str, number: int, line: str, at: int) -> SearchMatch:
    column = len(line[:at].encode("utf-8", "surrogateescape")) + 1
    cut = len(line.encode("utf-8", "surrogateescape")) > _TEXT_BYTES
    start = max(0, at - _TEXT_BYTES // 8)
    text = line[start : start + _TEXT_BYTES // 4] if cut else line
    return SearchMatch(path, FileKind.FILE, number, column, text, cut)


def _compile(pattern: str, case: int) -> re.Pattern[str]:
    for name, members in _CLASSES.items():
        pattern = pattern.replace(name, members)
    try:
        return re.compile(pattern, case)
    except (re.error, OverflowError) as exc:
        raise InvalidRequest(f"the regular expression is invalid: {exc}") from exc


def _translate(glob: str) -> str:
    """Returns a glob as a regular expression for the relative path."""
    parts = glob.removeprefix("/").split("/")
    whole = ""
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            whole += ".+" if last else "(?:[^/]+/)*"
        else:
            whole += _translate_part(part) + ("" if last else "/")
    return f"(?s:{whole})"


def _translate_part(part: str) -> str:
    tokens = re.findall(r"\\.|\[[!^]?\]?[^\]]*\]|.", part, re.DOTALL)
    return "".join(_translate_token(token) for token in tokens)


def _translate_token(token: str) -> str:
    if token == "*":
        return "[^/]*"
    if token == "?":
        return "[^/]"
    if token.startswith("[") and len(token) > 2:
        return "[" + re.sub(r"^[!^]", "^", token[1:-1].replace("\\", r"\\")) + "]"
    return re.escape(token.removeprefix("\\") or token)
