"""The kept output of a command: bytes that are decoded when somebody reads them.

A result may hold 32 MiB of output, in millions of tiny pieces or in bytes that are not text. As text it would take many
times that memory, so it is decoded piece by piece while it is written into an answer.
"""

import base64
import codecs
import struct
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import chain
from typing import Final, NamedTuple

STDERR: Final = 2
"""The number of stderr among the streams of a command; all others are shown as stdout."""
_SMALL: Final = 1024  # shorter pieces are packed together, each after a header of four bytes
_BLOCK: Final = 64 * 1024
_DECODED: Final = 64 * 1024  # bytes decoded in one step
_FEW: Final = 1000  # pieces
_LENGTH: Final = (1 << 30) - 1
_GAP: Final = -1
_HEAD: Final = struct.Struct("<I")  # the stream in the top two bits, the length below


class Piece(NamedTuple):
    stream: int
    offset: int
    data: bytes


class Packed(NamedTuple):
    """Small pieces without gaps between them, each after a header."""

    offset: int
    block: bytearray


class Shown(StrEnum):
    """The three texts of a result: stdout, stderr, and both in the order in which they were written."""

    STDOUT = "stdout"
    STDERR = "stderr"
    OUTPUT = "output"


class CommandOutput:
    """`add` takes the pieces in order. `total` counts the bytes that the command wrote, `kept` those that were kept.

    The texts contain a line where output is missing. The gap is not divided by stream, so stdout and stderr both show
    all of it. A character that was split between two writes is joined again, even if the other stream wrote in between.
    `note` is appended to stderr and output.
    """

    __slots__ = ("_count", "_exact", "_note", "_parts", "_streams", "_texts", "end", "kept", "total")

    def __init__(self, note: str = "") -> None:
        self._parts: list[Piece | Packed] = []
        self._streams: set[int] = set()
        self._count = 0
        self._texts: tuple[str, str, str] | None = None
        self._exact: tuple[str, str] = "", ""  # stdout and stderr as base64, if the texts were given
        self._note = note
        self.end = 0
        self.kept = 0
        self.total = 0

    def __repr__(self) -> str:
        return f"<CommandOutput {self.kept} of {self.total} bytes>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CommandOutput) and self.texts() == other.texts()

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_long(self) -> bool:
        """Whether decoding takes so long that it must not be done in one step of the event loop."""
        return self.kept > _DECODED or self._count > _FEW

    def add(self, stream: int, offset: int, data: bytes) -> None:
        self._streams.add(stream)
        self._count += 1
        size = len(data)
        if size >= _SMALL or not self._parts:
            self._parts.append(Piece(stream, offset, data))
        else:
            block = self._block_for(offset)
            block += _HEAD.pack(stream << 30 | size)
            block += data
        self.kept += size
        self.end = offset + size
        self.total = max(self.total, self.end)

    def _block_for(self, offset: int) -> bytearray:
        """Returns the block for the next small piece: pieces without a gap between them share one."""
        last = self._parts[-1]
        if not isinstance(last, Packed) or len(last.block) >= _BLOCK or offset != self.end:
            self._parts.append(last := Packed(offset, bytearray()))
        return last.block

    def with_note(self, note: str) -> "CommandOutput":
        other = CommandOutput(self._note + note)
        other._parts, other._streams = self._parts, self._streams
        other._count, other._texts, other._exact = self._count, self._texts, self._exact
        other.end, other.kept, other.total = self.end, self.kept, self.total
        return other

    def ends(self, most: int) -> "CommandOutput":
        """Returns the beginning and the end, about `most` bytes of each or a piece more; all of it if that is less."""
        if self._texts is not None or self.kept <= 3 * most:
            return self
        first, last = _first_parts(self._parts, most), _first_parts(reversed(self._parts), most)[::-1]
        both = CommandOutput(self._note)
        both._parts = self._parts if len(first) + len(last) >= len(self._parts) else [*first, *last]
        both._streams, both.end, both.total = self._streams, self.end, self.total
        both._count = both.kept = sum(len(part[-1]) for part in both._parts)
        return both

    def pieces(self) -> Iterator[Piece]:
        for part in self._parts:
            if isinstance(part, Piece):
                yield part
                continue
            offset, block = part
            at = 0
            while at < len(block):
                head = _HEAD.unpack_from(block, at)[0]
                at += _HEAD.size
                size = head & _LENGTH
                yield Piece(head >> 30, offset, bytes(block[at : at + size]))
                offset += size
                at += size

    def texts(self) -> tuple[str, str, str]:
        """Returns stdout, stderr, and both in the order in which they were written."""
        if not self.total and not self._note and self._texts is None:
            return "", "", ""
        if len(self._parts) == 1 and self.kept == self.total:
            first = self._parts[0]
            if type(first) is Piece and not self._note:
                text = first.data.decode("utf-8", "replace")
                return ("", text, text) if first.stream == STDERR else (text, "", text)
        stdout, stderr, output = ("".join(self.text_pieces(shown)) for shown in Shown)
        return stdout, stderr, output

    def text(self, shown: Shown) -> str:
        return "".join(self.text_pieces(shown))

    def text_pieces(self, shown: Shown) -> Iterator[str]:
        """Yields the text in pieces of bounded length; a piece may be empty."""
        streams = self._shown_streams(shown)
        if self._texts is not None:
            yield from _split(self._texts[list(Shown).index(shown)])
        elif streams:
            yield from self._decoded(streams)
        elif shown is Shown.OUTPUT and self.total:
            yield gap_line(self.total)
        if shown is not Shown.STDOUT:
            yield self._note

    def _shown_streams(self, shown: Shown) -> set[int]:
        if shown is Shown.OUTPUT:
            return self._streams
        return {stream for stream in self._streams if (stream == STDERR) is (shown is Shown.STDERR)}

    def _decoded(self, streams: set[int], errors: str = "replace") -> Iterator[str]:
        new_decoder = codecs.getincrementaldecoder("utf-8")
        decoders = {stream: new_decoder(errors) for stream in sorted(streams)}
        for stream, data in self._bytes(streams):
            if stream == _GAP:
                yield from _end_characters(decoders)
                yield data.decode()
            else:
                yield decoders[stream].decode(data)
        yield from _end_characters(decoders)

    def _bytes(self, streams: set[int]) -> Iterator[tuple[int, bytes]]:
        """Yields the kept bytes of these streams in pieces of bounded length, and a line for each gap."""
        at = 0
        for piece in self.pieces():
            if piece.offset > at:
                yield _GAP, gap_line(piece.offset - at).encode()
            if piece.stream in streams:
                for begin in range(0, len(piece.data), _DECODED):
                    yield piece.stream, piece.data[begin : begin + _DECODED]
            at = piece.offset + len(piece.data)
        if self.total > at:
            yield _GAP, gap_line(self.total - at).encode()

    def base64_if_broken(self, shown: Shown) -> Iterator[str]:
        """Yields the bytes of stdout or stderr as base64, in pieces of bounded length; nothing if they are valid UTF-8.

        The bytes contain the same lines for gaps, and the same note, as the text.
        """
        streams = self._shown_streams(shown)
        if self._texts is not None:
            yield from _split(self._exact[shown is Shown.STDERR])
        if self._texts is not None or not streams:
            return
        try:
            for _ in self._decoded(streams, "strict"):
                yield ""
        except UnicodeDecodeError:
            yield from _base64(chain(self._bytes(streams), [(_GAP, self._note.encode())][: shown is Shown.STDERR]))


def _first_parts(parts: Iterable[Piece | Packed], most: int) -> list[Piece | Packed]:
    found: list[Piece | Packed] = []
    for part in parts:
        found.append(part)
        most -= len(part[-1])
        if most <= 0:
            break
    return found


def _base64(parts: Iterable[tuple[int, bytes]]) -> Iterator[str]:
    rest = b""
    for _, data in parts:
        data = rest + data
        whole = len(data) - len(data) % 3
        yield base64.b64encode(data[:whole]).decode()
        rest = data[whole:]
    yield base64.b64encode(rest).decode()


def _end_characters(decoders: Mapping[int, codecs.IncrementalDecoder]) -> Iterator[str]:
    for decoder in decoders.values():
        yield decoder.decode(b"", final=True)
        decoder.reset()


def gap_line(missing: int) -> str:
    return f"\n[... {missing:,} bytes not kept ...]\n"


def _split(text: str) -> Iterator[str]:
    for begin in range(0, len(text), _DECODED):
        yield text[begin : begin + _DECODED]


def output_of(
    stdout: str = "", stderr: str = "", output: str = "", *, stdout_base64: str = "", stderr_base64: str = ""
) -> CommandOutput:
    """Makes an output from texts. `output` may be left out if only one of stdout and stderr has text."""
    known = CommandOutput()
    known._exact = stdout_base64, stderr_base64
    known._texts = stdout, stderr, output or stdout + stderr
    known.kept = known.total = known.end = len(known._texts[2])
    return known
