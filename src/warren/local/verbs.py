"""The verbs of the SDK on a service of this machine, without HTTP: the same checks, the same answers.

Everything here runs on the event loop of the service.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from warren.http.context import Context, data_of, limited_timeout
from warren.http.event_streams import outputs, with_signs_of_life
from warren.http.problems import plain_error
from warren.http.routes import exec as commands
from warren.http.routes.processes import read_some
from warren.http.routes.sessions import check_labels
from warren.http.routes.sockets import obey, parsed
from warren.http.schemas import (
    ExecBody,
    PatchBody,
    ProcessBody,
    SessionBody,
    StdinBody,
    end_view,
    exec_view,
    file_view,
    isolation_view,
    process_view,
    session_view,
)
from warren.interfaces.sandbox import Process
from warren.interfaces.store import Page
from warren.model.errors import InvalidRequest
from warren.model.operations import Change, TerminalSize
from warren.model.session import DEFAULT_TENANT, Session, SessionState
from warren.sessions import processes
from warren.sessions.file_reading import file_to_read
from warren.sessions.idempotency import exec_once
from warren.sessions.listing import figures, listed, read_pairs
from warren.sessions.terminals import open_terminal

Values = dict[str, Any]
B = TypeVar("B", bound=BaseModel)
_LARGEST_PAGE: Final = 1000


def _read(kind: type[B], values: Values) -> B:
    try:
        return kind.model_validate(values)
    except ValidationError as exc:
        raise plain_error(exc.errors()) from None


def _page(state: Sequence[str] = (), metadata: Sequence[str] = (), limit: int = 100, **filters: Any) -> Page:
    if not 1 <= limit <= _LARGEST_PAGE:
        raise InvalidRequest(f"limit is {limit}, it must be between 1 and {_LARGEST_PAGE}")
    unknown = [name for name in state if name not in set(SessionState)]
    if unknown:
        raise InvalidRequest(f"there is no state {unknown[0]!r}", remedy=f"there are: {', '.join(SessionState)}")
    chosen: Values = {"states": frozenset(map(SessionState, state))} if state else {}
    return Page(metadata=read_pairs(metadata), limit=limit, **chosen, **filters)


class Verbs:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._sessions = context.sessions
        self.threadless: list[str] = []  # sessions without a thread that were made here, the last one first

    def _shown(self, session: Session) -> Values:
        return session_view(session, self._sessions.clock, "/")

    # -- sessions

    async def create(self, wanted: Values, key: str) -> Values:
        body = _read(SessionBody, wanted)
        check_labels(self._context, body.labels)
        # A key is for a connection that breaks. Here none does; without one, a caller that goes away leaves nothing.
        opened = await self._sessions.create(DEFAULT_TENANT, body.wanted())
        if not body.thread_id:
            self.threadless.insert(0, opened.session.id)
        return {**self._shown(opened.session), "created": opened.created}

    async def session(self, session_id: str) -> Values:
        session = await self._sessions.get(DEFAULT_TENANT, session_id)
        sandbox = await self._sessions.look(session)
        return {**self._shown(session), "isolation": isolation_view(sandbox.isolation) if sandbox else None}

    async def sessions(self, **filters: Any) -> Values:
        found, more = await listed(self._sessions, DEFAULT_TENANT, _page(**filters))
        return {"sessions": [self._shown(session) for session in found], "next": more}

    async def of_thread(self, thread_id: str) -> Values | None:
        found = await self.sessions(thread_id=thread_id, limit=1)
        return found["sessions"][0] if found["sessions"] else None

    async def delete(self, session_id: str) -> Values:
        if session_id in self.threadless:
            self.threadless.remove(session_id)
        return self._shown(await self._sessions.delete(DEFAULT_TENANT, session_id))

    async def keep_alive(self, session_id: str) -> Values:
        return self._shown(await self._sessions.keep_alive(DEFAULT_TENANT, session_id))

    async def change(self, session_id: str, changes: Values) -> Values:
        body = _read(PatchBody, changes)
        given = body.model_dump(exclude_none=True, exclude={"metadata"})
        return self._shown(await self._sessions.patch(DEFAULT_TENANT, session_id, **given, metadata=body.metadata))

    async def stats(self) -> Values:
        return asdict(await figures(self._sessions))

    # -- commands

    async def execute(self, session_id: str, command: Values, key: str, takes_s: float) -> Values:
        body = _read(ExecBody, command)
        stdin = data_of(body.stdin, body.stdin_base64)
        body.timeout_s = limited_timeout(self._context, body.timeout_s)
        if key:
            session = await self._sessions.get(DEFAULT_TENANT, session_id)
            return exec_view(
                await exec_once(self._sessions, DEFAULT_TENANT, session_id, body.wanted(session), stdin, key)
            )
        async with self._sessions.using(DEFAULT_TENANT, session_id) as (session, sandbox):
            return exec_view(await sandbox.exec(body.wanted(session), stdin))

    async def stream(self, session_id: str, command: Values) -> AsyncGenerator[tuple[str, Values], None]:
        body = _read(ExecBody, command)
        body.timeout_s = limited_timeout(self._context, body.timeout_s)
        stdin = data_of(body.stdin, body.stdin_base64)
        using = self._sessions.using(DEFAULT_TENANT, session_id)
        async with using as (session, sandbox), commands.foreground(sandbox, body.wanted(session), stdin) as process:
            async for event in self._told(process, 0):
                yield event

    async def _told(self, process: Process, offset: int) -> AsyncGenerator[tuple[str, Values], None]:
        yield "started", {"process_id": process.id}
        async for shown in outputs(process, offset, "base64", self._context.keepalive_s):
            if shown is not None:
                yield "output", shown
        yield "result", end_view(await process.wait())

    async def start(self, session_id: str, command: Values) -> Values:
        body = _read(ProcessBody, command)
        async with self._sessions.using(DEFAULT_TENANT, session_id) as (session, sandbox):
            return process_view(await processes.start(sandbox, body.wanted(session), body.process_id))

    async def processes(self, session_id: str) -> list[Values]:
        async with self._sessions.using(DEFAULT_TENANT, session_id, counts=False) as (_, sandbox):
            return [process_view(info) for info in await sandbox.processes()]

    async def process(self, session_id: str, process_id: str) -> Values:
        async with self._sessions.using(DEFAULT_TENANT, session_id, counts=False) as (_, sandbox):
            return process_view(await processes.find(sandbox, process_id))

    async def output(self, session_id: str, process_id: str, **how: Any) -> Values:
        wanted = {"offset": 0, "limit": 1024 * 1024, "wait_s": 0.0, "encoding": "text", **how}
        async with self._sessions.using(DEFAULT_TENANT, session_id, counts=False) as (_, sandbox):
            return await read_some(sandbox, process_id, **wanted)

    async def follow(self, session_id: str, process_id: str, offset: int) -> AsyncGenerator[tuple[str, Values], None]:
        async with self._sessions.using(DEFAULT_TENANT, session_id, counts=False) as (_, sandbox):
            async for event in self._told(await sandbox.process(process_id), offset):
                yield event

    async def wait(self, session_id: str, process_id: str, timeout_s: float) -> Values | None:
        async with self._sessions.using(DEFAULT_TENANT, session_id, counts=False) as (_, sandbox):
            result = await processes.ended_within(sandbox, process_id, timeout_s)
            return None if result is None else exec_view(result)

    async def stdin(self, session_id: str, process_id: str, values: Values) -> None:
        body = _read(StdinBody, values)
        data = data_of(body.data, body.data_base64)
        async with self._sessions.using(DEFAULT_TENANT, session_id) as (_, sandbox):
            await processes.feed(sandbox, process_id, data, close=body.close)

    async def signal(self, session_id: str, process_id: str, signal: str | int) -> None:
        number = processes.signal_number(signal)
        async with self._sessions.using(DEFAULT_TENANT, session_id) as (_, sandbox):
            await (await sandbox.process(process_id)).signal(number)

    async def kill(self, session_id: str, process_id: str, grace_s: float) -> Values:
        async with self._sessions.using(DEFAULT_TENANT, session_id) as (_, sandbox):
            return exec_view(await processes.kill(sandbox, process_id, grace_s))

    async def forget(self, session_id: str, process_id: str) -> None:
        async with self._sessions.using(DEFAULT_TENANT, session_id) as (_, sandbox):
            await processes.forget(sandbox, process_id)

    @contextlib.asynccontextmanager
    async def terminal(
        self, session_id: str, rows: int = 24, columns: int = 80, offset: int = 0, **how: Any
    ) -> AsyncIterator["LocalSocket"]:
        size = TerminalSize(rows, columns)
        if offset < 0:
            raise InvalidRequest(f"an offset of {offset} cannot be")
        async with self._sessions.using(DEFAULT_TENANT, session_id, counts=False) as (session, sandbox):
            process = await open_terminal(session, sandbox, size, **how)
            await self._sessions.note_use(DEFAULT_TENANT, session_id)
            socket = LocalSocket(self._context, session_id, process, offset)
            try:
                yield socket
            finally:
                await socket.close()

    # -- files

    async def list_files(self, session_id: str, path: str, depth: int) -> list[Values]:
        async with self._sessions.using(DEFAULT_TENANT, session_id) as (_, sandbox):
            return [file_view(info) for info in await sandbox.list(path, depth=depth)]

    async def stat(self, session_id: str, path: str) -> Values:
        async with self._sessions.using(DEFAULT_TENANT, session_id) as (_, sandbox):
            return file_view(await sandbox.stat(path))

    @contextlib.asynccontextmanager
    async def read(
        self, session_id: str, path: str, offset: int = 0, length: int | None = None
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        async with self._sessions.using(DEFAULT_TENANT, session_id) as (_, sandbox):
            info = await file_to_read(sandbox, path)
            yield info.size, sandbox.read(path, offset=offset, length=length)

    async def write(self, session_id: str, path: str, data: bytes | AsyncIterable[bytes], mode: str) -> Values:
        async with self._sessions.using(DEFAULT_TENANT, session_id) as (_, sandbox):
            return file_view(await sandbox.write(path, data, mode=int(mode, 8) if mode else None))

    async def mkdir(self, session_id: str, path: str) -> Values:
        async with self._sessions.using(DEFAULT_TENANT, session_id) as (_, sandbox):
            await sandbox.mkdir(path)
            return file_view(await sandbox.stat(path))

    async def remove(self, session_id: str, path: str, recursive: bool) -> None:
        async with self._sessions.using(DEFAULT_TENANT, session_id) as (_, sandbox):
            await sandbox.remove(path, recursive=recursive)

    async def move(self, session_id: str, source: str, target: str) -> Values:
        async with self._sessions.using(DEFAULT_TENANT, session_id) as (_, sandbox):
            await sandbox.rename(source, target)
            return file_view(await sandbox.stat(target))

    @contextlib.asynccontextmanager
    async def pack(self, session_id: str, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._sessions.using(DEFAULT_TENANT, session_id) as (_, sandbox):
            yield sandbox.pack(path)

    async def unpack(self, session_id: str, path: str, tar: bytes | AsyncIterable[bytes]) -> int:
        async with self._sessions.using(DEFAULT_TENANT, session_id) as (_, sandbox):
            return await sandbox.unpack(path, tar)

    async def watch(self, session_id: str, path: str, recursive: bool) -> AsyncGenerator[tuple[str, Values], None]:
        async with self._sessions.using(DEFAULT_TENANT, session_id, counts=False) as (_, sandbox):
            async for change in sandbox.watch(path, recursive=recursive):
                name = "watching" if change.change is Change.WATCHING else "change"
                yield name, {"change": change.change, "path": change.path, "directory": change.directory}


class LocalSocket:
    """A terminal's messages as a WebSocket would carry them."""

    def __init__(self, context: Context, session_id: str, process: Process, offset: int) -> None:
        self._context, self._session_id, self._process = context, session_id, process
        self._first: str | None = json.dumps({"type": "started", "process_id": process.id, "offset": offset})
        self._chunks = with_signs_of_life(process.output(offset), context.keepalive_s)
        self._next: asyncio.Task[Any] | None = None
        self._ended = False

    async def send(self, message: str | bytes) -> None:
        await self._context.sessions.note_use(DEFAULT_TENANT, self._session_id)
        if isinstance(message, bytes):
            await self._process.write(message)
        else:
            await obey(self._process, parsed(message))

    async def receive(self, timeout_s: float | None = None) -> str | bytes | None:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        while not self._ended:
            if self._next is None:
                self._next = asyncio.ensure_future(anext(self._chunks, False))
            done, _ = await asyncio.wait([self._next], timeout=timeout_s)
            if not done:
                raise TimeoutError("nothing came in time")
            chunk, self._next = self._next.result(), None
            if chunk is False:
                self._ended = True
                return json.dumps({"type": "result", **end_view(await self._process.wait())})
            if chunk is not None:
                data: bytes = chunk.data
                return data
        return None

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait([self._next])
        if isinstance(self._chunks, AsyncGenerator):
            await self._chunks.aclose()
