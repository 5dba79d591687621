"""Output as it came: every byte of it, and as text whose characters are whole."""

import base64
import codecs
from collections.abc import Iterator, Mapping
from typing import Any

from warren.sdk.results import OutputChunk


class Chunks:
    """From the events of a stream, whose data is base64.

    A character cut in two by a read is in the text of the later chunk; what is no UTF-8 is replaced there, and in
    `data` it is as it was.
    """

    def __init__(self) -> None:
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._end = 0

    def chunk(self, event: Mapping[str, Any]) -> OutputChunk:
        stream, data = event["stream"], base64.b64decode(event["data"])
        if stream not in self._decoders:
            self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        self._end = event["next_offset"]
        text = self._decoders[stream].decode(data)
        return OutputChunk(str(stream), data, text, event["offset"], self._end)

    def rest(self) -> Iterator[OutputChunk]:
        """When no more comes: a character that was never completed is shown as a broken one."""
        for stream, decoder in self._decoders.items():
            if text := decoder.decode(b"", final=True):
                yield OutputChunk(str(stream), b"", text, self._end, self._end)
