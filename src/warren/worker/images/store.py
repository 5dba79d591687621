"""The images of this machine: root filesystems by name, under STATE_DIR/images.

An image is a directory with `rootfs/` and `image.json`. It is made in a temporary directory and renamed, so an image
is either complete or absent. The maker holds a lock on the temporary directory; one whose lock is free belongs to a
maker that died, and the next process that makes or removes an image deletes it. Names may be those of Docker images
(`ubuntu:22.04`); the directory has the quoted name.
"""

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, unquote

from warren.interfaces.images import RootFs
from warren.model.errors import ImageNotFound, InvalidRequest, NoSpace, PermissionDenied, WarrenError
from warren.model.spec import check_image_name
from warren.worker.images.build import Progress, build_base, build_host
from warren.worker.images.import_tree import copy_directory, unpack_tar
from warren.worker.images.prepare import check_is_root_filesystem, prepare
from warren.worker.images.tree import Tree

BUILDABLE = ("base", "host")
_FORMAT = 1
_TEMPORARY = ".making-"


@dataclass(frozen=True, slots=True)
class ImageInfo:
    name: str
    source: str
    created: float
    files: int
    size_bytes: int
    host_usr: bool = False
    format: int = _FORMAT


def silent(step: str, fraction: float | None) -> None:
    """Ignores progress."""


class ImageStore:
    def __init__(self, state_dir: Path) -> None:
        self._images = state_dir / "images"

    def __repr__(self) -> str:
        return f"<ImageStore {self._images}>"

    def rootfs(self, name: str) -> RootFs:
        info = self._info(self._place(name))
        if info is None:
            remedy = f"warren image build {name}" if name in BUILDABLE else "warren image import; warren image list"
            raise ImageNotFound(f"there is no image {name!r} on this machine", remedy=remedy)
        return RootFs(self._place(name) / "rootfs", info.host_usr)

    def list(self) -> "list[ImageInfo]":
        if not self._images.is_dir():
            return []
        found = (self._info(path) for path in sorted(self._images.iterdir()) if not path.name.startswith("."))
        return [info for info in found if info is not None]

    def build(self, name: str, progress: Progress = silent) -> ImageInfo:
        """Makes `base` or `host` anew; an image of that name is replaced once the new one is ready."""
        if name not in BUILDABLE:
            raise InvalidRequest(f"Warren cannot build {name!r}", remedy=f"it builds {' and '.join(BUILDABLE)}")
        build = build_base if name == "base" else build_host
        return self._make(
            name,
            "built on this machine",
            lambda path: build(path, path.parents[1], progress),
            progress,
            host_usr=name == "host",
        )

    def import_directory(
        self, name: str, source: Path, progress: Progress = silent, *, shell_needed: bool = True
    ) -> ImageInfo:
        if not source.is_dir():
            raise InvalidRequest(f"{source} is not a directory")
        if self._images.resolve().is_relative_to(source.resolve()):
            raise InvalidRequest(f"{source} holds Warren's own images, it cannot be one of them")
        with Tree(source) as tree:
            check_is_root_filesystem(tree, str(source), shell_needed=shell_needed)

        def fill(path: Path) -> None:
            progress(f"copying {source}", None)
            with _new_tree(path) as tree:
                copy_directory(source, tree)

        return self._make(name, f"directory {source}", fill, progress, shell_needed=shell_needed)

    def import_tar(
        self,
        name: str,
        stream: IO[bytes],
        source: str = "tar",
        progress: Progress = silent,
        *,
        shell_needed: bool = True,
    ) -> ImageInfo:
        def fill(path: Path) -> None:
            progress(f"unpacking {source}", None)
            with _new_tree(path) as tree:
                unpack_tar(stream, tree)

        return self._make(name, source, fill, progress, shell_needed=shell_needed)

    def import_docker(
        self, name: str, reference: str, docker_url: str, progress: Progress = silent, *, shell_needed: bool = True
    ) -> ImageInfo:
        """Takes an image of the Docker engine at `docker_url` and leaves nothing in the engine."""

        def fill(path: Path) -> None:
            from warren.worker.images.from_docker import unpack_docker_image  # takes a while to import

            progress(f"taking {reference} from the Docker engine", None)
            with _new_tree(path) as tree:
                unpack = partial(unpack_tar, tree=tree)
                asyncio.run(unpack_docker_image(docker_url, reference, owner=path, unpack=unpack))

        return self._make(name, f"docker image {reference}", fill, progress, shell_needed=shell_needed)

    def remove(self, name: str) -> None:
        """Removes an image; sandboxes that use it lose the files that they have not opened yet."""
        self.rootfs(name)
        with self._temporary() as temporary, _explain_errors("removing the image", temporary):
            os.rename(self._place(name), temporary / "removed")

    def _make(
        self,
        name: str,
        source: str,
        fill: Callable[[Path], None],
        progress: Progress,
        *,
        host_usr: bool = False,
        shell_needed: bool = True,
    ) -> ImageInfo:
        place = self._place(name)
        with self._temporary() as temporary, _explain_errors(f"making the image {name}", temporary):
            new = temporary / "new"
            new.mkdir()
            fill(new / "rootfs")
            progress("preparing", 0.98)
            with Tree(new / "rootfs") as tree:
                if not host_usr:
                    check_is_root_filesystem(tree, source, shell_needed=shell_needed)
                size = prepare(tree, shell="/bin/bash" if host_usr and Path("/bin/bash").exists() else "")
            info = ImageInfo(name, source, time.time(), size.files, size.bytes, host_usr)
            _write_info(new, info)
            if place.exists():
                os.rename(place, temporary / "old")
            os.rename(new, place)
        progress("done", 1.0)
        return info

    def _place(self, name: str) -> Path:
        check_image_name(name)
        return self._images / quote(name, safe="")

    def _info(self, place: Path) -> ImageInfo | None:
        try:
            values: dict[str, Any] = json.loads((place / "image.json").read_text())
            return ImageInfo(**values)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            if exc.errno == errno.ENAMETOOLONG:
                return None
            raise PermissionDenied(f"the image {unquote(place.name)} cannot be read: {exc.strerror}") from exc
        except (ValueError, TypeError) as exc:
            raise WarrenError(
                f"the image {unquote(place.name)} is damaged: its image.json cannot be read",
                remedy=f"remove {place} and make the image again",
            ) from exc

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[Path]:
        """A directory beside the images, removed afterwards; deletes those that dead makers have left."""
        with contextlib.ExitStack() as held:
            with _explain_errors("making the directory of the images", self._images):
                self._images.mkdir(parents=True, exist_ok=True)
                with _locked(self._images, fcntl.LOCK_EX):
                    self._sweep()
                    path = self._images / f"{_TEMPORARY}{secrets.token_hex(8)}"
                    path.mkdir(mode=0o700)
                    held.enter_context(_locked(path, fcntl.LOCK_EX))
            try:
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)

    def _sweep(self) -> None:
        for left in self._images.glob(f"{_TEMPORARY}*"):
            with contextlib.suppress(BlockingIOError), _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _locked(directory: Path, operation: int) -> Iterator[None]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, operation)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _new_tree(path: Path) -> Iterator[Tree]:
    path.mkdir(mode=0o755)
    with Tree(path) as tree:
        yield tree


@contextlib.contextmanager
def _explain_errors(doing: str, where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(f"{doing}: the disk of {where.parent} is full", remedy="free some space first") from exc
        if exc.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise PermissionDenied(
                f"{doing}: no permission to write {exc.filename or where}",
                remedy="run it as root, or set WARREN_STATE_DIR to a directory of yours",
            ) from exc
        raise InvalidRequest(f"{doing}: {exc.strerror or exc} ({exc.filename or where})") from exc


def _write_info(place: Path, info: ImageInfo) -> None:
    with open(place / "image.json", "w") as file:
        json.dump(asdict(info), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
