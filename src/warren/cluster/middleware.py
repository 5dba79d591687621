"""What stands before the app in a cluster: on a worker, so that only coordinators are served, and only while the lease
lasts; on a coordinator, for workers that have lost Redis."""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warren.cluster.auth import CLIENT, PATIENCE, SCHEME, SESSION, ClusterAuth
from warren.cluster.fleet import Fleet
from warren.cluster.lease import Lease
from warren.http.problems import problem
from warren.model.errors import Interrupted, InvalidRequest
from warren.sessions.request_context import set_patience, set_session_id

LEASE_PATH: Final = "/internal/lease"
WORKER_PATH: Final = "/internal/worker"
FOR_ALL: Final = frozenset({"/health", "/ready"})  # what watches over processes has no secret
_OVER: Final = Interrupted(
    "this worker lost touch with its cluster over this, and its sessions may have been given up",
    remedy="look at the session: it goes on, or is reported lost",
)
_SECURE: Final = {"http": "https", "websocket": "wss"}


class WorkerMiddleware:
    """Says who the client of the coordinator is, as if it had come by itself.

    What was begun under a lease that is over by the time of the answer may be of a session that is somebody else's by
    now, as when the process stood still in between: then nobody is told that it was done.
    """

    def __init__(
        self, app: ASGIApp, auth: ClusterAuth, lease: Lease, described: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._app = app
        self._auth = auth
        self._lease = lease
        self._described = described

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and scope["path"] not in FOR_ALL:
            self._auth.check(scope["headers"])
            if scope["path"] == WORKER_PATH:
                await JSONResponse(self._described())(scope, receive, send)
                return
            self._lease.check()
            _speak_for_client(scope)
            send = self._fenced(scope, receive, send)
        await self._app(scope, receive, send)

    def _fenced(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """The app must not notice: an error in the middle of its answer it would take for one of its own."""
        replaced = False

        async def fenced(message: Message) -> None:
            nonlocal replaced
            if message["type"] == "http.response.start" and self._lease.left_s <= 0 and message["status"] < 400:
                replaced = True
                await problem(_OVER)(scope, receive, send)
            elif not replaced:
                await send(message)

        return fenced


def _speak_for_client(scope: Scope) -> None:
    headers = dict(scope["headers"])
    if CLIENT in headers:
        scope["client"] = (headers[CLIENT].decode("latin-1"), 0)
    if headers.get(SCHEME) == b"https":
        scope["scheme"] = _SECURE[scope["type"]]
    if PATIENCE in headers:
        set_patience(float(headers[PATIENCE]))
    if SESSION in headers:
        set_session_id(headers[SESSION].decode("latin-1"))


class CoordinatorMiddleware:
    def __init__(self, app: ASGIApp, auth: ClusterAuth, fleet: Fleet) -> None:
        self._app = app
        self._auth = auth
        self._fleet = fleet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == LEASE_PATH:
            self._auth.check(scope["headers"])
            pulse = await self._fleet.renewed(*_whose(scope))
            await JSONResponse({"pulse": pulse})(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _whose(scope: Scope) -> tuple[str, int]:
    asked = parse_qs(scope["query_string"].decode("latin-1"))
    try:
        return asked["worker"][0], int(asked["epoch"][0])
    except (KeyError, ValueError) as exc:
        raise InvalidRequest("whose lease is to be renewed is said by `worker` and `epoch`") from exc
