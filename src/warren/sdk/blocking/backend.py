"""What a client works on: a server over HTTP, or this machine itself (local mode).

Both perform the operations of the table in warren/model/api.py by name, and give what docs/api.md says. Arguments that
are None are left out. Everything raises the exceptions of warren.model.errors.
"""

# Made from src/warren/sdk/aio/backend.py by scripts/generate_sync.py: edit that one.

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

Values = dict[str, Any]
Parts = Generator[bytes, None, None]
_PAGE: Final = 1000


class SocketLike(Protocol):
    def send(self, message: str | bytes) -> None: ...
    def receive(self, timeout_s: float | None = None) -> str | bytes | None: ...


class Backend(Protocol):
    """`key` is an Idempotency-Key; `work_s` is how long the operation itself may take. `session_id` is the session that
    an operation works in; as one of `arguments` it says which of all entries to list."""

    def call(
        self, operation: str, session_id: str = "", /, *, key: str = "", work_s: float = 0.0, **arguments: Any
    ) -> Values: ...

    def events(
        self, operation: str, session_id: str, **arguments: Any
    ) -> Generator[tuple[str, Values], None, None]: ...

    def download(
        self, operation: str, session_id: str, *, offset: int = 0, length: int | None = None, **arguments: Any
    ) -> AbstractContextManager[tuple[int, Parts]]:
        """Yields the size of the whole file, 0 if that is not known, and the bytes that were asked for."""
        ...

    def upload(self, operation: str, session_id: str, data: bytes | Iterable[bytes], **arguments: Any) -> Values: ...

    def socket(self, operation: str, session_id: str, **arguments: Any) -> AbstractContextManager[SocketLike]: ...

    def create_ticket(self, session_id: str, **values: Any) -> Values:
        """Only a server makes tickets. Raises InvalidRequest in local mode."""
        ...

    def stats(self) -> Values: ...
    def close(self) -> None: ...


def list_all(backend: Backend, name: str, /, **filters: Any) -> list[Values]:
    """Calls the operation `list_NAME` for every page; returns all entries."""
    found: list[Values] = []
    after: str | None = ""
    while after is not None:
        page = backend.call(f"list_{name}", limit=_PAGE, after=after, **filters)
        found += page[name]
        after = page["next"]
    return found


def find_session_of_thread(backend: Backend, thread_id: str) -> Values | None:
    """Returns the session of a thread as the API shows it; None if it has none."""
    found = backend.call("list_sessions", thread_id=thread_id, limit=1)
    sessions: list[Values] = found["sessions"]
    return sessions[0] if sessions else None
