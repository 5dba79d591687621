"""The files that steps of a build copy: from the build's directory on this machine, or from an unpacked archive.

Every directory is opened below its parent, and no link leads out: links are resolved as if the build's directory were
the root. Files that `.dockerignore` names are left out.
"""

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from warren.images.trees.tree import Tree, open_in_root
from warren.model.errors import InvalidRequest
from warren.model.operations import FileKind
from warren.sandboxes.agent.tar_stream import TarMember

IGNORE_FILE: Final = ".dockerignore"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PART: Final = 256 * 1024
_DEEPEST: Final = 200
_LAST_ID: Final = 65534

Content = Iterator[TarMember | bytes]
"""Members; each file is followed by its bytes."""


@dataclass(frozen=True, slots=True)
class CopySource:
    """A file or directory to copy. `path` is empty for the whole build directory."""

    path: str
    is_directory: bool

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class FileTree:
    """A directory to copy files from, without the files that `ignored` names. Use it as a context manager."""

    def __init__(self, directory: Path, ignored: "IgnoreRules | None" = None) -> None:
        try:
            self._tree = Tree(directory)
        except OSError as exc:
            raise InvalidRequest(f"the build's directory cannot be read: {exc.strerror} ({directory})") from exc
        self._ignored = ignored if ignored is not None else IgnoreRules(self._tree.read_text(IGNORE_FILE).splitlines())

    def __enter__(self) -> "FileTree":
        return self

    def __exit__(self, *_: object) -> None:
        self._tree.__exit__()

    def find(self, patterns: Sequence[str]) -> list[CopySource]:
        """Returns what the patterns match, in order. Raises InvalidRequest for a pattern that matches nothing."""
        found: dict[str, CopySource] = {}
        for pattern in patterns:
            parts = _parts(pattern)
            matches = sorted(self._match(self._tree.fd, "", parts)) if parts else [""]
            if not matches:
                raise InvalidRequest(
                    f"the build's directory has no {pattern!r}",
                    remedy=f"name files below that directory; {IGNORE_FILE} may leave it out",
                )
            for path in matches:
                kind = self._tree.stat(path or ".")
                if kind is None:
                    raise InvalidRequest(f"{path!r} of the build's directory is a link that leads nowhere in it")
                found[path] = CopySource(path, stat.S_ISDIR(kind.st_mode))
        return list(found.values())

    def _match(self, directory: int, path: str, parts: Sequence[str]) -> Iterator[str]:
        wanted, *rest = parts
        literal = not re.search(r"[*?\[\\]", wanted)
        for name in [wanted] if literal else sorted(os.listdir(directory)):
            inner = f"{path}{name}"
            if not (literal or component_pattern(wanted).fullmatch(name)) or self._tree.stat(inner) is None:
                continue
            if not rest:
                if not self._ignored.hides(inner):
                    yield inner
                continue
            with contextlib.suppress(NotADirectoryError, FileNotFoundError):
                below = open_in_root(self._tree.fd, inner, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    yield from self._match(below, f"{inner}/", rest)
                finally:
                    os.close(below)

    def content(self, source: CopySource) -> Content:
        """Yields the members of a directory, or one file."""
        fd = open_in_root(self._tree.fd, source.path or ".", os.O_RDONLY | os.O_NONBLOCK)
        try:
            if source.is_directory:
                yield from self._directory(fd, "", f"{source.path}/" if source.path else "", 0)
            else:
                yield from _file(fd, source.name)
        finally:
            os.close(fd)

    def open(self, source: CopySource) -> int:
        return open_in_root(self._tree.fd, source.path, os.O_RDONLY | os.O_NONBLOCK)

    def _directory(self, fd: int, inside: str, path: str, depth: int) -> Content:
        """Yields a directory's members. `inside` is its path in the copy, `path` the one in the build's directory."""
        if depth > _DEEPEST:
            raise InvalidRequest(f"the build's directory is more than {_DEEPEST} directories deep")
        for name in sorted(os.listdir(fd)):
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            is_directory = stat.S_ISDIR(found.st_mode)
            if self._ignored.hides(f"{path}{name}") and not (is_directory and self._ignored.has_exceptions):
                continue
            hidden = is_directory and self._ignored.hides(f"{path}{name}")
            if stat.S_ISLNK(found.st_mode):
                target = os.readlink(name, dir_fd=fd)
                yield TarMember(inside + name, FileKind.SYMLINK, 0, 0o777, int(found.st_mtime), target, *_owner(found))
            elif is_directory:
                below = os.open(name, _DIRECTORY, dir_fd=fd)
                try:
                    if not hidden:
                        bits = _mode(found)
                        yield TarMember(
                            inside + name, FileKind.DIRECTORY, 0, bits, int(found.st_mtime), "", *_owner(found)
                        )
                    yield from self._directory(below, f"{inside}{name}/", f"{path}{name}/", depth + 1)
                finally:
                    os.close(below)
            elif stat.S_ISREG(found.st_mode):
                file = os.open(name, _FILE, dir_fd=fd)
                try:
                    yield from _file(file, inside + name)
                finally:
                    os.close(file)


def _file(fd: int, name: str) -> Content:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise InvalidRequest(f"{name!r} is no file or directory, it cannot be copied")
    yield TarMember(name, FileKind.FILE, found.st_size, _mode(found), int(found.st_mtime), "", *_owner(found))
    left = found.st_size
    while left:
        data = os.read(fd, min(left, _PART))
        if not data:
            raise InvalidRequest(f"{name!r} became shorter while it was read", remedy="run it again")
        left -= len(data)
        yield data


def _mode(found: os.stat_result) -> int:
    return stat.S_IMODE(found.st_mode) & 0o777


def _owner(found: os.stat_result) -> tuple[int, int]:
    """Returns the owner of a file. Ids that no sandbox has become root's."""
    return (found.st_uid, found.st_gid) if max(found.st_uid, found.st_gid) <= _LAST_ID else (0, 0)


def _parts(pattern: str) -> list[str]:
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in pattern:
        raise InvalidRequest(f"the path {pattern!r} leads out of the build's directory")
    return parts


class Digest:
    """A digest of content: names, kinds, modes, link targets and bytes, but not times."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, part: TarMember | bytes) -> None:
        if isinstance(part, bytes):
            self._hash.update(part)
        else:
            values = (part.path, part.kind.value, part.size, part.mode, part.target)
            self._hash.update(repr(values).encode(errors="surrogateescape"))

    def passing(self, content: Content) -> Content:
        for part in content:
            self.add(part)
            yield part

    def text(self) -> str:
        return self._hash.hexdigest()


class IgnoreRules:
    """The lines of .dockerignore. The last one that matches a path or a parent decides; `!` makes an exception."""

    def __init__(self, lines: Sequence[str] = ()) -> None:
        rules = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        rules = [rule for rule in rules if rule.strip("!/. ")]
        self._rules = [(not rule.startswith("!"), _whole(rule.removeprefix("!").strip())) for rule in rules]
        self.has_exceptions = any(not hides for hides, _ in self._rules)

    def hides(self, path: str) -> bool:
        parts = path.split("/")
        above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        hidden = False
        for hides, pattern in self._rules:
            if any(pattern.fullmatch(one) for one in above):
                hidden = hides
        return hidden


NOTHING_IGNORED: Final = IgnoreRules()


def _whole(text: str) -> re.Pattern[str]:
    """Returns a pattern for whole paths, in which `**` matches any number of directories. Each `**` but the last
    commits to its first match (an atomic group): a later one is never better, so matching takes linear time."""
    groups: list[list[str]] = [[]]
    for part in text.split("/"):
        if part == "**":
            groups.append([])
        elif part not in ("", "."):
            groups[-1].append(component_pattern(part).pattern)
    first, *rest = groups
    if not rest:
        return re.compile("/".join(first), re.DOTALL)
    out = "".join(f"{part}/" for part in first)
    for parts in rest[:-1]:
        if parts:
            out += f"(?>(?:[^/]*/)*?{''.join(f'{part}/' for part in parts)})"
    out += f"(?:[^/]*/)*{'/'.join(rest[-1])}" if rest[-1] else ".*"
    return re.compile(out, re.DOTALL)


def component_pattern(text: str) -> re.Pattern[str]:
    """Returns a pattern for one component: `*`, `?`, `[a-z]`, and a backslash before a literal character."""
    pieces, at = [""], 0  # the pieces between the stars
    while at < len(text):
        char = text[at]
        closing = text.find("]", at + 2)
        if char == "*":
            pieces.append("")
        elif char == "?":
            pieces[-1] += "[^/]"
        elif char == "[" and closing > 0:
            inner = text[at + 1 : closing].replace("\\", "\\\\").replace("[", "\\[")
            pieces[-1] += f"[{'^' + inner[1:] if inner[0] in '!^' else inner}]"
            at = closing
        elif char == "\\" and at + 1 < len(text):
            at += 1
            pieces[-1] += re.escape(text[at])
        else:
            pieces[-1] += re.escape(char)
        at += 1
    out = pieces[0] + "".join(f"(?>[^/]*?{piece})" for piece in pieces[1:-1] if piece)
    if len(pieces) > 1:
        out += f"[^/]*{pieces[-1]}"
    try:
        return re.compile(out, re.DOTALL)
    except re.error as exc:
        raise InvalidRequest(f"the pattern {text!r} cannot be used: {exc}") from exc


def as_root(content: Content, mode: int | None, name: str = "") -> Content:
    """Yields the content as root's. `mode` replaces the modes of files and directories, `name` a single file's name."""
    for part in content:
        if not isinstance(part, TarMember):
            yield part
        elif part.kind is FileKind.SYMLINK:
            yield replace(part, uid=0, gid=0)
        else:
            yield replace(part, uid=0, gid=0, mode=part.mode if mode is None else mode, path=name or part.path)


async def in_steps(content: Content) -> AsyncIterator[TarMember | bytes]:
    for part in content:
        yield part
