"""Tells everybody who looks at a terminal its size when one of them has changed it.

A terminal has one size, and several people may look at it. Whoever resized it last has chosen; the others learn the
size here and show the terminal as it is.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from warren.model.errors import RateLimited
from warren.model.operations import TerminalSize

MAX_VIEWERS: Final = 64


class TerminalViewer:
    """`size` is the last that is known; None if nobody who is connected has given one."""

    def __init__(self, size: TerminalSize | None) -> None:
        self.size = size
        self._changed = asyncio.Event()

    def tell(self, size: TerminalSize) -> None:
        self.size = size
        self._changed.set()

    async def next_size(self) -> TerminalSize:
        """Waits until a size is told, and returns the last one."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self.size is not None:
                return self.size


class TerminalViewers:
    """All viewers that this process serves, at most `most` of one terminal: whatever happens there costs time for each
    viewer. A terminal is forgotten with its last viewer."""

    def __init__(self, most: int = MAX_VIEWERS) -> None:
        self._most = most
        self._viewers: dict[tuple[str, str], set[TerminalViewer]] = {}

    def __repr__(self) -> str:
        return f"<TerminalViewers {sum(map(len, self._viewers.values()))} of {len(self._viewers)} terminals>"

    @contextmanager
    def viewing(self, session_id: str, process_id: str) -> Iterator[TerminalViewer]:
        """Registers a viewer for the time of the block. Raises RateLimited if the terminal has too many."""
        key = (session_id, process_id)
        if len(self._viewers.get(key, ())) >= self._most:
            raise RateLimited(
                f"{self._most} clients look at this process already", remedy="close some of them", retry_after_s=5
            )
        viewers = self._viewers.setdefault(key, set())
        viewer = TerminalViewer(next((other.size for other in viewers if other.size), None))
        viewers.add(viewer)
        try:
            yield viewer
        finally:
            viewers.discard(viewer)
            if not viewers and self._viewers.get(key) is viewers:
                del self._viewers[key]

    def resized(self, session_id: str, process_id: str, size: TerminalSize, by: TerminalViewer | None = None) -> None:
        """Tells all viewers the new size, also the one that resized unless it is alone: if two resize at the same time,
        both must end with the size that came last."""
        viewers = self._viewers.get((session_id, process_id), ())
        for viewer in viewers:
            if viewer is by and len(viewers) == 1:
                viewer.size = size
            else:
                viewer.tell(size)
