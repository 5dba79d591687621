"""Errors in the forms that E2B's clients read.

The control plane and file transfers have `{"code": 404, "message": …}`. Remote procedure calls (Connect) have
`{"code": "not_found", "message": …}`. A sandbox that is gone is a 502 with a message that clients look for.

What is wrong with an image stands beside code and message too, in E2B's field `error_code` and a field `progress`: the
provider e2b of another Warren reads it (sandboxes/providers/e2b_api.py).
"""

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import JSONResponse, Response
from starlette.types import Message, Send

from warren.http.problems import MEDIA_TYPE
from warren.http.request import Request
from warren.http.server.http_guard import BARE
from warren.model.e2b import Plane, sandbox_id_of
from warren.model.errors import (
    CommandRefused,
    Conflict,
    FileExists,
    ImageBuildFailed,
    ImageBuilding,
    ImageNotFound,
    InvalidRequest,
    IsDirectory,
    LimitReached,
    NotADirectory,
    PortClosed,
    QuotaExceeded,
    SandboxLost,
    SandboxNotFound,
    SessionEnded,
    SessionNotFound,
    SessionPaused,
    StoreAway,
    Unauthorized,
    UnknownUser,
    WarrenError,
)

_GONE: Final = (SessionNotFound, SessionEnded, SessionPaused, SandboxLost, SandboxNotFound)
_BAD: Final = 400
_MAX_PROBLEM: Final = 64 * 1024
_REPEATED: Final = (429, 502, 503, 504)  # after which clients repeat a request
_SOON_S: Final = 5.0
_STARTS: Final = ("http.response.start", "websocket.http.response.start")
HTTP_OF_CODE: Final = {
    "invalid_argument": 400,
    "failed_precondition": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "already_exists": 409,
    "resource_exhausted": 429,
    "canceled": 499,
    "unknown": 500,
    "internal": 500,
    "unimplemented": 501,
    "unavailable": 503,
    "deadline_exceeded": 504,
}
_CODE_OF_HTTP: Final = {
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    409: "already_exists",
    429: "resource_exhausted",
    499: "canceled",
    500: "internal",
    501: "unimplemented",
    503: "unavailable",
    504: "deadline_exceeded",
    507: "resource_exhausted",
}


class E2bError(Exception):
    """An answer of the control plane or of a file transfer, with exactly this status. `details` are fields of its own
    beside code and message."""

    def __init__(
        self,
        status: int,
        message: str,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.headers, self.details = status, message, headers, details or {}


def wait_for_change(message: str) -> E2bError:
    """Returns a refusal that lasts until the caller has done something about it: clients are not to repeat the request
    by themselves, as they do after other answers with this status."""
    return E2bError(429, message, {"Should-Retry": "false"})


class ConnectError(Exception):
    """The end of a remote procedure call; `code` is one of HTTP_OF_CODE."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def message_of(exc: WarrenError) -> str:
    if isinstance(exc, StoreAway):
        return exc.public
    return f"{exc.message}; {exc.remedy}" if exc.remedy else exc.message


def as_connect_error(exc: WarrenError) -> ConnectError:
    if isinstance(exc, UnknownUser):
        return ConnectError("unauthenticated", message_of(exc))
    if isinstance(exc, CommandRefused):
        return ConnectError("permission_denied", message_of(exc))
    if isinstance(exc, Conflict):  # only a call for a file can mean that something exists
        return ConnectError("already_exists" if isinstance(exc, FileExists) else "failed_precondition", message_of(exc))
    if isinstance(exc, IsDirectory | NotADirectory | InvalidRequest):
        return ConnectError("invalid_argument", message_of(exc))
    return ConnectError(_code_of(exc.http_status), message_of(exc))


def as_e2b_error(exc: WarrenError) -> E2bError:
    if isinstance(exc, UnknownUser):
        return E2bError(401, message_of(exc))
    status = exc.http_status
    if isinstance(exc, InvalidRequest) and status in (416, 421, 422):
        status = _BAD
    if isinstance(exc, Unauthorized):
        status = 401
    if isinstance(exc, QuotaExceeded | LimitReached):
        status = 429
    return E2bError(status, message_of(exc), details=_image_details(exc))


def _image_details(exc: WarrenError) -> dict[str, object]:
    """Returns what programs read about an image that is missing, or not there yet."""
    if not isinstance(exc, ImageBuilding | ImageBuildFailed | ImageNotFound):
        return {}
    details: dict[str, object] = {"error_code": exc.code}
    if isinstance(exc, ImageBuilding):
        progress = {"step": exc.step, "fraction": exc.fraction, "about": exc.about, "remaining_s": exc.remaining_s}
        details["progress"] = progress
    return details


def is_gone(exc: Exception) -> bool:
    return isinstance(exc, _GONE)


def gone_response(session_id: str) -> Response:
    """Returns the answer for a sandbox that does not run (any more)."""
    body = {"sandboxId": sandbox_id_of(session_id), "message": "The sandbox was not found", "code": 502}
    return JSONResponse(body, 502)


def closed_port_response(session_id: str, port: int) -> Response:
    message = "The sandbox is running but port is not open"
    body = {"sandboxId": sandbox_id_of(session_id), "message": message, "port": port, "code": 502}
    return JSONResponse(body, 502)


def error_response(exc: E2bError | ConnectError, headers: Mapping[str, str] | None = None) -> Response:
    if isinstance(exc, ConnectError):
        return JSONResponse({"code": exc.code, "message": exc.message}, HTTP_OF_CODE[exc.code], headers)
    body = {"code": exc.status, "message": exc.message, **exc.details}
    return JSONResponse(body, exc.status, headers or exc.headers)


def response_to(exc: WarrenError | E2bError, plane: Plane, session_id: str, *, is_call: bool) -> Response:
    """Returns the answer to a request that failed; `is_call`: it is a remote procedure call."""
    if isinstance(exc, E2bError):
        return error_response(ConnectError(_code_of(exc.status), exc.message) if is_call else exc)
    if is_gone(exc) and plane is not Plane.API:
        return gone_response(session_id)
    if is_gone(exc) and not isinstance(exc, SessionPaused):
        return error_response(E2bError(404, "the sandbox does not exist, or does not run any more"))
    headers = {} if exc.retry_after_s is None else {"Retry-After": str(max(1, round(exc.retry_after_s)))}
    return error_response(as_connect_error(exc) if is_call else as_e2b_error(exc), headers)


def response_of_port(exc: WarrenError | E2bError, session_id: str, port: int) -> Response:
    """Returns the answer for a port of a sandbox that cannot be reached. A port that is not public wants a token."""
    if isinstance(exc, PortClosed):
        return closed_port_response(session_id, port)
    if isinstance(exc, E2bError) or is_gone(exc):
        return response_to(exc, Plane.ENVD, session_id, is_call=False)
    error = as_e2b_error(exc)
    if isinstance(exc, Unauthorized):
        error = E2bError(403, "this port wants the sandbox's traffic token, in the header E2B-Traffic-Access-Token")
    body = {"sandboxId": sandbox_id_of(session_id), "message": error.message, "code": error.status}
    return JSONResponse(body, error.status)


def error_in_problem(body: bytes, status: int) -> WarrenError | E2bError:
    """Returns the error that a problem of this server (http/problems.py) tells of."""
    try:
        values = json.loads(body)
        message, remedy = str(values["detail"]) + _progress_in(values), str(values.get("remedy", ""))
        error = WarrenError.by_code[values["code"]](message, remedy=remedy)
        if isinstance(error, ImageBuilding):
            error.step, error.about = values.get("step") or "", values.get("about") or ""
            error.fraction, error.remaining_s = values.get("fraction"), values.get("remaining_s")
        return error
    except (ValueError, KeyError, TypeError):
        return E2bError(_BAD if status == 422 else status, _detail_of(body))


def _progress_in(values: Mapping[str, Any]) -> str:
    """Returns how far an image is that is being built."""
    step, fraction = values.get("step"), values.get("fraction")
    return f" ({step}{f', {fraction:.0%}' if isinstance(fraction, float) else ''})" if isinstance(step, str) else ""


def _detail_of(body: bytes) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["detail"])
    return "the request failed"


def _code_of(status: int) -> str:
    return "invalid_argument" if status in (400, 413, 422) else _CODE_OF_HTTP.get(status, "unknown")


class ShapedAnswer:
    """Passes an answer on. A problem of the server becomes what E2B's clients read, if the request says so.

    Newer clients repeat a request by themselves after some answers, all within the time that the first one had. Where
    the caller has waited here in vain, that would end in a time-out of theirs, which tells nothing: they are asked not
    to.
    """

    def __init__(self, send: Send, request: Request) -> None:
        self._send = send
        self._request = request
        self._problem: Message | None = None
        self._began = time.monotonic()
        self._body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] in _STARTS and _is_problem(message) and self._request.shows_e2b_errors:
            self._problem = message
        elif self._problem is None:
            await self._send(message)
        else:
            if len(self._body) < _MAX_PROBLEM:
                self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._send_shaped(self._problem, message["type"])

    async def _send_shaped(self, start: Message, body_type: str) -> None:
        assert self._request.show_error is not None
        response = self._request.show_error(error_in_problem(bytes(self._body), start["status"]))
        names = {name for name, _ in response.raw_headers}
        kept = [header for header in start["headers"] if header[0].lower() not in names]
        if response.status_code in _REPEATED and time.monotonic() - self._began > _SOON_S:
            kept.append((b"should-retry", b"false"))
        await self._send({**start, "status": response.status_code, "headers": [*response.raw_headers, *kept]})
        await self._send({"type": body_type, "body": response.body if self._body else b"", "more_body": False})


def _is_problem(message: Message) -> bool:
    """Whether this server reports a problem. What a sandbox answers is its own."""
    wanted = MEDIA_TYPE.encode()
    return not message.get(BARE) and any(
        name.lower() == b"content-type" and value.startswith(wanted) for name, value in message["headers"]
    )
