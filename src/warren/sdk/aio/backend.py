"""What a client works on: a server over HTTP, or this machine itself (local mode).

Both perform the operations of the table in warren/model/api.py by name, and give what docs/api.md says. Arguments that
are None are left out. Everything raises the exceptions of warren.model.errors.
"""

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

Values = dict[str, Any]
Parts = AsyncGenerator[bytes, None]
_PAGE: Final = 1000


class AsyncSocketLike(Protocol):
    async def send(self, message: str | bytes) -> None: ...
    async def receive(self, timeout_s: float | None = None) -> str | bytes | None: ...


class AsyncBackend(Protocol):
    """`key` is an Idempotency-Key; `work_s` is how long the operation itself may take. `session_id` is the session that
    an operation works in; as one of `arguments` it says which of all entries to list."""

    async def call(
        self, operation: str, session_id: str = "", /, *, key: str = "", work_s: float = 0.0, **arguments: Any
    ) -> Values: ...

    def events(self, operation: str, session_id: str, **arguments: Any) -> AsyncGenerator[tuple[str, Values], None]: ...

    def download(
        self, operation: str, session_id: str, *, offset: int = 0, length: int | None = None, **arguments: Any
    ) -> AbstractAsyncContextManager[tuple[int, Parts]]:
        """Yields the size of the whole file, 0 if that is not known, and the bytes that were asked for."""
        ...

    async def upload(
        self, operation: str, session_id: str, data: bytes | AsyncIterable[bytes], **arguments: Any
    ) -> Values: ...

    def socket(
        self, operation: str, session_id: str, **arguments: Any
    ) -> AbstractAsyncContextManager[AsyncSocketLike]: ...

    async def create_ticket(self, session_id: str, **values: Any) -> Values:
        """Only a server makes tickets. Raises InvalidRequest in local mode."""
        ...

    async def stats(self) -> Values: ...
    async def close(self) -> None: ...


async def list_all(backend: AsyncBackend, name: str, /, **filters: Any) -> list[Values]:
    """Calls the operation `list_NAME` for every page; returns all entries."""
    found: list[Values] = []
    after: str | None = ""
    while after is not None:
        page = await backend.call(f"list_{name}", limit=_PAGE, after=after, **filters)
        found += page[name]
        after = page["next"]
    return found


async def find_session_of_thread(backend: AsyncBackend, thread_id: str) -> Values | None:
    """Returns the session of a thread as the API shows it; None if it has none."""
    found = await backend.call("list_sessions", thread_id=thread_id, limit=1)
    sessions: list[Values] = found["sessions"]
    return sessions[0] if sessions else None
