"""Layers: what a step of a build has changed, in the form of overlayfs; and trees made of a base with layers above it.

    a removed name          a character device 0:0 (a whiteout)
    a directory that hides
    what lies below it      the attribute trusted.overlay.opaque

`collect` copies the upper directory of a sandbox that has ended. The sandbox's programs wrote it, so `collect` trusts
nothing in it: it takes only directories, regular files, links and whiteouts, and drops set-id bits and extended
attributes. `flatten` makes one tree of hard links, so files in a tree must be replaced, never changed in place. Both
open every directory by its name in its parent and follow no link.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warren.model.errors import InvalidRequest, ProtocolError

_OPAQUE: Final = "trusted.overlay.opaque"
_FOREIGN: Final = ("trusted.overlay.redirect", "trusted.overlay.metacopy")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SOURCE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE: Final = 0o1777
_IDS: Final = 65536
_LONGEST_PATH: Final = 3000
_CHUNK: Final = 64 << 20
_DEEPEST: Final = 200
_NO_LAYER: Final = frozenset({".warren", "proc", "sys", "dev"})
"""Directories of the root whose contents are mounted into every sandbox; no layer holds them."""


@dataclass(frozen=True, slots=True)
class LayerSize:
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LayerCaps:
    """Limits far above what a step of a real build makes. `depth` bounds how many directories are open at once."""

    files: int = 1_000_000
    bytes: int = 64 << 30
    depth: int = _DEEPEST


USUAL_CAPS: Final = LayerCaps()


def collect(
    upper_fd: int,
    uid_base: int,
    target: Path,
    *,
    owner: tuple[int, int] | None = None,
    below: Sequence[Path] = (),
    caps: LayerCaps = USUAL_CAPS,
) -> LayerSize:
    """Copies an upper directory into the new directory `target`, and maps its ids to the sandbox's by subtracting
    `uid_base`. With an `owner`, everything new belongs to that owner; a directory that one of the trees `below` (the
    uppermost first) already had keeps its own. Raises InvalidRequest beyond the caps."""
    target.mkdir(mode=0o700)
    with contextlib.ExitStack() as held:
        root = held.enter_context(_opened(str(target), None, _DIRECTORY))
        trees = [held.enter_context(_opened(str(path), None, _DIRECTORY)) for path in below if owner is not None]
        copying = _Collection(root, uid_base, owner, caps)
        copying.directory(upper_fd, root, "", trees, is_new=False, depth=0)
        return LayerSize(copying.files, copying.bytes)


class _Collection:
    def __init__(self, root: int, uid_base: int, owner: tuple[int, int] | None, caps: LayerCaps) -> None:
        self._root, self._uid_base, self._owner, self._caps = root, uid_base, owner, caps
        self._links: dict[int, str] = {}  # inode -> path of its first name in the layer
        self.files = self.bytes = 0

    def directory(self, source: int, target: int, path: str, below: Sequence[int], *, is_new: bool, depth: int) -> None:
        """Copies a directory. `is_new` means that no lower layer has it; `below` are the roots of trees that do."""
        if depth > self._caps.depth:
            raise InvalidRequest(f"the step made directories more than {self._caps.depth} deep, which are not taken")
        attributes = os.listxattr(source)
        _check_attributes(attributes)
        if _OPAQUE in attributes:
            is_new = True
            os.setxattr(target, _OPAQUE, b"y")
        with os.scandir(source) as entries:
            for entry in entries:
                if depth or entry.name not in _NO_LAYER:
                    self._entry(entry, source, target, path, () if is_new else below, is_new, depth)
        found = os.fstat(source)
        os.fchown(target, *self._ids(found, is_new))
        os.fchmod(target, found.st_mode & _MODE)
        os.utime(target, ns=(found.st_mtime_ns, found.st_mtime_ns))

    def _entry(
        self,
        entry: "os.DirEntry[str]",
        source: int,
        target: int,
        path: str,
        below: Sequence[int],
        is_new: bool,
        depth: int,
    ) -> None:
        name = entry.name
        found = entry.stat(follow_symlinks=False)
        self._count(found)
        if stat.S_ISDIR(found.st_mode):
            os.mkdir(name, 0o700, dir_fd=target)
            before = _having(below, f"{path}{name}")
            is_new = is_new or (self._owner is not None and not before)
            with _opened(name, source, _DIRECTORY) as inner, _opened(name, target, _DIRECTORY) as made:
                self.directory(inner, made, f"{path}{name}/", before, is_new=is_new, depth=depth + 1)
        elif stat.S_ISREG(found.st_mode):
            if not (found.st_nlink > 1 and self._link_again(found, name, target, f"{path}{name}")):
                self._file(source, name, target)
        elif stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            os.chown(name, *self._ids(found, True), dir_fd=target, follow_symlinks=False)
            os.utime(name, ns=(found.st_mtime_ns, found.st_mtime_ns), dir_fd=target, follow_symlinks=False)
        elif is_whiteout(found):
            os.mknod(name, stat.S_IFCHR | 0o600, os.makedev(0, 0), dir_fd=target)

    def _count(self, found: os.stat_result) -> None:
        self.files += 1
        self.bytes += found.st_blocks * 512
        if self.files > self._caps.files:
            raise InvalidRequest(f"the step made or changed more than {self._caps.files} files")
        if self.bytes > self._caps.bytes:
            raise InvalidRequest(f"the step wrote more than {self._caps.bytes} bytes")

    def _link_again(self, found: os.stat_result, name: str, target: int, path: str) -> bool:
        """Links `name` to an earlier copy of the same inode. Returns False if the caller must copy the file."""
        first = self._links.get(found.st_ino)
        if first is None:
            if len(os.fsencode(path)) <= _LONGEST_PATH:
                self._links[found.st_ino] = path
            return False
        os.link(first, name, src_dir_fd=self._root, dst_dir_fd=target, follow_symlinks=False)
        return True

    def _file(self, source: int, name: str, target: int) -> None:
        with _opened(name, source, _SOURCE) as file:
            found = os.fstat(file)
            _check_attributes(os.listxattr(file))
            made = os.open(name, _NEW_FILE, 0o600, dir_fd=target)
            try:
                copy_content(file, made, found.st_size)
                os.fchown(made, *self._ids(found, True))
                os.fchmod(made, found.st_mode & _MODE)
                os.utime(made, ns=(found.st_mtime_ns, found.st_mtime_ns))
            finally:
                os.close(made)

    def _ids(self, found: os.stat_result, is_new: bool) -> tuple[int, int]:
        if is_new and self._owner is not None:
            return self._owner
        return self._id(found.st_uid), self._id(found.st_gid)

    def _id(self, number: int) -> int:
        """Returns the id inside the sandbox. Ids outside its range belong to the launcher, and become root."""
        return number - self._uid_base if 0 <= number - self._uid_base < _IDS else 0


def _having(trees: Sequence[int], path: str) -> list[int]:
    """Returns the trees whose directory `path` is visible. All of them have its parent."""
    found: list[int] = []
    for tree in trees:
        try:
            kind = os.stat(path, dir_fd=tree, follow_symlinks=False).st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(kind):
            break  # a file or whiteout hides what lower trees have
        found.append(tree)
    return found


def _check_attributes(names: Sequence[str]) -> None:
    if any(name in names for name in _FOREIGN):
        raise ProtocolError("the layer refers to files below it, which only the sandbox's own mount could resolve")


def is_whiteout(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def copy_content(source: int, target: int, size: int) -> None:
    """Copies a file with its holes, so that a sparse file stays sparse."""
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno != errno.ENXIO:  # ENXIO: only a hole follows
                raise
            break
        end = min(os.lseek(source, start, os.SEEK_HOLE), size)
        if start >= end:
            break
        os.lseek(source, start, os.SEEK_SET)
        os.lseek(target, start, os.SEEK_SET)
        while start < end:
            count = os.sendfile(target, source, start, min(end - start, _CHUNK))
            if count == 0:
                break
            start += count
        at = end
    os.ftruncate(target, size)


# -- one tree of several


def flatten(base: Path, layers: Sequence[Path], target: Path) -> int:
    """Makes the new directory `target` from a base and the layers above it, the lowest first. Files become hard links
    where possible, else copies; directories are new. Returns the bytes that it takes beside what it shares."""
    target.mkdir(mode=0o700)
    flattening = _Flattening()
    with contextlib.ExitStack() as held:
        sources = [held.enter_context(_opened(str(path), None, _DIRECTORY)) for path in (*reversed(layers), base)]
        flattening.directory(sources, held.enter_context(_opened(str(target), None, _DIRECTORY)))
    return flattening.own_bytes


class _Flattening:
    def __init__(self) -> None:
        self._can_link = True
        self._depth = 0
        self.own_bytes = 0

    def directory(self, sources: Sequence[int], target: int) -> None:
        """Fills `target` from `sources`: the same directory in every layer that has it, the uppermost first."""
        if self._depth > _DEEPEST:
            raise InvalidRequest(f"the image has directories more than {_DEEPEST} deep")
        self._depth += 1
        if len(sources) == 1:
            self._only(sources[0], target)
        else:
            self._merged(sources, target)
        self._depth -= 1
        found = os.fstat(sources[0])
        os.fchown(target, found.st_uid, found.st_gid)
        os.fchmod(target, found.st_mode & _MODE)
        os.utime(target, ns=(found.st_mtime_ns, found.st_mtime_ns))
        self.own_bytes += os.fstat(target).st_blocks * 512

    def _only(self, source: int, target: int) -> None:
        with os.scandir(source) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    self._below([source], entry.name, target)
                elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                    self._link(source, entry.name, target)

    def _merged(self, sources: Sequence[int], target: int) -> None:
        seen: set[str] = set()
        for number, source in enumerate(sources):
            with os.scandir(source) as entries:
                for entry in entries:
                    if entry.name in seen:
                        continue
                    seen.add(entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        self._below(sources[number:], entry.name, target)
                    elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                        self._link(source, entry.name, target)

    def _below(self, sources: Sequence[int], name: str, target: int) -> None:
        """Makes the directory `name` in `target` from the sources that have it, down to one that hides the rest."""
        with contextlib.ExitStack() as held:
            parts = []
            for source in sources:
                try:
                    parts.append(held.enter_context(_opened(name, source, _DIRECTORY)))
                except FileNotFoundError:
                    continue
                except OSError as exc:
                    if exc.errno not in (errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
                        raise
                    break  # a whiteout, a file or a link hides what lower layers have
                if len(sources) > 1 and _is_opaque(parts[-1]):
                    break
            os.mkdir(name, 0o700, dir_fd=target)
            self.directory(parts, held.enter_context(_opened(name, target, _DIRECTORY)))

    def _link(self, source: int, name: str, target: int) -> None:
        if self._can_link:
            try:
                os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
                return
            except OSError as exc:
                if exc.errno not in (errno.EXDEV, errno.EMLINK, errno.EPERM):
                    raise
                self._can_link = exc.errno != errno.EXDEV
        _copy_entry(source, name, target)
        self.own_bytes += os.stat(name, dir_fd=target, follow_symlinks=False).st_blocks * 512


def _is_opaque(directory: int) -> bool:
    try:
        return os.getxattr(directory, _OPAQUE) == b"y"
    except OSError:
        return False


def _copy_entry(source: int, name: str, target: int) -> None:
    found = os.stat(name, dir_fd=source, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        os.chown(name, found.st_uid, found.st_gid, dir_fd=target, follow_symlinks=False)
        return
    with _opened(name, source, _SOURCE) as file:
        made = os.open(name, _NEW_FILE, 0o600, dir_fd=target)
        try:
            copy_content(file, made, found.st_size)
            os.fchown(made, found.st_uid, found.st_gid)
            os.fchmod(made, found.st_mode & _MODE)
            os.utime(made, ns=(found.st_mtime_ns, found.st_mtime_ns))
        finally:
            os.close(made)


@contextlib.contextmanager
def _opened(name: str, directory: int | None, flags: int) -> Iterator[int]:
    fd = os.open(name, flags, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)
