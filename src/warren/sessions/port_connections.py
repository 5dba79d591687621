"""Counts the connections to servers inside sandboxes: each session may have so many at once."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from warren.model.errors import LimitReached

MOST_CONNECTIONS: Final = 128


class PortConnections:
    def __init__(self, most: int = MOST_CONNECTIONS) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<PortConnections {self._open.total()} of {len(self._open)} sessions>"

    @property
    def total(self) -> int:
        return self._open.total()

    @contextmanager
    def counted(self, session_id: str) -> Iterator[None]:
        """Raises LimitReached."""
        if self._open[session_id] >= self._most:
            raise LimitReached(
                f"{self._most} connections to the ports of this session are open already", retry_after_s=1
            )
        self._open[session_id] += 1
        try:
            yield
        finally:
            self._open[session_id] -= 1
            if not self._open[session_id]:
                del self._open[session_id]
