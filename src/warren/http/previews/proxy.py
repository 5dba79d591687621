"""Forwards the requests of previews to servers inside sandboxes.

Each request gets a connection of its own, made in the sandbox's network namespace. The request is written anew from
what was parsed, so both sides agree where it ends. Both directions are streamed, and each side waits for the other: a
request holds about a MiB however large it is.
"""

from dataclasses import replace
from functools import partial
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from warren.http.client.client import WorkerClient
from warren.http.client.errors import Broken, ForwardingFailed, WebSocketRefused
from warren.http.client.headers import request_target
from warren.http.context import check_scope
from warren.http.forwarding.http_requests import RequestBody, send_pieces
from warren.http.forwarding.websockets import Dialled, forward_websocket
from warren.http.previews.headers import for_client, for_sandbox
from warren.http.request import Request
from warren.interfaces.sandbox import Sandbox
from warren.model.access import Scope as KeyScope
from warren.model.errors import Forbidden, PortClosed, PortFailed
from warren.model.preview import SANDBOX_HEADER, Preview, Way
from warren.model.session import Session
from warren.sessions.manager import Sessions
from warren.sessions.port_connections import PortConnections

ACTION: Final = "open_preview"
FIRST_BYTE_S: Final = 120.0
_BUFFER: Final = 512 * 1024
_ALL_STATUSES: Final = range(1000)
_STATUSES: Final = range(200, 600)


class PreviewProxy:
    """With `behind_coordinator` requests come from coordinators, which are told what a sandbox answered."""

    def __init__(
        self,
        sessions: Sessions,
        connections: PortConnections,
        *,
        behind_coordinator: bool = False,
        first_byte_s: float = FIRST_BYTE_S,
    ) -> None:
        self._sessions = sessions
        self._connections = connections
        self._behind_coordinator = behind_coordinator
        self._first_byte_s = first_byte_s
        self._client = WorkerClient(max_idle=0, buffer_size=_BUFFER)

    async def __call__(self, request: Request, receive: Receive, send: Send) -> None:
        preview, caller = request.preview, request.caller
        assert preview is not None
        request.action = ACTION
        request.params = {"session_id": preview.session_id, "port": str(preview.port)}
        if preview.way is Way.KEY:
            check_scope(caller, KeyScope.EXEC)
        with self._connections.counted(preview.session_id):
            # A link that was revoked resumes nothing.
            use = self._sessions.using(
                caller.tenant, preview.session_id, counts=False, check=partial(_check, preview=preview)
            )
            async with use as (session, sandbox):
                preview = _check(session, preview)
                if preview.way is not Way.PUBLIC:
                    await self._sessions.uses.record_of(session)
                forward = self._forward_socket if request.scope["type"] == "websocket" else self._forward
                try:
                    await forward(request, receive, send, preview, sandbox)
                except (PortClosed, PortFailed):
                    request.from_sandbox = True
                    raise

    async def _forward(
        self, request: Request, receive: Receive, send: Send, preview: Preview, sandbox: Sandbox
    ) -> None:
        scope, body = request.scope, RequestBody(receive)
        whole = await body.whole_if_received()
        begun = False

        async def send_on(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        exchange = self._client.request(
            preview.session_id,
            scope["method"],
            _target(scope, preview),
            for_sandbox(scope, preview, _host(scope)),
            body if whole is None else whole,
            head_timeout_s=self._first_byte_s,
            wait_for_disconnect=body.wait_for_disconnect,
            dial=partial(sandbox.dial, preview.port),
        )
        try:
            async with exchange as response:
                if response.status not in _STATUSES:
                    raise _failed(preview, Broken(f"there is no status {response.status}"))
                request.from_sandbox = True
                answered = for_client(response.status, response.headers, preview)
                if self._behind_coordinator:
                    answered.append((SANDBOX_HEADER, b"1"))
                await send_pieces(response, answered, send_on, bare=preview.by_host)
        except ForwardingFailed as exc:
            if begun:
                raise
            raise _failed(preview, exc) from exc

    async def _forward_socket(
        self, request: Request, receive: Receive, send: Send, preview: Preview, sandbox: Sandbox
    ) -> None:
        scope = request.scope
        headers = [header for header in for_sandbox(scope, preview, _host(scope)) if header[0] != b"connection"]
        connected = await sandbox.dial(preview.port)
        dialled = Dialled(connected, _target(scope, preview), headers)
        try:
            await forward_websocket("", scope, receive, send, raise_on=_ALL_STATUSES, dialled=dialled)
        except WebSocketRefused as exc:
            if exc.status not in _STATUSES:
                raise _failed(preview, Broken(f"there is no status {exc.status}")) from exc
            request.from_sandbox = True
            await _refuse(exc.status, scope, send, preview)
        except ForwardingFailed as exc:
            raise _failed(preview, exc) from exc


def _check(session: Session, preview: Preview) -> Preview:
    """Compares what let the request in with what holds for the session now."""
    rules = session.previews
    if preview.way is Way.LINK and preview.generation != rules.generation:
        raise Forbidden("this link to a preview was revoked", remedy="make a new one: warren open")
    if preview.way is Way.PUBLIC and not rules.is_public(preview.port):
        raise Forbidden("this preview is private", remedy="open a link that was made for it: warren open")
    checked = preview.let_in(preview.way, preview.generation, local_host=preview.port in rules.local_host)
    return replace(checked, masked_host=rules.masked_host(preview.port)) if rules.host_mask else checked


def _target(scope: Scope, preview: Preview) -> bytes:
    return request_target(scope)[len(preview.prefix) :]


def _host(scope: Scope) -> bytes:
    return next((value for name, value in scope["headers"] if name == b"host"), b"localhost")


async def _refuse(status: int, scope: Scope, send: Send, preview: Preview) -> None:
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    body = b"the server on port %d of the sandbox refused the WebSocket\n" % preview.port
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


def _failed(preview: Preview, exc: ForwardingFailed) -> PortFailed:
    word = "answered nothing that can be passed on" if isinstance(exc, Broken) else "cannot be reached"
    return PortFailed(f"the server on port {preview.port} of the sandbox {word}: {exc.reason}")
