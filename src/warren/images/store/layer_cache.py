"""The layers that steps of builds have made, by what they were made from.

    images/.layers/KEY/tree         the layer, in the form of overlayfs
    images/.layers/KEY/layer.json   its size; when this file was last touched, the layer was last used

A key is a digest of the key below it and of everything the step depends on. A layer is complete or absent: a builder
makes it in its temporary directory and renames it. A user of a layer holds a shared lock on its directory, which ends
with the process; only unlocked layers are removed, the least recently used first. Any unlocked layer may be removed at
any time: the next build makes it again.
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
_LEAST: Final = 4096  # bytes; an empty layer takes space too
_KEY_FORMAT: Final = 1
_INFO: Final = "layer.json"
_TREE: Final = "tree"


def key_of(below: str, **step: Any) -> str:
    """Returns the key of the layer that this step makes above the layer with the key `below`."""
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

    @property
    def name(self) -> str:
        """Names the files of this layer. When its step is run again they are others, with the same key."""
        made = os.stat(self.tree)
        return f"{self.key[:32]}-{made.st_ino:x}-{made.st_ctime_ns:x}"


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How much the cache holds. `removed` counts the layers that this call has removed."""

    layers: int
    bytes: int
    removed: int = 0


class LayerCache:
    """The layers in a folder of images. This object locks the layers that it returns until `close`."""

    def __init__(self, images: Path) -> None:
        self._folder = images / LAYERS
        self._held: dict[str, int] = {}  # key -> descriptor that holds the lock

    def __repr__(self) -> str:
        return f"<LayerCache {self._folder}, {len(self._held)} held>"

    def close(self) -> None:
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()

    def find(self, key: str) -> CachedLayer | None:
        """Returns the layer, locked until `close`; None if the cache does not have it."""
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
        """Moves the directory `made`, which holds the layer as `tree`, into the cache. If another builder was first,
        returns that builder's layer."""
        (made / _INFO).write_text(json.dumps(asdict(size)))
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for _ in range(3):
            with contextlib.suppress(OSError):  # the rename fails if another builder was first
                os.rename(made, self._folder / key)
            if (found := self.find(key)) is not None:
                return found
            self._discard(key, made.parent)  # it is there, but damaged
        raise OSError(f"the layer {key} cannot be kept")

    def replace(self, key: str, made: Path, size: LayerSize) -> CachedLayer:
        """Does the same as `add`, but replaces an existing layer."""
        if key in self._held:
            os.close(self._held.pop(key))
        self._discard(key, made.parent)
        return self.add(key, made, size)

    def trim(self, temporary: Path, *, max_bytes: int, unused_s: float | None = None) -> CacheUse:
        """Removes layers that nobody uses: those unused for `unused_s` seconds, then the least recently used until the
        rest takes at most `max_bytes`. Returns what is left."""
        layers = sorted(self._all(), key=lambda one: one[0])
        total, count, removed = sum(size for _, size, _ in layers), len(layers), 0
        for used, size, key in layers:
            is_old = unused_s is not None and time.time() - used > unused_s
            if (is_old or total > max_bytes) and key not in self._held and self._discard(key, temporary):
                total, count, removed = total - size, count - 1, removed + 1
        return CacheUse(count, total, removed)

    def use(self) -> CacheUse:
        sizes = [size for _, size, _ in self._all()]
        return CacheUse(len(sizes), sum(sizes))

    def _all(self) -> Iterator[tuple[float, int, str]]:
        """Yields when each layer was last used, its size and its key. A damaged layer counts as never used."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for key in os.listdir(self._folder):
                info = self._folder / key / _INFO
                try:
                    size = max(_LEAST, int(json.loads(info.read_text())["bytes"]))
                    yield info.stat().st_mtime, size, key
                except (OSError, ValueError, TypeError, KeyError):
                    yield 0.0, _LEAST, key

    def _discard(self, key: str, temporary: Path) -> bool:
        """Removes a layer. Returns False if somebody uses it."""
        path = self._folder / key
        fd = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if fd < 0:
            return not path.exists()
        try:
            gone = temporary / f"layer-{key[:16]}-gone"
            # Renamed under the exclusive lock, so nobody finds a half-removed layer; the slow removal follows without
            # the lock.
            os.rename(path, gone)
        except OSError:
            return False
        finally:
            os.close(fd)
        shutil.rmtree(gone, ignore_errors=True)
        return True


def _lock(path: Path, operation: int) -> int:
    """Returns a descriptor that holds the directory's lock; -1 if it is missing or locked by another process."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(fd, operation)
        # The directory may have been removed or replaced between open and flock: such a lock protects nothing.
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            return fd
    except OSError:  # somebody else holds the lock, or the directory was removed
        pass
    os.close(fd)
    return -1
