"""Answers the requests of E2B's clients: the handlers of E2B's rows in the table (model/api.py).

A handler reads the request and answers in E2B's words. It lets errors of Warren pass: the guard answers them, and the
answer gets the form that E2B's clients read. In a cluster the coordinator does that.
"""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Receive

from warren.http.context import Context, check_scope
from warren.http.e2b import interpreter
from warren.http.e2b.call import E2bCall, E2bRules, Run
from warren.http.e2b.control import (
    logs,
    metrics,
    pauses,
    sandboxes,
    snapshots,
    template_building,
    templates,
    unsupported,
    volume_contents,
    volumes,
)
from warren.http.e2b.envd import files, filesystem, process_control, processes, watchers
from warren.http.e2b.envd.started import StartedCommands
from warren.http.e2b.envd.state import EnvdState
from warren.http.e2b.errors import ConnectError, E2bError, error_response
from warren.http.e2b.tokens import SandboxTokens
from warren.http.request import E2bAddress, Request
from warren.model.api import FINDER

HANDLERS: Final[Mapping[str, Run]] = {
    **sandboxes.HANDLERS,
    **pauses.HANDLERS,
    **snapshots.HANDLERS,
    **logs.HANDLERS,
    **metrics.HANDLERS,
    **templates.HANDLERS,
    **template_building.HANDLERS,
    **volumes.HANDLERS,
    **volume_contents.HANDLERS,
    **unsupported.HANDLERS,
    **processes.HANDLERS,
    **process_control.HANDLERS,
    **files.HANDLERS,
    **filesystem.HANDLERS,
    **watchers.HANDLERS,
    **interpreter.HANDLERS,
}


class E2bHandlers:
    def __init__(self, context: Context, rules: E2bRules, tokens: SandboxTokens) -> None:
        self._context = context
        self._rules = rules
        self._tokens = tokens
        self._envd = EnvdState()
        self._started = StartedCommands()

    async def respond(self, request: Request, receive: Receive) -> Response:
        operation, address = request.operation, request.e2b
        assert address is not None
        try:
            if operation is None:
                raise _no_operation(request, address)
            check_scope(request.caller, operation.scope)
            call = E2bCall(self._context, self._rules, self._tokens, request, receive, self._started, self._envd)
            self._envd.note_reached(call.session_id)
            return await HANDLERS[operation.name](call)
        except (E2bError, ConnectError) as exc:
            return error_response(exc)


def _no_operation(request: Request, address: E2bAddress) -> E2bError | ConnectError:
    methods = FINDER.methods(request.scope["path"])
    if methods:
        allowed = ", ".join(methods)
        return E2bError(405, f"{request.scope['method']} is not allowed here, only {allowed}", {"Allow": allowed})
    if address.is_call:
        return ConnectError("unimplemented", f"there is no call {address.path[1:80]}")
    return E2bError(404, f"there is nothing at {address.path[:80]!r}")
