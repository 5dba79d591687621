"""Root filesystems by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from warren.model.image import NO_CONFIG, ImageConfig
from warren.model.spec import USER_UID


@dataclass(frozen=True, slots=True)
class RootFs:
    """A prepared root filesystem. `host_usr`: its /usr is empty, and the host's is mounted there, read-only. `layers`:
    lie above it, the uppermost first, as overlayfs takes them. `uid`: the user that commands run as by default.
    `seeded`: the writable directories (model.spec.WRITABLE) in which the image has files. `size_bytes` is 0 if it is
    unknown."""

    path: Path
    host_usr: bool
    version: str = ""
    config: ImageConfig = NO_CONFIG
    layers: tuple[Path, ...] = ()
    uid: int = USER_UID
    seeded: tuple[str, ...] = ()
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ImageMetadata:
    """What is known of a version. image.json holds the fields up to `format`, config.json beside it the others.

    `content` is the digest of its files, as images/pack.py writes them. `uid` is that of the user whom commands run as
    unless they name one. `seeded` are the writable directories (model.spec.WRITABLE) in which it has files.
    """

    name: str
    source: str
    created: float
    files: int
    size_bytes: int
    host_usr: bool = False
    format: int = 1
    config: ImageConfig = NO_CONFIG
    content: str = ""
    uid: int = USER_UID
    seeded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageVersion(ImageMetadata):
    """`current`: the name points to this version. `sandboxes`: how many use it, including those that wait in pools."""

    version: str = ""
    current: bool = True
    sandboxes: int = 0


@dataclass(frozen=True, slots=True)
class ImageOffer:
    """An image that other machines may copy. `content` is the digest of its files."""

    name: str
    content: str
    size_bytes: int
    source: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


class SharedImages(Protocol):
    """Images that are copied between machines. All methods may take long and are called in threads.

    `offers` returns the current versions that others may copy. `send` writes the files of an offered version as a tar,
    whose digest is its content; it raises ImageNotFound if the version is gone. `receive` reads such a tar and makes a
    version of it; if the tar is not what was offered, it raises InvalidRequest and changes nothing, and LimitReached if
    the tenant whose image it is has too many.
    """

    def offers(self) -> Sequence[ImageOffer]: ...
    def send(self, offer: ImageOffer, out: IO[bytes]) -> None: ...
    def receive(self, offer: ImageOffer, stream: IO[bytes]) -> ImageVersion: ...


class ImageLister(Protocol):
    """`list` returns all versions of all images, by name, and the newest version first."""

    def list(self) -> Sequence[ImageVersion]: ...


class Images(Protocol):
    """A name points to one version of an image at a time; a version never changes.

    `version` returns the id of the version that the name points to, and costs no more than a readlink; `rootfs` returns
    its files. `hold` returns them for a sandbox whose directory is `user`: the version then stays, whatever becomes of
    the name, until `release` or until that directory is gone. These raise ImageNotFound, with the remedy, if there is
    no image of that name.
    `prune` removes the versions that no name points to and nobody uses.
    """

    def version(self, name: str) -> str: ...
    def rootfs(self, name: str) -> RootFs: ...
    def hold(self, name: str, user: Path) -> RootFs: ...
    def release(self, user: Path) -> None: ...
    def prune(self) -> object: ...
