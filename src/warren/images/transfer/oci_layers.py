"""Unpacks the layers of an image upon each other into one tree, as a container engine would show them.

A layer is a tar of what it adds and of whiteouts: `.wh.NAME` removes NAME of the layers below, `.wh..wh..opq` removes
everything they have in that directory. Whiteouts apply to lower layers only, wherever they stand in the tar; so
`Layers` reads every layer but the lowest twice, for its whiteouts first. By then it has also checked the layer's
digest, before anything changes.

As in other imports, `Layers` makes only directories, regular files and links, clears set-id bits, and neither writes
nor removes anything outside the tree. All layers share one budget.
"""

import copy
import gzip
import hashlib
import os
import posixpath
import stat
import tarfile
import zlib
from collections.abc import Callable
from typing import IO, Final, cast

from warren.images.transfer import zstd_stream
from warren.images.transfer.import_tree import (
    MODE,
    Budget,
    CountedStream,
    ImportCaps,
    copy_content,
    damage_explained,
    members_of,
    set_owner,
    set_time,
)
from warren.images.trees.tree import Tree, open_in_root, parts_of, remove_any
from warren.model.errors import InvalidRequest

_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_RESERVED: Final = ".wh..wh."
_CHUNK: Final = 1024 * 1024
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY


class Layers:
    """Unpacks layers into a tree: call `apply` for each, the lowest first. After an error the tree is useless."""

    def __init__(self, tree: Tree, caps: ImportCaps = ImportCaps()) -> None:
        self._tree, self._budget = tree, Budget(caps)
        self._count = 0

    def apply(self, layer: Callable[[], IO[bytes]], diff_id: str) -> None:
        """Unpacks one layer over the earlier ones. `layer` opens its file, plain or compressed, and may be called
        twice. Raises InvalidRequest if the unpacked bytes do not have the digest `diff_id`."""
        self._count += 1
        if self._count > 1:
            with layer() as file:
                self._remove_lower(file, diff_id, copy.copy(self._budget))
        with layer() as file:
            source = _Unpacked(file, self._budget)
            with damage_explained():
                for tar, member in members_of(cast(IO[bytes], source), "r|", self._budget):
                    self._put(tar, member)
            source.check(diff_id, self._count)

    # -- whiteouts

    def _remove_lower(self, file: IO[bytes], diff_id: str, budget: Budget) -> None:
        source = _Unpacked(file, budget)
        found = []
        with damage_explained():
            for _, member in members_of(cast(IO[bytes], source), "r|", budget):
                if posixpath.basename(member.name.rstrip("/")).startswith(_WHITEOUT):
                    found.append(_inside(member.name))
        source.check(diff_id, self._count)
        for path in found:
            self._white_out(path)

    def _white_out(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        if name.startswith(_RESERVED) and name != _OPAQUE:
            return  # engines keep notes of their own under these names
        removed = name.removeprefix(_WHITEOUT)
        if name != _OPAQUE and removed in ("", ".", ".."):
            raise InvalidRequest(f"the whiteout {path!r} names nothing")
        try:
            fd = open_in_root(self._tree.fd, folder or ".", _DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            for each in os.listdir(fd) if name == _OPAQUE else (removed,):
                remove_any(fd, each)
        finally:
            os.close(fd)

    # -- members

    def _put(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = _inside(member.name)
        if not path:
            if member.isdir():
                os.fchmod(self._tree.fd, member.mode & MODE)
            return
        if posixpath.basename(path).startswith(_WHITEOUT):
            return
        with self._tree.parent_inside(path) as (above, name):
            if member.isdir():
                self._put_directory(above, name, member)
            elif member.issym():
                remove_any(above, name)
                os.symlink(_link_target(path, member.linkname), name, dir_fd=above)
                set_owner_at(above, name, member)
            elif member.islnk():
                self._put_hard_link(above, name, path, _inside(member.linkname))
            elif member.isreg():
                self._put_file(above, name, tar, member)
            else:
                remove_any(above, name)  # devices and FIFOs are not made: the sandbox has its own /dev

    def _put_directory(self, above: int, name: str, member: tarfile.TarInfo) -> None:
        fd = self._tree.directory_in(above, name)
        try:
            set_owner(fd, member.uid, member.gid)
            os.fchmod(fd, member.mode & MODE)
        finally:
            os.close(fd)

    def _put_file(self, above: int, name: str, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        content = tar.extractfile(member)
        if content is None:
            raise InvalidRequest(f"the archive has no contents for {member.name!r}")
        # Never written in place: other names of the file (hard links) must keep their content.
        remove_any(above, name)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=above)
        try:
            set_owner(fd, member.uid, member.gid)
            copy_content(content, fd, self._budget)
            os.fchmod(fd, member.mode & MODE)
            set_time(fd, member.mtime)
        finally:
            os.close(fd)

    def _put_hard_link(self, above: int, name: str, path: str, existing: str) -> None:
        if not existing:
            raise InvalidRequest(f"the hard link {path!r} leads to the root")
        try:
            with self._tree.parent_inside(existing, make=False) as (source, source_name):
                found = os.stat(source_name, dir_fd=source, follow_symlinks=False)
                if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
                    raise InvalidRequest(f"the hard link {path!r} leads to {existing!r}, which is no file")
                if _is_same(above, name, found):
                    return
                remove_any(above, name)
                os.link(source_name, name, src_dir_fd=source, dst_dir_fd=above, follow_symlinks=False)
        except FileNotFoundError as exc:
            raise InvalidRequest(f"the hard link {path!r} leads to {existing!r}, which is not there") from exc


class _Unpacked:
    """The tar in a layer's file: decompresses it, counts its bytes and computes its digest while it is read."""

    def __init__(self, file: IO[bytes], budget: Budget) -> None:
        magic = file.read(4)
        file.seek(0)
        counted = cast(IO[bytes], CountedStream(file, budget))
        self._budget, self._digest = budget, hashlib.sha256()
        self._packed = True
        self._plain: IO[bytes]
        if magic[:2] == b"\x1f\x8b":
            self._plain = cast(IO[bytes], gzip.GzipFile(fileobj=counted))
        elif magic == zstd_stream.MAGIC:
            self._plain = cast(IO[bytes], zstd_stream.ZstdReader(counted))
        else:
            self._packed, self._plain = False, counted

    def read(self, count: int) -> bytes:
        try:
            data = self._plain.read(count)
        except (zlib.error, gzip.BadGzipFile, EOFError) as exc:
            raise InvalidRequest(f"a layer of the image is damaged: {exc}") from exc
        self._digest.update(data)
        if self._packed:
            self._budget.stream(len(data))
        return data

    def check(self, diff_id: str, number: int) -> None:
        while self.read(_CHUNK):
            pass  # the digest includes what follows the end of the tar
        found = f"sha256:{self._digest.hexdigest()}"
        if found != diff_id:
            raise InvalidRequest(f"layer {number} of the image unpacks to {found}, and not to {diff_id}")


def set_owner_at(above: int, name: str, member: tarfile.TarInfo) -> None:
    if not (0 <= member.uid < 0xFFFFFFFF and 0 <= member.gid < 0xFFFFFFFF):
        raise InvalidRequest(f"the image has a file that belongs to {member.uid}:{member.gid}, which cannot be")
    os.chown(name, member.uid, member.gid, dir_fd=above, follow_symlinks=False)


def _is_same(above: int, name: str, found: os.stat_result) -> bool:
    try:
        there = os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino)


def _inside(name: str) -> str:
    """Returns the path below the root. A leading slash is allowed: engines take it for the root of the image."""
    return "/".join(parts_of(name))


def _link_target(path: str, target: str) -> str:
    """Returns the target of a symbolic link. One that climbs above the root becomes an absolute link to where the climb
    ends, because `..` of the root is the root."""
    if not target or "\0" in target:
        raise InvalidRequest(f"the link {path!r} has no target")
    parts = target.split("/")
    depth = 0 if target.startswith("/") else len(parts_of(path)) - 1
    start = None
    for number, part in enumerate(parts):
        depth += {"": 0, ".": 0, "..": -1}.get(part, 1)
        if depth < 0:
            depth, start = 0, number + 1
    return target if start is None else "/" + "/".join(parts[start:])
