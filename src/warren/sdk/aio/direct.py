"""A backend that asks the workers of a cluster themselves about the sessions they have, if they take clients.

The answer of a create names the worker's address. What a worker cannot answer, because the session has moved or it has
gone, and everything that is not about such a session, goes to the cluster's address, as if there were no other.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from warren.model.errors import Misdirected, ServerUnreachable
from warren.sdk.aio.backend import AsyncBackend, AsyncSocketLike, Parts, Values

T = TypeVar("T")


class AsyncDirect:
    """`main` is the cluster's address; `open_worker` opens that of a worker."""

    def __init__(self, main: AsyncBackend, open_worker: Callable[[str], AsyncBackend]) -> None:
        self._main, self._open_worker = main, open_worker
        self._workers: dict[str, AsyncBackend] = {}
        self._session_at: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<AsyncDirect {self._main!r}, {len(self._session_at)} sessions at {len(self._workers)} workers>"

    def _of(self, session_id: str) -> AsyncBackend:
        return self._workers[self._session_at[session_id]] if session_id in self._session_at else self._main

    def _note(self, session: Values) -> None:
        if url := session.get("worker_url"):
            if url not in self._workers:
                self._workers[url] = self._open_worker(url)
            self._session_at[session["session_id"]] = url

    def _forget(self, session_id: str) -> bool:
        """Forgets which worker has the session; returns whether it was known."""
        return self._session_at.pop(session_id, None) is not None

    async def call(
        self, operation: str, session_id: str = "", /, *, key: str = "", work_s: float = 0.0, **arguments: Any
    ) -> Values:
        try:
            found = await self._of(session_id).call(operation, session_id, key=key, work_s=work_s, **arguments)
        except Misdirected:
            if not self._forget(session_id):
                raise
            found = await self._main.call(operation, session_id, key=key, work_s=work_s, **arguments)
        except ServerUnreachable:
            self._forget(session_id)
            raise
        if operation == "create_session":
            self._note(found)
        elif operation == "delete_session":
            self._forget(session_id)
        return found

    async def events(
        self, operation: str, session_id: str, **arguments: Any
    ) -> AsyncGenerator[tuple[str, Values], None]:
        begin = self._of(session_id).events
        has_begun = False
        try:
            async with contextlib.aclosing(begin(operation, session_id, **arguments)) as events:
                async for event in events:
                    has_begun = True
                    yield event
                return
        except Misdirected:
            if not self._forget(session_id) or has_begun:
                raise
        except ServerUnreachable:
            self._forget(session_id)
            raise
        async with contextlib.aclosing(self._main.events(operation, session_id, **arguments)) as events:
            async for event in events:
                yield event

    def download(
        self, operation: str, session_id: str, *, offset: int = 0, length: int | None = None, **arguments: Any
    ) -> AbstractAsyncContextManager[tuple[int, Parts]]:
        return self._open(
            session_id,
            lambda backend: backend.download(operation, session_id, offset=offset, length=length, **arguments),
        )

    def socket(self, operation: str, session_id: str, **arguments: Any) -> AbstractAsyncContextManager[AsyncSocketLike]:
        return self._open(session_id, lambda backend: backend.socket(operation, session_id, **arguments))

    @contextlib.asynccontextmanager
    async def _open(
        self, session_id: str, operation: Callable[[AsyncBackend], AbstractAsyncContextManager[T]]
    ) -> AsyncIterator[T]:
        async with contextlib.AsyncExitStack() as stack:
            try:
                value = await stack.enter_async_context(operation(self._of(session_id)))
            except Misdirected:
                if not self._forget(session_id):
                    raise
                value = await stack.enter_async_context(operation(self._main))
            yield value

    async def upload(
        self, operation: str, session_id: str, data: bytes | AsyncIterable[bytes], **arguments: Any
    ) -> Values:
        try:
            return await self._of(session_id).upload(operation, session_id, data, **arguments)
        except (Misdirected, ServerUnreachable) as exc:
            is_known = self._forget(session_id)
            if not (is_known and isinstance(exc, Misdirected) and isinstance(data, bytes)):
                raise  # what is not bytes may have been read
        return await self._main.upload(operation, session_id, data, **arguments)

    async def create_ticket(self, session_id: str, **values: Any) -> Values:
        return await self._main.create_ticket(session_id, **values)

    async def stats(self) -> Values:
        return await self._main.stats()

    async def close(self) -> None:
        for worker in self._workers.values():
            await worker.close()
        await self._main.close()
