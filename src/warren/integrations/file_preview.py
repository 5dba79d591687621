"""A look at a file that takes no more of it than a model can use: its kind, and a window of its lines."""

import codecs
from dataclasses import dataclass, field
from typing import Final

MAX_IMAGE_BYTES: Final = 3_500_000  # what models accept, before base64 adds a third

_IMAGES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def image_type(head: bytes) -> str:
    """Returns the MIME type that the content has; empty if it is not an image that models accept."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for magic, mime in _IMAGES if head.startswith(magic)), "")


def is_text(head: bytes) -> bool:
    if b"\0" in head:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


@dataclass
class Window:
    """The lines of a file from `start` on (the first is 1): at most `lines` of them, and `characters` in all.

    `feed` takes the file piece by piece and returns whether it needs more. Afterwards `text` is the window, `last`
    its last line, and `more` whether the file goes on; `cut` says that the last line is not whole.
    """

    start: int
    lines: int
    characters: int
    last: int = 0
    more: bool = False
    cut: bool = False
    _line: int = 1
    _parts: list[str] = field(default_factory=list)
    _room: int = field(init=False)
    _decoder: codecs.IncrementalDecoder = field(init=False)

    def __post_init__(self) -> None:
        self._room = self.characters
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def summary(self) -> str:
        """Returns a note for the reader; empty if the window is the whole file."""
        if not self._parts:
            return "(the file is empty)" if self._line == 1 else f"[the file ends before line {self.start}]"
        if self.cut:
            return (
                f"[line {self.last} is not whole, the answer became too long; use cut or head -c in bash for the rest]"
            )
        if self.more:
            return f"[lines {self.start} to {self.last}; the file goes on: read on with start_line={self.last + 1}]"
        return f"[lines {self.start} to {self.last}; the file ends here]" if self.start > 1 else ""

    def feed(self, data: bytes) -> bool:
        return all(self._take(piece) for piece in _split_lines(self._decoder.decode(data)))

    def _take(self, piece: str) -> bool:
        if self._line >= self.start + self.lines or self._room == 0:
            self.more = True
            return False
        if self._line >= self.start:
            self._parts.append(piece[: self._room])
            self.last = self._line
            self.cut = len(piece) > self._room
            self._room = max(0, self._room - len(piece))
            if self.cut:
                self.more = True
                return False
        self._line += piece.endswith("\n")
        return True


def _split_lines(text: str) -> list[str]:
    """Splits after each newline and nowhere else, unlike str.splitlines."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
