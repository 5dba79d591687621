"""Performs the operations of the table without HTTP: the same handlers, checks and results.

Everything here runs on the event loop of the service (engine.py).
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from dataclasses import asdict
from typing import Any

from warren.interfaces.sandbox import Process
from warren.model.errors import InvalidRequest, RangeNotSatisfiable
from warren.model.operations import TerminalSize
from warren.model.session import DEFAULT_TENANT
from warren.sessions.long_values import LongObject, resolved
from warren.sessions.operations.call import (
    ByteRange,
    BytesHead,
    Call,
    Handler,
    OperationContext,
    OperationReply,
    Values,
    perform,
    perform_stream,
)
from warren.sessions.operations.handlers import HANDLERS
from warren.sessions.operations.sockets import apply_message, open_terminal, read_message
from warren.sessions.output_events import with_keepalives
from warren.sessions.request_context import set_image_wait
from warren.sessions.schemas import end_view
from warren.sessions.validation import validated


class LocalCalls:
    """Does what the SDK's backends promise (warren/sdk/aio/backend.py), on the engine's loop."""

    def __init__(self, context: OperationContext) -> None:
        self._context = context
        self.threadless: list[str] = []  # ids of the sessions without a thread, newest first

    async def call(
        self, operation: str, session_id: str = "", /, *, key: str = "", work_s: float = 0.0, **arguments: Any
    ) -> Values | None:
        handler = HANDLERS[operation]
        set_image_wait(0)  # the client asks again itself, and shows how far the build of the image is
        # A key is for repeating a create after a broken connection, and here no connection can break.
        call = self._new_call(handler, session_id, arguments, "" if operation == "create_session" else key)
        result = await perform(handler, call, *_arguments(handler, arguments))
        values: Values | None = result.values if isinstance(result, OperationReply) else result
        if values is not None:
            values = await resolved(values)
        if operation == "create_session" and values is not None and not values["thread_id"]:
            self.threadless.insert(0, values["session_id"])
        elif operation == "fork_session" and values is not None:
            self.threadless[:0] = [each["session_id"] for each in values["sessions"] if not each["thread_id"]]
        elif operation == "delete_session" and session_id in self.threadless:
            self.threadless.remove(session_id)
        return values

    async def events(
        self, operation: str, session_id: str, **arguments: Any
    ) -> AsyncGenerator[tuple[str, Values], None]:
        handler = HANDLERS[operation]
        call = self._new_call(handler, session_id, arguments)
        async with contextlib.aclosing(perform_stream(handler, call, *_arguments(handler, arguments))) as source:
            async for event in source:
                if event is not None:
                    is_long = isinstance(event.values, LongObject)
                    yield event.kind, await resolved(event.values) if is_long else event.values

    @contextlib.asynccontextmanager
    async def download(
        self, operation: str, session_id: str, *, offset: int = 0, length: int | None = None, **arguments: Any
    ) -> AsyncIterator[tuple[int, AsyncGenerator[bytes, None]]]:
        handler = HANDLERS[operation]
        call = self._new_call(handler, session_id, arguments)
        if offset or length is not None:
            call.byte_range = ByteRange(offset, None if length is None else offset + length - 1)
        async with contextlib.aclosing(perform_stream(handler, call, *_arguments(handler, arguments))) as source:
            head = await anext(source)
            assert isinstance(head, BytesHead)
            if head.end is not None and head.start >= head.end:
                raise RangeNotSatisfiable(f"the file has {head.size} bytes, and none from {head.start} on")
            yield head.size or 0, source

    async def upload(
        self, operation: str, session_id: str, data: bytes | AsyncIterable[bytes], **arguments: Any
    ) -> Values:
        handler = HANDLERS[operation]
        call = self._new_call(handler, session_id, arguments)
        written: Values = await perform(handler, call, *_arguments(handler, arguments), data)
        return written

    @contextlib.asynccontextmanager
    async def socket(
        self, operation: str, session_id: str, *, rows: int = 24, columns: int = 80, offset: int = 0, **how: Any
    ) -> AsyncIterator["LocalSocket"]:
        assert operation == "terminal_socket"
        size = TerminalSize(rows, columns)
        if offset < 0:
            raise InvalidRequest(f"an offset of {offset} cannot be")
        call = Call(self._context, DEFAULT_TENANT, session_id)
        async with call.using(counts=False):
            process = await open_terminal(call.session, call.sandbox, size, **how)
            await call.sessions.uses.record(DEFAULT_TENANT, session_id)
            socket = LocalSocket(self._context, session_id, process, offset)
            try:
                yield socket
            finally:
                await socket.close()

    async def stats(self) -> Values:
        return asdict(await self._context.sessions.stats())

    def _new_call(self, handler: Handler, session_id: str, arguments: Values, key: str = "") -> Call:
        call = Call(self._context, DEFAULT_TENANT, session_id, key=key)
        for name in handler.operation.names_in_path:
            if name != "session_id":
                setattr(call, name, arguments.pop(name))
        return call


def _arguments(handler: Handler, values: Values) -> list[Any]:
    """Splits the arguments of a call into the query and the body that the handler takes."""
    values = {name: value for name, value in values.items() if value is not None}
    found: list[Any] = []
    if handler.query is not None:
        fields = handler.query.model_fields
        taken = {name: values.pop(name) for name in list(values) if handler.body is None or name in fields}
        found.append(validated(handler.query, taken))
    if handler.body is not None:
        found.append(validated(handler.body, values))
    return found


class LocalSocket:
    """A terminal with the messages that a WebSocket would carry."""

    def __init__(self, context: OperationContext, session_id: str, process: Process, offset: int) -> None:
        self._context, self._session_id, self._process = context, session_id, process
        self._first: str | None = json.dumps({"type": "started", "process_id": process.id, "offset": offset})
        self._chunks = with_keepalives(process.output(offset), context.keepalive_s)
        self._next: asyncio.Task[Any] | None = None
        self._ended = False

    async def send(self, message: str | bytes) -> None:
        await self._context.sessions.uses.record(DEFAULT_TENANT, self._session_id)
        if isinstance(message, bytes):
            await self._process.write(message)
        else:
            await apply_message(self._process, read_message(message))

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
                return json.dumps({"type": "result", **end_view(await self._process.ended())})
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
