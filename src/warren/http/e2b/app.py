"""Answers the requests of E2B's clients, in the inner form that the edge gives them. It stands before the dispatcher,
inside of admission. Errors of ours pass: the guard answers them, and the edge gives the answer the form that E2B's
clients read, also in a cluster, where the edge is a coordinator's."""

from typing import Final, NamedTuple

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as RequestScope

from warren.http.context import Context, check_scope
from warren.http.e2b import interpreter
from warren.http.e2b.control import metrics, sandboxes, templates, unsupported
from warren.http.e2b.envd import files, filesystem, processes, watchers
from warren.http.e2b.envd.started import StartedCommands
from warren.http.e2b.envd.state import EnvdState
from warren.http.e2b.errors import ConnectError, E2bError, error_response
from warren.http.e2b.routes import E2bCall, E2bRules, Route, RouteFinder
from warren.http.e2b.tokens import SandboxTokens
from warren.model.e2b import PREFIX, InnerPath, Plane, named_session, read_inner_path

FINDERS: Final = {
    Plane.API: RouteFinder((*sandboxes.ROUTES, *metrics.ROUTES, *templates.ROUTES, *unsupported.ROUTES)),
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
        self._started = StartedCommands()

    async def __call__(self, scope: RequestScope, receive: Receive, send: Send) -> None:
        inner = read_inner_path(scope["path"]) if scope["type"] == "http" else None
        if inner is None:
            await self._app(scope, receive, send)
            return
        try:
            found = find_route(scope)
            if found is None:
                raise _no_route(scope["method"], inner)
            response: Response = await self._run(found, inner, scope, receive)
        except (E2bError, ConnectError) as exc:
            response = error_response(exc)
        await response(scope, receive, send)

    async def _run(self, found: "FoundRoute", inner: InnerPath, scope: RequestScope, receive: Receive) -> Response:
        if found.route.scope is not None:
            check_scope(scope["caller"], found.route.scope)
        call = E2bCall(
            self._context,
            self._rules,
            self._tokens,
            scope,
            receive,
            inner.session_id,
            found.params,
            self._started,
            self._envd,
        )
        return await found.route.run(call)


class FoundRoute(NamedTuple):
    """`path` and `name` are what logs and the audit record tell of a request."""

    route: Route
    params: dict[str, str]
    path: str
    name: str


def find_route(scope: RequestScope) -> FoundRoute | None:
    """The route of a request of the inner form. It is found once, and kept in the scope with what is known of it."""
    found: FoundRoute | None = scope.get("route")
    inner = read_inner_path(scope["path"])
    if found is None and inner is not None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        pair = FINDERS[inner.plane].find(method, inner.path)
        if pair is not None:
            place = f"{PREFIX}/{inner.plane}" + ("/{session_id}" if inner.session_id else "")
            found = scope["route"] = FoundRoute(*pair, place + pair[0].path, pair[0].name)
        params = pair[1] if pair is not None else {}
        session_id = named_session(scope["path"])
        scope["path_params"] = {**params, "session_id": session_id} if session_id else params
    return found


def takes_stream(scope: RequestScope) -> bool:
    """Whether the body of a request may have any length."""
    found = find_route(scope) if scope["path"].startswith(f"{PREFIX}/") else None
    return found is not None and found.route.streams


def is_call(plane: Plane, path: str) -> bool:
    """Whether it is a remote procedure call, whose errors have another form."""
    return plane is Plane.ENVD and path.count("/") == 2 and "." in path.partition("/")[2].partition("/")[0]


def _no_route(method: str, inner: InnerPath) -> E2bError | ConnectError:
    methods = FINDERS[inner.plane].methods(inner.path)
    if methods:
        allowed = ", ".join(methods)
        return E2bError(405, f"{method} is not allowed here, only {allowed}", {"Allow": allowed})
    if is_call(inner.plane, inner.path):
        return ConnectError("unimplemented", f"there is no call {inner.path[1:80]}")
    return E2bError(404, f"there is nothing at {inner.path[:80]!r}")
