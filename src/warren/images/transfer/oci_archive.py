"""Images in files: an OCI layout (`warren image export --format oci`, `skopeo copy`), or what `docker save` writes.

Both are directories, or tars of them; an import unpacks the tar before it looks inside. The digests of a layout cover
all its files; `docker save` writes digests of the unpacked layers only.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from typing import IO, Any, Final

from warren.images.transfer.import_tree import ImportCaps
from warren.images.transfer.oci_layers import Layers
from warren.images.trees.tree import Tree
from warren.model.errors import InvalidRequest
from warren.model.image import ImageConfig
from warren.model.oci_image import (
    MAX_CONFIG,
    MAX_LAYERS,
    MAX_MANIFEST,
    Descriptor,
    Platform,
    ReadConfig,
    check_platform,
    choose,
    entries_of,
    is_index,
    read_config,
    read_manifest,
    read_saved,
)

_CHUNK: Final = 1024 * 1024
_NESTED: Final = 3


def is_archive(tree: Tree) -> bool:
    """Returns whether the tree is an OCI layout or the output of `docker save`, and not a root filesystem."""
    if any(tree.stat(name) is not None for name in ("bin", "usr", "etc")):
        return False
    files = {name for name in ("index.json", "oci-layout", "manifest.json") if tree.stat(name) is not None}
    return files >= {"index.json", "oci-layout"} or "manifest.json" in files


def unpack_archive(archive: Tree, target: Tree, platform: Platform, caps: ImportCaps = ImportCaps()) -> ImageConfig:
    """Unpacks the archive's only image for the platform into `target`, and returns the image's own config."""
    if archive.stat("index.json") is not None:
        config, layers = _from_layout(archive, platform)
    else:
        config, layers = _from_saved(archive)
    check_platform(config.platform, platform)
    if len(config.diff_ids) != len(layers):
        raise InvalidRequest("the config of the image is about another number of layers than its manifest")
    unpacked = Layers(target, caps)
    for layer, diff_id in zip(layers, config.diff_ids, strict=True):
        unpacked.apply(lambda layer=layer: _open(archive, layer), diff_id)  # type: ignore[misc]
    return config.config


def _from_layout(archive: Tree, platform: Platform) -> tuple[ReadConfig, list[str]]:
    found = _only(entries_of(_read(archive, "index.json", MAX_MANIFEST), platform))
    for _ in range(_NESTED):
        data = _blob(archive, found, MAX_MANIFEST)
        if not is_index(data, found.media_type):
            break
        found = choose(data, platform)
    else:
        raise InvalidRequest("the image is in an index of indexes of indexes")
    manifest = read_manifest(data)
    config = read_config(_blob(archive, manifest.config, MAX_CONFIG), digest=found.digest)
    for layer in manifest.layers:
        _check_file(archive, layer)
    return config, [_path(layer) for layer in manifest.layers]


def _from_saved(archive: Tree) -> tuple[ReadConfig, list[str]]:
    saved = _only(read_saved(_read(archive, "manifest.json", MAX_MANIFEST)))
    if len(saved.layers) > MAX_LAYERS:
        raise InvalidRequest(f"the image has {len(saved.layers)} layers, at most {MAX_LAYERS} are taken")
    return read_config(_read(archive, saved.config, MAX_CONFIG)), list(saved.layers)


def _only(found: list[Any]) -> Any:
    if len(found) != 1:
        raise InvalidRequest(
            f"the archive holds {len(found) or 'no'} images for this platform, and not one",
            remedy="save one image alone, or name its --platform",
        )
    return found[0]


# -- files of the archive


def _path(blob: Descriptor) -> str:
    return f"blobs/{blob.digest.replace(':', '/')}"


def _blob(archive: Tree, blob: Descriptor, most: int) -> bytes:
    data = _read(archive, _path(blob), most)
    _check(blob, len(data), hashlib.sha256(data).hexdigest())
    return data


def _read(archive: Tree, path: str, most: int) -> bytes:
    with _open(archive, path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InvalidRequest(f"{path!r} of the archive is longer than {most} bytes")
    return data


def _check_file(archive: Tree, blob: Descriptor) -> None:
    digest, size = hashlib.sha256(), 0
    with _open(archive, _path(blob)) as file:
        while data := file.read(_CHUNK):
            digest.update(data)
            size += len(data)
    _check(blob, size, digest.hexdigest())


def _check(blob: Descriptor, size: int, digest: str) -> None:
    if f"sha256:{digest}" != blob.digest:
        raise InvalidRequest(f"the archive is damaged: {_path(blob)} is something else")
    if size != blob.size:
        raise InvalidRequest(f"the archive is damaged: {_path(blob)} has {size} bytes, and not {blob.size}")


def _open(archive: Tree, path: str) -> IO[bytes]:
    try:
        fd = archive.open_file(path)
    except OSError as exc:
        raise InvalidRequest(f"the archive has no file {path!r}") from exc
    with _closed_on_error(fd):
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise InvalidRequest(f"{path!r} of the archive is no file")
        return os.fdopen(fd, "rb")


@contextlib.contextmanager
def _closed_on_error(fd: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.close(fd)
        raise
