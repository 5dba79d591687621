"""The saved disks of a state directory: files NAME.img, which never change.

An image is written under a hidden name, and its writer holds a lock on it. What describes it is in an extended
attribute of the file: both are on disk before the file gets its name. So whatever has a name is complete, and a hidden
file that nobody has locked was left by a crash.
"""

import asyncio
import errno
import fcntl
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from warren.interfaces.disks import SavedDisk
from warren.kernel.fair_thread import disk_threads
from warren.kernel.shielding import run_shielded
from warren.kernel.syncing import sync_file
from warren.model.errors import Conflict, InvalidRequest, NoSpace, NotFound, ProviderUnavailable
from warren.model.spec import MIB, SandboxSpec, check_disk_name, is_disk_name
from warren.sandboxes.disks import file_system
from warren.sandboxes.disks.disk_stream import DiskDescription, Unpacking, packed
from warren.sandboxes.host.disks import FREE_FD, nameless
from warren.sandboxes.host.extents import copy_file

_ENDING: Final = ".img"
_ATTRIBUTE: Final = "trusted.warren.disk"
_PIECE: Final = MIB
T = TypeVar("T")
P = ParamSpec("P")

Fault = Callable[[str], None]


class SavedImages:
    """`spare` returns how many bytes may still be written; `fault` is called with the name of each step."""

    def __init__(self, directory: Path, spare: Callable[[], int], fault: Fault = lambda step: None) -> None:
        self.directory = directory
        self._spare = spare
        self.fault = fault

    def __repr__(self) -> str:
        return f"<SavedImages {self.directory}>"

    def sweep(self) -> None:
        """Removes what a crash has left. Blocks."""
        for path in self.directory.glob(".*"):
            with suppress(BlockingIOError, FileNotFoundError):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(fd)

    async def find(self, name: str) -> SavedDisk | None:
        try:
            return await asyncio.to_thread(self._find, name)
        except NotFound:
            return None

    def _find(self, name: str) -> SavedDisk:
        with self._opened(name) as fd:
            return _saved_disk(name, fd, _describe(fd))

    async def list(self) -> Sequence[str]:
        return await asyncio.to_thread(self._list)

    def _list(self) -> Sequence[str]:
        names = (path.name.removesuffix(_ENDING) for path in self.directory.glob(f"*{_ENDING}"))
        return sorted(name for name in names if is_disk_name(name))

    async def delete(self, name: str) -> None:
        if is_disk_name(name):
            await run_shielded(asyncio.to_thread(self._path(name).unlink, missing_ok=True))

    async def pack(self, name: str) -> AsyncGenerator[bytes, None]:
        with self._opened(name) as fd:
            pieces = packed(fd, _describe(fd))
            while (piece := await run_shielded(asyncio.to_thread(next, pieces, None))) is not None:
                if piece:
                    yield piece

    async def unpack(self, name: str, data: AsyncIterable[bytes]) -> SavedDisk:
        async with self.new(name) as new:
            unpacking = Unpacking(new.fd, self.look)
            async for piece in _pieces(data):
                await _written(name, unpacking.feed, piece)
            return await self.finish(new, replace(unpacking.finish(), stopped_s=0.0))

    @asynccontextmanager
    async def new(self, name: str) -> AsyncIterator["NewImage"]:
        """Yields a new saved disk. If the block fails or is cancelled, nothing is kept of it. Raises InvalidRequest for
        what is no name, and Conflict."""
        check_disk_name(name)
        new = await kept(_written(name, NewImage, self.directory, name, self.fault), NewImage.undo)
        try:
            self.fault("disk begun")
            yield new
        except BaseException:
            await run_shielded(asyncio.to_thread(new.undo))
            raise

    async def finish(self, new: "NewImage", description: DiskDescription) -> SavedDisk:
        """Gives a new disk its name. To be called last in the block."""
        saved = await _written(new.name, new.finish, description)
        await asyncio.sleep(0)  # a task cancelled since its last await would drop what it returns
        return saved

    async def describe(self, name: str) -> DiskDescription:
        """Raises NotFound."""
        return await asyncio.to_thread(self._description, name)

    def _description(self, name: str) -> DiskDescription:
        with self._opened(name) as fd:
            return _describe(fd)

    async def copy(self, name: str, disk_mb: int) -> int:
        """Returns the descriptor of a nameless copy with a disk of this size, and a number that launchers do not use.
        Raises NotFound, NoSpace, ProviderUnavailable."""
        image = await kept(_written(name, self._copy, name), os.close)
        try:
            await file_system.grow(image, disk_mb)
        except BaseException:
            await run_shielded(asyncio.to_thread(os.close, image))
            raise
        return image

    def _copy(self, name: str) -> int:
        with self._opened(name) as old:
            new = nameless(str(self.directory))
            try:
                # An image that is attached to a loop device is written to the disk first.
                copy_file(old, new, self.look, writes_back=True)
                return fcntl.fcntl(new, fcntl.F_DUPFD_CLOEXEC, FREE_FD)
            finally:
                os.close(new)

    def look(self, size: int) -> None:
        """Raises NoSpace if writing this many bytes would touch what must stay free."""
        if (spare := self._spare()) < size:
            raise NoSpace(
                f"a saved disk needs more room: the state directory has {spare // MIB} MiB to spare",
                remedy="delete saved disks that are not needed any more, or free some space there",
            )

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}{_ENDING}"

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        if not is_disk_name(name):
            raise NotFound("there is no such saved disk")
        try:
            fd = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise NotFound(f"there is no saved disk {name}") from None
        try:
            yield fd
        finally:
            os.close(fd)


class NewImage:
    """An image on its way to its name. Its methods block."""

    def __init__(self, directory: Path, name: str, fault: Fault) -> None:
        self._directory, self.name, self._fault = directory, name, fault
        self._final = directory / f"{name}{_ENDING}"
        self._is_named = False
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._require_free()
        self._path = directory / f".{name}.{secrets.token_hex(8)}"
        self.fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(self.fd, fcntl.LOCK_EX)

    def __repr__(self) -> str:
        return f"<NewImage {self.name}>"

    def _require_free(self) -> None:
        if self._final.exists():
            raise Conflict(f"there is a saved disk {self.name}", remedy="delete it first, or use another name")

    def finish(self, description: DiskDescription) -> SavedDisk:
        """Gives the image its name. Raises Conflict if another has got it meanwhile."""
        os.setxattr(self.fd, _ATTRIBUTE, description.to_json().encode())
        os.fsync(self.fd)
        self._fault("disk written")
        try:
            os.link(self._path, self._final, follow_symlinks=False)
        except FileExistsError:
            self._require_free()
            raise
        self._is_named = True
        self._fault("disk named")
        sync_file(self._directory)
        saved = _saved_disk(self.name, self.fd, description)
        self._close()
        return saved

    def undo(self) -> None:
        if self._is_named:
            self._final.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        if self.fd >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self.fd)
            self.fd = -1


async def _pieces(data: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Yields the data in pieces of one size, but for the last: each is worth a thread, and takes it for a moment."""
    buffer = bytearray()
    async for part in data:
        buffer += part
        while len(buffer) >= _PIECE:
            yield bytes(buffer[:_PIECE])
            del buffer[:_PIECE]
    if buffer:
        yield bytes(buffer)


async def kept(made: Awaitable[T], undo: Callable[[T], object]) -> T:
    """Awaits what a thread makes. If the caller is cancelled meanwhile, what was made is undone."""
    making = asyncio.ensure_future(made)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        await run_shielded(_undo(making, undo))
        raise


async def _undo(making: "asyncio.Future[T]", undo: Callable[[T], object]) -> None:
    with suppress(Exception):
        await asyncio.to_thread(undo, await making)


async def _written(name: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs work that writes to the directory to its end, in a thread for disks, in which names take turns: many that
    begin with one large disk do not keep all others waiting."""
    try:
        return await run_shielded(disk_threads().run(name, partial(work, *args, **kwargs)))
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace("there is no space left for a saved disk", remedy="free some in the state directory") from exc
        raise ProviderUnavailable(f"a saved disk cannot be written: {exc.strerror}") from exc


def check_fit(spec: SandboxSpec, disk: DiskDescription, *, host_usr: bool) -> None:
    """Raises InvalidRequest if a sandbox of this spec cannot begin with the disk."""
    if spec.limits.disk_mb < disk.disk_mb:
        raise InvalidRequest(
            f"the saved disk has {disk.disk_mb} MiB, the sandbox is to have {spec.limits.disk_mb}",
            remedy=f"ask for a disk_mb of {disk.disk_mb} or more",
        )
    if spec.writable_root != disk.layout.writable_root:
        was, wanted = ("writable", "read-only") if disk.layout.writable_root else ("read-only", "writable")
        raise InvalidRequest(
            f"the saved disk is of a sandbox with a {was} root, and this one is to have a {wanted} one",
            remedy="use an environment of the same kind",
        )
    if disk.layout.writable_root and host_usr != disk.layout.host_usr:
        raise InvalidRequest(
            "of the saved disk and the image only one has the machine's own /usr",
            remedy="use an image of the same kind",
        )


def _describe(fd: int) -> DiskDescription:
    try:
        return DiskDescription.from_json(os.getxattr(fd, _ATTRIBUTE))
    except (OSError, InvalidRequest) as exc:
        raise ProviderUnavailable(f"a saved disk cannot be read: {exc}", remedy="delete it, and save it again") from exc


def _saved_disk(name: str, fd: int, disk: DiskDescription) -> SavedDisk:
    return SavedDisk(name, disk.disk_mb, os.fstat(fd).st_blocks * 512, disk.sha256, disk.stopped_s)
