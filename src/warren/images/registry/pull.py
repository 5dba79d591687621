"""Pulls an image from a registry: the manifest for the platform, the config, and the layers, each checked by its
digest.

Layers are downloaded to the directory in which the image is made, a few at a time, and unpacked in their order. If the
pull fails or is killed, that directory is removed like any unfinished image, and the name keeps its version.
"""

import contextlib
import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

from warren.images.registry.credentials import Credentials
from warren.images.registry.http import ImageRegistry, Patience, TransferBroken
from warren.images.store.store import ImageStore, silent
from warren.images.transfer.import_tree import ImageTooLarge, ImportCaps
from warren.images.transfer.oci_layers import Layers
from warren.images.trees.own_images import Progress
from warren.images.trees.tree import Tree
from warren.interfaces.images import ImageVersion
from warren.model.addresses import Network
from warren.model.errors import InvalidRequest
from warren.model.image import ImageConfig
from warren.model.image_reference import Reference, read_reference
from warren.model.oci_image import (
    ACCEPT,
    MAX_CONFIG,
    MAX_MANIFEST,
    Descriptor,
    Manifest,
    Platform,
    ReadConfig,
    check_platform,
    choose,
    is_index,
    read_config,
    read_manifest,
    read_platform,
)

_AT_ONCE: Final = 3
_LOOK_S: Final = 0.02
_NESTED: Final = 3  # indexes inside indexes
_MB: Final = 1_000_000
_UNKNOWN: Final = -1  # the size of a manifest that was asked for by its name


@dataclass(frozen=True, slots=True)
class PullOptions:
    """The operator's settings. `registry` is for names without a host; `insecure` are the hosts that are reached
    without TLS; `networks` are private networks that registries may redirect to; `mirrors` (`HOST=MIRROR`) are asked
    instead of registries. Not `trusted`: a tenant has named the registry, see http.py."""

    registry: str = ""
    insecure: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    credentials: Credentials | None = None
    patience: Patience = field(default_factory=Patience)
    caps: ImportCaps = field(default_factory=ImportCaps)
    mirrors: tuple[str, ...] = ()
    trusted: bool = True


NO_OPTIONS: Final = PullOptions()


def pull_image(
    store: ImageStore,
    reference: str,
    name: str = "",
    progress: Progress = silent,
    *,
    options: PullOptions = NO_OPTIONS,
    platform: str = "",
    shell_needed: bool = True,
    make_room: Callable[[int, int], None] = lambda size_bytes, files: None,
) -> ImageVersion:
    """Pulls an image, and returns the version that `name` (by default the reference) now points to. Makes no new
    version if the current one has the same digest, or if `make_room` raises when it gets the size of the new one
    and the number of its files. Raises InvalidRequest, ImageNotFound, PermissionDenied, NoSpace, Unavailable."""
    name = name or reference
    wanted = read_platform(platform)
    with _connected(read_reference(reference, options.registry), options) as pull:
        progress("asking the registry", None)
        manifest, digest = pull.manifest(wanted)
        source = f"registry {replace(pull.reference, digest=digest)}"
        if (there := _current(store, name)) is not None and _is_pulled(there, digest):
            return there
        config = pull.config(manifest, digest)
        check_platform(config.platform, wanted)
        if len(config.diff_ids) != len(manifest.layers):
            raise InvalidRequest("the config of the image is about another number of layers than its manifest")
        if manifest.size > options.caps.size:
            raise ImageTooLarge.than(options.caps.size)

        def fill(path: Path) -> ImageConfig:
            path.mkdir(mode=0o755)
            with Tree(path) as tree:
                pull.layers(manifest, config, path.parents[1], tree, progress)
            return config.config

        return store.make(name, source, fill, progress, shell_needed=shell_needed, make_room=make_room)


def _is_pulled(version: ImageVersion, digest: str) -> bool:
    """Returns whether the version was pulled. An image built upon a pulled one can carry the same digest."""
    return version.source.startswith("registry ") and version.config.digest == digest


def _current(store: ImageStore, name: str) -> ImageVersion | None:
    return next((one for one in store.list() if one.name == name and one.current), None)


@contextlib.contextmanager
def _connected(reference: Reference, options: PullOptions) -> Iterator["_Pull"]:
    registry = ImageRegistry(
        reference.served_by(options.mirrors),
        trusted=options.trusted,
        insecure=options.insecure,
        networks=options.networks,
        credentials=options.credentials,
        patience=options.patience,
    )
    try:
        yield _Pull(registry, reference, options.caps)
    finally:
        registry.cancel()


class _Pull:
    def __init__(self, registry: ImageRegistry, reference: Reference, caps: ImportCaps) -> None:
        self._registry, self.reference, self._caps = registry, reference, caps
        self._lock = threading.Lock()
        self._received = 0

    def manifest(self, platform: Platform) -> tuple[Manifest, str]:
        """Returns the manifest for the platform, and its digest."""
        wanted = Descriptor(self.reference.digest, _UNKNOWN)
        for _ in range(_NESTED):
            what = f"manifests/{wanted.digest or self.reference.wanted}"
            data, kind = self._registry.read_small(what, MAX_MANIFEST, ACCEPT)
            digest = _digest(data)
            if wanted.digest not in ("", digest):
                raise InvalidRequest(f"the registry sends the manifest {digest} for {wanted.digest}")
            if wanted.size not in (_UNKNOWN, len(data)):
                raise InvalidRequest(
                    f"the registry's index says that a manifest has {wanted.size} bytes, not {len(data)}"
                )
            if not is_index(data, kind):
                return read_manifest(data), digest
            wanted = choose(data, platform)
        raise InvalidRequest("the image is in an index of indexes of indexes")

    def config(self, manifest: Manifest, digest: str) -> ReadConfig:
        data, _ = self._registry.read_small(
            f"blobs/{manifest.config.digest}", min(manifest.config.size, MAX_CONFIG), "*/*"
        )
        if _digest(data) != manifest.config.digest or len(data) != manifest.config.size:
            raise InvalidRequest("the registry sends another config of the image than the manifest says")
        return read_config(data, digest=digest)

    def layers(self, manifest: Manifest, config: ReadConfig, folder: Path, tree: Tree, progress: Progress) -> None:
        unpacked = Layers(tree, self._caps)
        files = [folder / f"layer-{number}" for number in range(len(manifest.layers))]
        step = f"downloading {manifest.size / _MB:.0f} MB"

        ended: set[Path] = set()

        def download(file: Path, layer: Descriptor) -> None:
            try:
                self._registry.retried(lambda: self._download(file, layer, lambda: report(progress)))
            finally:
                ended.add(file)

        def report(progress: Progress) -> None:
            progress(step, 0.95 * self._received / max(1, manifest.size))

        report(progress)  # the first bytes may be long in coming
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pull") as threads:
            waiting: list[Future[None]] = []
            try:
                with _held_signals():
                    waiting += [threads.submit(download, *each) for each in zip(files, manifest.layers, strict=True)]
                for future, file, diff_id in zip(waiting, files, config.diff_ids, strict=True):
                    while file not in ended:
                        time.sleep(_LOOK_S)  # waiting for the future would miss a signal that arrives just before
                    future.result()
                    unpacked.apply(lambda file=file: _opened(file), diff_id)  # type: ignore[misc]
                    file.unlink()
            except BaseException:
                self._registry.cancel()
                threads.shutdown(cancel_futures=True)
                raise

    def _download(self, file: Path, layer: Descriptor, report: Any) -> None:
        digest, received = hashlib.sha256(), 0
        try:
            with self._registry.get(f"blobs/{layer.digest}") as response, file.open("wb") as out:
                if response.length not in (None, layer.size):
                    raise InvalidRequest(
                        f"the registry says that a layer has {response.length} bytes, not {layer.size}"
                    )
                for part in self._registry.parts(response, layer.size):
                    self._caps.check_room()
                    digest.update(part)
                    out.write(part)
                    received += len(part)
                    self._count(len(part), report)
            if received < layer.size:
                raise TransferBroken("a layer ended before its end")
            if f"sha256:{digest.hexdigest()}" != layer.digest:
                raise InvalidRequest(f"the registry sends another layer for {layer.digest}")
        except BaseException:
            # A retry begins at the start, so these bytes come again.
            self._count(-received, report)
            raise

    def _count(self, count: int, report: Any) -> None:
        with self._lock:
            self._received += count
            report()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _opened(file: Path) -> IO[bytes]:
    return file.open("rb")


@contextlib.contextmanager
def _held_signals() -> Iterator[None]:
    """Delays the signals that end a program until the end of the block: an exception while threads are being started
    could leave one of their locks taken. The new threads inherit the mask and never get these signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
