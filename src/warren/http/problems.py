"""Every error as one kind of answer: application/problem+json (RFC 9457).

`register` teaches an app to answer so, whatever was raised. An error nobody foresaw says nothing about itself
to the caller but an error id; the same id stands in the log, beside the traceback. What is answered is plain
ASCII, so no string that came in, however broken, can break the answer.

`StrictRoute` reads JSON the strict way: NaN, numbers too large, lone surrogates and nesting without end are
refused at the door, because each of them would break an answer or a handler later on. So are lists without end:
millions of small values in one body would each become an object, and a wrong one an error of its own.
"""

import json
import logging
import math
import re
import secrets
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from itertools import accumulate
from typing import Any, NoReturn, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from uvicorn.protocols.utils import ClientDisconnected

from warren.model.errors import InvalidJson, InvalidRequest, Misdirected, StoreAway, TooLarge, WarrenError
from warren.sessions.request_context import note

MEDIA_TYPE = "application/problem+json"
MAX_DEPTH = 100
MAX_VALUES = 50_000
_RETRY_AFTER_S = 1.0
_WAIT_STATUSES = frozenset({429, 503})
_SHOWN = 60
_LONGEST = 600
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
_log = logging.getLogger("warren.api")


def problem(exc: WarrenError, instance: str = "") -> Response:
    fields: dict[str, object] = {"retryable": exc.retryable}
    shown = exc.public if isinstance(exc, StoreAway) else exc.message
    if exc.remedy and shown is exc.message:
        fields = {"remedy": exc.remedy, **fields}
    if instance:
        fields["instance"] = instance
    note(error=exc.code)
    response = _answer(exc.http_status, exc.code, shown, fields, retry_after_s=exc.retry_after_s)
    if isinstance(exc, Misdirected):
        response.headers["x-warren-worker"] = exc.worker
    return response


def internal_problem(exc: BaseException) -> Response:
    """Logs the traceback once for an exception, however often it is asked."""
    error_id = was_logged(exc) or secrets.token_hex(8)
    if not was_logged(exc):
        _log.error("internal error %s", error_id, exc_info=exc)
        exc.__dict__["warren_error_id"] = error_id
    detail = f"Something went wrong inside the server. The log tells more under the error id {error_id}."
    return _answer(500, "internal", detail, {"error_id": error_id, "retryable": False})


def let_go(exc: BaseException | None) -> None:
    """Frees what the frames of an exception hold: a body that was refused would else wait for the collector."""
    while exc is not None:
        traceback.clear_frames(exc.__traceback__)
        exc = exc.__cause__ or exc.__context__


def was_logged(exc: BaseException) -> str:
    """The error id under which `internal_problem` logged this exception, or nothing."""
    found = exc.__dict__.get("warren_error_id", "")
    return str(found)


def register(app: FastAPI) -> None:
    """Makes the app answer every error as a problem, and read JSON strictly in routes added to it afterwards."""
    app.add_exception_handler(WarrenError, cast(Any, _on_warren_error))  # one handler for both kinds of connection
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(WebSocketRequestValidationError, cast(Any, _on_invalid_socket))
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_exception)
    app.router.route_class = StrictRoute


def _answer(
    status: int,
    code: str,
    detail: str,
    fields: Mapping[str, object],
    *,
    retry_after_s: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    about = {"type": "about:blank", "title": _title(status), "status": status, "code": code}
    body = {**about, "detail": _cut(detail), **fields}
    sent = dict(headers or {})
    if retry_after_s is not None or status in _WAIT_STATUSES:
        wait_s = _RETRY_AFTER_S if retry_after_s is None else retry_after_s
        sent.setdefault("Retry-After", str(max(1, math.ceil(wait_s))))
    return Response(_encode(body), status_code=status, headers=sent, media_type=MEDIA_TYPE)


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _encode(body: Mapping[str, object]) -> bytes:
    return json.dumps({key: _readable(value) for key, value in body.items()}).encode("ascii")


def _readable(value: object) -> object:
    """Lone surrogates are spelt out: strict readers refuse a document that holds them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {str(_readable(key)): _readable(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_readable(item) for item in value]
    return value


async def _on_warren_error(conn: Request | WebSocket, exc: Exception) -> Response | None:
    assert isinstance(exc, WarrenError)
    if isinstance(conn, WebSocket) and conn.application_state is not WebSocketState.CONNECTING:
        await _close(conn, exc)
        return None
    if exc.http_status >= 500 and type(exc) is WarrenError:
        return internal_problem(exc)
    let_go(exc)
    return problem(exc)


async def _close(socket: WebSocket, exc: WarrenError) -> None:
    if socket.application_state is WebSocketState.CONNECTED:
        await socket.close(code=1013 if exc.retryable else 1011, reason=exc.code)


async def _on_http_exception(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    let_go(exc)
    cause = exc.__cause__
    if isinstance(cause, WarrenError):
        return problem(cause)
    if exc.status_code == 400 and isinstance(cause, RecursionError):
        return problem(_too_deep())
    if exc.status_code in (204, 304):
        return Response(status_code=exc.status_code, headers=exc.headers)
    if exc.status_code == 405:
        exc.headers = {"Allow": _allowed(request)}
    fields: dict[str, object] = {"retryable": exc.status_code in _WAIT_STATUSES}
    code = _CODES.get(exc.status_code, "internal" if exc.status_code >= 500 else "invalid_request")
    return _answer(exc.status_code, code, _http_detail(request, exc), fields, headers=exc.headers)


def _allowed(request: Request) -> str:
    """Every method of this path; the router names only those of the first route that has it."""
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
        return f"there is nothing at {_short(request.url.path)}"
    if exc.status_code == 405:
        allowed = (exc.headers or {}).get("Allow", "")
        return f"{request.method} is not possible here" + (f"; possible: {allowed}" if allowed else "")
    return str(exc.detail)


async def _on_exception(request: Request, exc: Exception) -> Response:
    if is_disconnect(exc):
        return Response(status_code=499)  # nobody is there to read it
    return internal_problem(exc)


def is_disconnect(exc: BaseException) -> bool:
    """Whether the exception only says that the client went away."""
    while exc.__cause__ is not None and isinstance(exc, RuntimeError | HTTPException):
        exc = exc.__cause__
    return isinstance(exc, ClientDisconnect | ClientDisconnected | WebSocketDisconnect)


async def _on_invalid(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)
    let_go(exc)
    found = list(exc.errors())
    if broken := next((error for error in found if error.get("type") == "json_invalid"), None):
        return problem(_broken_json(broken, exc.body))
    errors = [{"field": _field(error["loc"]), "message": _sentence(error)} for error in found]
    return _answer(422, InvalidRequest.code, _summary(errors), {"errors": errors[:100], "retryable": False})


async def _on_invalid_socket(socket: WebSocket, exc: Exception) -> Response:
    assert isinstance(exc, WebSocketRequestValidationError)
    return problem(InvalidRequest(_summary([{"message": _sentence(error)} for error in exc.errors()])))


def _summary(errors: Sequence[Mapping[str, str]]) -> str:
    detail = "; ".join(error["message"] for error in errors[:5])
    return f"{detail}; and {len(errors) - 5} more" if len(errors) > 5 else detail


def plain_error(found: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """What pydantic found wrong with a message that is not a request's body."""
    errors = [{"message": _sentence({**error, "loc": ("body", *error["loc"])})} for error in found]
    return InvalidRequest(_summary(errors))


def _broken_json(error: Mapping[str, Any], body: object) -> InvalidJson:
    position = error["loc"][-1]
    reason = str(error.get("ctx", {}).get("error", "not JSON"))
    if not isinstance(body, str) or not isinstance(position, int):
        return InvalidJson(f"the body is not valid JSON: {reason}")
    return _json_error(json.JSONDecodeError(reason, body, min(position, len(body))))


def _json_error(exc: json.JSONDecodeError) -> InvalidJson:
    return InvalidJson(
        f"the body is not valid JSON: {exc.msg.removesuffix(' at')} at line {exc.lineno}, column {exc.colno}"
    )


def _too_deep() -> InvalidJson:
    return InvalidJson(f"the JSON in the body is nested too deeply: at most {MAX_DEPTH} levels are taken")


def _field(loc: Sequence[str | int]) -> str:
    steps = list(loc[1:]) if len(loc) > 1 else list(loc)
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return _short(text.removeprefix("."))


_WORDS: dict[str, str] = {
    "int_": "must be a whole number",
    "float_": "must be a number",
    "bool_": "must be true or false",
    "string_type": "must be a string",
    "string_unicode": "must be text in valid Unicode",
    "list_type": "must be a list",
    "dict_type": "must be a JSON object",
    "model_": "must be a JSON object",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
}


def _sentence(error: Mapping[str, Any]) -> str:
    field, kind = f"`{_field(error['loc'])}`", str(error["type"])
    if kind == "missing":
        return "the request needs a JSON body" if tuple(error["loc"]) == ("body",) else f"{field} is missing"
    if kind == "extra_forbidden":
        return f"{field} is not known here"
    return f"{field} {_rule(kind, error)}{_got(error)}"


def _rule(kind: str, error: Mapping[str, Any]) -> str:
    context = error.get("ctx") or {}
    for start, words in _WORDS.items():
        if kind == start or (start.endswith("_") and kind.startswith(start)):
            return words.format_map(context)
    message = str(error["msg"])
    if kind == "value_error":
        return f"is not possible: {context.get('error', message)}"
    return message.replace("Input should be", "must be") if "Input should be" in message else f"is wrong: {message}"


def _got(error: Mapping[str, Any]) -> str:
    """What was sent, unless it is long, or from where secrets travel: headers and environment variables."""
    value = error.get("input")
    secret = error["loc"][0] in ("header", "cookie") or "env" in error["loc"]
    if secret or not isinstance(value, str | int | float | bool | None):
        return ""
    return f", got {_short(json.dumps(value) if value is None or isinstance(value, bool) else repr(value))}"


def _cut(detail: str) -> str:
    """What was sent stands in many a sentence, and may be long; the sentence goes on after it."""
    return detail if len(detail) <= _LONGEST else f"{detail[: _LONGEST - 200]} … {detail[-197:]}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


class StrictRequest(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = read_json(await self.body())
        return self._json


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strict


def read_json(body: bytes) -> Any:
    """The value, or `InvalidJson` saying what is wrong and where."""
    _refuse_too_much(body)
    try:
        value = _DECODER.decode(body.decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        raise InvalidJson(f"the body is not valid UTF-8: byte {exc.start} is 0x{body[exc.start]:02x}") from exc
    except json.JSONDecodeError as exc:
        raise _json_error(exc) from exc
    except ValueError as exc:  # a number of more than 4,300 digits
        raise InvalidJson("the JSON in the body holds a number that is too long") from exc
    if _SURROGATE.search(body):
        _refuse_lone_surrogates(value)
    return value


def _refuse_too_much(body: bytes) -> None:
    """Before anything is made of it, and soon: everybody waits. Text may hold any number of commas and brackets."""
    if body.count(b'"') - body.count(b'\\"') > 4 * (MAX_VALUES + 1):  # each value may be a text and have a name
        raise _too_deep() if _is_deep(_STRINGS.sub(b"", body[: 64 * MAX_DEPTH])) else _too_many()
    containers = body.count(b"[") + body.count(b"{")
    if body.count(b",") < MAX_VALUES and containers <= MAX_DEPTH:
        return
    bare = _STRINGS.sub(b"", body)
    if _is_deep(bare):
        raise _too_deep()
    if bare.count(b",") >= MAX_VALUES or bare.count(b"[") + bare.count(b"{") > MAX_VALUES:
        raise _too_many()


def _too_many() -> TooLarge:
    return TooLarge(f"the JSON in the body holds more than {MAX_VALUES} values", remedy="send large data as a file")


def _is_deep(bare: bytes) -> bool:
    """As far as there are not too many values anyway."""
    brackets = bare.translate(None, _NO_BRACKETS)[: 2 * MAX_VALUES]
    return any(map(MAX_DEPTH.__lt__, accumulate(map(_STEPS.__getitem__, brackets))))


def _refuse_lone_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as exc:
        raise InvalidJson("the JSON in the body holds half of a surrogate pair, which is no character") from exc


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidJson(f"the JSON in the body holds {name}, which JSON does not know")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise InvalidJson(f"the JSON in the body holds {_short(text)}, which is too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - _STEPS.keys())
