"""A backend that asks the workers of a cluster themselves about the sessions they have, if they take clients.

The answer of a create names the worker's address. What a worker cannot answer, because the session has moved or it has
gone, and everything that is not about such a session, goes to the cluster's address, as if there were no other.
"""

# Made from src/warren/sdk/aio/direct.py by scripts/generate_sync.py: edit that one.

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from warren.model.errors import Misdirected, ServerUnreachable
from warren.sdk.blocking.backend import Backend, Parts, SocketLike, Values

T = TypeVar("T")


class Direct:
    """`main` is the cluster's address; `open_worker` opens that of a worker."""

    def __init__(self, main: Backend, open_worker: Callable[[str], Backend]) -> None:
        self._main, self._open_worker = main, open_worker
        self._workers: dict[str, Backend] = {}
        self._session_at: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Direct {self._main!r}, {len(self._session_at)} sessions at {len(self._workers)} workers>"

    def _of(self, session_id: str) -> Backend:
        return self._workers[self._session_at[session_id]] if session_id in self._session_at else self._main

    def _note(self, session: Values) -> None:
        if url := session.get("worker_url"):
            if url not in self._workers:
                self._workers[url] = self._open_worker(url)
            self._session_at[session["session_id"]] = url

    def _forget(self, session_id: str) -> bool:
        """Forgets which worker has the session; returns whether it was known."""
        return self._session_at.pop(session_id, None) is not None

    def call(
        self, operation: str, session_id: str = "", /, *, key: str = "", work_s: float = 0.0, **arguments: Any
    ) -> Values:
        try:
            found = self._of(session_id).call(operation, session_id, key=key, work_s=work_s, **arguments)
        except Misdirected:
            if not self._forget(session_id):
                raise
            found = self._main.call(operation, session_id, key=key, work_s=work_s, **arguments)
        except ServerUnreachable:
            self._forget(session_id)
            raise
        if operation == "create_session":
            self._note(found)
        elif operation == "delete_session":
            self._forget(session_id)
        return found

    def events(self, operation: str, session_id: str, **arguments: Any) -> Generator[tuple[str, Values], None, None]:
        begin = self._of(session_id).events
        has_begun = False
        try:
            with contextlib.closing(begin(operation, session_id, **arguments)) as events:
                for event in events:
                    has_begun = True
                    yield event
                return
        except Misdirected:
            if not self._forget(session_id) or has_begun:
                raise
        except ServerUnreachable:
            self._forget(session_id)
            raise
        with contextlib.closing(self._main.events(operation, session_id, **arguments)) as events:
            for event in events:
                yield event

    def download(
        self, operation: str, session_id: str, *, offset: int = 0, length: int | None = None, **arguments: Any
    ) -> AbstractContextManager[tuple[int, Parts]]:
        return self._open(
            session_id,
            lambda backend: backend.download(operation, session_id, offset=offset, length=length, **arguments),
        )

    def socket(self, operation: str, session_id: str, **arguments: Any) -> AbstractContextManager[SocketLike]:
        return self._open(session_id, lambda backend: backend.socket(operation, session_id, **arguments))

    @contextlib.contextmanager
    def _open(self, session_id: str, operation: Callable[[Backend], AbstractContextManager[T]]) -> Iterator[T]:
        with contextlib.ExitStack() as stack:
            try:
                value = stack.enter_context(operation(self._of(session_id)))
            except Misdirected:
                if not self._forget(session_id):
                    raise
                value = stack.enter_context(operation(self._main))
            yield value

    def upload(self, operation: str, session_id: str, data: bytes | Iterable[bytes], **arguments: Any) -> Values:
        try:
            return self._of(session_id).upload(operation, session_id, data, **arguments)
        except (Misdirected, ServerUnreachable) as exc:
            is_known = self._forget(session_id)
            if not (is_known and isinstance(exc, Misdirected) and isinstance(data, bytes)):
                raise  # what is not bytes may have been read
        return self._main.upload(operation, session_id, data, **arguments)

    def create_ticket(self, session_id: str, **values: Any) -> Values:
        return self._main.create_ticket(session_id, **values)

    def stats(self) -> Values:
        return self._main.stats()

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._main.close()
