"""Error answers: all of them are application/problem+json (RFC 9457).

`register` makes an app answer every exception so. An unexpected exception tells the caller only an error id; the log
has the traceback with the same id. The answers are plain ASCII, so no string of a request can break them.

`StrictRoute` reads JSON strictly (model/strict_json.py), and under any content type except a form's.
"""

import asyncio
import json
import math
import secrets
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from uvicorn.protocols.utils import ClientDisconnected

from warren.kernel.logs import get_log
from warren.model.errors import (
    ImageBuilding,
    InvalidJson,
    InvalidRequest,
    Misdirected,
    SessionMismatch,
    StoreAway,
    WarrenError,
)
from warren.model.strict_json import MAX_VALUES, json_error, read_in_steps, read_json, shortened, too_deep
from warren.sessions.request_context import note
from warren.sessions.validation import describe_error, field_name, summary

MEDIA_TYPE = "application/problem+json"
_RETRY_AFTER_S = 1.0
_RETRY_STATUSES = frozenset({429, 503})
_MAX_DETAIL = 600
SHORT_BODY = 256 * 1024  # bytes that can be read at once, without holding up anybody
_MAX_VALUES = 2000  # of routes beside the operations, whose bodies are small
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_CODES = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    422: "invalid_request",
    429: "limit_reached",
    503: "unavailable",
}
_log = get_log(__name__)


def problem(exc: WarrenError, instance: str = "") -> Response:
    fields: dict[str, object] = {"retryable": exc.retryable}
    shown = exc.public if isinstance(exc, StoreAway) else exc.message
    if exc.remedy and shown is exc.message:
        fields = {"remedy": exc.remedy, **fields}
    if isinstance(exc, ImageBuilding):
        fields |= {"step": exc.step, "fraction": exc.fraction, "about": exc.about or None}
        fields |= {"remaining_s": exc.remaining_s}
    if isinstance(exc, SessionMismatch):
        fields["mismatch"] = exc.mismatch
    if instance:
        fields["instance"] = instance
    note(error=exc.code)
    response = _problem_response(exc.http_status, exc.code, shown, fields, retry_after_s=exc.retry_after_s)
    if isinstance(exc, Misdirected):
        response.headers["x-warren-worker"] = exc.worker
    return response


def internal_problem(exc: BaseException) -> Response:
    """Logs the traceback of an exception once, however often this is called for it."""
    error_id = logged_error_id(exc)
    if not error_id:
        error_id = exc.__dict__["warren_error_id"] = secrets.token_hex(8)
        _log.error("internal_error", error_id=error_id, exc=exc)
    detail = f"Something went wrong inside the server. The log tells more under the error id {error_id}."
    return _problem_response(500, "internal", detail, {"error_id": error_id, "retryable": False})


def free_frames(exc: BaseException | None) -> None:
    """Frees the local variables of an exception's frames: a refused body would otherwise wait for the collector."""
    while exc is not None:
        traceback.clear_frames(exc.__traceback__)
        exc = exc.__cause__ or exc.__context__


def logged_error_id(exc: BaseException) -> str:
    """The error id with which `internal_problem` logged this exception, or an empty text."""
    return str(exc.__dict__.get("warren_error_id", ""))


def register(app: FastAPI) -> None:
    """Makes the app answer every error as a problem, and read JSON strictly in routes added to it afterwards."""
    app.add_exception_handler(WarrenError, cast(Any, _on_warren_error))  # one handler for both kinds of connection
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(WebSocketRequestValidationError, cast(Any, _on_invalid_socket))
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_exception)
    app.router.route_class = StrictRoute


def _problem_response(
    status: int,
    code: str,
    detail: str,
    fields: Mapping[str, object],
    *,
    retry_after_s: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    head = {"type": "about:blank", "title": _title(status), "status": status, "code": code}
    body = {**head, "detail": _shorten(detail), **fields}
    sent = dict(headers or {})
    if retry_after_s is not None or status in _RETRY_STATUSES:
        wait_s = _RETRY_AFTER_S if retry_after_s is None else retry_after_s
        sent.setdefault("Retry-After", str(max(1, math.ceil(wait_s))))
    return Response(_encode(body), status_code=status, headers=sent, media_type=MEDIA_TYPE)


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _encode(body: Mapping[str, object]) -> bytes:
    return json.dumps({key: _escape_surrogates(value) for key, value in body.items()}).encode("ascii") + b"\n"


def _escape_surrogates(value: object) -> object:
    """Spells out lone surrogates: strict readers refuse a document that contains them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {str(_escape_surrogates(key)): _escape_surrogates(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_escape_surrogates(item) for item in value]
    return value


async def _on_warren_error(conn: Request | WebSocket, exc: Exception) -> Response | None:
    assert isinstance(exc, WarrenError)
    if isinstance(conn, WebSocket) and conn.application_state is not WebSocketState.CONNECTING:
        await _close(conn, exc)
        return None
    if exc.http_status >= 500 and type(exc) is WarrenError:
        return internal_problem(exc)
    free_frames(exc)
    return problem(exc)


async def _close(socket: WebSocket, exc: WarrenError) -> None:
    if socket.application_state is WebSocketState.CONNECTED:
        await socket.close(code=1013 if exc.retryable else 1011, reason=exc.code)


async def _on_http_exception(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    free_frames(exc)
    cause = exc.__cause__
    if isinstance(cause, WarrenError):
        return problem(cause)
    if exc.status_code == 400 and isinstance(cause, RecursionError):
        return problem(too_deep())
    if exc.status_code in (204, 304):
        return Response(status_code=exc.status_code, headers=exc.headers)
    if exc.status_code == 405:
        exc.headers = {"Allow": _allowed(request)}
    fields: dict[str, object] = {"retryable": exc.status_code in _RETRY_STATUSES}
    if exc.status_code == 404:
        fields["remedy"] = "GET /docs shows every address there is"
    code = _CODES.get(exc.status_code, "internal" if exc.status_code >= 500 else "invalid_request")
    return _problem_response(exc.status_code, code, _http_detail(request, exc), fields, headers=exc.headers)


def _allowed(request: Request) -> str:
    """Every method of this path; Starlette names only those of the first route that matches."""
    scopes = {method: {**request.scope, "method": method} for method in _METHODS}
    routes = request.app.routes
    found = [
        method for method, scope in scopes.items() if any(route.matches(scope)[0] is Match.FULL for route in routes)
    ]
    return ", ".join(["GET", "HEAD", *found[1:]] if found[:1] == ["GET"] else found)


def _http_detail(request: Request, exc: HTTPException) -> str:
    if str(exc.detail) != _title(exc.status_code):
        return str(exc.detail)
    if exc.status_code == 404:
        return f"there is nothing at {shortened(request.url.path)}"
    if exc.status_code == 405:
        allowed = (exc.headers or {}).get("Allow", "")
        return f"{request.method} is not possible here" + (f"; possible: {allowed}" if allowed else "")
    return str(exc.detail)


async def _on_exception(request: Request, exc: Exception) -> Response:
    if is_disconnect(exc):
        return Response(status_code=499)  # nobody reads it
    return internal_problem(exc)


def is_disconnect(exc: BaseException) -> bool:
    """Whether the exception only says that the client went away."""
    while exc.__cause__ is not None and isinstance(exc, RuntimeError | HTTPException):
        exc = exc.__cause__
    return isinstance(exc, ClientDisconnect | ClientDisconnected | WebSocketDisconnect)


async def _on_invalid(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)
    free_frames(exc)
    found = list(exc.errors())
    if broken := next((error for error in found if error.get("type") == "json_invalid"), None):
        return problem(_broken_json(broken, exc.body))
    return invalid_arguments(found)


def invalid_arguments(found: Sequence[Mapping[str, Any]]) -> Response:
    """422 with a sentence for each argument that pydantic refused; the first part of a `loc` says where it was sent."""
    errors = [{"field": field_name(error["loc"]), "message": describe_error(error)} for error in found]
    return _problem_response(422, InvalidRequest.code, summary(errors), {"errors": errors[:100], "retryable": False})


async def _on_invalid_socket(socket: WebSocket, exc: Exception) -> Response:
    assert isinstance(exc, WebSocketRequestValidationError)
    return problem(InvalidRequest(summary([{"message": describe_error(error)} for error in exc.errors()])))


def _broken_json(error: Mapping[str, Any], body: object) -> InvalidJson:
    position = error["loc"][-1]
    reason = str(error.get("ctx", {}).get("error", "not JSON"))
    if not isinstance(body, str) or not isinstance(position, int):
        return InvalidJson(f"the body is not valid JSON: {reason}")
    return json_error(json.JSONDecodeError(reason, body, min(position, len(body))))


def _shorten(detail: str) -> str:
    """Cuts the middle out of a long sentence: it quotes what the caller sent, and goes on after that."""
    return detail if len(detail) <= _MAX_DETAIL else f"{detail[: _MAX_DETAIL - 200]} … {detail[-197:]}"


async def read_json_body(body: bytes, most: int = MAX_VALUES) -> Any:
    """Gives way to other requests between the steps of reading a long body."""
    if len(body) <= SHORT_BODY:
        return read_json(body, most)
    found: Any = None
    for value in read_in_steps(body, most):
        found = value
        await asyncio.sleep(0)
    return found


class StrictRequest(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = await read_json_body(await self.body(), _MAX_VALUES)
        return self._json


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(StrictRequest(_with_json_type(request.scope), request.receive))

        return strict


def _with_json_type(scope: Scope) -> Scope:
    """FastAPI reads a body as JSON only if its content type says so; `curl -d` sends the type of a form."""
    types = [value for name, value in scope["headers"] if name == b"content-type"]
    if any(value.startswith(b"multipart/") for value in types):
        return scope
    kept = [header for header in scope["headers"] if header[0] != b"content-type"]
    return {**scope, "headers": [*kept, (b"content-type", b"application/json")]}
