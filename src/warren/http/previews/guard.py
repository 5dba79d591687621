"""The guard of previews by host: it lets requests in, shows errors as pages or problems, and logs them.

The guard of all other requests (http/server/http_guard.py) has no part in these: their host is an origin of its own,
and what a sandbox answers there gets no headers of the server.
"""

import time

from starlette.types import Message, Receive, Scope, Send

from warren.http.previews.access import PreviewAccess
from warren.http.previews.pages import error_answer
from warren.http.problems import internal_problem, is_disconnect
from warren.http.request import Request, Stage
from warren.http.server.http_guard import CALLER_LEFT, refuse_websocket
from warren.http.server.request_origin import TrustedProxies
from warren.kernel.logs import get_log
from warren.model.errors import WarrenError

_log = get_log(__name__)


class PreviewGuard:
    def __init__(self, access: PreviewAccess, trusted_proxies: TrustedProxies) -> None:
        self._access = access
        self._proxies = trusted_proxies

    async def __call__(self, request: Request, receive: Receive, send: Send, serve: Stage) -> None:
        scope = request.scope
        self._proxies.apply(scope)
        answer = _Answer(send)
        try:
            if request.refusal is not None:
                raise request.refusal
            assert request.preview is not None
            response = await self._access.let_in_by_host(request, request.preview)
            if response is None:
                await serve(request, receive, answer.send)
        except WarrenError as exc:
            response = error_answer(exc, request.headers.get(b"accept", b""))
        except Exception as exc:
            response = None if is_disconnect(exc) or answer.status else internal_problem(exc)
        try:
            if response is not None and not answer.status:
                if scope["type"] == "websocket":
                    await refuse_websocket(scope, receive, answer.send, response)
                else:
                    await response(scope, receive, answer.send)
        finally:
            answer.log(scope)


class _Answer:
    """Remembers the status that was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._began = time.perf_counter()
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
        elif message["type"] == "websocket.accept":
            self.status = 101
        await self._send(message)

    def log(self, scope: Scope) -> None:
        ms = round((time.perf_counter() - self._began) * 1000, 2)
        method = scope.get("method", "WEBSOCKET")
        _log.info("request", method=method, route="preview", status=self.status or CALLER_LEFT, ms=ms)
