"""Answers the requests of E2B's clients, in the inner form that the edge gives them. It stands before the dispatcher,
inside of admission."""

from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as RequestScope

from warren.e2b import interpreter
from warren.e2b.control import sandboxes, templates, unsupported
from warren.e2b.envd import files, filesystem, processes, watchers
from warren.e2b.envd.state import EnvdState
from warren.e2b.errors import ConnectError, E2bError, error_response, response_to
from warren.e2b.routes import E2bCall, E2bRules, Route, RouteFinder
from warren.e2b.tokens import SandboxTokens
from warren.http.context import Context, check_scope
from warren.model.e2b import InnerPath, Plane, read_inner_path
from warren.model.errors import WarrenError

FINDERS: Final = {
    Plane.API: RouteFinder((*sandboxes.ROUTES, *templates.ROUTES, *unsupported.ROUTES)),
    Plane.ENVD: RouteFinder((*processes.ROUTES, *files.ROUTES, *filesystem.ROUTES, *watchers.ROUTES)),
    Plane.CODE: RouteFinder(interpreter.ROUTES),
}


class E2bApp:
    def __init__(self, app: ASGIApp, context: Context, rules: E2bRules, tokens: SandboxTokens) -> None:
        self._app = app
        self._context = context
        self._rules = rules
        self._tokens = tokens
        self._envd = EnvdState()

    async def __call__(self, scope: RequestScope, receive: Receive, send: Send) -> None:
        inner = read_inner_path(scope["path"]) if scope["type"] == "http" else None
        if inner is None:
            await self._app(scope, receive, send)
            return
        found = FINDERS[inner.plane].find(scope["method"], inner.path)
        try:
            if found is None:
                raise _no_route(scope["method"], inner)
            response: Response = await self._run(*found, inner, scope, receive)
        except (E2bError, ConnectError) as exc:
            response = error_response(exc)
        except WarrenError as exc:
            is_call = found is not None and found[0].is_call
            response = response_to(exc, inner.plane, inner.session_id, is_call=is_call)
        await response(scope, receive, send)

    async def _run(
        self, route: Route, params: dict[str, str], inner: InnerPath, scope: RequestScope, receive: Receive
    ) -> Response:
        scope["action"] = route.name
        scope["path_params"] = {**params, **({"session_id": inner.session_id} if inner.session_id else {})}
        if route.scope is not None:
            check_scope(scope["caller"], route.scope)
        call = E2bCall(
            self._context,
            self._rules,
            self._tokens,
            scope,
            receive,
            inner.plane,
            inner.path,
            inner.session_id,
            params,
            self._envd,
        )
        return await route.run(call)


def takes_stream(scope: RequestScope) -> bool:
    """Whether the body of a request may have any length."""
    inner = read_inner_path(scope["path"])
    found = FINDERS[inner.plane].find(scope["method"], inner.path) if inner else None
    return found is not None and found[0].streams


def _no_route(method: str, inner: InnerPath) -> E2bError | ConnectError:
    methods = FINDERS[inner.plane].methods(inner.path)
    if methods:
        return E2bError(405, f"{method} is not allowed here, only {', '.join(methods)}")
    if inner.plane is Plane.ENVD and method == "POST" and inner.path.count("/") == 2:
        return ConnectError("unimplemented", f"there is no call {inner.path[1:80]}")
    return E2bError(404, f"there is nothing at {inner.path[:80]!r}")
