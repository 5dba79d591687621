"""Matches paths against patterns as deepagents defines them. No I/O.

A pattern without a slash matches names at any depth; one with a slash matches paths below the root, where `**` stands
for any number of directories. Only a pattern with a leading dot matches names with one. `{a,b}` means either.
"""

from fnmatch import fnmatchcase
from functools import cache
from typing import Final

_MAX_ALTERNATIVES: Final = 1000


class PatternRefused(ValueError):
    """Raised for a pattern with `..` in it or too many alternatives; the text is the error code of deepagents."""


class Pattern:
    """A pattern. `shell_like`: without a slash it matches names in the root only, as in deepagents before 0.7."""

    def __init__(self, text: str, *, shell_like: bool = False) -> None:
        if ".." in text.replace("\\", "/").split("/"):
            raise PatternRefused("invalid_pattern")
        self._by_name = "/" not in text and not shell_like
        self._alternatives = [_use_bangs(each) for each in _expand(text)]

    def matches(self, relative: str) -> bool:
        parts = tuple(part for part in relative.split("/") if part)
        if self._by_name:
            return any(_matches_name(parts[-1], each) for each in self._alternatives)
        return any(_matches_path(parts, each) for each in self._alternatives)


def _matches_name(name: str, pattern: str) -> bool:
    return (not name.startswith(".") or pattern.startswith(".")) and fnmatchcase(name, pattern)


def _matches_path(parts: tuple[str, ...], pattern: str) -> bool:
    pieces = pattern.lstrip("/").split("/")
    patterns = tuple(piece for piece in pieces if piece)
    only_directories = len(pieces) > 1 and pieces[-1] == "" and (not patterns or patterns[-1] != "**")
    return not only_directories and _matches_parts(parts, patterns)


def _matches_parts(parts: tuple[str, ...], patterns: tuple[str, ...]) -> bool:
    # Cached by position: patterns such as **/*/**/* would take exponential time otherwise.
    @cache
    def from_here(at: int, piece: int) -> bool:
        if piece == len(patterns):
            return at == len(parts)
        if patterns[piece] != "**":
            return at < len(parts) and _matches_name(parts[at], patterns[piece]) and from_here(at + 1, piece + 1)
        if piece == len(patterns) - 1:
            return at < len(parts) and not any(part.startswith(".") for part in parts[at:])
        return from_here(at, piece + 1) or (
            at < len(parts) and not parts[at].startswith(".") and from_here(at + 1, piece)
        )

    return from_here(0, 0)


def _use_bangs(pattern: str) -> str:
    """Writes `[^a]` as `[!a]`, which is how fnmatch spells it."""
    done, rest = "", pattern
    while (start := rest.find("[")) >= 0 and (end := rest.find("]", start + 2)) > 0:
        inside = rest[start + 1 : end]
        done += f"{rest[:start]}[{'!' + inside[1:] if inside.startswith('^') else inside}]"
        rest = rest[end + 1 :]
    return done + rest


def _expand(pattern: str) -> list[str]:
    start = pattern.find("{")
    end = _find_closing(pattern, start) if start >= 0 else -1
    if end < 0:
        return [pattern]
    before, after = pattern[:start], pattern[end + 1 :]
    options = _split_options(pattern[start + 1 : end])
    if len(options) < 2:
        return [f"{before}{{{options[0]}}}{rest}" for rest in _expand(after)]
    found: list[str] = []
    for option in options:
        found += [before + rest for rest in _expand(option + after)]
        if len(found) > _MAX_ALTERNATIVES:
            raise PatternRefused("pattern_too_broad")
    return found


def _find_closing(pattern: str, start: int) -> int:
    depth = 0
    for index in range(start, len(pattern)):
        depth += {"{": 1, "}": -1}.get(pattern[index], 0)
        if depth == 0:
            return index
    return -1


def _split_options(inside: str) -> list[str]:
    options, depth = [""], 0
    for letter in inside:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            options.append("")
        else:
            options[-1] += letter
    return options
