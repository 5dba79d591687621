"""Writes a root filesystem as a tar that depends on nothing but its files.

Names are sorted, owners are numbers, and only regular files have a time. So the digest of the tar is the digest of the
image's content: it is the same on every machine, and after an export and an import. Hard links stay hard links;
extended attributes, devices and sockets are left out, as an import leaves them out.
"""

import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

_PART: Final = 1024 * 1024
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def write_tar(root: Path, out: IO[bytes]) -> str:
    """Writes the tree and returns the digest of what it wrote, with its algorithm."""
    digest = hashlib.sha256()
    for part in tar_parts(root):
        digest.update(part)
        out.write(part)
    return f"sha256:{digest.hexdigest()}"


def digest_of(root: Path) -> str:
    """Returns what `write_tar` would return."""
    digest = hashlib.sha256()
    for part in tar_parts(root):
        digest.update(part)
    return f"sha256:{digest.hexdigest()}"


def tar_parts(root: Path) -> Iterator[bytes]:
    """Yields the tree as a tar, in parts of about a mebibyte."""
    buffer = bytearray()
    for piece in _pieces(os.fspath(root)):
        buffer += piece
        if len(buffer) >= _PART:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer) + bytes(2 * tarfile.BLOCKSIZE)


def _pieces(root: str) -> Iterator[bytes]:
    first: dict[tuple[int, int], str] = {}  # by device and inode: the first name of a file with several names
    for name, found in _entries(root):
        member = _member(root, name, found)
        if member is None:
            continue
        if found.st_nlink > 1 and not member.isdir():
            before = first.setdefault((found.st_dev, found.st_ino), name)
            if before != name:
                member.type, member.linkname, member.size = tarfile.LNKTYPE, before, 0
        yield member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        if member.type == tarfile.REGTYPE:
            yield from _content(f"{root}/{name}", member.size)


def _entries(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yields everything below the root, a directory before its contents. It does not recurse, so any depth works."""
    ahead = _names(root, "")
    while ahead:
        name = ahead.pop()
        found = os.lstat(f"{root}/{name}")
        yield name, found
        if stat.S_ISDIR(found.st_mode):
            ahead += _names(root, name)


def _names(root: str, directory: str) -> list[str]:
    """Returns the names in the directory in reverse order, because `_entries` takes them from the end."""
    names = sorted(os.listdir(f"{root}/{directory}"), key=os.fsencode, reverse=True)
    return [f"{directory}/{name}" for name in names] if directory else names


def _member(root: str, name: str, found: os.stat_result) -> tarfile.TarInfo | None:
    member = tarfile.TarInfo(name)
    member.mode, member.uid, member.gid = stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid
    if stat.S_ISDIR(found.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(found.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(f"{root}/{name}")
    elif stat.S_ISREG(found.st_mode):
        member.type, member.size, member.mtime = tarfile.REGTYPE, found.st_size, max(0, int(found.st_mtime))
    else:
        return None
    return member


def _content(path: str, size: int) -> Iterator[bytes]:
    left = size
    with open(os.open(path, _FILE), "rb", buffering=0) as file:
        while left and (part := file.read(min(left, _PART))):
            left -= len(part)
            yield part
    yield bytes(left + (-size % tarfile.BLOCKSIZE))
