"""Performs the operations of the table (model/api.py) for HTTP requests.

The dispatcher checks the caller's scope, reads the arguments as the operation's handler declares them, and turns the
result into an answer. E2B's operations have handlers that read and answer by themselves (http/e2b/handlers.py). All
other requests are FastAPI's, which has a route for each operation of ours too (operation_routes.py): for the OpenAPI
document, and to refuse wrong methods.
"""

import asyncio
import re
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Iterable, Mapping
from functools import cache, partial
from typing import Any, Final, TypeVar

import anyio
from pydantic import BaseModel, ValidationError
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response
from starlette.types import Receive, Scope

from warren.http.api import e2b, flat, health
from warren.http.context import Context, answer_json, check_scope
from warren.http.e2b.handlers import E2bHandlers
from warren.http.event_streams import EVENT_STREAM, stream_events
from warren.http.problems import SHORT_BODY, invalid_arguments, problem, read_json_body
from warren.http.request import Kind, Request
from warren.http.server.http_guard import StreamedAnswer
from warren.model.api import Answers, Operation, Reads
from warren.model.errors import InvalidRequest, RangeNotSatisfiable
from warren.model.session import MAX_KEY
from warren.model.strict_json import read_json
from warren.sessions.operations import files, handlers, sessions
from warren.sessions.operations.call import ByteRange, BytesHead, Call, Handler, OperationReply, perform, perform_stream
from warren.sessions.validation import MANY, many_errors

T = TypeVar("T")

HANDLERS: Final = handlers.HANDLERS | {handler.name: handler for module in (flat, e2b) for handler in module.HANDLERS}
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
_WATCH_AFTER_S: Final = 0.25
_EVENT_STREAM: Final = EVENT_STREAM.encode()


class Dispatcher:
    def __init__(self, context: Context, e2b: E2bHandlers) -> None:
        self._context = context
        self._e2b = e2b

    def __call__(self, request: Request, receive: Receive) -> Awaitable[Response | None]:
        """Returns the answer to a request that asks for an operation; None if it asks for something else."""
        operation = request.operation
        if request.kind is Kind.E2B:
            return self._e2b.respond(request, receive)
        if operation is not None and operation.answers is not Answers.SOCKET:
            request.action = operation.name
            return respond(HANDLERS[operation.name], operation, self._context, request, receive)
        return self._respond_often(request)

    async def _respond_often(self, request: Request) -> Response | None:
        asked_often = health.ASKED_OFTEN.get(request.scope["path"])
        if asked_often is None or request.scope.get("method") != "GET":
            return None
        request.scope["route"], describe = asked_often
        return answer_json(await describe(self._context))


async def respond(
    handler: Handler, operation: Operation, context: Context, request: Request, receive: Receive
) -> Response:
    caller, headers, scope = request.caller, request.headers, request.scope
    if operation.scope not in caller.scopes:
        check_scope(caller, operation.scope)
    call = Call(context, caller.tenant, **request.params, base_url=partial(_base_url, scope))
    errors: list[dict[str, Any]] = []
    arguments: list[Any] = []
    if handler.query is not None:
        raw = scope["query_string"]
        usual = None if raw else _usual_query(handler.query)
        values = _query_values(scope) if raw else {}
        arguments.append(usual or _validate(handler.query, values, "query", errors, len(raw)))
    if handler.headers:
        errors.extend(_read_headers(handler, call, headers))
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    if handler.body is not None:
        data = await _receive_body(receive)
        arguments.append(await _read_body(handler.body, operation, data, content_type, errors))
    elif operation.takes_stream:
        call.content_type = content_type
        call.fields = dict(QueryParams(scope["query_string"]))
        arguments.append(_stream_body(receive))
    if errors:
        return invalid_arguments(errors)
    if operation.answers is Answers.EVENTS or (
        operation.answers is Answers.VALUE_OR_EVENTS and _wants_events(headers, arguments)
    ):
        return await stream_events(perform_stream(handler, call, *arguments))
    if operation.answers is Answers.BYTES:
        return await _answer_bytes(perform_stream(handler, call, *arguments), handler.media_type)
    work = perform(handler, call, *arguments)
    result = await cancel_if_gone(receive, work) if operation.watched else await work
    if isinstance(result, AsyncGenerator):
        return await _answer_bytes(result, handler.media_type)
    if isinstance(result, OperationReply):
        return answer_json(result.values, result.status, result.headers)
    return Response(status_code=operation.status) if result is None else answer_json(result, operation.status)


def _base_url(scope: Scope) -> str:
    return str(StarletteRequest(scope).base_url)


# -- arguments


def _validate(
    model: type[BaseModel], values: Any, where: str, errors: list[dict[str, Any]], size: int
) -> BaseModel | None:
    """`size`: the number of bytes that the values came in."""
    if size > MANY and (many := many_errors(model, values)):
        errors.append({**many, "loc": (where, *many["loc"])})
        return None
    try:
        return model.model_validate(values)
    except ValidationError as exc:
        errors.extend({**error, "loc": (where, *error["loc"])} for error in exc.errors())
        return None


@cache
def _usual_query(model: type[BaseModel]) -> BaseModel | None:
    """Returns what no query means; None if the operation needs one. Handlers only read it, so all calls share it."""
    try:
        return model.model_validate({})
    except ValidationError:
        return None


def _query_values(scope: Scope) -> dict[str, Any]:
    """If a parameter comes several times the last value counts, unless the parameter is a list."""
    raw: str = scope["query_string"].decode("latin-1")
    values: dict[str, Any] = {}
    for name, value in urllib.parse.parse_qsl(raw, keep_blank_values=True, errors="surrogateescape"):
        if name in sessions.LISTS:
            values.setdefault(name, []).append(_replace_surrogates(value))
        else:
            values[name] = value if name in files.PATHS else _replace_surrogates(value)
    return values


def _replace_surrogates(value: str) -> str:
    return value if value.isascii() else value.encode(errors="surrogateescape").decode(errors="replace")


def _read_headers(handler: Handler, call: Call, headers: Mapping[bytes, bytes]) -> Iterable[dict[str, Any]]:
    if "idempotency_key" in handler.headers:
        call.key = headers.get(b"idempotency-key", b"").decode("latin-1")
        if len(call.key) > MAX_KEY:
            yield {"type": "string_too_long", "loc": ("header", "Idempotency-Key"), "ctx": {"max_length": MAX_KEY}}
    if "last_event_id" in handler.headers:
        call.last_event_id = headers.get(b"last-event-id", b"").decode("latin-1")
    if "range" in handler.headers and (text := headers.get(b"range", b"")):
        call.byte_range = read_range(text.decode("latin-1"))


def read_range(text: str) -> ByteRange:
    match = _RANGE.fullmatch(text)
    if match is None or not (match[1] or match[2]):
        raise InvalidRequest(
            f"the range {text[:80]!r} is not understood", remedy="bytes=FROM-, bytes=FROM-TO or bytes=-LAST"
        )
    part = ByteRange(int(match[1]) if match[1] else None, int(match[2]) if match[2] else None)
    if part.first is not None and part.last is not None and part.last < part.first:
        raise InvalidRequest(f"the range {text!r} ends before it begins")
    return part


async def _receive_body(receive: Receive) -> bytes:
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        return bytes(message.get("body", b""))
    parts = []
    while True:
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()


async def _read_body(
    model: type[BaseModel], operation: Operation, data: bytes, content_type: str, errors: list[dict[str, Any]]
) -> BaseModel | None:
    """Reads the body as JSON, whatever its content type, unless that is a form with files."""
    if content_type.startswith("multipart/"):
        errors.append({"type": "model_type", "loc": ("body",)})
        return None
    values = None
    if data:
        values = read_json(data) if len(data) <= SHORT_BODY else await read_json_body(data)
    if values is not None:
        return _validate(model, values, "body", errors, len(data))
    if operation.reads is Reads.JSON:
        errors.append({"type": "missing", "loc": ("body",)})
    return None


async def _stream_body(receive: Receive) -> AsyncIterator[bytes]:
    """Yields the body as it comes. The operation fails if the client disconnects in the middle."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest("the client went away in the middle of the body")
        if part := message.get("body", b""):
            yield part
        if not message.get("more_body"):
            return


def _wants_events(headers: Mapping[bytes, bytes], arguments: list[Any]) -> bool:
    if _EVENT_STREAM in headers.get(b"accept", b""):
        return True
    for one in arguments:  # noqa: SIM110 (a generator takes twice the time)
        if getattr(one, "stream", False):
            return True
    return False


# -- answers


async def _answer_bytes(source: AsyncGenerator[BytesHead | bytes, None], media_type: str) -> Response:
    """The first item of the source says what follows. An error before it is answered like any other."""
    head = await anext(source)
    assert isinstance(head, BytesHead)
    headers, status = dict(head.headers), 200
    if head.size is not None:
        headers |= {"X-File-Size": str(head.size), "Accept-Ranges": "bytes"}
    if head.end is not None:
        if head.start >= head.end:
            await source.aclose()
            return _refuse_range(head)
        headers["Content-Range"], status = f"bytes {head.start}-{head.end - 1}/{head.size}", 206
    return StreamedAnswer(_only_bytes(source), status, headers, head.media_type or media_type)


def _refuse_range(head: BytesHead) -> Response:
    message = f"the file has {head.size} bytes, and none in the range that was asked for"
    response = problem(RangeNotSatisfiable(message, remedy="ask for a part it has"))
    response.headers["Content-Range"] = f"bytes */{head.size}"
    return response


async def _only_bytes(source: AsyncGenerator[Any, None]) -> AsyncIterator[bytes]:
    try:
        async for part in source:
            yield part
    finally:
        with anyio.CancelScope(shield=True):
            await source.aclose()


async def cancel_if_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Awaits the work, and cancels it if the caller disconnects."""
    watch = _DisconnectWatch(receive)
    try:
        return await work
    except asyncio.CancelledError:
        if not watch.gone:
            raise
        watch.task.uncancel()
        raise ClientDisconnect from None
    finally:
        watch.end()


class _DisconnectWatch:
    """Cancels the task that made it when the caller disconnects. Starts watching late: most work is done before."""

    def __init__(self, receive: Receive) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.gone = False
        self._receive = receive
        self._watching: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._begin)

    def _begin(self) -> None:
        self._watching = asyncio.create_task(self._wait_for_disconnect(), name="disconnect watch")

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self.task.cancel()

    def end(self) -> None:
        self._timer.cancel()
        if self._watching is not None and not self.gone:
            self._watching.cancel()
