"""Root filesystems from elsewhere: a directory, a tar, a container engine's export.

Whatever the source holds, an import writes nothing outside the tree and makes only directories, regular files and
links: it leaves out devices, FIFOs and sockets, and clears set-id bits. It refuses a source that tries to climb out.
"""

import contextlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast

from warren.images.transfer import zstd_stream
from warren.images.trees.tree import Tree, parts_of, write_all
from warren.model.errors import InvalidRequest

_CHUNK = 1024 * 1024
MODE = 0o1777
_LAST_TIME = 1 << 33  # ext4 keeps no later one
_HEADER_TYPES = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


@dataclass(frozen=True, slots=True)
class ImportCaps:
    """The limits of an import, against bombs and mistakes; far above any real image. `check_room` is called
    before each member and each piece of content, and may raise."""

    members: int = 2_000_000
    size: int = 64 << 30
    ratio: int = 200
    ratio_from: int = 256 << 20
    header: int = 1 << 20
    check_room: Callable[[], None] = lambda: None


class ImageTooLarge(InvalidRequest):
    @classmethod
    def than(cls, max_bytes: int) -> "ImageTooLarge":
        return cls(f"the image is larger than {max_bytes} bytes")


class Budget:
    """Counts the bytes and members that an import reads and writes, and raises InvalidRequest beyond the caps."""

    def __init__(self, caps: ImportCaps) -> None:
        self.caps = caps
        self.members = 0
        self.written = 0
        self.read = 0
        self.streamed = 0

    def member(self) -> None:
        self.members += 1
        if self.members > self.caps.members:
            raise InvalidRequest(f"the image has more than {self.caps.members} members")
        self.caps.check_room()

    def bytes(self, count: int, *, packed: bool) -> None:
        self.written += count
        if self.written > self.caps.size:
            raise ImageTooLarge.than(self.caps.size)
        if packed and self.written > max(self.caps.ratio_from, self.read * self.caps.ratio):
            raise InvalidRequest(f"the archive unpacks to more than {self.caps.ratio} times its size: a bomb")
        self.caps.check_room()

    def stream(self, count: int) -> None:
        """Counts bytes that come out of a decompressor, including headers and padding."""
        self.streamed += count
        if self.streamed > max(self.caps.ratio_from, self.read * self.caps.ratio):
            raise InvalidRequest(f"the archive unpacks to more than {self.caps.ratio} times its size: a bomb")


class CountedStream:
    def __init__(self, stream: IO[bytes], budget: Budget) -> None:
        self._stream = stream
        self._budget = budget
        self._head = b""

    def read(self, count: int) -> bytes:
        head, self._head = self._head, b""
        data = head + self._stream.read(count - len(head))
        self._budget.read += len(data)
        return data

    def put_back(self, head: bytes) -> None:
        """Returns bytes to the stream. The next read must ask for at least as many, and begins with them."""
        self._head = head
        self._budget.read -= len(head)


def unpack_tar(stream: IO[bytes], tree: Tree, caps: ImportCaps = ImportCaps()) -> None:
    """Unpacks a tar, plain or compressed, as it arrives. The stream need not be seekable."""
    budget = Budget(caps)
    source = CountedStream(stream, budget)
    with damage_explained():
        for tar, member in members_of(*_unzstd(source), budget):
            _unpack_member(tar, member, tree, budget)


def is_tar(stream: IO[bytes]) -> bool:
    """Returns whether the stream begins with a tar, plain or compressed."""
    try:
        for _ in members_of(*_unzstd(CountedStream(stream, Budget(ImportCaps()))), Budget(ImportCaps())):
            return True
    except (tarfile.TarError, EOFError, OSError, ValueError, InvalidRequest):
        return False
    return True


def _unzstd(source: "CountedStream") -> tuple[IO[bytes], Literal["r|", "r|*"]]:
    """Returns the stream to read a tar from, and tarfile's mode for it: tarfile knows every compression but zstd."""
    head = source.read(len(zstd_stream.MAGIC))
    source.put_back(head)
    if head == zstd_stream.MAGIC:
        return cast(IO[bytes], zstd_stream.ZstdReader(cast(IO[bytes], source))), "r|"
    return cast(IO[bytes], source), "r|*"


def members_of(
    stream: IO[bytes], mode: Literal["r|", "r|*"], budget: "Budget"
) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yields the members of a tar as they arrive."""
    with tarfile.open(fileobj=stream, mode=mode, tarinfo=_guarded(budget.caps)) as tar:
        for member in tar:
            budget.member()
            yield tar, member
            tar.members = []  # type: ignore[attr-defined]  # tarfile keeps every member it saw


@contextlib.contextmanager
def damage_explained() -> Iterator[None]:
    """Raises InvalidRequest for whatever tarfile raises about a damaged archive."""
    try:
        yield
    except (tarfile.TarError, EOFError, ValueError, OverflowError, IndexError, RecursionError) as exc:
        raise InvalidRequest(f"this is not a tar archive, or it is damaged: {exc}") from exc


def _guarded(caps: ImportCaps) -> type[tarfile.TarInfo]:
    class GuardedTarInfo(tarfile.TarInfo):
        """Refuses huge headers: tarfile reads a long name or extended header into memory whole."""

        def _proc_member(self, tar: tarfile.TarFile) -> Any:
            if self.type in _HEADER_TYPES and self.size > caps.header:
                raise InvalidRequest(f"the archive has a header of {self.size} bytes")
            return super()._proc_member(tar)  # type: ignore[misc]

    return GuardedTarInfo


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, tree: Tree, budget: Budget) -> None:
    path = _inside(member.name)
    mode = member.mode & MODE
    if member.isdir():
        tree.make_directory(path, mode)
    elif member.issym():
        _check_target(path, member.linkname)
        tree.put_link(path, member.linkname)
    elif member.islnk():
        _put_hard_link(tree, path, _inside(member.linkname))
        return
    elif member.isreg():
        content = tar.extractfile(member)
        if content is None:
            raise InvalidRequest(f"the archive has no contents for {member.name!r}")
        with tree.new_file(path, mode) as fd:
            set_owner(fd, member.uid, member.gid)
            copy_content(content, fd, budget)
            set_time(fd, member.mtime)
        return
    else:
        return  # devices, FIFOs: the sandbox has its own /dev
    _own_path(tree, path, member.uid, member.gid)


def _put_hard_link(tree: Tree, path: str, existing: str) -> None:
    try:
        tree.put_hard_link(path, existing)
    except FileNotFoundError as exc:
        raise InvalidRequest(f"the hard link {path!r} leads to {existing!r}, which is not there") from exc


def _inside(name: str) -> str:
    if name.startswith("/"):
        raise InvalidRequest(f"the archive has the absolute path {name!r}")
    return "/".join(parts_of(name))


def _check_target(path: str, target: str) -> None:
    """Refuses a relative link that climbs above the root. An absolute one is allowed: inside, the image is the root."""
    if not target or "\0" in target:
        raise InvalidRequest(f"the link {path!r} has no target")
    depth = 0 if target.startswith("/") else len(parts_of(path)) - 1
    for part in target.split("/"):
        depth += {"": 0, ".": 0, "..": -1}.get(part, 1)
        if depth < 0:
            raise InvalidRequest(f"the link {path!r} leads out of the image, to {target!r}")


def copy_content(source: IO[bytes], fd: int, budget: Budget) -> None:
    while data := source.read(_CHUNK):
        budget.bytes(len(data), packed=True)
        write_all(fd, data)


def set_time(fd: int, mtime: float) -> None:
    """Sets whole seconds, because a tar keeps no more and programs compare them; an impossible time becomes 0."""
    seconds = int(mtime) if 0 <= mtime <= _LAST_TIME else 0
    os.utime(fd, (seconds, seconds))


def set_owner(fd: int, uid: int, gid: int) -> None:
    os.fchown(fd, _id(uid), _id(gid))


def _own_path(tree: Tree, path: str, uid: int, gid: int) -> None:
    tree.set_owner(path, _id(uid), _id(gid))


def _id(number: int) -> int:
    if not 0 <= number < 0xFFFFFFFF:
        raise InvalidRequest(f"the image has a file that belongs to {number}, which cannot be")
    return number


def copy_directory(source: Path, tree: Tree, caps: ImportCaps = ImportCaps()) -> None:
    """Copies a directory of this machine. Other file systems mounted below it stay empty directories."""
    budget = Budget(caps)
    links: dict[tuple[int, int], str] = {}
    device = os.stat(source).st_dev
    for base, directories, names, fd in os.fwalk(source, follow_symlinks=False):
        relative = os.path.relpath(base, source)
        tree_base = "" if relative == "." else f"{relative}/"
        _copy_directory_entry(fd, tree, tree_base, budget)
        directories[:] = [name for name in directories if _same_device(fd, name, device, tree, tree_base)]
        for name in names:
            budget.member()
            _copy_entry(fd, name, f"{tree_base}{name}", tree, budget, links)


def _copy_directory_entry(fd: int, tree: Tree, path: str, budget: Budget) -> None:
    budget.member()
    found = os.fstat(fd)
    tree.make_directory(path, found.st_mode & MODE)
    _own_path(tree, path, found.st_uid, found.st_gid)


def _same_device(fd: int, name: str, device: int, tree: Tree, base: str) -> bool:
    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if stat.S_ISDIR(found.st_mode) and found.st_dev != device:
        tree.make_directory(f"{base}{name}")
        return False
    if stat.S_ISLNK(found.st_mode):  # os.fwalk lists links to directories among the directories
        tree.put_link(f"{base}{name}", os.readlink(name, dir_fd=fd))
        return False
    return True


def _copy_entry(fd: int, name: str, path: str, tree: Tree, budget: Budget, links: dict[tuple[int, int], str]) -> None:
    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        tree.put_link(path, os.readlink(name, dir_fd=fd))
        _own_path(tree, path, found.st_uid, found.st_gid)
        return
    if not stat.S_ISREG(found.st_mode):
        return
    identity = (found.st_dev, found.st_ino)
    if found.st_nlink > 1:
        if identity in links:
            tree.put_hard_link(path, links[identity])
            return
        links[identity] = path
    _copy_file(fd, name, path, tree, budget)


def _copy_file(directory: int, name: str, path: str, tree: Tree, budget: Budget) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    # The entry may be replaced between stat and open: O_NOFOLLOW refuses a link, O_NONBLOCK does not wait on a FIFO.
    source = os.open(name, flags, dir_fd=directory)
    try:
        found = os.fstat(source)
        with tree.new_file(path, found.st_mode & MODE) as target:
            set_owner(target, found.st_uid, found.st_gid)
            while data := os.read(source, _CHUNK):
                budget.bytes(len(data), packed=False)
                write_all(target, data)
            set_time(target, found.st_mtime)
    finally:
        os.close(source)
