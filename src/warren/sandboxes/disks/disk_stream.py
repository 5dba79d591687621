"""The content of a disk image: its records, their hash, and the stream in which a saved disk travels.

An image is cut into windows of 1 MiB, these into blocks of 4 KiB. A record is a run of blocks in one window that are
not all zeros, and where it is. So records depend on the content alone, and not on where the host's file system has
holes. The hash is of what describes the disk, and of all records.

    {"format": 1, …}\\n      what describes the disk; at most 16 KiB
    zstd: records           offset (8 bytes), size (4 bytes), data
          an end            the size of the image, 0
"""

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from warren.kernel.zstd import zstd_module
from warren.model.errors import InvalidRequest
from warren.model.spec import MIB, Limits
from warren.sandboxes.host.disks import standard_size_mb
from warren.sandboxes.host.extents import extents

FORMAT: Final = 1
BLOCK: Final = 4096
WINDOW: Final = MIB
_ZEROS: Final = bytes(BLOCK)
_RECORD: Final = struct.Struct("<QI")
_HEADER_BYTES: Final = 16 * 1024
_WINDOW_LOG: Final = 27


@dataclass(frozen=True, slots=True)
class DiskLayout:
    """How the directories of a disk were used: under a writable root, above the machine's own /usr, and those of
    `seeded` above what the image has there."""

    writable_root: bool = False
    host_usr: bool = False
    seeded: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: dict[str, Any]) -> "DiskLayout":
        writable_root, host_usr, seeded = values["writable_root"], values["host_usr"], tuple(values["seeded"])
        if not isinstance(writable_root, bool) or not isinstance(host_usr, bool):
            raise TypeError
        if not all(isinstance(path, str) for path in seeded):
            raise TypeError
        return cls(writable_root, host_usr, seeded)


@dataclass(frozen=True, slots=True)
class DiskDescription:
    """`size`: the bytes of the image; what is beyond `disk_mb` of it is reserved."""

    disk_mb: int
    size: int
    layout: DiskLayout
    sha256: str = ""
    stopped_s: float = 0.0

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: bytes) -> "DiskDescription":
        """Raises InvalidRequest for anything that is not the description of a disk of this format."""
        try:
            values = json.loads(text)
            if values["format"] != FORMAT:
                raise InvalidRequest(
                    f"this disk was saved in the format {values['format']!r}, format {FORMAT} is known here",
                    remedy="use the same version of Warren",
                )
            disk_mb, size, sha256 = values["disk_mb"], values["size"], values["sha256"]
            Limits(disk_mb=disk_mb)
            layout = DiskLayout.of(values["layout"])
            stopped_s = float(values["stopped_s"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InvalidRequest("this is no saved disk") from None
        is_sound = isinstance(disk_mb, int) and isinstance(size, int) and isinstance(sha256, str)
        if not is_sound or not disk_mb * MIB <= size <= standard_size_mb(disk_mb) * MIB or size % WINDOW:
            raise InvalidRequest("this is no saved disk: its sizes contradict each other")
        return cls(disk_mb, size, layout, sha256, stopped_s)

    def hash(self) -> "hashlib._Hash":
        values = {"format": FORMAT, "disk_mb": self.disk_mb, "size": self.size, "layout": asdict(self.layout)}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode())


def records(fd: int) -> Iterator[tuple[int, bytes]]:
    """Yields the records of an image, in order."""
    done = 0
    for start, end in extents(fd):
        window = max(done, start - start % WINDOW)
        while window < end:
            data = os.pread(fd, WINDOW, window)
            yield from _runs(window, data)
            window += WINDOW
        done = window


def _runs(window: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    first = 0
    for at in range(0, len(data), BLOCK):
        if data.startswith(_ZEROS, at):
            if first < at:
                yield window + first, data[first:at]
            first = at + BLOCK
    if first < len(data):
        yield window + first, data[first:]


def content_hash(fd: int, description: DiskDescription, look: Callable[[], None] = lambda: None) -> str:
    """`look` is called again and again, and may raise."""
    found = description.hash()
    for offset, data in records(fd):
        look()
        found.update(_RECORD.pack(offset, len(data)))
        found.update(data)
    return found.hexdigest()


def packed(fd: int, description: DiskDescription) -> Iterator[bytes]:
    """Yields the stream in which an image travels. Each piece takes some milliseconds."""
    yield description.to_json().encode() + b"\n"
    compressor = zstd_module().ZstdCompressor()
    for offset, data in records(fd):
        yield compressor.compress(_RECORD.pack(offset, len(data)) + data)
    yield compressor.compress(_RECORD.pack(description.size, 0)) + compressor.flush()


class Unpacking:
    """Writes an image from a stream that comes in pieces. Never believes a number of it: offsets grow, and no record
    leaves the image. `look` is called with the bytes that are written next, and may raise."""

    def __init__(self, fd: int, look: Callable[[int], object]) -> None:
        self._fd, self._look = fd, look
        self._head, self._buffer = bytearray(), bytearray()
        self._zstd = zstd_module()
        options = {self._zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
        self._decompressor = self._zstd.ZstdDecompressor(options=options)
        self._description: DiskDescription | None = None
        self._hash = hashlib.sha256()
        self._at = 0
        self._is_over = False

    def feed(self, data: bytes) -> None:
        """Raises InvalidRequest for what is no such stream."""
        if self._description is None:
            self._head += data
            head, found, data = bytes(self._head).partition(b"\n")
            if not found and len(head) < _HEADER_BYTES:
                return
            if len(head) > _HEADER_BYTES:
                raise InvalidRequest("this is no saved disk")
            self._description = DiskDescription.from_json(head)
            self._hash = self._description.hash()
            os.ftruncate(self._fd, self._description.size)
            self._head.clear()
        while data or not (self._decompressor.needs_input or self._decompressor.eof):
            if self._decompressor.eof:
                raise InvalidRequest("this is no saved disk: something follows its end")
            try:
                self._buffer += self._decompressor.decompress(data, WINDOW)
            except self._zstd.ZstdError:
                raise InvalidRequest("the saved disk is damaged: it cannot be unpacked") from None
            data = self._decompressor.unused_data
            self._write_records(self._description.size)

    def _write_records(self, size: int) -> None:
        at = 0
        while len(self._buffer) - at >= _RECORD.size:
            offset, length = _RECORD.unpack_from(self._buffer, at)
            if self._is_over:
                raise InvalidRequest("this is no saved disk: something follows its end")
            if not length and offset == size:
                self._is_over, at = True, at + _RECORD.size
                continue
            is_within = self._at <= offset and offset + length <= size and 0 < length <= WINDOW
            if not is_within or offset % BLOCK or length % BLOCK:
                raise InvalidRequest("this is no saved disk: a part of it is out of place")
            end = at + _RECORD.size + length
            if len(self._buffer) < end:
                break
            self._look(length)
            with memoryview(self._buffer) as view:
                self._hash.update(view[at:end])
                _write(self._fd, view[at + _RECORD.size : end], offset)
            self._at, at = offset + length, end
        del self._buffer[:at]

    def finish(self) -> DiskDescription:
        """Returns what describes the disk. Raises InvalidRequest if something of it is missing or different."""
        if self._description is None or not self._is_over or self._buffer or not self._decompressor.eof:
            raise InvalidRequest("the saved disk is not complete", remedy="send it again")
        if self._hash.hexdigest() != self._description.sha256:
            raise InvalidRequest("the saved disk is damaged: its content is not what its hash says")
        return self._description


def _write(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
