"""The images of this machine: root filesystems by name, under STATE_DIR/images.

Building and importing make a new version of an image (versions.py) in a temporary directory, so a version is either
complete or absent. The maker holds a lock on the temporary directory; one whose lock is free belongs to a maker that
died, and the next process that makes or removes an image deletes it. Names may be those of Docker images
(`ubuntu:22.04`); in the folder they are quoted.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

from warren.images.store.layer_cache import UNUSED_S, CacheUse, LayerCache
from warren.images.store.versions import USES, Versions, explain_errors, version_of, write_info
from warren.images.transfer.import_tree import copy_directory, unpack_tar
from warren.images.transfer.oci_archive import is_archive, unpack_archive
from warren.images.trees.own_images import Progress, build_base, build_host
from warren.images.trees.prepare import check_is_root_filesystem, prepare
from warren.images.trees.tree import Tree
from warren.interfaces.images import ImageMetadata, ImageVersion, RootFs
from warren.kernel.tree_tar import digest_of
from warren.model.errors import ImageNotFound, InvalidRequest
from warren.model.image import NO_CONFIG, ImageConfig
from warren.model.oci_image import read_platform
from warren.model.spec import check_image_name

BUILDABLE = ("base", "host")


def silent(step: str, fraction: float | None) -> None:
    """Ignores progress."""


class ImageStore:
    """Implements interfaces/images.py."""

    def __init__(self, state_dir: Path) -> None:
        self._images = state_dir / "images"
        self._versions = Versions(self._images)

    def __repr__(self) -> str:
        return f"<ImageStore {self._images}>"

    @property
    def folder(self) -> Path:
        return self._images

    def temporary(self) -> contextlib.AbstractContextManager[Path]:
        """Yields a new directory beside the images and removes it afterwards. Also removes those of dead makers."""
        return self._versions.temporary()

    def version(self, name: str) -> str:
        return self._versions.current(name) or _missing(name)

    def info(self, version: str) -> ImageMetadata | None:
        return self._versions.info(version)

    def rootfs(self, name: str) -> RootFs:
        return self._versions.rootfs(self.version(name)) or _missing(name)

    def hold(self, name: str, user: Path) -> RootFs:
        return self._versions.hold(name, user) or _missing(name)

    def release(self, user: Path) -> None:
        self._versions.release(user)

    def source(self, name: str, version: str) -> str:
        """Returns what this version was made from; "" if it no longer exists."""
        return next((one.source for one in self.list() if one.version == version), "")

    def last_used(self, version: str) -> float:
        """Returns when a sandbox last began or ended to use this version; 0 if it no longer exists."""
        try:
            return (self._versions.path(version) / USES).stat().st_mtime
        except OSError:
            return 0.0

    @contextlib.contextmanager
    def using(self, name: str) -> Iterator[RootFs]:
        """Yields the current version of an image, which is not removed meanwhile."""
        with self._versions.temporary() as user:
            try:
                yield self.hold(name, user)
            finally:
                self.release(user)

    def list(self) -> "list[ImageVersion]":
        """Returns all versions of all images, sorted by name, the newest first."""
        return self._versions.show_all()

    def built(self, version: str) -> Mapping[str, Any]:
        return self._versions.built(version)

    def parts(self, version: str) -> dict[str, int]:
        """Returns the bytes of a version in parts, some of which other versions may have as well: its layers, and what
        is its own. A version that was not built of steps is one part. What an image shares with the one that it was
        built on is in no part, unless that one is a tenant's too."""
        noted = self._versions.built(version)
        try:
            return {**noted["layers"], version: int(noted["own_bytes"])}
        except (KeyError, TypeError, ValueError):
            info = self._versions.info(version)
            return {f"{version}-whole": info.size_bytes if info is not None else 0}

    def build(self, name: str, progress: Progress = silent) -> ImageVersion:
        """Builds a new version of `base` or `host`; the name points to it once it is complete."""
        if name not in BUILDABLE:
            raise InvalidRequest(f"Warren cannot build {name!r}", remedy=f"it builds {' and '.join(BUILDABLE)}")
        build = build_base if name == "base" else build_host

        def fill(path: Path) -> None:
            build(path, path.parents[1], progress)

        return self.make(
            name,
            "built on this machine",
            fill,
            progress,
            host_usr=name == "host",
        )

    def import_directory(
        self, name: str, source: Path, progress: Progress = silent, *, shell_needed: bool = True, platform: str = ""
    ) -> ImageVersion:
        """Imports a root filesystem, or the image of an OCI layout."""
        if not source.is_dir():
            raise InvalidRequest(f"{source} is not a directory")
        if self._images.resolve().is_relative_to(source.resolve()):
            raise InvalidRequest(f"{source} holds Warren's own images, it cannot be one of them")
        with Tree(source) as tree:
            is_layout = is_archive(tree)
            if not is_layout:
                check_is_root_filesystem(tree, str(source), shell_needed=shell_needed)

        def fill(path: Path) -> ImageConfig | None:
            progress(f"copying {source}", None)
            with Tree(source) as archive, _new_tree(path) as tree:
                if is_layout:
                    return unpack_archive(archive, tree, read_platform(platform))
                copy_directory(source, tree)
            return None

        return self.make(name, f"directory {source}", fill, progress, shell_needed=shell_needed)

    def import_tar(
        self,
        name: str,
        stream: IO[bytes],
        source: str = "tar",
        progress: Progress = silent,
        *,
        shell_needed: bool = True,
        platform: str = "",
    ) -> ImageVersion:
        """Imports a tar of a root filesystem or of an OCI layout, or the output of `docker save`."""

        def fill(path: Path) -> ImageConfig | None:
            progress(f"unpacking {source}", None)
            with _new_tree(path) as tree:
                unpack_tar(stream, tree)
                if not is_archive(tree):
                    return None
                path.rename(path.parents[1] / "archive")
                with _new_tree(path) as target:
                    return unpack_archive(tree, target, read_platform(platform))

        return self.make(name, source, fill, progress, shell_needed=shell_needed)

    def import_docker(
        self, name: str, reference: str, docker_url: str, progress: Progress = silent, *, shell_needed: bool = True
    ) -> ImageVersion:
        """Imports an image from the Docker engine at `docker_url`, and leaves nothing in the engine."""

        def fill(path: Path) -> ImageConfig:
            from warren.images.transfer.from_docker import unpack_docker_image  # takes a while to import

            progress(f"taking {reference} from the Docker engine", None)
            with _new_tree(path) as tree:
                unpack = partial(unpack_tar, tree=tree)
                return asyncio.run(unpack_docker_image(docker_url, reference, owner=path, unpack=unpack))

        return self.make(name, f"docker image {reference}", fill, progress, shell_needed=shell_needed)

    def remove(self, which: str, *, when_unused: bool = False) -> ImageVersion:
        """Removes the current version of the image of that name, or the version with that id. Raises Conflict if
        sandboxes use it; with `when_unused` the name goes at once, and the version when the last sandbox ends."""
        with explain_errors("removing the image", self._images):
            return self._versions.remove(which, when_unused=when_unused)

    def prune(self) -> Sequence[ImageVersion]:
        """Removes the versions that no name points to and nobody uses, and returns them."""
        with explain_errors("removing versions of images", self._images):
            return self._versions.prune()

    def prune_layers(self, *, everything: bool = False) -> CacheUse:
        """Removes the layers of builds that were unused for a month; with `everything`, all that no build uses now."""
        cache = LayerCache(self._images)
        with self.temporary() as temporary, explain_errors("removing layers", temporary):
            return cache.trim(temporary, max_bytes=1 << 62, unused_s=-1.0 if everything else UNUSED_S)

    def make(
        self,
        name: str,
        source: str,
        fill: Callable[[Path], ImageConfig | None],
        progress: Progress,
        *,
        host_usr: bool = False,
        shell_needed: bool = True,
        make_room: Callable[[int, int], None] = lambda size_bytes, files: None,
    ) -> ImageVersion:
        """Calls `fill` with a path to put a root filesystem at, and makes a new version of it. `fill` may return the
        image's config, and may use the directory two levels above the path for temporary files. `make_room` gets the
        size of the version and the number of its files; if it raises, the name keeps the version that it has."""
        check_image_name(name)
        with self._versions.temporary() as temporary, explain_errors(f"making the image {name}", temporary):
            new = temporary / "new"
            new.mkdir()
            config = fill(new / "rootfs") or NO_CONFIG
            progress("preparing", 0.98)
            with Tree(new / "rootfs") as tree:
                if not host_usr:
                    check_is_root_filesystem(tree, source, shell_needed=shell_needed)
                shell = "/bin/bash" if host_usr and Path("/bin/bash").exists() else ""
                size = prepare(tree, shell, config)
            make_room(size.bytes, size.files)
            content = digest_of(new / "rootfs")
            info = ImageMetadata(
                *(name, source, time.time(), size.files, size.bytes, host_usr),
                config=config,
                content=content,
                uid=size.uid,
                seeded=size.seeded,
            )
            write_info(new, info)
            version = self._versions.add(name, new)
        progress("done", 1.0)
        return version_of(info, version)


def _missing(name: str) -> NoReturn:
    remedy = (
        f"warren image build {name}"
        if name in BUILDABLE
        else f"warren image pull {name}; `warren image list` shows those there are, `warren image import` adds one"
    )
    raise ImageNotFound(f"there is no image {name!r} on this machine", remedy=remedy)


@contextlib.contextmanager
def _new_tree(path: Path) -> Iterator[Tree]:
    path.mkdir(mode=0o755)
    with Tree(path) as tree:
        yield tree
