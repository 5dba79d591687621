"""How a client gets its session, and a new one when the session has ended.

The first use makes the session. When the session of a thread has ended, the client of that thread goes on: the thread
gets a fresh session, the operation is repeated there, and the next result's `notice` says so. Repeating it is safe,
because a session that has ended does nothing.
"""

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from warren.model.errors import (
    ImageBuilding,
    SandboxLost,
    ServerUnreachable,
    SessionEnded,
    SessionNotFound,
    WarrenError,
)
from warren.sdk.aio.backend import AsyncBackend
from warren.sdk.aio.platform import AsyncLock, sleep
from warren.sdk.options import ImageProgress, log_once
from warren.sdk.protocol import CREATE_S, IMAGE_TIMEOUT_S, fresh_sandbox_notice, new_key

T = TypeVar("T")
_SESSION_GONE = (SessionEnded, SessionNotFound, SandboxLost)


async def create_session(
    backend: AsyncBackend,
    key: str,
    options: Mapping[str, Any],
    image_timeout_s: float = IMAGE_TIMEOUT_S,
    on_progress: ImageProgress | None = None,
) -> dict[str, Any]:
    """Makes a session. While the server builds the environment's image, tells `on_progress` how far it is and asks
    again, until `image_timeout_s` is over. Without `on_progress` it logs once what it waits for."""
    until = time.monotonic() + image_timeout_s
    tell = on_progress or log_once()
    while True:
        try:
            return await backend.call("create_session", key=key, work_s=CREATE_S, **options)
        except ImageBuilding as exc:
            pause_s = min(exc.retry_after_s or 1.0, 10.0)
            if time.monotonic() + pause_s > until:
                raise
            tell(exc)
            await sleep(pause_s)


class AsyncSessionHolder:
    """Holds the session of a client. `session_id` is empty as long as there is none."""

    def __init__(
        self,
        backend: AsyncBackend,
        session_options: dict[str, Any],
        session_id: str,
        image_timeout_s: float = IMAGE_TIMEOUT_S,
        on_image_progress: ImageProgress | None = None,
    ) -> None:
        self._backend = backend
        self._image_timeout_s, self._on_image_progress = image_timeout_s, on_image_progress
        self._session_options = session_options
        self.session_id = session_id
        self.thread_id: str = session_options.get("thread_id", "")
        self._attached_to = session_id
        self._creating = AsyncLock()
        self._notice: str | None = None
        self._created: Mapping[str, Any] = {}
        self._pending_key = ""  # the Idempotency-Key of a creation whose response has not come

    async def _get_session(self) -> str:
        session_id = self.session_id
        if session_id:
            return session_id
        if self._attached_to:
            raise SessionNotFound(
                f"the session {self._attached_to} was ended by this client", remedy="make another one"
            )
        async with self._creating:
            if not self.session_id:
                await self._create()
            return self.session_id

    async def _create(self) -> None:
        self._pending_key = self._pending_key or new_key()
        try:
            created = await create_session(
                self._backend, self._pending_key, self._session_options, self._image_timeout_s, self._on_image_progress
            )
        except ServerUnreachable:
            raise  # the server may have made it: the next attempt, with the same key, gets the same session
        except WarrenError:
            self._pending_key = ""
            raise
        self._created, self._pending_key = created, ""
        self._notice = fresh_sandbox_notice(created)
        self.session_id = created["session_id"]

    async def _end_abandoned_session(self) -> None:
        """Ends a session whose creation was interrupted, unless it belongs to a thread, which will find it."""
        key, self._pending_key = self._pending_key, ""
        if key and not self.thread_id:
            with contextlib.suppress(WarrenError):
                created = await self._backend.call("create_session", key=key, work_s=CREATE_S, **self._session_options)
                await self._backend.call("delete_session", created["session_id"])

    def _forget_session(self, session_id: str, error: WarrenError) -> bool:
        """Forgets a session that is gone, if another one may take its place; returns whether it may."""
        is_lost = isinstance(error, SandboxLost) and not self._session_options.get("replace_lost")
        if not self.thread_id or is_lost:
            return False
        if self.session_id == session_id:
            self.session_id = ""
        return True

    async def _call(self, operation: Callable[[str], Awaitable[T]]) -> T:
        session_id = await self._get_session()
        try:
            return await operation(session_id)
        except _SESSION_GONE as exc:
            if not self._forget_session(session_id, exc):
                raise
        return await operation(await self._get_session())

    async def _perform(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return await self._call(lambda session_id: self._backend.call(operation, session_id, **arguments))

    def _follow(self, operation: str, **arguments: Any) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        return self._events(lambda session_id: self._backend.events(operation, session_id, **arguments))

    @contextlib.asynccontextmanager
    async def _open(self, operation: Callable[[str], AbstractAsyncContextManager[T]]) -> AsyncIterator[T]:
        async with contextlib.AsyncExitStack() as stack:
            session_id = await self._get_session()
            try:
                value = await stack.enter_async_context(operation(session_id))
            except _SESSION_GONE as exc:
                if not self._forget_session(session_id, exc):
                    raise
                value = await stack.enter_async_context(operation(await self._get_session()))
            yield value

    async def _events(self, operation: Callable[[str], AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
        session_id = await self._get_session()
        has_begun = False
        try:
            async with contextlib.aclosing(operation(session_id)) as events:
                async for event in events:
                    has_begun = True
                    yield event
                return
        except _SESSION_GONE as exc:
            if has_begun or not self._forget_session(session_id, exc):
                raise
        async with contextlib.aclosing(operation(await self._get_session())) as events:
            async for event in events:
                yield event
