"""Decompresses zstd streams: layers and tars of images.

A frame names its window, the bytes before it that it may refer to, and its reader keeps them in memory. At most 128 MiB
are allowed, as in zstd's own program; the highest level of compression needs that much.
"""

from typing import IO, Final

from warren.kernel.zstd import zstd_module
from warren.model.errors import InvalidRequest

MAGIC: Final = b"\x28\xb5\x2f\xfd"
LARGEST_WINDOW_LOG: Final = 27


class ZstdReader:
    """A reader of the decompressed bytes. Raises InvalidRequest for a damaged stream."""

    def __init__(self, stream: IO[bytes]) -> None:
        zstd = zstd_module()
        options = {zstd.DecompressionParameter.window_log_max: LARGEST_WINDOW_LOG}
        self._file, self._error = zstd.ZstdFile(stream, options=options), zstd.ZstdError

    def read(self, count: int) -> bytes:
        try:
            data: bytes = self._file.read(count)
        except (self._error, EOFError) as exc:
            raise InvalidRequest(f"what zstd has compressed cannot be unpacked: {exc}") from exc
        return data
