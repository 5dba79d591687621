"""The layers that steps of builds have made, by what they were made from.

    images/.layers/KEY/tree         the layer, in the form of overlayfs
    images/.layers/KEY/layer.json   its size; when this file was last touched, the layer was last used

A key is a digest of the key below it and of everything the step depends on. A layer is complete or absent: it is made
in the builder's temporary directory and renamed. Whoever uses one holds a shared lock on its directory, which ends with
the process; only one that nobody holds is removed. The least recently used go first when there is too much, and all of
them may go at any time: the next build makes them again.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from warren.images.trees.layers import LayerSize

LAYERS: Final = ".layers"
UNUSED_S: Final = 30 * 86400.0
_LEAST: Final = 4096  # an empty layer takes space too
_KEY_FORMAT: Final = 1
_INFO: Final = "layer.json"
_TREE: Final = "tree"


def key_of(below: str, **step: Any) -> str:
    """Of a layer that is made by this step above the layer `below`."""
    text = json.dumps([_KEY_FORMAT, below, step], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CachedLayer:
    key: str
    path: Path
    size: LayerSize

    @property
    def tree(self) -> Path:
        return self.path / _TREE


@dataclass(frozen=True, slots=True)
class CacheUse:
    """`removed`: what was removed just now."""

    layers: int
    bytes: int
    removed: int = 0


class LayerCache:
    """The layers of a folder of images. `held` are those that this object uses; it holds them until `close`."""

    def __init__(self, images: Path) -> None:
        self._folder = images / LAYERS
        self._held: dict[str, int] = {}  # by key, the descriptor that has the lock

    def __repr__(self) -> str:
        return f"<LayerCache {self._folder}, {len(self._held)} held>"

    def close(self) -> None:
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()

    def find(self, key: str) -> CachedLayer | None:
        """The layer, which stays until `close`; None if there is none."""
        path = self._folder / key
        if key not in self._held:
            fd = _lock(path, fcntl.LOCK_SH)
            if fd < 0:
                return None
            self._held[key] = fd
        try:
            size = LayerSize(**json.loads((path / _INFO).read_text()))
            os.utime(path / _INFO)
        except (OSError, ValueError, TypeError):
            os.close(self._held.pop(key))
            return None
        return CachedLayer(key, path, size)

    def add(self, key: str, made: Path, size: LayerSize) -> CachedLayer:
        """Takes over the directory `made`, in which the layer is as `tree`. If another builder was first, its layer
        counts."""
        (made / _INFO).write_text(json.dumps(asdict(size)))
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for _ in range(3):
            with contextlib.suppress(OSError):  # there is one
                os.rename(made, self._folder / key)
            if (found := self.find(key)) is not None:
                return found
            self._discard(key, made.parent)  # it is damaged
        raise OSError(f"the layer {key} cannot be kept")

    def replace(self, key: str, made: Path, size: LayerSize) -> CachedLayer:
        """As `add`, but in place of a layer that is there."""
        if key in self._held:
            os.close(self._held.pop(key))
        self._discard(key, made.parent)
        return self.add(key, made, size)

    def trim(self, temporary: Path, *, most_bytes: int, unused_s: float | None = None) -> CacheUse:
        """Removes layers that nobody uses: those not used for `unused_s` seconds, and then the least recently used
        until the rest takes no more than `most_bytes`."""
        layers = sorted(self._all(), key=lambda one: one[0])
        total, count, removed = sum(size for _, size, _ in layers), len(layers), 0
        for used, size, key in layers:
            is_old = unused_s is not None and time.time() - used > unused_s
            if (is_old or total > most_bytes) and key not in self._held and self._discard(key, temporary):
                total, count, removed = total - size, count - 1, removed + 1
        return CacheUse(count, total, removed)

    def use(self) -> CacheUse:
        sizes = [size for _, size, _ in self._all()]
        return CacheUse(len(sizes), sum(sizes))

    def _all(self) -> Iterator[tuple[float, int, str]]:
        """When each was last used, how many bytes it takes, and its key; a damaged one was never used."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for key in os.listdir(self._folder):
                info = self._folder / key / _INFO
                try:
                    size = max(_LEAST, int(json.loads(info.read_text())["bytes"]))
                    yield info.stat().st_mtime, size, key
                except (OSError, ValueError, TypeError, KeyError):
                    yield 0.0, _LEAST, key

    def _discard(self, key: str, temporary: Path) -> bool:
        """False if somebody uses it."""
        path = self._folder / key
        fd = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if fd < 0:
            return not path.exists()
        try:
            gone = temporary / f"layer-{key[:16]}-gone"
            os.rename(path, gone)
        except OSError:
            return False
        finally:
            os.close(fd)
        shutil.rmtree(gone, ignore_errors=True)
        return True


def _lock(path: Path, operation: int) -> int:
    """A descriptor with a lock on the directory; -1 if there is none, or somebody else has it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(fd, operation)
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            return fd
    except OSError:  # somebody uses it, or it was removed before the lock was there
        pass
    os.close(fd)
    return -1
