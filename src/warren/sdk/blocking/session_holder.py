"""How a client comes by its session, and by another one when it has ended.

The session is made with the first use. The client of a thread goes on when that session has ended meanwhile: the thread
gets a fresh one, and the next result's `notice` says so. What was asked of the old one is asked again, which
is safe: a session that has ended does nothing.
"""

# Made from src/warren/sdk/aio/session_holder.py by scripts/generate_sync.py: edit that one.

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from warren.model.errors import SandboxLost, ServerUnreachable, SessionEnded, SessionNotFound, WarrenError
from warren.sdk.blocking.backend import Backend
from warren.sdk.blocking.platform import Lock
from warren.sdk.wire import new_key

T = TypeVar("T")
_GONE = (SessionEnded, SessionNotFound, SandboxLost)


class SessionHolder:
    """`session_id` is empty as long as there is no session."""

    def __init__(self, backend: Backend, wanted: dict[str, Any], session_id: str) -> None:
        self._backend = backend
        self._wanted = wanted
        self.session_id = session_id
        self.thread_id: str = wanted.get("thread_id", "")
        self._attached_to = session_id
        self._creating = Lock()
        self._notice: str | None = None
        self._made: Mapping[str, Any] = {}
        self._asked = ""  # the key of a session that was asked for, and whose answer has not come

    def _session(self) -> str:
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
        self._asked = self._asked or new_key()
        try:
            made = self._backend.create(self._wanted, self._asked)
        except ServerUnreachable:
            raise  # it may have been made: asked again, with the same key, it is the same one
        except WarrenError:
            self._asked = ""
            raise
        self._made, self._asked = made, ""
        self._notice = _notice(made)
        self.session_id = made["session_id"]

    def _give_up(self) -> None:
        """Whoever asked for a session went away before it was there: it is ended, unless a thread will find it."""
        asked, self._asked = self._asked, ""
        if asked and not self.thread_id:
            with contextlib.suppress(WarrenError):
                made = self._backend.create(self._wanted, asked)
                self._backend.delete(made["session_id"])

    def _renewed(self, session_id: str, error: WarrenError) -> bool:
        """Whether another session is to be had instead of the one that is gone."""
        lost = isinstance(error, SandboxLost) and not self._wanted.get("replace_lost")
        if not self.thread_id or lost:
            return False
        if self.session_id == session_id:
            self.session_id = ""
        return True

    def _call(self, verb: Callable[[str], T]) -> T:
        session_id = self._session()
        try:
            return verb(session_id)
        except _GONE as exc:
            if not self._renewed(session_id, exc):
                raise
        return verb(self._session())

    @contextlib.contextmanager
    def _opened(self, verb: Callable[[str], AbstractContextManager[T]]) -> Iterator[T]:
        with contextlib.ExitStack() as stack:
            session_id = self._session()
            try:
                value = stack.enter_context(verb(session_id))
            except _GONE as exc:
                if not self._renewed(session_id, exc):
                    raise
                value = stack.enter_context(verb(self._session()))
            yield value

    def _events(self, verb: Callable[[str], Generator[T, None, None]]) -> Generator[T, None, None]:
        session_id = self._session()
        begun = False
        try:
            with contextlib.closing(verb(session_id)) as events:
                for event in events:
                    begun = True
                    yield event
                return
        except _GONE as exc:
            if begun or not self._renewed(session_id, exc):
                raise
        with contextlib.closing(verb(self._session())) as events:
            for event in events:
                yield event


def _notice(made: Mapping[str, Any]) -> str | None:
    previous = made.get("previous")
    if not made.get("created") or previous is None:
        return None
    return (
        f"This is a fresh sandbox: the thread's earlier session ended ({previous['reason']}), and its files are gone."
    )
