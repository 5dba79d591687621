"""deepagents' glob and grep.

`glob` walks through the file API. `grep` runs the sandbox's own grep, which is quick on any tree; where there is none,
or one that is too simple, the files are read through the file API.
"""

import posixpath
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from deepagents.backends.protocol import FileInfo, GlobResult, GrepMatch, GrepResult

from warren.integrations.deepagents_dialect import BEFORE_0_7, made, search_code
from warren.integrations.globs import Pattern, PatternRefused
from warren.integrations.steps import Plan, call
from warren.model.errors import WarrenError
from warren.sdk.results import ExecuteResult, FileEntry

WALK_S: Final = 5.0
MOST_MATCHES: Final = 10_000
GREP_S: Final = 30.0
_DEPTH: Final = 4  # levels in one request: few requests, and none that lists a whole system
_ENDLESS: Final = ("/proc", "/sys", "/dev")
_FILES_AT_ONCE: Final = 500
_GREPPED_BYTES: Final = 1024 * 1024
_GREP_MISSING: Final = (126, 127)


class Walk:
    """Everything below a directory, as (path relative to it, entry). `reason` says why it is not all of it."""

    def __init__(self, root: str, budget_s: float = WALK_S) -> None:
        self.root = root.rstrip("/")
        self.entries: list[tuple[str, FileEntry]] = []
        self.reason: str | None = None
        self._ends_at = time.monotonic() + budget_s

    def run(self, skip: Sequence[str] = ()) -> Plan[None]:
        waiting = [self.root or "/"]
        while waiting:
            if time.monotonic() > self._ends_at:
                self.reason = self.reason or "budget"
                return
            directory = waiting.pop(0)
            depth = 1 if directory == "/" else _DEPTH
            try:
                found: list[FileEntry] = yield from call("list_files", directory, depth=depth)
            except WarrenError as exc:
                if directory == (self.root or "/"):
                    raise
                self.reason = "unreadable" if search_code(exc) == "permission_denied" else self.reason
                continue
            waiting += self._take(directory, depth, found, skip)

    def _take(self, directory: str, depth: int, found: list[FileEntry], skip: Sequence[str]) -> Iterator[str]:
        level = directory.rstrip("/").count("/") + depth
        for each in found:
            relative = each.path.removeprefix(self.root + "/")
            if each.path in _ENDLESS or not set(skip).isdisjoint(relative.split("/")):
                continue
            self.entries.append((relative, each))
            if each.is_dir and each.path.count("/") == level:
                yield each.path

    def files(self) -> list[tuple[str, FileEntry]]:
        """Regular files, and links to such below the same root."""
        known = {each.path for _, each in self.entries if each.kind == "file"}
        return [(relative, each) for relative, each in self.entries if each.path in known or _leads_to(each) in known]


def _leads_to(entry: FileEntry) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), entry.target)) if entry.target else ""


def glob(pattern: str, path: str | None) -> Plan[GlobResult]:
    root = path or "/"
    root = root if root.startswith("/") else f"/{root}"
    walk = Walk(root)
    try:
        wanted = Pattern(pattern, shell_like=BEFORE_0_7)
        yield from walk.run()
    except PatternRefused as exc:
        return GlobResult(matches=None, error=f"Path '{root}': {exc}")
    except WarrenError as exc:
        return GlobResult(matches=None, error=f"Path '{root}': {search_code(exc)}")
    candidates = walk.entries if BEFORE_0_7 else walk.files()
    found = sorted((relative, each) for relative, each in candidates if wanted.matches(relative))
    reason = "budget" if len(found) > MOST_MATCHES else walk.reason
    matches = [_info(walk.root, relative, each) for relative, each in found[:MOST_MATCHES]]
    return made(GlobResult, matches=matches, truncated=reason is not None, truncation_reason=reason)


def _info(root: str, relative: str, entry: FileEntry) -> FileInfo:
    return {"path": relative if BEFORE_0_7 else f"{root}/{relative}", "is_dir": entry.is_dir}


# -- grep


def grep(
    pattern: str, path: str | None, include: str | None, max_count: int | None, skip: Sequence[str]
) -> Plan[GrepResult]:
    root = path or "/workspace"
    skip = [name for name in skip if name != posixpath.basename(root.rstrip("/"))]
    try:
        if include and "/" in include:
            return (yield from _grep_paths(pattern, root, include, max_count, skip))
        argv = ["grep", "-rHnFZI", *(f"--exclude-dir={name}" for name in skip)]
        argv += [f"--include={include}"] if include else []
        answer: ExecuteResult = yield from _execute([*argv, "-e", pattern, "--", root])
        if _no_grep(answer):
            return (yield from _grep_by_reading(pattern, root, include or "**", max_count, skip))
    except PatternRefused as exc:
        return GrepResult(error=f"Path '{root}': {exc}")
    except WarrenError as exc:
        return GrepResult(error=f"Path '{root}': {search_code(exc)}")
    return _grep_result(root, answer, max_count)


def _execute(argv: Sequence[str]) -> Plan[Any]:
    return (yield from call("execute", argv, GREP_S, carry_state=False))


def _no_grep(answer: ExecuteResult) -> bool:
    return answer.exit_code in _GREP_MISSING or (answer.exit_code > 1 and "option" in answer.stderr)


def _grep_paths(pattern: str, root: str, include: str, max_count: int | None, skip: Sequence[str]) -> Plan[GrepResult]:
    """Only files whose path fits: they are found first, then searched by name."""
    walk, wanted = Walk(root), Pattern(include)
    yield from walk.run(skip)
    paths = sorted(each.path for relative, each in walk.files() if wanted.matches(relative))
    matches: list[GrepMatch] = []
    for start in range(0, len(paths), _FILES_AT_ONCE):
        batch = paths[start : start + _FILES_AT_ONCE]
        answer: ExecuteResult = yield from _execute(["grep", "-HnFZI", "-e", pattern, "--", *batch])
        if _no_grep(answer):
            return (yield from _grep_by_reading(pattern, root, include, max_count, skip))
        matches += _parsed(answer.stdout)
    return _limited(matches, max_count, walk.reason is not None)


def _grep_by_reading(
    pattern: str, root: str, include: str, max_count: int | None, skip: Sequence[str]
) -> Plan[GrepResult]:
    walk, wanted = Walk(root, GREP_S), Pattern(include)
    entry: FileEntry = yield from call("stat", root)
    if entry.is_dir:
        yield from walk.run(skip)
    else:
        walk.entries = [(entry.name, entry)]
    matches: list[GrepMatch] = []
    for relative, each in walk.files():
        if each.size <= _GREPPED_BYTES and wanted.matches(relative):
            data: bytes = yield from call("read_file", each.path)
            matches += _lines_with(pattern, each.path, data)
    return _limited(matches, max_count, walk.reason is not None)


def _lines_with(pattern: str, path: str, data: bytes) -> Iterator[GrepMatch]:
    if b"\0" not in data:
        for number, line in enumerate(data.decode(errors="replace").split("\n"), 1):
            if pattern in line:
                yield {"path": path, "line": number, "text": line}


def _grep_result(root: str, answer: ExecuteResult, max_count: int | None) -> GrepResult:
    if answer.reason == "timeout":
        return GrepResult(
            error=f"Error: grep timed out after {GREP_S:g}s. Try a more specific pattern or a narrower path."
        )
    matches = _parsed(answer.stdout)
    if answer.exit_code > 1 and not matches:
        return GrepResult(error=f"Path '{root}': {answer.stderr.strip() or f'exit code {answer.exit_code}'}")
    return _limited(matches, max_count, answer.truncated)


def _parsed(stdout: str) -> list[GrepMatch]:
    matches: list[GrepMatch] = []
    for line in stdout.split("\n"):
        path, found, rest = line.partition("\0")
        number, colon, text = rest.partition(":")
        if found and colon and number.isdecimal():
            matches.append({"path": path, "line": int(number), "text": text})
    return matches


def _limited(matches: list[GrepMatch], max_count: int | None, cut: bool) -> GrepResult:
    if max_count is not None and len(matches) > max_count:
        matches, cut = matches[:max_count], True
    return made(GrepResult, matches=matches, truncated=cut)
