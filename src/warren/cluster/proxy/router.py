"""Hands a coordinator's requests to the workers they are for; what is for none, the coordinator's own app answers.

A request about a session goes to the session's worker. A request that makes a session goes to the worker that its
thread's session is on, else to one that placement chooses, and to the next one if that refuses. What is about a
session that is lost or has ended, or about none, is answered here. Which worker a session is on never changes and is
remembered, so running sessions are reached while Redis is away.
"""

import asyncio
import contextlib
import json
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warren.cluster.auth import CALLER, CLIENT, PATIENCE, SCHEME, SESSION, ClusterAuth, written_caller
from warren.cluster.fleet import Fleet
from warren.cluster.http_client.client import Header, WorkerClient, WorkerResponse
from warren.cluster.http_client.failures import Broken, ForwardingFailed, Refused, Unreachable
from warren.cluster.http_client.headers import headers_for_client
from warren.cluster.members import Member
from warren.cluster.placement import Want
from warren.cluster.proxy import target as reading
from warren.cluster.proxy.http_requests import RequestBody, forwarded, pass_on
from warren.cluster.proxy.liveness import Liveness
from warren.cluster.proxy.target import SessionLocation, Target
from warren.cluster.proxy.websockets import forward_websocket
from warren.http.server.http_guard import request_id
from warren.interfaces.store import SessionStore
from warren.model.access import Caller
from warren.model.access import Scope as KeyScope
from warren.model.errors import Interrupted, MachineFull, Misdirected, NoCapacity, Stopping, Unavailable
from warren.model.session import Session, SessionState, new_session_id

_REMEMBERED: Final = 100_000
_MOST_SEEN: Final = 9 * 1024 * 1024  # of a form, to find out which session it is for: see flat.upload_file
_PATIENCE_S: Final = 10.0  # how long a worker may let a create wait, if there is another to ask
_NOT_HERE: Final = frozenset({SessionState.LOST, SessionState.ENDED})
_NEXT: Final = frozenset({NoCapacity.code, MachineFull.code, Stopping.code, Unavailable.code})
_LONGEST_REFUSAL: Final = 64 * 1024
_DISCARDING_S: Final = 60.0
_SAFE: Final = frozenset({"GET", "HEAD"})
_LOST: Final = 1011  # how a WebSocket is closed whose worker is gone
_STRANGER: Final = 401  # a worker says it to us: who the caller is was found out here


class Router:
    def __init__(
        self,
        app: ASGIApp,
        fleet: Fleet,
        store: SessionStore,
        worker_client: WorkerClient,
        auth: ClusterAuth,
        liveness: Liveness,
        *,
        environment: str,
        provider_of: Callable[[str], str] = lambda environment: "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._app = app
        self._fleet = fleet
        self._store = store
        self._worker_client = worker_client
        self._auth = auth
        self._liveness = liveness
        self._environment = environment
        self._provider_of = provider_of
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self._whose: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        place = reading.where(scope) if scope["type"] in ("http", "websocket") else SessionLocation.NOWHERE
        if place is SessionLocation.NOWHERE:
            await self._app(scope, receive, send)
            return
        body = _Body(receive)
        asked = await body.asked(place, scope)
        session, worker_id = await self._found(scope["caller"], asked)
        if worker_id:
            await self._to_owner(worker_id, scope, receive, body, send)
        elif self._makes(scope, asked, session):
            await self._to_any(scope, asked, body, send)
        else:
            await self._app(scope, body.again(), send)

    # -- whose it is

    async def _found(self, caller: Caller, asked: Target) -> tuple[Session | None, str]:
        """The session that is asked for, if it was looked up; and its worker, if that is to be asked."""
        if asked.session_id:
            name = (caller.tenant, "session", asked.session_id)
            known = self._whose.get(name)
            if known is not None and known in self._fleet.members and self._fleet.members[known].alive:
                return None, known
            return await self._looked_up(name, self._store.get(caller.tenant, asked.session_id))
        if asked.thread_id:
            name = (caller.tenant, "thread", asked.thread_id)
            return await self._looked_up(name, self._store.of_thread(caller.tenant, asked.thread_id))
        return None, ""

    async def _looked_up(self, name: tuple[str, str, str], reading: Any) -> tuple[Session | None, str]:
        try:
            session: Session | None = await reading
        except Unavailable:
            if name in self._whose:
                return None, self._whose[name]
            raise
        if session is None or session.state in _NOT_HERE or not session.worker:
            self._whose.pop(name, None)
            return session, ""
        for each in {name, (session.tenant, "session", session.id)}:
            self._remember(each, session.worker)
        return session, session.worker

    def _remember(self, name: tuple[str, str, str], worker_id: str) -> None:
        self._whose[name] = worker_id
        self._whose.move_to_end(name)
        if len(self._whose) > _REMEMBERED:
            self._whose.popitem(last=False)

    def _makes(self, scope: Scope, asked: Target, session: Session | None) -> bool:
        """Whether the request is to make a session, on whichever worker."""
        path, caller = scope["path"], scope["caller"]
        if path in reading.CREATING:
            return bool(caller.may(KeyScope.SESSIONS))
        if path not in reading.MAKING or not asked.thread_id or not caller.may(KeyScope.SESSIONS):
            return False
        lost = session is not None and session.state is SessionState.LOST
        return not lost or asked.values.get("replace_lost") is True

    # -- handing on

    async def _to_owner(self, worker_id: str, scope: Scope, receive: Receive, body: "_Body", send: Send) -> None:
        member = await self._fleet.found(worker_id)
        try:
            if scope["type"] == "websocket":
                await self._joined(member, scope, receive, send)
                return
            await self._asked(member, scope, body, send, last=True)
        except Unreachable as exc:
            scope["forwarded"] = False
            self._fleet.shun(worker_id)
            raise _away(worker_id, exc) from exc
        except Refused as exc:
            scope["forwarded"] = False
            raise _strange(worker_id) from exc
        except Broken as exc:
            if scope["type"] == "http" and scope["method"] in _SAFE:
                raise _away(worker_id, exc) from exc
            raise _broken(worker_id, exc) from exc

    async def _joined(self, member: Member, scope: Scope, receive: Receive, send: Send) -> None:
        """A client's WebSocket and the worker's; if the worker falls silent, a client that was let in is told."""
        headers, said = self._headers(scope), set[str]()

        async def noting(message: Message) -> None:
            said.add(message["type"])
            await send(message)

        scope["forwarded"] = True
        try:
            async with self._liveness.over(member.address):
                await forward_websocket(
                    member.address, scope, receive, noting, headers=headers, tls=self._tls, elsewhere=(_STRANGER,)
                )
        except Broken as exc:
            if "websocket.accept" not in said:
                raise
            if "websocket.close" not in said:
                await send({"type": "websocket.close", "code": _LOST, "reason": exc.why})

    async def _to_any(self, scope: Scope, asked: Target, body: "_Body", send: Send) -> None:
        """Asks one after the other until one does not refuse.

        A session that its caller could not ask for again, because it has no name, gets its id here: if the caller goes
        away, however far the making has come, it is ended. Another one for each worker: one that refuses may have
        stored it all the same.
        """
        if not self._fleet.has_redis:
            raise Unavailable("Redis is away: no session can be made now", remedy="try again soon", retry_after_s=2)
        members = self._fleet.placed(self._wanted(scope["caller"], asked))
        is_nameless = not asked.thread_id and not _has_key(scope)
        for number, member in enumerate(members):
            new_id = new_session_id() if is_nameless else ""
            self._fleet.sent(member.id)
            try:
                if await self._made(member, scope, body, send, new_id, last=number == len(members) - 1):
                    return
            except Unreachable as exc:
                self._fleet.shun(member.id)
                if number == len(members) - 1:
                    raise _away(member.id, exc) from exc
            except Broken as exc:
                raise _broken(member.id, exc) from exc

    async def _made(self, member: Member, scope: Scope, body: "_Body", send: Send, new_id: str, *, last: bool) -> bool:
        headers = [(SESSION, new_id.encode())] if new_id else []
        try:
            return await self._asked(member, scope, body, send, headers, last=last)
        except Unreachable:
            raise
        except BaseException:
            if new_id:
                self._own(self._discard(member, scope, new_id))
            raise

    async def _discard(self, member: Member, scope: Scope, session_id: str) -> None:
        """A worker that has died meanwhile has none of it any more."""
        target = f"/api/sessions/{session_id}".encode()
        with contextlib.suppress(Unreachable, Broken):
            async with self._worker_client.asked(
                member.address,
                "DELETE",
                target,
                [(b"host", b"localhost"), *self._headers(scope)],
                head_timeout_s=_DISCARDING_S,
            ) as answer:
                await answer.all(_LONGEST_REFUSAL)

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wanted(self, caller: Caller, asked: Target) -> Want:
        values = asked.values
        labels = values.get("labels")
        provider = values.get("provider")
        environment = values.get("environment")
        name = environment if isinstance(environment, str) and environment else self._environment
        return Want(
            name,
            caller.tenant,
            provider if isinstance(provider, str) and provider else self._provider_of(name),
            {str(name): str(value) for name, value in labels.items()} if isinstance(labels, dict) else {},
            pooled=not (values.get("image") or values.get("limits")),
        )

    async def _asked(
        self, member: Member, scope: Scope, body: "_Body", send: Send, more: Sequence[Header] = (), *, last: bool
    ) -> bool:
        """Asks a worker and passes on what it answers; False if it refuses and another may be asked."""
        headers = [*self._headers(scope), *more]
        if not last:
            headers.append((PATIENCE, b"%g" % _PATIENCE_S))
        elsewhere = ""
        request_context = forwarded(self._worker_client, member.address, scope, body.whole(), headers=headers)
        async with self._liveness.over(member.address), request_context as answer:
            if answer.status == _STRANGER:
                if last or not body.rewind():
                    raise _strange(member.id)
            elif answer.status == 503 and body.rewind():
                refusal = await answer.all(_LONGEST_REFUSAL)
                elsewhere = (answer.header(b"x-warren-worker") or b"").decode("latin-1")
                if not elsewhere and (last or _code(refusal) not in _NEXT):
                    scope["forwarded"] = True
                    await _send(answer, refusal, send)
                    return True
            else:
                scope["forwarded"] = True
                await pass_on(answer, send)
                return True
        if elsewhere:
            if elsewhere == member.id:
                raise Misdirected("the session has just moved")
            await self._asked(await self._fleet.found(elsewhere), scope, body, send, last=True)
            return True
        return False

    def _headers(self, scope: Scope) -> list[Header]:
        client = scope["client"][0] if scope.get("client") else ""
        named = any(name == b"host" for name, _ in scope["headers"])
        return [
            *([] if named else [(b"host", b"localhost")]),
            *self._auth.headers(),
            (CALLER, written_caller(scope["caller"])),
            (CLIENT, client.encode("latin-1", "replace")),
            (SCHEME, b"https" if scope.get("scheme") in ("https", "wss") else b"http"),
            (b"x-request-id", request_id.get().encode()),
        ]


class _Body:
    """The body of a request, of which the beginning may have been read to find out whose it is."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._seen: list[bytes] = []
        self._done = False
        self._body: RequestBody | None = None

    async def asked(self, place: SessionLocation, scope: Scope) -> Target:
        if place is SessionLocation.PATH:
            return reading.from_path(scope)
        if place is SessionLocation.QUERY:
            return reading.from_query(scope)
        if place is SessionLocation.JSON:
            while not self._done:
                await self._read()
            return reading.from_json(b"".join(self._seen))
        named = reading.from_query(scope)
        if named.session_id or named.thread_id:
            return named
        kind = dict(scope["headers"]).get(b"content-type", b"").decode("latin-1")
        return await reading.from_form(self._pieces(), kind)

    async def _pieces(self) -> AsyncIterator[bytes]:
        size = 0
        while not self._done and size < _MOST_SEEN:
            size += await self._read()
            yield self._seen[-1]

    async def _read(self) -> int:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        self._seen.append(piece)
        self._done = not message.get("more_body", False)
        return len(piece)

    def whole(self) -> RequestBody:
        if self._body is None:
            self._body = RequestBody(self._receive, self._seen, done=self._done)
        return self._body

    def rewind(self) -> bool:
        return self._body is None or self._body.rewind()

    def again(self) -> Receive:
        """For an app: what was read is there to be read once more."""
        waiting: list[Message] = [
            {"type": "http.request", "body": piece, "more_body": not self._done or at < len(self._seen) - 1}
            for at, piece in enumerate(self._seen)
        ]
        waiting.reverse()

        async def replayed() -> Message:
            return waiting.pop() if waiting else await self._receive()

        return replayed


async def _send(answer: WorkerResponse, body: bytes, send: Send) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": headers_for_client(answer.status, answer.headers),
        }
    )
    await send({"type": "http.response.body", "body": body})


def _has_key(scope: Scope) -> bool:
    return any(name == b"idempotency-key" and value for name, value in scope["headers"])


def _code(refusal: bytes) -> str:
    try:
        return str(json.loads(refusal)["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def _away(worker_id: str, exc: ForwardingFailed) -> Unavailable:
    return Unavailable(
        f"the worker {worker_id!r} cannot be reached: {exc.why}",
        remedy="try again: within seconds it is back, or the session is reported lost",
        retry_after_s=2,
    )


def _strange(worker_id: str) -> Unavailable:
    return Unavailable(
        f"the worker {worker_id!r} does not take this coordinator for one of its cluster: their secrets differ",
        remedy="give all coordinators and workers the same WARREN_CLUSTER_SECRET",
    )


def _broken(worker_id: str, exc: Broken) -> Interrupted:
    return Interrupted(
        f"the worker {worker_id!r} went away over this: {exc.why}",
        remedy="whether it was done is not known: look, or use an Idempotency-Key and ask again",
    )
