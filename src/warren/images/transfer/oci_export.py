"""Writes an image of this machine to a file: as a tar of its files, or as an OCI layout of one layer, which other
engines load too. The same image always gives the same bytes."""

import contextlib
import errno
import hashlib
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from warren.images.trees.own_images import Progress
from warren.interfaces.images import RootFs
from warren.kernel.tree_tar import tar_parts
from warren.model.errors import InvalidRequest
from warren.model.oci_image import CONFIG, LAYER, MANIFEST, Descriptor, config_json, index_json, manifest_json

FORMATS: Final = ("tar", "oci")
_LAYOUT: Final = b'{"imageLayoutVersion":"1.0.0"}'


def export_image(rootfs: RootFs, name: str, out: IO[bytes], form: str, progress: Progress) -> None:
    if rootfs.host_usr:
        raise InvalidRequest(
            f"the image {name!r} stands on the /usr of this machine, which is not part of it",
            remedy="export another one, such as base",
        )
    if form == "tar":
        progress("writing", None)
        for part in tar_parts(rootfs.path):
            out.write(part)
    else:
        _write_layout(rootfs, name, out, progress)


def _write_layout(rootfs: RootFs, name: str, out: IO[bytes], progress: Progress) -> None:
    progress("measuring", None)
    digest, size = hashlib.sha256(), 0
    for part in tar_parts(rootfs.path):
        digest.update(part)
        size += len(part)
    layer = Descriptor(f"sha256:{digest.hexdigest()}", size, LAYER)
    config = config_json(rootfs.config, layer.digest)
    manifest = manifest_json(_described(config, CONFIG), layer)
    progress("writing", None)
    _write_member(out, "oci-layout", _LAYOUT)
    _write_member(out, "index.json", index_json(_described(manifest, MANIFEST), name))
    for blob in (manifest, config):
        _write_member(out, _path(_described(blob)), blob)
    out.write(_header(_path(layer), layer.size))
    for number, part in enumerate(tar_parts(rootfs.path)):
        out.write(part)
        progress("writing", min(0.99, number * (1 << 20) / max(1, layer.size)))
    out.write(bytes(-layer.size % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE))


def _described(data: bytes, kind: str = "") -> Descriptor:
    return Descriptor(f"sha256:{hashlib.sha256(data).hexdigest()}", len(data), kind)


def _path(blob: Descriptor) -> str:
    return f"blobs/{blob.digest.replace(':', '/')}"


def _write_member(out: IO[bytes], name: str, data: bytes) -> None:
    out.write(_header(name, len(data)) + data + bytes(-len(data) % tarfile.BLOCKSIZE))


def _header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.PAX_FORMAT)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Yields a file that gets its name only when it is complete. Where the file system supports nameless files
    (O_TMPFILE), a killed process leaves nothing behind."""
    folder = path.absolute().parent
    temporary = folder / f".{path.name}.part"
    nameless = True
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    except OSError as exc:
        if exc.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
        nameless = False
        temporary.unlink(missing_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if nameless:
                temporary.unlink(missing_ok=True)
                _link(file.fileno(), temporary)
            os.rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _link(fd: int, path: Path) -> None:
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:  # Python follows the link in /proc only if it is given descriptors of the directories
        os.link(f"/proc/self/fd/{fd}", path.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)
