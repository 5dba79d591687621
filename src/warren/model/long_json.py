"""Long JSON, read in steps: its texts are decoded piece by piece, and the little that is left of it at once.

The decoder of the standard library takes 3 ms for a MiB, in which nothing else runs. `LongTexts` puts NaN, which
strict JSON does not have, where a text was, and the decoder asks for the text there.
"""

import re
from collections.abc import Callable, Generator
from json import decoder
from typing import Final

_SHORT: Final = 64
"""Shorter texts are left to the decoder: looking at each would take longer."""
_REST: Final = 8 * 1024 * 1024
_PIECE: Final = 256 * 1024
_FEW: Final = 1000
_LONGEST_ESCAPE: Final = 6  # \u0041
_COLON: Final = re.compile(rb"[ \t\r\n]*:")
_scan: Final[Callable[[str, int], tuple[str, int]]] = vars(decoder)["scanstring"]


class LongTexts:
    """First `find`, then `decode` and `rest`.

    They raise ValueError for a text that is not valid, for half of a surrogate pair, and for too many names.
    """

    def __init__(self, body: bytes, piece: int = _PIECE) -> None:
        self._body, self._piece = body, piece
        # Every quote in it begins or ends a text, every backslash begins an escape, and all is where it was.
        self._marked = body.replace(b"\\\\", b"\\-").replace(b'\\"', b"\\-") if b"\\" in body else body
        self._texts: list[tuple[int, int]] = []
        self._rest: list[bytes] = []

    def find(self, most: int) -> Generator[None, None, bytes | None]:
        """Returns what is outside of texts, or None if there are more than `most` texts."""
        body, marked, bare, at, rest = self._body, self._marked, list[bytes](), 0, 0
        while (begin := marked.find(b'"', at)) >= 0:
            if (end := marked.find(b'"', begin + 1)) < 0:
                raise ValueError("a text has no end")
            bare.append(body[at:begin])
            is_long = end - begin > _SHORT and not self._is_name(end + 1)
            rest += begin - at if is_long else end - at
            if rest > _REST:
                raise ValueError("too many names and short texts")
            if is_long:
                self._texts.append((begin + 1, end))
            self._rest += (bare[-1], b"NaN" if is_long else body[begin : end + 1])
            at = end + 1
            if len(bare) % _FEW == 0:
                if len(bare) > most:
                    return None
                yield
        bare.append(body[at:])
        self._rest.append(bare[-1])
        return b"".join(bare)

    def rest(self) -> bytes:
        """Returns the JSON with a NaN for each text that `decode` gives."""
        return b"".join(self._rest)

    def decode(self) -> Generator[None, None, list[str]]:
        """Returns the texts that were taken out, in their order."""
        texts, work = [], 0
        for begin, end in self._texts:
            pieces = []
            while begin < end:
                stop = self._cut(begin, end)
                pieces.append(_decode(self._body[begin:stop]))
                work += stop - begin + _PIECE // _FEW
                begin = stop
                if work >= _PIECE:
                    yield
                    work = 0
            texts.append("".join(pieces))
        return texts

    def _is_name(self, at: int) -> bool:
        return _COLON.match(self._marked, at) is not None

    def _cut(self, begin: int, end: int) -> int:
        """Returns where a piece ends: not inside of a character, an escape, or a pair of them."""
        stop = begin + self._piece
        if stop >= end:
            return end
        marked = self._marked
        at = marked.find(b"\\", max(stop - 2 * _LONGEST_ESCAPE, begin + 1), stop)
        if at < 0:
            while marked[stop] & 0xC0 == 0x80 and stop > begin + 1:
                stop -= 1
            return stop
        is_second = marked[at : at + 3].lower() == b"\\ud" and marked[at + 3 : at + 4] in b"cdefCDEF"
        return at - _LONGEST_ESCAPE if is_second and at - _LONGEST_ESCAPE > begin else at


def _decode(piece: bytes) -> str:
    text, _ = _scan(piece.decode() + '"', 0)
    if b"\\u" in piece:
        text.encode()  # raises UnicodeEncodeError, which is a ValueError
    return text
