"""deepagents' glob and grep.

`grep` is a search of Warren's file API. `glob` walks the tree instead: deepagents counts a link to a file of the tree
as a file, and a search does not say where links lead.
"""

import posixpath
import re
import time
from collections.abc import Iterator, Sequence
from typing import Final

from deepagents.backends.protocol import FileInfo, GlobResult, GrepMatch, GrepResult

from warren.integrations.deepagents_versions import BEFORE_0_7, build_result, search_code
from warren.integrations.globs import Pattern, PatternRefused
from warren.integrations.plans import Plan, call
from warren.model.errors import WarrenError
from warren.sdk.results import FileEntry, FileMatch, SearchSummary

WALK_S: Final = 5.0
MOST_MATCHES: Final = 10_000
GREP_S: Final = 30.0
_DEPTH: Final = 4  # levels per request: few requests, and none that lists a whole system
_KERNEL_DIRECTORIES: Final = ("/proc", "/sys", "/dev")
_LARGEST_FILE_BYTES: Final = 1024 * 1024 * 1024
_SPECIAL: Final = re.compile(r"[][\\.^$*+?(){}|]")


class Walk:
    """Everything below a directory, as (relative path, entry). `reason` says why entries are missing, if they are."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self.entries: list[tuple[str, FileEntry]] = []
        self.reason: str | None = None
        self._ends_at = time.monotonic() + WALK_S

    def run(self) -> Plan[None]:
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
            waiting += self._add(directory, depth, found)

    def _add(self, directory: str, depth: int, found: list[FileEntry]) -> Iterator[str]:
        level = directory.rstrip("/").count("/") + depth
        for each in found:
            relative = each.path.removeprefix(self.root + "/")
            if each.path in _KERNEL_DIRECTORIES:
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
    summaries: list[SearchSummary] = []
    try:
        included = Pattern(include or "")
        found: list[FileMatch] = yield from call(
            "search_files",
            _literal(pattern),
            glob=include or "",
            path=root,
            hidden=True,
            max_matches=MOST_MATCHES,
            max_file_bytes=_LARGEST_FILE_BYTES,
            timeout=GREP_S,
            on_summary=summaries.append,
        )
    except PatternRefused as exc:
        return GrepResult(error=f"Path '{root}': {exc}")
    except WarrenError as exc:
        return GrepResult(error=f"Path '{root}': {search_code(exc)}")
    [summary] = summaries
    if summary.truncated_by == "time":
        return GrepResult(
            error=f"Error: grep timed out after {GREP_S:g}s. Try a more specific pattern or a narrower path."
        )
    matches: list[GrepMatch] = []
    for each in found:
        relative = each.path.removeprefix(root.rstrip("/") + "/")
        is_included = not include or "/" not in include or included.matches(relative)
        if is_included and set(skip).isdisjoint(relative.split("/")):
            matches.append({"path": each.path, "line": each.line, "text": each.text})
    cut = bool(summary.truncated_by or summary.too_large)
    if max_count is not None and len(matches) > max_count:
        matches, cut = matches[:max_count], True
    return build_result(GrepResult, matches=matches, truncated=cut)


def _literal(text: str) -> str:
    """An expression for this text; several lines mean any of them, as in grep -F."""
    return "|".join(_SPECIAL.sub(r"\\\g<0>", line) or "^" for line in text.split("\n"))
