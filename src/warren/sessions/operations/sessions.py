"""Creates, shows, keeps alive, changes and ends sessions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from warren.interfaces.store import Page
from warren.kernel.answer_memory import require_room
from warren.kernel.pacing import Pace
from warren.model.access import ANY_TENANT, Scope
from warren.model.entries import size_of
from warren.model.errors import Conflict, InvalidRequest
from warren.model.session import MAX_METADATA, Session, SessionState
from warren.model.spec import Isolation, Layer
from warren.sessions.allowances import choose_tenant
from warren.sessions.long_values import LongList
from warren.sessions.operations.call import Call, Handler, OperationContext, OperationReply, Values
from warren.sessions.operations.commands import check_first, run_first
from warren.sessions.request_context import current_caller
from warren.sessions.schemas import Body, CreateBody, Seconds, SessionView, session_view

LISTS = frozenset({"state", "metadata"})
"""Query parameters that may come several times."""


_FIRST_STEP: Final = 3
_LONG_STEP: Final = 250
_FEW: Final = 250
_SHORT_BYTES: Final = 256 * 1024
_MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
_VIEW_BYTES: Final = 2048  # in memory, of a session without its texts


class PatchBody(Body):
    idle_timeout_s: Seconds | None = None
    max_lifetime_s: Seconds | None = Field(None, description="Counted from the session's beginning")
    metadata: dict[str, str | None] | None = Field(
        None, description="Merged into what is there; a null takes an entry away"
    )


class PauseBody(Body):
    max_paused_s: Seconds | None = Field(None, description="It ends after it was paused for so long", examples=[86400])
    auto_resume: bool | None = Field(None, description="Whoever uses it while it is paused resumes it")
    to_disk: bool = Field(
        False, description="Save its files and give its sandbox back: its next use restores them, but no processes"
    )


class SessionPage(BaseModel):
    sessions: list[SessionView]
    next: str | None = Field(description="Give it as `after` to get the next page")


class DeleteQuery(BaseModel):
    sandbox_id: str = Field("", description="Only if the session has this sandbox; else the answer is 409")
    logs: bool = Field(False, description="Delete its log, too")


class SessionsQuery(BaseModel):
    state: list[SessionState] | None = Field(None, description="Only those; by default all that have not ended")
    thread_id: str = Field("", max_length=255, description="Only this thread's")
    environment: str = Field("", description="Only those of this environment")
    provider: str = Field("", max_length=64, description="Only those of this provider")
    worker: str = Field("", max_length=64, description="Only those of this worker")
    search: str = Field(
        "", max_length=255, description="A text in the session id, the thread id or the metadata, in any case"
    )
    of: str = Field(
        "",
        max_length=64,
        description="Those of this tenant, or `*` for the active ones of all; needs the scope admin",
    )
    metadata: list[str] | None = Field(None, description="`name=value`; all must match")
    after: str = Field("", description="`next` of the page before")
    limit: Annotated[int, Field(ge=1, le=1000, description="So many at most")] = 100


async def create_session(call: Call, body: CreateBody | None) -> OperationReply:
    """A sandbox of your own, from the warm pool when one is ready.

    With `thread_id` this is get-or-create, and atomic: however many ask at once, the thread has one session. 201: it
    is new. 200: it existed. When a thread's sandbox has died the answer is 410 `sandbox_lost`, unless
    `replace_lost` asks for a fresh one; `previous` then says whose files are gone.

    When the thread's session has another environment, image, provider or limit than the request names, the answer is
    409 `session_mismatch`, with both values in `mismatch`; `on_mismatch` asks for that session all the same, or for a
    new one.

    With `exec` the session runs a command before the answer. If it cannot be run the session is there all the same, and
    `exec` has the error. With an Idempotency-Key both are done once.
    """
    body = body or CreateBody()
    check_labels(call.context, body.labels)
    if body.exec is not None:
        check_first(call, body.exec)
    result = await call.sessions.create(call.tenant, await body.to_new_session(), call.key)
    view = show(call, result.session)
    headers = {"Location": view["url"], **({"Idempotency-Replayed": "true"} if result.replayed else {})}
    view |= {"created": result.created} | ({"mismatch": result.mismatch} if result.mismatch else {})
    if call.context.takes_clients:
        view["worker_url"] = call.context.worker_url
    if body.exec is not None:
        view["exec"] = await run_first(replace(call, session_id=result.session.id), body.exec)
    return OperationReply(view, 201 if result.created or result.replayed else 200, headers)


async def list_sessions(call: Call, query: SessionsQuery) -> Values:
    """Newest first. Looking does not count as use. A page may have fewer than `limit` if their metadata is long."""
    tenant = choose_tenant(current_caller(), query.of, Scope.ADMIN) if query.of else call.tenant
    chosen: dict[str, Any] = {"states": frozenset(query.state)} if query.state else {}
    if tenant == ANY_TENANT and not all(state.is_active for state in chosen.get("states", ())):
        raise InvalidRequest("ended sessions are listed for one tenant at a time", remedy="name the tenant with `of`")
    page = Page(
        thread_id=query.thread_id,
        environment=query.environment,
        provider=query.provider,
        worker=query.worker,
        search=query.search,
        metadata=read_pairs(query.metadata or []),
        after=query.after,
        limit=query.limit,
        **chosen,
    )
    # Read before the rows: a write in between then makes the kept page an old one.
    pages, revision = call.context.pages, call.sessions.store.revision
    name = tenant, call.base_url(), query.model_dump_json()
    if (kept := pages.find(name, revision)) is not None:
        return kept
    shown, more = await show_page(call, page, tenant)
    values = {"sessions": shown, "next": more}
    if isinstance(shown, list):
        pages.keep(name, revision, values)
    return values


async def show_page(call: Call, page: Page, tenant: str = "") -> tuple[list[Values] | LongList, str | None]:
    """The sessions of the page, and the id after which the next page begins.

    They are read some at a time, and the page ends early when they are long: each may hold hundreds of KiB.
    """
    found: list[Session] = []
    size, step, pace = 0, _FIRST_STEP, Pace()
    while True:
        wanted = min(step, page.limit + 1 - len(found))
        some = await call.sessions.store.list(tenant or call.tenant, replace(page, limit=wanted))
        found += some
        size += sum(map(weight, some))
        if len(some) < wanted:
            more = None
            break
        if len(found) > page.limit or size > _MAX_PAGE_BYTES:
            found = found[: page.limit] if len(found) > page.limit else found
            more = found[-1].id
            break
        page = replace(page, after=some[-1].id)
        step = _LONG_STEP if size < _SHORT_BYTES else _FIRST_STEP
        await pace.give_way()
    require_room(size + len(found) * _VIEW_BYTES)
    base_url, images = call.base_url(), _Images(call)
    views = (session_view(each, call.sessions.clock, base_url, images.of(each)) for each in found)
    return (list(views) if size < _SHORT_BYTES and len(found) <= _FEW else LongList(views, len(found))), more


class _Images:
    """The images of sessions. Looks at the file of each environment once: a page may have very many sessions."""

    def __init__(self, call: Call) -> None:
        self._image_of = call.sessions.image_of
        self._of_environment: dict[str, str] = {}

    def of(self, session: Session) -> str:
        if session.image:
            return session.image
        image = self._of_environment.get(session.environment)
        if image is None:
            image = self._of_environment[session.environment] = self._image_of(session)
        return image


def weight(session: Session) -> int:
    """The number of characters in the session's texts."""
    texts = (*session.metadata.items(), *session.env.items())
    network = session.network
    rules = (*network.allow, *network.deny, *(each.value for each in network.headers))
    agent = size_of(session.agent_config) if session.agent_config else 0
    return sum(len(name) + len(value) for name, value in texts) + sum(map(len, rules)) + agent


def read_pairs(metadata: Sequence[str]) -> dict[str, str]:
    """Reads texts such as `name=value`."""
    if len(metadata) > MAX_METADATA:
        raise InvalidRequest(f"{len(metadata)} metadata were asked for, no session has more than {MAX_METADATA}")
    pairs = {}
    for text in metadata:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidRequest(f"metadata is {text!r}", remedy="write name=value")
        pairs[name] = value
    return pairs


async def get_session(call: Call) -> Values:
    """With the isolation that is really in force, as the kernel reports it. Looking does not count as use."""
    session = await call.sessions.get(call.tenant, call.session_id)
    sandbox = await call.sessions.find_sandbox(session)
    return {**show(call, session), "isolation": isolation_view(sandbox.isolation, session) if sandbox else None}


async def delete_session(call: Call, query: DeleteQuery) -> Values:
    """When this answers, the sandbox is gone: its processes, its files, everything. Repeating it changes nothing."""
    if query.sandbox_id:
        session = await call.sessions.get(call.tenant, call.session_id)
        if session.sandbox_id != query.sandbox_id:
            raise Conflict(
                f"the session has no sandbox {query.sandbox_id[:100]!r}, so nothing was ended",
                remedy="leave sandbox_id out, or ask for the session to see which sandbox it has",
            )
    ended = await call.sessions.delete(call.tenant, call.session_id)
    if query.logs:
        await call.logs.delete(call.tenant, call.session_id)
    return show(call, ended)


async def keep_session_alive(call: Call) -> Values:
    """The maximum lifetime stays as it is; PATCH changes it."""
    return show(call, await call.sessions.keep_alive(call.tenant, call.session_id))


async def pause_session(call: Call, body: PauseBody | None) -> Values:
    """Everything in the sandbox stands still and keeps its memory; its idle time and its lifetime stand still as well.
    Requests that are under way stay open, and go on when it is resumed. What is left out of the body stays as it is.
    Pausing a paused session changes nothing else.

    With `to_disk` the session is `hibernated`: its disk is saved, its sandbox is given back, and its next use restores
    the files in a fresh one. What ran in it is gone then, which `restored` counts."""
    body = body or PauseBody()
    changes = body.model_dump(exclude_none=True, exclude={"to_disk"})
    return show(call, await call.sessions.pause(call.tenant, call.session_id, changes, to_disk=body.to_disk))


async def resume_session(call: Call) -> Values:
    """Everything goes on where it stood still, and the idle time begins anew. A session that runs stays as it is."""
    return show(call, await call.sessions.resume(call.tenant, call.session_id))


async def change_session(call: Call, body: PatchBody) -> Values:
    """What is left out stays as it is. Time-outs are counted from the same beginnings as before."""
    given = body.model_dump(exclude_none=True, exclude={"metadata"})
    return show(call, await call.sessions.patch(call.tenant, call.session_id, **given, metadata=body.metadata))


def show(call: Call, session: Session) -> Values:
    return session_view(session, call.sessions.clock, call.base_url(), call.sessions.image_of(session))


def check_labels(context: OperationContext, labels: Mapping[str, str]) -> None:
    """Raises InvalidRequest for a label that this worker does not have."""
    for name, value in labels.items():
        if context.labels.get(name) != value:
            raise InvalidRequest(
                f"there is no worker with the label {name}={value} here",
                remedy="leave labels out, or start such a worker",
            )


def isolation_view(isolation: Isolation, session: Session) -> Values:
    in_force = {str(layer): evidence for layer, evidence in isolation.layers.items()}
    missing = {str(layer): why for layer, why in isolation.missing.items()}
    if session.opens_network:
        in_force.pop(Layer.NO_NETWORK, None)
        opened = [str(session.network)] if session.network.is_open else []
        opened += [f"the hosts of the secret {name}" for name in session.secrets]
        missing[Layer.NO_NETWORK] = f"the session's rules open the network: {', '.join(opened)}"
    shown = {"provider": isolation.provider, "runtime": isolation.runtime, "in_force": in_force, "missing": missing}
    return shown | ({"gpus": dict(isolation.gpus)} if isolation.gpus else {})


HANDLERS = (
    Handler(
        "create_session",
        create_session,
        body=CreateBody,
        result=SessionView,
        other_results={200: {"model": SessionView, "description": "The thread had one: this is it"}},
        headers=("idempotency_key",),
        body_examples={
            "thread": {"value": {"thread_id": "conv-42"}},
            "with a command": {"value": {"exec": {"command": "echo ready"}}},
        },
    ),
    Handler("list_sessions", list_sessions, query=SessionsQuery, result=SessionPage),
    Handler("get_session", get_session, result=SessionView),
    Handler("delete_session", delete_session, query=DeleteQuery, result=SessionView),
    Handler("keep_session_alive", keep_session_alive, result=SessionView),
    Handler("pause_session", pause_session, body=PauseBody, result=SessionView),
    Handler("resume_session", resume_session, result=SessionView),
    Handler("change_session", change_session, body=PatchBody, result=SessionView),
)
