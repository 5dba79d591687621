"""Counts the connections to servers inside sandboxes, and bounds how many a session may have at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from warren.kernel.fair_share import FairShare
from warren.model.errors import LimitReached

MAX_CONNECTIONS: Final = 128


class PortConnections:
    def __init__(self, most: int = MAX_CONNECTIONS) -> None:
        self._open = FairShare(each=most)

    def __repr__(self) -> str:
        return f"<PortConnections {self._open.in_all} of {len(self._open.owners)} sessions>"

    @property
    def total(self) -> int:
        return self._open.in_all

    @contextmanager
    def counted(self, session_id: str) -> Iterator[None]:
        """Counts a connection for the time of the block. Raises LimitReached if the session has too many."""
        if not self._open.try_take(session_id):
            raise LimitReached(
                f"{self._open.each} connections to the ports of this session are open already", retry_after_s=1
            )
        try:
            yield
        finally:
            self._open.give_back(session_id)
