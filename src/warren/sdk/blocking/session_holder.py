"""How a client gets its session, and a new one when the session has ended.

The first use makes the session. When the session of a thread has ended, the client of that thread goes on: the thread
gets a fresh session, the operation is repeated there, and the next result's `notice` says so. Repeating it is safe,
because a session that has ended does nothing.
"""

# Made from src/warren/sdk/aio/session_holder.py by scripts/generate_sync.py: edit that one.

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from warren.model.errors import (
    ImageBuilding,
    SandboxLost,
    ServerUnreachable,
    SessionEnded,
    SessionNotFound,
    WarrenError,
)
from warren.sdk.blocking.backend import Backend
from warren.sdk.blocking.platform import Lock, sleep
from warren.sdk.options import ImageProgress, log_once
from warren.sdk.protocol import CREATE_S, IMAGE_TIMEOUT_S, fresh_sandbox_notice, new_key

T = TypeVar("T")
_SESSION_GONE = (SessionEnded, SessionNotFound, SandboxLost)


def create_session(
    backend: Backend,
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
            return backend.call("create_session", key=key, work_s=CREATE_S, **options)
        except ImageBuilding as exc:
            pause_s = min(exc.retry_after_s or 1.0, 10.0)
            if time.monotonic() + pause_s > until:
                raise
            tell(exc)
            sleep(pause_s)


class SessionHolder:
    """Holds the session of a client. `session_id` is empty as long as there is none."""

    def __init__(
        self,
        backend: Backend,
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
        self._creating = Lock()
        self._notice: str | None = None
        self._created: Mapping[str, Any] = {}
        self._pending_key = ""  # the Idempotency-Key of a creation whose response has not come

    def _get_session(self) -> str:
        session_id = self.session_id
        if session_id:
            return session_id
        if self._attached_to:
            raise SessionNotFound(
                f"the session {self._attached_to} was ended by this client", remedy="make another one"
            )
        with self._creating:
            if not self.session_id:
                self._create()
            return self.session_id

    def _create(self) -> None:
        self._pending_key = self._pending_key or new_key()
        try:
            created = create_session(
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

    def _end_abandoned_session(self) -> None:
        """Ends a session whose creation was interrupted, unless it belongs to a thread, which will find it."""
        key, self._pending_key = self._pending_key, ""
        if key and not self.thread_id:
            with contextlib.suppress(WarrenError):
                created = self._backend.call("create_session", key=key, work_s=CREATE_S, **self._session_options)
                self._backend.call("delete_session", created["session_id"])

    def _forget_session(self, session_id: str, error: WarrenError) -> bool:
        """Forgets a session that is gone, if another one may take its place; returns whether it may."""
        is_lost = isinstance(error, SandboxLost) and not self._session_options.get("replace_lost")
        if not self.thread_id or is_lost:
            return False
        if self.session_id == session_id:
            self.session_id = ""
        return True

    def _call(self, operation: Callable[[str], T]) -> T:
        session_id = self._get_session()
        try:
            return operation(session_id)
        except _SESSION_GONE as exc:
            if not self._forget_session(session_id, exc):
                raise
        return operation(self._get_session())

    def _perform(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._call(lambda session_id: self._backend.call(operation, session_id, **arguments))

    def _follow(self, operation: str, **arguments: Any) -> Generator[tuple[str, dict[str, Any]], None, None]:
        return self._events(lambda session_id: self._backend.events(operation, session_id, **arguments))

    @contextlib.contextmanager
    def _open(self, operation: Callable[[str], AbstractContextManager[T]]) -> Iterator[T]:
        with contextlib.ExitStack() as stack:
            session_id = self._get_session()
            try:
                value = stack.enter_context(operation(session_id))
            except _SESSION_GONE as exc:
                if not self._forget_session(session_id, exc):
                    raise
                value = stack.enter_context(operation(self._get_session()))
            yield value

    def _events(self, operation: Callable[[str], Generator[T, None, None]]) -> Generator[T, None, None]:
        session_id = self._get_session()
        has_begun = False
        try:
            with contextlib.closing(operation(session_id)) as events:
                for event in events:
                    has_begun = True
                    yield event
                return
        except _SESSION_GONE as exc:
            if has_begun or not self._forget_session(session_id, exc):
                raise
        with contextlib.closing(operation(self._get_session())) as events:
            for event in events:
                yield event
