"""Where the frames of a WebSocket end, in a stream of bytes that is passed on unread.

`WebSocketConnection` follows what it passes on to a client, because only between two frames it may send one of its own.
"""

from typing import Final

_FRAMES_AT_ONCE: Final = 1024
_MAX_HEAD: Final = 14
_LONG: Final = {126: 2, 127: 8}
_CLOSE: Final = 8


class FrameBorders:
    __slots__ = ("_head", "_left", "is_closed")

    def __init__(self) -> None:
        self._head = b""  # of a frame whose head is incomplete
        self._left = 0  # bytes of the frame that are still to come
        self.is_closed = False

    @property
    def is_between_frames(self) -> bool:
        return not self._head and not self._left

    def follow(self, data: bytes, start: int) -> int:
        """Takes the bytes from `start`, but not more than 1,024 frames of them. Returns where it stopped."""
        at, end = start, len(data)
        for _ in range(_FRAMES_AT_ONCE):
            step = min(self._left, end - at)
            at += step
            self._left -= step
            if at == end:
                return end
            known = len(self._head)
            head = self._head + data[at : at + _MAX_HEAD - known]
            size = _head_size(head)
            if len(head) < size:
                self._head = head
                return end
            self._head = b""
            at += size - known
            self._left = _length(head)
            self.is_closed = head[0] & 0x0F == _CLOSE
        return at


def _head_size(head: bytes) -> int:
    if len(head) < 2:
        return 2
    return 2 + _LONG.get(head[1] & 0x7F, 0) + (4 if head[1] & 0x80 else 0)


def _length(head: bytes) -> int:
    short = head[1] & 0x7F
    return short if short < 126 else int.from_bytes(head[2 : 2 + _LONG[short]], "big")
