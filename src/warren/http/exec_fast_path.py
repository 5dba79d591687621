"""The short way for plain commands.

Most requests are POST /exec with a small JSON body. FastAPI spends more time on one than the sandbox does, so those
are taken here: read, checked by the same model, run by the same function. Everything that is not plain (a stream, a
body that is not right) goes on to the app, body and all, so that there is one place that says what
is wrong.
"""

from typing import Any

from pydantic import ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warren.http.context import Context, answer, check_scope, data_of, limited_timeout
from warren.http.problems import StrictRequest, problem, read_json
from warren.http.routes.exec import run
from warren.http.schemas import ExecBody, exec_view
from warren.model.access import Scope as KeyScope
from warren.model.errors import InvalidJson, WarrenError
from warren.model.session import MAX_KEY

_PREFIX = "/api/sessions/"
_SUFFIX = "/exec"
_ANY = frozenset({b"*/*", b"application/json"})


class ExecFastPath:
    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_plain(scope):
            await self._app(scope, receive, send)
            return
        scope["action"] = "run_command"
        request = StrictRequest(scope, receive)
        data = await request.body()
        try:
            body = ExecBody.model_validate(read_json(data))
        except (ValidationError, InvalidJson):
            body = None
        if body is None or body.stream:
            await self._app(scope, _again(data, receive), send)
            return
        await (await self._answer(scope["path"][len(_PREFIX) : -len(_SUFFIX)], body, request))(scope, receive, send)

    async def _answer(self, session_id: str, body: ExecBody, request: StrictRequest) -> Any:
        try:
            stdin = data_of(body.stdin, body.stdin_base64)
            body.timeout_s = limited_timeout(self._context, body.timeout_s)
            caller = request.scope["caller"]
            check_scope(caller, KeyScope.EXEC)
            key = request.headers.get("idempotency-key", "")
            return answer(exec_view(await run(request, self._context, caller.tenant, session_id, body, stdin, key)))
        except WarrenError as exc:
            return problem(exc)


def _is_plain(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "POST" or scope["query_string"]:
        return False
    path = scope["path"]
    if not (path.startswith(_PREFIX) and path.endswith(_SUFFIX) and path.count("/") == 4 and "//" not in path):
        return False
    return all(_is_plain_header(name, value) for name, value in scope["headers"])


def _is_plain_header(name: bytes, value: bytes) -> bool:
    if name == b"accept":
        return value in _ANY
    if name == b"content-type":
        return not value.startswith(b"multipart/")
    return name != b"idempotency-key" or len(value) <= MAX_KEY


def _again(data: bytes, receive: Receive) -> Receive:
    """What was read is there to be read once more; then the connection speaks for itself."""
    waiting: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed
