"""What the processes of a cluster ask each other, and whom a worker lets in: a stage before callers are identified.

`peer_calls` makes the calls that are answered here. A worker serves only coordinators, and only while the lease lasts.
A coordinator renews leases for workers that have lost Redis, and passes on images that one worker has and another
lacks. `WorkerIdentify` reads what a coordinator says of a request: it has decided what it is and who asks.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from warren.access.identity import Identity
from warren.cluster.auth import CLIENT_HEADER, PAGE_HEADER, PATIENCE_HEADER, SCHEME_HEADER, SESSION_HEADER, ClusterAuth
from warren.cluster.fleet import Fleet
from warren.cluster.images import IMAGE_PATH, pass_on
from warren.cluster.lease import Lease
from warren.cluster.volumes import VOLUME_PATH, pass_volume_on
from warren.http.api.metrics import METRICS_PATH
from warren.http.client.client import WorkerClient
from warren.http.identify import OPEN_PATHS, find_operation
from warren.http.problems import problem
from warren.http.request import E2bAddress, Kind, Request, Stage
from warren.interfaces.records import RecordStore
from warren.model.e2b import read_inner_path
from warren.model.errors import Interrupted, InvalidRequest
from warren.model.metrics import LatestMetrics
from warren.model.preview import CHECKED_HEADER, preview_of_path
from warren.sessions.request_context import set_claim_timeout, set_session_id

LEASE_PATH: Final = "/internal/lease"
WORKER_PATH: Final = "/internal/worker"
FIGURES_PATH: Final = "/internal/figures"
_PUBLIC_PATHS: Final = frozenset({"/health", "/ready"})  # health checks do not know the secret
_LEASE_LOST: Final = Interrupted(
    "this worker lost touch with its cluster during the request, and its sessions may have been given up",
    remedy="look at the session: it goes on, or is reported lost",
)
_SECURE_SCHEME: Final = {"http": "https", "websocket": "wss"}


class WorkerIdentify:
    """`identity` gives the caller that a coordinator names."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def recognise(self, request: Request) -> None:
        scope = request.scope
        inner = read_inner_path(scope["path"]) if scope["type"] == "http" else None
        if inner is not None:
            request.kind, request.e2b = Kind.E2B, E2bAddress(inner.plane, inner.session_id, inner.path)
        find_operation(request)
        if preview_of_path(scope["raw_path"]) is not None:
            request.streams = True

    async def find_caller(self, request: Request, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Raises Unauthorized."""
        if request.scope["path"] in OPEN_PATHS and request.scope["type"] == "http":
            return receive, send
        request.caller = await self._identity.caller(request.scope["headers"])
        checked = request.headers.get(CHECKED_HEADER)
        if checked is not None and (preview := preview_of_path(request.scope["raw_path"])) is not None:
            request.kind, request.preview = Kind.PREVIEW, preview.with_checked(checked)
        return receive, send


class WorkerEntrance:
    """Authenticates the coordinator, checks the lease, and restores the address and scheme of the coordinator's client.

    If the lease has run out by the time of the response, as when the process was stopped meanwhile, the session may
    belong to another worker. Then the response does not say that the request was done. `describe` returns what
    WORKER_PATH answers, `figures` what FIGURES_PATH answers of a tenant's sessions; `send_image` answers IMAGE_PATH,
    `answer_volume` VOLUME_PATH.
    `metrics` answers METRICS_PATH, for callers with a key, also without a lease: it tells of that.
    """

    def __init__(
        self,
        auth: ClusterAuth,
        lease: Lease,
        describe: Callable[[], Mapping[str, Any]],
        figures: Callable[[str, Sequence[str]], Mapping[str, LatestMetrics]],
        send_image: Callable[[Scope, Send], Awaitable[None]],
        answer_volume: Callable[[Scope, Receive, Send], Awaitable[None]],
        metrics: Stage,
    ) -> None:
        self._auth = auth
        self._lease = lease
        self._describe = describe
        self._figures = figures
        self._send_image = send_image
        self._answer_volume = answer_volume
        self._metrics = metrics

    async def __call__(self, request: Request, receive: Receive, send: Send) -> Send | None:
        """Returns how the answer is sent, None if it was."""
        scope = request.scope
        path = scope["path"]
        if scope["type"] == "http" and scope["method"] == "GET" and path == METRICS_PATH:
            await self._metrics(request, receive, send)
            return None
        if path in _PUBLIC_PATHS:
            return send
        self._auth.check(scope["headers"])
        if path == WORKER_PATH:
            await JSONResponse(self._describe())(scope, receive, send)
        elif path == FIGURES_PATH:
            found = self._figures(*_tenant_and_sessions(scope))
            values = {name: latest.as_mapping() for name, latest in found.items()}
            await JSONResponse({"figures": values})(scope, receive, send)
        elif path == IMAGE_PATH:
            await self._send_image(scope, send)
        elif path == VOLUME_PATH:
            self._lease.check()
            await self._answer_volume(scope, receive, send)
        else:
            self._lease.check()
            _restore_client(request)
            return fence(self._lease, scope, receive, send)
        return None


def fence(lease: Lease, scope: Scope, receive: Receive, send: Send) -> Send:
    """Replaces the response once the lease has run out. The app must not see an error: it would report its own."""
    is_replaced = False

    async def fenced_send(message: Message) -> None:
        nonlocal is_replaced
        if message["type"] == "http.response.start" and lease.left_s <= 0 and message["status"] < 400:
            is_replaced = True
            await problem(_LEASE_LOST)(scope, receive, send)
        elif not is_replaced:
            await send(message)

    return fenced_send


def _tenant_and_sessions(scope: Scope) -> tuple[str, list[str]]:
    query = parse_qs(scope["query_string"].decode("latin-1"))
    try:
        return query["tenant"][0], query["sessions"][0].split(",")
    except KeyError as exc:
        raise InvalidRequest("the query must name a `tenant` and its `sessions`") from exc


def _restore_client(request: Request) -> None:
    scope, headers = request.scope, request.headers
    if CLIENT_HEADER in headers:
        scope["client"] = (headers[CLIENT_HEADER].decode("latin-1"), 0)
    if headers.get(SCHEME_HEADER) == b"https":
        scope["scheme"] = _SECURE_SCHEME[scope["type"]]
    if PAGE_HEADER in headers:
        request.page_mark = headers[PAGE_HEADER].decode("latin-1")
    if PATIENCE_HEADER in headers:
        set_claim_timeout(float(headers[PATIENCE_HEADER]))
    if SESSION_HEADER in headers:
        set_session_id(headers[SESSION_HEADER].decode("latin-1"))


class CoordinatorEntrance:
    """`records` say which worker has a volume."""

    def __init__(self, auth: ClusterAuth, fleet: Fleet, client: WorkerClient, records: RecordStore) -> None:
        self._auth = auth
        self._fleet = fleet
        self._client = client
        self._records = records

    async def __call__(self, request: Request, receive: Receive, send: Send) -> Send | None:
        """Returns how the answer is sent, None if it was."""
        scope = request.scope
        if scope["type"] != "http" or scope["path"] not in (LEASE_PATH, IMAGE_PATH, VOLUME_PATH):
            return send
        self._auth.check(scope["headers"])
        if scope["path"] == LEASE_PATH:
            status = await self._fleet.renew_lease(*_worker_and_epoch(scope))
            await JSONResponse({"pulse": status})(scope, receive, send)
        elif scope["path"] == VOLUME_PATH:
            await pass_volume_on(self._fleet, self._client, self._auth, self._records, scope, send)
        else:
            await pass_on(self._fleet, self._client, self._auth, scope, send)
        return None


def _worker_and_epoch(scope: Scope) -> tuple[str, int]:
    query = parse_qs(scope["query_string"].decode("latin-1"))
    try:
        return query["worker"][0], int(query["epoch"][0])
    except (KeyError, ValueError) as exc:
        raise InvalidRequest("the query must name the lease to renew by `worker` and `epoch`") from exc
