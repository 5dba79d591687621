"""deepagents' glob and grep.

`glob` walks the tree through the file API. `grep` runs the grep of the sandbox, which is quick on any tree; where that
is missing or lacks an option, the files are read through the file API.
"""

import posixpath
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from deepagents.backends.protocol import FileInfo, GlobResult, GrepMatch, GrepResult

from warren.integrations.deepagents_versions import BEFORE_0_7, build_result, search_code
from warren.integrations.globs import Pattern, PatternRefused
from warren.integrations.plans import Plan, call
from warren.model.errors import WarrenError
from warren.sdk.results import ExecuteResult, FileEntry

WALK_S: Final = 5.0
MOST_MATCHES: Final = 10_000
GREP_S: Final = 30.0
_DEPTH: Final = 4  # levels per request: few requests, and none that lists a whole system
_KERNEL_DIRECTORIES: Final = ("/proc", "/sys", "/dev")
_FILES_PER_GREP: Final = 500
_LARGEST_FILE_BYTES: Final = 1024 * 1024
_GREP_MISSING: Final = (126, 127)


class Walk:
    """Everything below a directory, as (relative path, entry). `reason` says why entries are missing, if they are."""

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
            waiting += self._add(directory, depth, found, skip)

    def _add(self, directory: str, depth: int, found: list[FileEntry], skip: Sequence[str]) -> Iterator[str]:
        level = directory.rstrip("/").count("/") + depth
        for each in found:
            relative = each.path.removeprefix(self.root + "/")
            if each.path in _KERNEL_DIRECTORIES or not set(skip).isdisjoint(relative.split("/")):
                continue
            self.entries.append((relative, each))
            if each.is_dir and each.path.count("/") == level:
                yield each.path

    def files(self) -> list[tuple[str, FileEntry]]:
        """Regular files, and links to such below the same root."""
        known = {each.path for _, each in self.entries if each.kind == "file"}
        return [
            (relative, each) for relative, each in self.entries if each.path in known or _link_target(each) in known
        ]


def _link_target(entry: FileEntry) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), entry.target)) if entry.target else ""


def glob(pattern: str, path: str | None) -> Plan[GlobResult]:
    root = path or "/"
    root = root if root.startswith("/") else f"/{root}"
    walk = Walk(root)
    try:
        compiled = Pattern(pattern, shell_like=BEFORE_0_7)
        yield from walk.run()
    except PatternRefused as exc:
        return GlobResult(matches=None, error=f"Path '{root}': {exc}")
    except WarrenError as exc:
        return GlobResult(matches=None, error=f"Path '{root}': {search_code(exc)}")
    candidates = walk.entries if BEFORE_0_7 else walk.files()
    found = sorted((relative, each) for relative, each in candidates if compiled.matches(relative))
    reason = "budget" if len(found) > MOST_MATCHES else walk.reason
    matches = [_file_info(walk.root, relative, each) for relative, each in found[:MOST_MATCHES]]
    return build_result(GlobResult, matches=matches, truncated=reason is not None, truncation_reason=reason)


def _file_info(root: str, relative: str, entry: FileEntry) -> FileInfo:
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
        result: ExecuteResult = yield from _execute([*argv, "-e", pattern, "--", root])
        if _lacks_grep(result):
            return (yield from _grep_by_reading(pattern, root, include or "**", max_count, skip))
    except PatternRefused as exc:
        return GrepResult(error=f"Path '{root}': {exc}")
    except WarrenError as exc:
        return GrepResult(error=f"Path '{root}': {search_code(exc)}")
    return _grep_result(root, result, max_count)


def _execute(argv: Sequence[str]) -> Plan[Any]:
    return (yield from call("execute", argv, GREP_S, carry_state=False))


def _lacks_grep(result: ExecuteResult) -> bool:
    return result.exit_code in _GREP_MISSING or (result.exit_code > 1 and "option" in result.stderr)


def _grep_paths(pattern: str, root: str, include: str, max_count: int | None, skip: Sequence[str]) -> Plan[GrepResult]:
    """Greps only files whose path matches: finds them first, then passes their names to grep."""
    walk, included = Walk(root), Pattern(include)
    yield from walk.run(skip)
    paths = sorted(each.path for relative, each in walk.files() if included.matches(relative))
    matches: list[GrepMatch] = []
    for start in range(0, len(paths), _FILES_PER_GREP):
        batch = paths[start : start + _FILES_PER_GREP]
        result: ExecuteResult = yield from _execute(["grep", "-HnFZI", "-e", pattern, "--", *batch])
        if _lacks_grep(result):
            return (yield from _grep_by_reading(pattern, root, include, max_count, skip))
        matches += _parse_matches(result.stdout)
    return _limit_matches(matches, max_count, walk.reason is not None)


def _grep_by_reading(
    pattern: str, root: str, include: str, max_count: int | None, skip: Sequence[str]
) -> Plan[GrepResult]:
    walk, included = Walk(root, GREP_S), Pattern(include)
    entry: FileEntry = yield from call("stat", root)
    if entry.is_dir:
        yield from walk.run(skip)
    else:
        walk.entries = [(entry.name, entry)]
    matches: list[GrepMatch] = []
    for relative, each in walk.files():
        if each.size <= _LARGEST_FILE_BYTES and included.matches(relative):
            data: bytes = yield from call("read_file", each.path)
            matches += _matching_lines(pattern, each.path, data)
    return _limit_matches(matches, max_count, walk.reason is not None)


def _matching_lines(pattern: str, path: str, data: bytes) -> Iterator[GrepMatch]:
    if b"\0" not in data:
        for number, line in enumerate(data.decode(errors="replace").split("\n"), 1):
            if pattern in line:
                yield {"path": path, "line": number, "text": line}


def _grep_result(root: str, result: ExecuteResult, max_count: int | None) -> GrepResult:
    if result.reason == "timeout":
        return GrepResult(
            error=f"Error: grep timed out after {GREP_S:g}s. Try a more specific pattern or a narrower path."
        )
    matches = _parse_matches(result.stdout)
    if result.exit_code > 1 and not matches:
        return GrepResult(error=f"Path '{root}': {result.stderr.strip() or f'exit code {result.exit_code}'}")
    return _limit_matches(matches, max_count, result.truncated)


def _parse_matches(stdout: str) -> list[GrepMatch]:
    matches: list[GrepMatch] = []
    for line in stdout.split("\n"):
        path, separator, rest = line.partition("\0")
        number, colon, text = rest.partition(":")
        if separator and colon and number.isdecimal():
            matches.append({"path": path, "line": int(number), "text": text})
    return matches


def _limit_matches(matches: list[GrepMatch], max_count: int | None, cut: bool) -> GrepResult:
    if max_count is not None and len(matches) > max_count:
        matches, cut = matches[:max_count], True
    return build_result(GrepResult, matches=matches, truncated=cut)
