"""Sends images from one machine of a cluster to another; cluster/images.py transports them."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Final, cast

from warren.images.store.store import ImageStore, silent
from warren.images.store.versions import config_of
from warren.images.transfer.import_tree import ImportCaps, unpack_tar
from warren.images.trees.tree import Tree
from warren.interfaces.images import ImageOffer, ImageVersion
from warren.kernel.tree_tar import write_tar
from warren.model.errors import ImageNotFound, InvalidRequest
from warren.model.image import ImageConfig

_PART: Final = 1024 * 1024
MakeRoom = Callable[[str, int, int], None]


class ImageSharing:
    """Implements SharedImages. Does not offer the image `host`, which is useless on another machine. `make_room` is
    called before the name of a received image points to it, and may raise LimitReached. `check_room` is called again
    and again while an image is received, and may raise MachineFull."""

    def __init__(
        self,
        store: ImageStore,
        make_room: MakeRoom = lambda name, size_bytes, files: None,
        check_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._make_room, self._caps = store, make_room, ImportCaps(check_room=check_room)

    def offers(self) -> Sequence[ImageOffer]:
        return [
            ImageOffer(one.name, one.content, one.size_bytes, one.source, dataclasses.asdict(one.config))
            for one in self._store.list()
            if one.current and one.content and not one.host_usr
        ]

    def send(self, offer: ImageOffer, out: IO[bytes]) -> None:
        with self._store.using(offer.name) as rootfs:
            if write_tar(rootfs.path, out) != offer.content:  # the receiver computes the same digest
                raise ImageNotFound(f"the image {offer.name!r} was replaced meanwhile")

    def receive(self, offer: ImageOffer, stream: IO[bytes]) -> ImageVersion:
        def fill(path: Path) -> ImageConfig:
            hashed = _HashedStream(stream)
            path.mkdir(mode=0o755)
            with Tree(path) as tree:
                unpack_tar(cast(IO[bytes], hashed), tree, self._caps)
            while hashed.read(_PART):
                pass  # the digest includes what follows the last member
            if hashed.digest != offer.content:
                raise InvalidRequest(f"the image {offer.name!r} arrived with another content than was offered")
            return config_of(offer.config)

        make_room = partial(self._make_room, offer.name)
        return self._store.make(offer.name, offer.source, fill, silent, shell_needed=False, make_room=make_room)


class _HashedStream:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._hash = stream, hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        return data

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"
