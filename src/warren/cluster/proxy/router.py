"""Sends each request that reaches a coordinator to the worker that must answer it, if one must.

The router is the coordinator's stage between admission and dispatch.

- A request about a session goes to the session's worker.
- A request that creates a session goes to the worker of its thread's session, otherwise to a worker that placement
  chooses, and to the next choice if that one refuses.
- A request about the machines goes to any worker, one about an artifact or a snapshot to the worker that keeps it,
  if one does. A session that starts from a snapshot of one worker is made there.
- A request about a volume, and one that creates a session with volumes, goes to the worker whose disk they are on.
- The coordinator itself answers requests about lost or ended sessions, and about no single session.

The worker of a session never changes, and the router remembers it. So running sessions stay reachable while Redis is
away.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from warren.cluster.auth import (
    CALLER_HEADER,
    CLIENT_HEADER,
    PAGE_HEADER,
    PATIENCE_HEADER,
    SCHEME_HEADER,
    SESSION_HEADER,
    ClusterAuth,
    encode_caller,
)
from warren.cluster.fleet import Fleet
from warren.cluster.placement import Requirements
from warren.cluster.proxy.liveness import Liveness
from warren.cluster.proxy.target import Target, concerns_worker, read_target, target_in_json
from warren.cluster.roster import Member
from warren.governance.session_logs.records import place_of_log
from warren.http.client.client import WorkerClient, WorkerResponse
from warren.http.client.errors import Broken, ForwardingFailed, Unreachable, WebSocketRefused
from warren.http.client.headers import Header, Passes
from warren.http.context import check_scope
from warren.http.forwarding.frame_stream import WORKER_LOST
from warren.http.forwarding.http_requests import RequestBody, forward_request, forward_response, send_response
from warren.http.forwarding.websockets import forward_websocket
from warren.http.problems import MEDIA_TYPE
from warren.http.request import Kind, Request
from warren.interfaces.store import SessionStore
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.clock import SystemClock
from warren.kernel.tracing import trace_headers
from warren.model.access import Caller
from warren.model.access import Scope as KeyScope
from warren.model.api import Makes, Operation
from warren.model.capability import Capability
from warren.model.e2b import NETWORK_IF_POSSIBLE
from warren.model.environment import Environment
from warren.model.errors import (
    Interrupted,
    InvalidRequest,
    MachineFull,
    Misdirected,
    NoCapacity,
    NotFound,
    PortClosed,
    PortFailed,
    SessionNotFound,
    Stopping,
    Unavailable,
    WarrenError,
)
from warren.model.gpus import ANY, read_gpus
from warren.model.image_reference import is_image_reference
from warren.model.preview import CHECKED_HEADER, SANDBOX_HEADER, Way
from warren.model.session import OnIdle, Session, SessionState, new_session_id
from warren.model.snapshot import Snapshot
from warren.model.volume import MAX_MOUNTS, rendered
from warren.sessions.artifact_records import place_of
from warren.sessions.ending import unusable_error
from warren.sessions.operations.machine import MAX_WORKER_NAME
from warren.sessions.snapshots.records import SnapshotRecords
from warren.sessions.volumes.records import place_of as place_of_volume

_MAX_REMEMBERED: Final = 100_000
_PATIENCE_S: Final = 10.0  # how long a worker may let a create wait when another worker could take it
_TRY_NEXT_CODES: Final = frozenset({NoCapacity.code, MachineFull.code, Stopping.code, Unavailable.code})
_MAX_REFUSAL: Final = 64 * 1024
_DISCARD_TIMEOUT_S: Final = 60.0
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_COORDINATOR_REJECTED: Final = 401  # the worker rejects us: the caller was authenticated here
_HAS_VOLUMES: Final = "which has its volumes"
_UNKNOWN: Final = Environment("unknown", "unknown")

_LookupKey = tuple[str, str, str]


class Router:
    def __init__(
        self,
        fleet: Fleet,
        store: SessionStore,
        worker_client: WorkerClient,
        auth: ClusterAuth,
        liveness: Liveness,
        *,
        environment: str,
        environment_of: Callable[[str], Environment | None] = lambda name: None,
        agent_of: Callable[[object], Mapping[str, Any]] = lambda config: {},
        e2b_wishes: Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._fleet = fleet
        self._store = store
        self._worker_client = worker_client
        self._auth = auth
        self._liveness = liveness
        self._environment = environment
        self._environment_of = environment_of
        self._agent_of = agent_of
        self._e2b_wishes = e2b_wishes
        self._tls = tls
        self._snapshots = SnapshotRecords(store.records, SystemClock())
        self._tasks: set[asyncio.Task[None]] = set()
        self._worker_ids = BoundedDict[_LookupKey, str](_MAX_REMEMBERED)

    async def __call__(self, request: Request, receive: Receive, send: Send) -> Receive | None:
        """Forwards the request and its answer. Returns how the request's body is received if no worker has to answer,
        None if one did."""
        if request.kind is Kind.PREVIEW:
            await self._forward_preview(request, receive, send)
            return None
        operation = request.operation
        if request.kind is not Kind.E2B and (operation is None or not concerns_worker(operation)):
            return receive
        body = RequestBody(receive)
        if request.kind is Kind.E2B:
            is_forwarded = await self._route_e2b(request, receive, body, send)
        else:
            assert operation is not None
            is_forwarded = await self._route(operation, request, receive, body, send)
        return None if is_forwarded else body.replay()

    async def _route(
        self, operation: Operation, request: Request, receive: Receive, body: RequestBody, send: Send
    ) -> bool:
        caller = request.caller
        if operation.of_machine or operation.of_named_machine:
            check_scope(caller, operation.scope)
            worker_id = _named_worker(request.scope)
            if worker_id:
                worker_id = self._fleet.member(worker_id).id
            elif operation.of_machine:
                worker_id = self._any_worker()
        elif operation.of_artifact:
            place = await place_of(self._store.records, caller.tenant, request.params["artifact_id"])
            worker_id = self._keeper_at(place, operation)
        elif operation.of_snapshot:
            worker_id = await self._keeper_of_snapshot(caller, operation, request)
        elif operation.of_volume:
            worker_id = await self._holder_of(caller, request.params.get("volume", ""), operation)
        else:
            target = await read_target(operation, request, body)
            session, worker_id = await self._find_worker(caller, target)
            if worker_id and session is not None and _replaces_session(operation, caller, target):
                worker_id = await self._end_if_elsewhere(worker_id, session, request, target)
            if not worker_id and operation.of_log:
                worker_id = await self._keeper_of_log(caller, target.session_id, session, operation)
            if not worker_id and _creates_session(operation, caller, target, session):
                await self._place_session(request, target, body, send)
                return True
        if worker_id:
            await self._forward_to_owner(worker_id, request, receive, body, send)
        return bool(worker_id)

    async def _forward_preview(self, request: Request, receive: Receive, send: Send) -> None:
        preview = request.preview
        assert preview is not None
        if preview.way is Way.KEY:
            check_scope(request.caller, KeyScope.EXEC)
        session, worker_id = await self._find_worker(request.caller, Target(preview.session_id))
        if worker_id:
            await self._forward_to_owner(worker_id, request, receive, RequestBody(receive), send)
        elif session is None:
            raise SessionNotFound(f"there is no session {preview.session_id}")
        else:
            raise unusable_error(session)

    async def _route_e2b(self, request: Request, receive: Receive, body: RequestBody, send: Send) -> bool:
        operation, caller = request.operation, request.caller
        if request.session_id or (operation is not None and operation.of_snapshot):
            session, worker_id = await self._find_worker(caller, Target(request.session_id))
            if operation is not None and operation.of_snapshot:
                worker_id = await self._keeper_of_snapshot(caller, operation, request)
            elif operation is not None and operation.of_log and not worker_id:
                worker_id = await self._keeper_of_log(caller, request.session_id, session, operation)
            if worker_id:
                await self._forward_to_owner(worker_id, request, receive, body, send)
                return True
        elif operation is not None and operation.makes is Makes.SESSION and caller.may(KeyScope.SESSIONS):
            asked = await target_in_json(await body.fetch_all())
            await self._place_session(request, Target(values=dict(await self._e2b_wishes(asked.values))), body, send)
            return True
        elif operation is not None and operation.of_volume:
            worker_id = await self._holder_of(request.caller, request.params.get("volume", ""), operation)
            if worker_id:
                await self._forward_to_owner(worker_id, request, receive, body, send)
            return bool(worker_id)
        return False

    # -- finding the worker

    def _any_worker(self) -> str:
        for worker_id, member in self._fleet.members.items():
            if member.alive:
                return worker_id
        raise Unavailable("no worker is there to be asked", remedy="start one, and try again", retry_after_s=2)

    async def _keeper_of_snapshot(self, caller: Caller, operation: Operation, request: Request) -> str:
        """The worker that keeps a snapshot, or any that may unpack one from an upload: its body can be sent once."""
        check_scope(caller, operation.scope)
        # E2B's clients name it as a template.
        if which := request.params.get("snapshot") or request.params.get("template", "").removesuffix(":default"):
            snapshot = await self._find_snapshot(caller.tenant, which)
            if snapshot is not None and snapshot.packed and not snapshot.place and operation.method != "DELETE":
                return self._any_worker()
            return "" if snapshot is None else self._keeper_at(snapshot.place, operation)
        query = {name: values[-1] for name, values in parse_qs(request.scope["query_string"].decode("latin-1")).items()}
        required = replace(self._requirements(caller, Target(values=query)), gpus=(), image="")
        return self._fleet.choose_workers(replace(required, needs=required.needs | {Capability.SNAPSHOTS}))[0].id

    async def _find_snapshot(self, tenant: str, which: str) -> Snapshot | None:
        try:
            return await self._snapshots.get_usable(tenant, which)
        except NotFound:
            return None  # whoever answers says so

    async def _keeper_of_log(
        self, caller: Caller, session_id: str, session: Session | None, operation: Operation
    ) -> str:
        """The worker that keeps the log of a session that has ended. Its record may come a moment after that."""
        place = await place_of_log(self._store.records, (caller.tenant, session_id))
        if not place and session is not None and session.logs and session.worker in self._fleet.members:
            place = session.worker
        return self._keeper_at(place, operation)

    def _keeper_at(self, worker_id: str, operation: Operation) -> str:
        """The worker that keeps a content, or "" if the coordinator answers: the store is shared, there is no such
        content, or it is to be deleted and its worker, which removes it later, is away."""
        member = self._fleet.members.get(worker_id)
        is_away = member is None or not member.alive
        return "" if is_away and operation.method == "DELETE" else worker_id

    async def _holder_of(self, caller: Caller, volume: str, operation: Operation) -> str:
        """The worker that has a volume, or for a new one a worker that can have it. "" if the coordinator answers:
        there is no such volume, or it is to be deleted, and its worker, which removes its disk later, is away."""
        if not volume:
            check_scope(caller, operation.scope)
            needs = frozenset({Capability.VOLUMES})
            return self._fleet.choose_workers(Requirements(self._environment, caller.tenant, needs=needs))[0].id
        return self._keeper_at(await place_of_volume(self._store.records, caller.tenant, volume), operation)

    async def _find_worker(self, caller: Caller, target: Target) -> tuple[Session | None, str]:
        """The named session, if it was looked up, and the id of the worker that must answer, or ""."""
        if target.session_id:
            key = (caller.tenant, "session", target.session_id)
            worker_id = self._worker_ids.get(key, "")
            if worker_id in self._fleet.members and self._fleet.members[worker_id].alive:
                return None, worker_id
            return await self._look_up(key, self._store.get(caller.tenant, target.session_id))
        if target.thread_id:
            key = (caller.tenant, "thread", target.thread_id)
            return await self._look_up(key, self._store.of_thread(caller.tenant, target.thread_id))
        return None, ""

    async def _look_up(self, key: _LookupKey, lookup: Awaitable[Session | None]) -> tuple[Session | None, str]:
        try:
            session = await lookup
        except Unavailable:
            if key in self._worker_ids:
                return None, self._worker_ids[key]
            raise
        if session is not None and session.state is SessionState.HIBERNATED:
            self._worker_ids.pop(key, None)
            return session, await self._restorer_of(session)
        if session is None or not session.state.holds_sandbox or not session.worker:
            self._worker_ids.pop(key, None)
            return session, ""
        for each in {key, (session.tenant, "session", session.id)}:
            self._worker_ids[each] = session.worker
        return session, session.worker

    async def _restorer_of(self, session: Session) -> str:
        """The worker that has saved a hibernated session. If that is away or being drained, and others can read what it
        has saved, one of those; "" if nobody can: then the coordinator answers."""
        member = self._fleet.members.get(session.worker)
        is_there = member is not None and member.alive
        if member is None or not is_there or member.draining or member.report.leaving:
            snapshot = await self._find_snapshot(session.tenant, session.saved)
            if snapshot is not None and not snapshot.place:
                required = Requirements(
                    session.environment,
                    session.tenant,
                    session.provider,
                    pooled=False,
                    needs=frozenset({Capability.SNAPSHOTS}),
                    gpus=(ANY,) * session.saved_gpus,
                    image=session.image,
                )
                with contextlib.suppress(NoCapacity, InvalidRequest):
                    return self._fleet.choose_workers(required)[0].id
        return session.worker if is_there else ""

    # -- forwarding to the worker of a session

    async def _forward_to_owner(
        self, worker_id: str, request: Request, receive: Receive, body: RequestBody, send: Send
    ) -> None:
        member = await self._fleet.find_reachable(worker_id)
        try:
            if request.scope["type"] == "websocket":
                await self._forward_websocket(member, request, receive, send)
                return
            await self._forward_http(member, request, body, send, is_last=True)
        except Unreachable as exc:
            request.forwarded = False
            self._fleet.avoid(worker_id)
            raise _worker_unreachable(worker_id, exc) from exc
        except WebSocketRefused as exc:
            request.forwarded = False
            raise _secrets_differ(worker_id) from exc
        except Broken as exc:
            if request.scope["type"] == "http" and request.scope["method"] in _SAFE_METHODS:
                raise _worker_unreachable(worker_id, exc) from exc
            raise _interrupted(worker_id, exc) from exc

    async def _forward_websocket(self, member: Member, request: Request, receive: Receive, send: Send) -> None:
        """Closes a client that was accepted if the worker stops responding."""
        sent_types = set[str]()

        async def send_and_record(message: Message) -> None:
            sent_types.add(message["type"])
            if message["type"] == "websocket.http.response.start":
                request.from_sandbox = request.preview is not None
            await send(message)

        request.forwarded = True
        try:
            async with self._liveness.watch(member.address):
                await forward_websocket(
                    member.address,
                    request.scope,
                    receive,
                    send_and_record,
                    headers=self._headers_for_worker(request),
                    tls=self._tls,
                    raise_on=() if request.preview is not None else (_COORDINATOR_REJECTED,),
                    passes=_passes(request),
                )
        except Broken as exc:
            if "websocket.accept" not in sent_types:
                raise
            if "websocket.close" not in sent_types:
                await send(
                    {"type": "websocket.close", "code": WORKER_LOST, "reason": f"the worker went away: {exc.reason}"}
                )

    # -- creating a session

    async def _place_session(self, request: Request, target: Target, body: RequestBody, send: Send) -> None:
        """Tries the chosen workers one after the other until one does not refuse.

        A caller cannot ask again for a session without thread and Idempotency-Key. Such a session gets its id here, so
        that it can be ended if the caller disconnects, however far its creation has come. Each worker gets another id:
        one that refuses may have stored the session all the same.
        """
        if not self._fleet.has_redis:
            raise Unavailable("Redis is away: no session can be made now", remedy="try again soon", retry_after_s=2)
        members = self._choose_workers(await self._requirements_of_create(request.caller, target), target)
        needs_id = not target.thread_id and not _has_idempotency_key(request)
        for member in members:
            is_last = member is members[-1]
            session_id = new_session_id() if needs_id else ""
            self._fleet.note_assigned(member.id)
            try:
                if await self._forward_create(member, request, body, send, session_id, is_last=is_last):
                    return
            except Unreachable as exc:
                self._fleet.avoid(member.id)
                if is_last:
                    raise _worker_unreachable(member.id, exc) from exc
            except Broken as exc:
                raise _interrupted(member.id, exc) from exc

    async def _end_if_elsewhere(self, worker_id: str, session: Session, request: Request, target: Target) -> str:
        """A session that is to be replaced may be on a worker that cannot have the new one. Returns the worker's id if
        it can, and "" when the session is ended. Raises if no worker can: the thread then keeps its session."""
        required = await self._requirements_of_create(request.caller, target)
        if self._fleet.fits(worker_id, required):
            return worker_id
        self._choose_workers(required, target)
        member = await self._fleet.find_reachable(worker_id)
        path, headers = f"/api/sessions/{session.id}".encode(), self._headers_for_worker(request, has_headers=False)
        try:
            async with self._worker_client.request(
                member.address, "DELETE", path, headers, head_timeout_s=_DISCARD_TIMEOUT_S
            ) as response:
                answer = await response.read_all(_MAX_REFUSAL)
        except ForwardingFailed as exc:
            raise _worker_unreachable(worker_id, exc) from exc
        if response.status != 200:
            raise _problem_of(answer)
        return ""

    async def _requirements_of_create(self, caller: Caller, target: Target) -> Requirements:
        required = await self._requirements_with_snapshot(caller, target)
        if required.worker:
            return required  # volumes can be moved, and what keeps it there cannot
        worker = await self._worker_of_volumes(caller, target)
        return replace(required, worker=worker, why=_HAS_VOLUMES) if worker else required

    async def _requirements_with_snapshot(self, caller: Caller, target: Target) -> Requirements:
        required = self._requirements(caller, target)
        known, wanted = self._environment_of(required.environment), target.values.get("snapshot")
        which = wanted if isinstance(wanted, str) and wanted else "" if known is None else known.snapshot
        snapshot = await self._find_snapshot(caller.tenant, which) if which else None
        if snapshot is None:
            return required
        if not target.values.get("environment") and wanted:
            values = {"image": snapshot.image, **target.values, "environment": snapshot.environment}
            required = self._requirements(caller, Target(values=values))
        return replace(
            required,
            provider=required.provider or snapshot.provider,
            needs=required.needs | {Capability.SNAPSHOTS},
            pooled=False,
            worker=snapshot.place,
            why="which keeps the snapshot",
        )

    async def _worker_of_volumes(self, caller: Caller, target: Target) -> str:
        """The worker that has a volume of the session; "" if none of its volumes is there yet. The worker itself says
        what is wrong with the others."""
        wanted = target.values.get("volumes")
        names = [one.get("name") for one in wanted if isinstance(one, dict)] if isinstance(wanted, list) else []
        environment = self._environment_of(self._environment_name(target.values))
        names += usual_names(environment, caller.tenant, target) if environment else []
        for name in names[:MAX_MOUNTS]:
            if isinstance(name, str) and (place := await place_of_volume(self._store.records, caller.tenant, name)):
                return place
        return ""

    def _environment_name(self, values: Mapping[str, Any]) -> str:
        name = values.get("environment") or self._agent_of(values.get("agent_config")).get("environment")
        return name if isinstance(name, str) and name and not is_image_reference(name) else self._environment

    def _choose_workers(self, required: Requirements, target: Target) -> list[Member]:
        """A session whose network nobody asked for goes to a worker without networks where no other is. One whose
        volumes are on a worker that takes no sessions now goes to another, which fetches them."""
        try:
            return self._fleet.choose_workers(required)
        except NoCapacity:
            if required.why != _HAS_VOLUMES:
                raise
            return self._fleet.choose_workers(replace(required, worker="", why=""))
        except InvalidRequest:
            if not target.values.get(NETWORK_IF_POSSIBLE):
                raise
            return self._fleet.choose_workers(replace(required, needs=required.needs - {Capability.EGRESS}))

    async def _forward_create(
        self, member: Member, request: Request, body: RequestBody, send: Send, session_id: str, *, is_last: bool
    ) -> bool:
        headers = [(SESSION_HEADER, session_id.encode())] if session_id else []
        has_left = request.has_left

        async def send_if_there(message: Message) -> None:
            if message["type"] == "http.response.start" and has_left():
                raise ClientDisconnected
            await send(message)

        try:
            return await self._forward_http(member, request, body, send_if_there, headers, is_last=is_last)
        except Unreachable:
            raise
        except BaseException:
            if session_id:
                task = asyncio.create_task(self._discard_session(member, request, session_id))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            raise

    async def _discard_session(self, member: Member, request: Request, session_id: str) -> None:
        """Ends a session that nobody will ask for. A worker that died meanwhile does not have it any more."""
        path = f"/api/sessions/{session_id}".encode()
        headers = self._headers_for_worker(request, has_headers=False)
        with contextlib.suppress(Unreachable, Broken):
            async with self._worker_client.request(
                member.address, "DELETE", path, headers, head_timeout_s=_DISCARD_TIMEOUT_S
            ) as response:
                await response.read_all(_MAX_REFUSAL)

    def _requirements(self, caller: Caller, target: Target) -> Requirements:
        values = target.values
        labels = values.get("labels")
        provider = values.get("provider")
        agent = self._agent_of(values.get("agent_config"))
        environment = values.get("environment") or agent.get("environment")
        image = values.get("image")
        if isinstance(environment, str) and is_image_reference(environment):
            image, environment = environment, ""
        name = environment if isinstance(environment, str) and environment else self._environment
        known = self._environment_of(name) or _UNKNOWN
        return Requirements(
            name,
            caller.tenant,
            provider if isinstance(provider, str) and provider else known.provider,
            {str(name): str(value) for name, value in labels.items()} if isinstance(labels, dict) else {},
            pooled=not (image or values.get("limits") or agent.get("limits")),
            needs=known.needs | _needs(values, known),
            image=image if isinstance(image, str) and image else known.image,
            gpus=_wanted_gpus(values, known),
        )

    # -- forwarding one HTTP request

    async def _forward_http(
        self,
        member: Member,
        request: Request,
        body: RequestBody,
        send: Send,
        more_headers: Sequence[Header] = (),
        *,
        is_last: bool,
    ) -> bool:
        """Forwards the request and its response; returns False if the worker refused and another may be tried."""
        headers = [*self._headers_for_worker(request), *more_headers]
        if not is_last:
            headers.append((PATIENCE_HEADER, b"%g" % _PATIENCE_S))
        async with (
            self._liveness.watch(member.address),
            await forward_request(
                self._worker_client, member.address, request.scope, body, headers=headers, passes=_passes(request)
            ) as response,
        ):
            preview = request.preview
            if preview is not None and response.header(SANDBOX_HEADER) is not None:
                request.forwarded = request.from_sandbox = True
                await forward_response(response, send, of_sandbox=preview.by_host)
                return True
            if response.status == _COORDINATOR_REJECTED and _is_problem(response):
                if is_last or not body.rewind():
                    raise _secrets_differ(member.id)
                return False
            if response.status != 503 or not body.rewind():
                request.forwarded = True
                if preview is not None:
                    error = _problem_of(await response.read_all(_MAX_REFUSAL))
                    request.from_sandbox = isinstance(error, PortClosed | PortFailed)
                    raise error
                await forward_response(response, send)
                return True
            refusal = await response.read_all(_MAX_REFUSAL)
            owner_id = (response.header(b"x-warren-worker") or b"").decode("latin-1")
            if not owner_id:
                if not is_last and _problem_code(refusal) in _TRY_NEXT_CODES:
                    return False
                request.forwarded = True
                await send_response(response, refusal, send)
                return True
        if owner_id == member.id:
            raise Misdirected("the session has just moved")
        await self._forward_http(await self._fleet.find_reachable(owner_id), request, body, send, is_last=True)
        return True

    def _headers_for_worker(self, request: Request, *, has_headers: bool = True) -> list[Header]:
        """Beside those of the client, of which `has_headers` says whether they are sent."""
        scope, preview = request.scope, request.preview
        client = scope["client"][0] if scope.get("client") else ""
        has_host = has_headers and b"host" in request.headers
        return [
            *([] if has_host else [(b"host", b"localhost")]),
            *self._auth.headers(),
            (CALLER_HEADER, encode_caller(request.caller)),
            (CLIENT_HEADER, client.encode("latin-1", "replace")),
            (SCHEME_HEADER, b"https" if scope.get("scheme") in ("https", "wss") else b"http"),
            (b"x-request-id", request.id.encode()),
            *trace_headers(),
            *([(PAGE_HEADER, request.page_mark.encode())] if request.page_mark else []),
            *([(CHECKED_HEADER, preview.encode())] if preview is not None else []),
        ]


def _passes(request: Request) -> Passes:
    if request.preview is not None:
        return Passes.PREVIEW
    return Passes.SANDBOX_TOKEN if request.kind is Kind.E2B and request.known is not None else Passes.USUAL


def _has_idempotency_key(request: Request) -> bool:
    return any(name == b"idempotency-key" and value for name, value in request.scope["headers"])


def _is_problem(response: WorkerResponse) -> bool:
    """Whether the worker itself answers so; a sandbox's user who is not known is a 401 as well, for E2B's clients."""
    return (response.header(b"content-type") or b"").startswith(MEDIA_TYPE.encode())


def _problem_code(body: bytes) -> str:
    try:
        return str(json.loads(body)["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def _problem_of(body: bytes) -> WarrenError:
    """What a worker answered instead of a sandbox, to be answered once more by whoever shows it."""
    try:
        values = json.loads(body)
        kind = WarrenError.by_code[values["code"]]
        return kind(str(values["detail"]), remedy=str(values.get("remedy", "")))
    except (ValueError, KeyError, TypeError):
        return Unavailable("the worker of the session did not answer properly", retry_after_s=1)


def _worker_unreachable(worker_id: str, exc: ForwardingFailed) -> Unavailable:
    return Unavailable(
        f"the worker {worker_id!r} cannot be reached: {exc.reason}",
        remedy="try again: within seconds it is back, or the session is reported lost",
        retry_after_s=2,
    )


def _secrets_differ(worker_id: str) -> Unavailable:
    return Unavailable(
        f"the worker {worker_id!r} rejects this coordinator: their cluster secrets differ",
        remedy="give all coordinators and workers the same WARREN_CLUSTER_SECRET",
    )


def _interrupted(worker_id: str, exc: Broken) -> Interrupted:
    return Interrupted(
        f"the worker {worker_id!r} went away during the request: {exc.reason}",
        remedy="whether it was done is not known: look, or use an Idempotency-Key and ask again",
    )


def _wanted_gpus(values: Mapping[str, Any], environment: Environment) -> tuple[str, ...]:
    try:
        return environment.gpus if values.get("gpus") is None else read_gpus(values["gpus"])
    except InvalidRequest:
        return ()  # the worker says what is wrong with it


def _needs(values: Mapping[str, Any], environment: Environment) -> frozenset[Capability]:
    """What a provider must be capable of for this wish; what servers do by default is not among it."""
    needs = {Capability.EGRESS} if _opens_network(values, environment) else set()
    on_idle = values.get("on_idle") or environment.on_idle
    needs |= {Capability.VOLUMES} if values.get("volumes") or environment.volumes else set()
    needs |= {Capability.PAUSE} if on_idle in (OnIdle.PAUSE, OnIdle.HIBERNATE) else set()
    return frozenset(needs | ({Capability.SNAPSHOTS} if on_idle == OnIdle.HIBERNATE else set()))


def usual_names(environment: Environment, tenant: str, target: Target) -> list[str]:
    """The volumes that the environment gives a session; none if the request lacks what their names need."""
    metadata = target.values.get("metadata")
    user = metadata.get("user") if isinstance(metadata, dict) else ""
    values = {"tenant": tenant, "user": user if isinstance(user, str) else "", "thread": target.thread_id}
    with contextlib.suppress(InvalidRequest):
        return [rendered(wish, values).name for wish in environment.volumes]
    return []


def _opens_network(values: Mapping[str, Any], environment: Environment) -> bool:
    """Whether the sandbox of a new session is to reach something; the worker says what is wrong with a wish."""
    network, secrets = values.get("network"), values.get("secrets")
    if secrets and not (isinstance(secrets, list) and all(isinstance(name, str) for name in secrets)):
        return False
    is_open = environment.network.is_open
    if network is not None:
        # Not read as rules: the worker does that, and a thousand of them would hold up everybody's requests here.
        rules = network if isinstance(network, dict) else {}
        is_open = rules.get("internet") is True or bool(rules.get("allow"))
    return is_open or bool(environment.secrets or secrets)


def _named_worker(scope: Scope) -> str:
    """A name that is too long is no worker's: whoever answers refuses it, as other bad arguments."""
    query: bytes = scope["query_string"]
    name = parse_qs(query.decode("latin-1")).get("worker", [""])[-1]
    return name if len(name) <= MAX_WORKER_NAME else ""


def _replaces_session(operation: Operation, caller: Caller, target: Target) -> bool:
    is_create = operation.makes is Makes.SESSION and caller.may(KeyScope.SESSIONS)
    return is_create and bool(target.thread_id) and target.values.get("on_mismatch") == "replace"


def _creates_session(operation: Operation, caller: Caller, target: Target, session: Session | None) -> bool:
    if operation.makes is Makes.NOTHING or not caller.may(KeyScope.SESSIONS):
        return False
    if operation.makes is Makes.SESSION:
        return True
    is_lost = session is not None and session.state is SessionState.LOST
    return bool(target.thread_id) and (not is_lost or target.values.get("replace_lost") is True)
