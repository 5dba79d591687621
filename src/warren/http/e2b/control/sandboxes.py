"""Sandboxes on the control plane: create, show, list, prolong and end them; pauses.py pauses and resumes them.

A sandbox is a session whose time is its lifetime alone: being idle never ends it. Sessions that were created otherwise
are shown too.
"""

import contextlib
import math
import urllib.parse
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from starlette.responses import Response

from warren.http.context import answer_json
from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.control.bodies import (
    bad,
    moment_in_query,
    read_flag,
    read_object,
    read_text,
    read_texts,
    read_whole,
    whole_in_query,
)
from warren.http.e2b.control.network import (
    read_header_rules,
    read_host_mask,
    read_network_apart,
    show_network,
    wants_public_traffic,
)
from warren.http.e2b.control.template_lookup import find_template
from warren.http.e2b.control.template_start import start_template
from warren.http.e2b.errors import E2bError
from warren.http.e2b.sandbox_url import check_address
from warren.http.e2b.tokens import Opens
from warren.interfaces.store import Page
from warren.kernel.answer_memory import require_room
from warren.kernel.pacing import Pace
from warren.model.access import Scope
from warren.model.capability import network_needs
from warren.model.e2b import DOMAIN_HEADER, ENVD_VERSION, sandbox_id_of, session_id_of
from warren.model.environment import Environment
from warren.model.errors import Forbidden, InvalidRequest, SessionEnded, SessionNotFound, UnknownEnvironment
from warren.model.network import NO_NETWORK, NetworkRules
from warren.model.preview import PreviewRules
from warren.model.session import LONGEST_S, MAX_METADATA, OnIdle, Session, SessionState
from warren.model.spec import Limits
from warren.model.tenant_images import template_in
from warren.model.volume import VolumeWish, check_volume_name
from warren.sessions.allowances import longest_life
from warren.sessions.long_values import LongList
from warren.sessions.new_session import NewSession
from warren.sessions.operations.sessions import weight
from warren.sessions.request_context import keep_secret, set_image_wait, set_longest_wait
from warren.sessions.schemas import MAX_VARIABLES, timestamp

CLIENT_ID: Final = "warren"
DEFAULT_TIMEOUT_S: Final = 300
_REFRESH_S: Final = 15
_IMAGE_WAIT_S: Final = 45.0
_IMAGE_WAIT: Final = "x-warren-image-wait"  # "0" from the provider e2b of another Warren, whose callers wait less
_LONGEST_WAIT_S: Final = 50.0  # clients wait for a minute, and the newest of them for all its attempts together
_MAX_ON_PAGE: Final = 1000
_USUAL_PAGE: Final = 100
_FIRST_STEP: Final = 3
_LONG_STEP: Final = 100
_SHORT_PAGE: Final = 250
_MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
_VIEW_BYTES: Final = 2048
_STATES: Final = {
    "running": frozenset(state for state in SessionState if state.can_run),
    "paused": frozenset(state for state in SessionState if state.is_paused),
}


# -- creating


async def create(call: E2bCall) -> Response:
    values = await call.json()
    _refuse_unsupported(values)
    template_id = read_text(values, "templateID")
    if not template_id:
        raise bad("templateID is missing")
    template = await find_template(call, template_id)
    environment = call.context.environments(template.environment)
    network = read_object(values, "network") or {}
    timeout_s = read_timeout(call, values, least=1)
    env = read_texts(values, "envVars", MAX_VARIABLES)
    keep_secret(env.values())
    is_public = call.rules.public_ports and wants_public_traffic(network)
    lifetime_s = timeout_s or min(DEFAULT_TIMEOUT_S, longest_life(call.caller))
    request = NewSession(
        environment="" if template.snapshot else environment.name,
        image=template.image,
        snapshot=template.snapshot,
        limits=template.limits,
        env=env,
        metadata=read_texts(values, "metadata", MAX_METADATA),
        idle_timeout_s=LONGEST_S,
        max_lifetime_s=lifetime_s,
        renewal_s=renewal_of(call, lifetime_s),
        max_paused_s=LONGEST_S,
        **read_lifecycle(values),
        network=await _choose_network(call, environment, network, read_flag(values, "allow_internet_access")),
        previews=PreviewRules(everything=is_public, by_token=not is_public, host_mask=read_host_mask(network)),
        volumes=_read_mounts(values),
    )
    set_image_wait(0 if call.header(_IMAGE_WAIT) == "0" else _IMAGE_WAIT_S)
    set_longest_wait(_LONGEST_WAIT_S)
    result = await call.sessions.create(call.tenant, request, call.header("idempotency-key"))
    if not result.session.state.can_run:
        raise E2bError(409, "the sandbox of this Idempotency-Key has ended; send another key")
    if result.created:
        await start_template(call, result.session, template)
    return answer_json(show_new(call, result.session), 201)


def _refuse_unsupported(values: dict[str, Any]) -> None:
    wanted = {
        "mcp": values.get("mcp"),
        "iam": values.get("iam"),
    }
    for name, value in wanted.items():
        if value:
            raise E2bError(501, f"{name} is not supported by this server")


def _read_mounts(values: dict[str, Any]) -> tuple[VolumeWish, ...]:
    given = values.get("volumeMounts") or []
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise bad("volumeMounts must be a list of objects with name and path")
    pairs = [(read_text(each, "name") or "", read_text(each, "path") or "") for each in given]
    return tuple(VolumeWish(check_volume_name(name), path) for name, path in pairs)


def read_timeout(call: E2bCall, values: dict[str, Any], least: int, name: str = "timeout") -> int | None:
    """Reads a time-out, None if there is none. Raises E2bError for more than the caller's key allows."""
    timeout_s = read_whole(values, name, least, int(LONGEST_S))
    if timeout_s is not None and timeout_s > longest_life(call.caller):
        raise bad(f"{name} must be at most {longest_life(call.caller):.15g} seconds with this key")
    return timeout_s


async def _choose_network(
    call: E2bCall, environment: Environment, network: dict[str, Any], internet: bool | None
) -> NetworkRules:
    """Returns what the client asks for; otherwise the environment's rules, or none where the caller cannot have
    those."""
    rules, headers = await read_network_apart(network, internet), await read_header_rules(network)
    if rules is not None:
        return rules.with_headers(headers)
    rules = environment.network
    try:
        call.sessions.lifecycle.starting.check_provider(environment.provider, network_needs(rules))
        await call.sessions.lifecycle.networks.egress.check(rules, call.caller, rules)
    except (Forbidden, InvalidRequest):
        rules = NO_NETWORK
    return rules.with_headers(headers)


def renewal_of(call: E2bCall, lifetime_s: float) -> float:
    """Returns the lifetime that a sandbox has anew whenever it is paused."""
    return min(max(lifetime_s, DEFAULT_TIMEOUT_S), LONGEST_S, longest_life(call.caller))


def read_lifecycle(values: dict[str, Any]) -> dict[str, Any]:
    """Returns what becomes of a sandbox at its time-out, and whether its use resumes it, in the words of NewSession."""
    keeps_memory = read_flag(values, "autoPauseMemory") is not False
    resumes = read_flag(read_object(values, "autoResume") or {}, "enabled")
    on_timeout = None
    if read_flag(values, "autoPause"):
        on_timeout = OnIdle.PAUSE if keeps_memory else OnIdle.HIBERNATE
        if resumes and not keeps_memory:
            raise bad(
                "autoResume needs autoPauseMemory: a sandbox that keeps files alone is resumed by connecting to it"
            )
    return {"on_timeout": on_timeout, "auto_resume": bool(resumes)}


# -- one sandbox


async def show(call: E2bCall) -> Response:
    check_address(call, sandbox_in(call))
    session = await living_session(call)
    rules = session.network
    shown = {
        **_show_listed(call, session),
        "domain": domain_of(call),
        "allowInternetAccess": rules.internet,
        "network": show_network(session),
        "lifecycle": {
            "onTimeout": "kill" if session.on_timeout is OnIdle.END else "pause",
            "autoResume": session.auto_resume,
        },
    }
    if session.state.is_paused:
        shown["pauseMode"] = "full" if session.state.holds_sandbox else "filesystem"
    if call.caller.may(Scope.EXEC):
        shown["envdAccessToken"] = call.tokens.sign(Opens.ACCESS, session.id)
    return answer_json(shown)


async def kill(call: E2bCall) -> Response:
    session_id = sandbox_in(call)
    session = await call.sessions.get(call.tenant, session_id)
    if not session.state.is_usable and session.state is not SessionState.LOST:
        raise SessionEnded(f"session {session_id} has ended")
    await call.sessions.delete(call.tenant, session_id)
    return Response(status_code=204)


async def set_timeout(call: E2bCall) -> Response:
    values = await call.json()
    timeout_s = read_timeout(call, values, least=0)
    if timeout_s is None:
        raise bad("timeout is missing")
    await prolong(call, await running_session(call), timeout_s)
    return Response(status_code=204)


async def refresh(call: E2bCall) -> Response:
    values = await call.json()
    timeout_s = read_timeout(call, values, 0, "duration")
    await prolong(call, await running_session(call), max(_REFRESH_S, timeout_s or 0), only_longer=True)
    return Response(status_code=204)


async def change_network(call: E2bCall) -> Response:
    values = await call.json()
    internet = read_flag(values, "allow_internet_access")
    if read_text(values, "maskRequestHost"):
        raise bad("maskRequestHost can be set when a sandbox is created, and not later")
    headers = await read_header_rules(values)
    session = await living_session(call)
    rules = await read_network_apart(values, internet)
    if rules is None:
        environment = call.context.environments(session.environment)
        rules = NetworkRules(internet=True) if internet else await _choose_network(call, environment, {}, None)
    await call.sessions.set_network(call.tenant, session.id, rules.with_headers(headers))
    return Response(status_code=204)


async def prolong(call: E2bCall, session: Session, timeout_s: int, *, only_longer: bool = False) -> Session:
    """Makes the sandbox time out `timeout_s` from now, or if it is paused after it was resumed; earlier if it may not
    live that long."""
    longest_s = min(LONGEST_S, longest_life(call.caller))
    lifetime_s = max(1.0, min(session.lived_for(call.sessions.clock.now()) + timeout_s, longest_s))
    if only_longer and session.started + session.paused_s + lifetime_s <= session.expires_at:
        return session
    return await call.sessions.patch(call.tenant, session.id, idle_timeout_s=LONGEST_S, max_lifetime_s=lifetime_s)


async def running_session(call: E2bCall) -> Session:
    session = await living_session(call)
    if not session.state.can_run:
        raise SessionNotFound(f"session {session.id} does not run")
    return session


async def living_session(call: E2bCall) -> Session:
    """Returns the session that the path names, which runs or is paused."""
    session_id = sandbox_in(call)
    session = await call.sessions.get(call.tenant, session_id)
    if session.state is SessionState.CREATING:
        session = await call.sessions.lifecycle.starting.wait_until_settled(session)
    if not (session.state.can_run or session.state.is_paused):
        raise SessionNotFound(f"session {session_id} does not run")
    return session


def sandbox_in(call: E2bCall) -> str:
    return session_id_of(call.params["sandbox_id"])


# -- listing


async def list_sandboxes(call: E2bCall) -> Response:
    return await _list(call, _USUAL_PAGE, frozenset(_STATES))


async def list_many_sandboxes(call: E2bCall) -> Response:
    """The older list, of those that run; its clients know no pages."""
    return await _list(call, _MAX_ON_PAGE, frozenset({"running"}))


async def _list(call: E2bCall, usual_limit: int, usual_states: frozenset[str]) -> Response:
    limit = whole_in_query(call.parameter("limit"), "limit", 1, _MAX_ON_PAGE) or usual_limit
    wanted = {state for text in call.query.get("state", []) for state in text.split(",") if state}
    if wanted - _STATES.keys():
        raise bad(f"state can be {' or '.join(sorted(_STATES))}")
    order = call.parameter("order") or "desc"
    if order not in ("asc", "desc"):
        raise bad("order can be asc or desc")
    chosen = _Chosen(call, frozenset[SessionState]().union(*(_STATES[state] for state in wanted or usual_states)))
    token = call.parameter("nextToken")
    after = ""
    if token:
        try:
            after = session_id_of(token)
        except SessionNotFound:
            raise bad("nextToken is not one of this server") from None
    find = _find_oldest if order == "asc" else _find_newest
    found, has_more = await find(call, chosen, limit, after)
    headers = {"x-next-token": sandbox_id_of(found[-1].id)} if has_more else {}
    require_room(sum(map(weight, found)) + len(found) * _VIEW_BYTES)
    views = (_show_listed(call, session) for session in found)
    shown = list(views) if len(found) <= _SHORT_PAGE else LongList(views, len(found))
    return answer_json(shown, 200, headers)


class _Chosen:
    """Which sandboxes a query selects."""

    def __init__(self, call: E2bCall, states: frozenset[SessionState]) -> None:
        self._call = call
        self.states = states
        self._template = call.parameter("template")
        self.started_after = moment_in_query(call.parameter("startedAfter"), "startedAfter")
        self.metadata = _read_metadata(call.parameter("metadata"))

    def page(self, limit: int, after: str) -> Page:
        return Page(self.states, metadata=self.metadata, after=after, limit=limit)

    def has(self, session: Session) -> bool:
        names = {template_of(self._call, session), *([] if session.image else [session.environment])}
        return not self._template or self._template in names

    def ends_at(self, session: Session) -> bool:
        """Whether this one, and all that are older, were started too early."""
        return self.started_after is not None and session.created_at <= self.started_after


def _read_metadata(text: str) -> dict[str, str]:
    """Reads a query of its own, whose names and values are encoded a second time."""
    if not text:
        return {}
    pairs = urllib.parse.parse_qsl(text, keep_blank_values=True, max_num_fields=None)
    if not pairs or len(pairs) > MAX_METADATA:
        raise bad(f"metadata must have 1 to {MAX_METADATA} pairs such as name=value, with & between them")
    return {urllib.parse.unquote(name): urllib.parse.unquote(value) for name, value in pairs}


async def _find_newest(call: E2bCall, chosen: _Chosen, limit: int, after: str) -> tuple[list[Session], bool]:
    found: list[Session] = []
    size = 0
    async with aclosing(_walk(call, chosen, after)) as sessions:
        async for session in sessions:
            if len(found) == limit or size > _MAX_PAGE_BYTES:
                return found, True
            found.append(session)
            size += weight(session)
    return found, False


async def _find_oldest(call: E2bCall, chosen: _Chosen, limit: int, before: str) -> tuple[list[Session], bool]:
    """Goes through all sandboxes that are newer than those wanted, because the store lists the newest first. The one to
    begin after may have ended since."""
    last: deque[str] = deque(maxlen=limit + 1)
    begin = await call.sessions.store.get(call.tenant, before) if before else None
    if before and begin is None:
        return [], False
    async with aclosing(_walk(call, chosen, "")) as sessions:
        async for session in sessions:
            if begin is not None and (session.created_at, session.id) <= (begin.created_at, begin.id):
                break
            last.append(session.id)
    found: list[Session] = []
    size, pace = 0, Pace()
    for session_id in reversed(last):
        if len(found) == limit or size > _MAX_PAGE_BYTES:
            return found, True
        current = await call.sessions.store.get(call.tenant, session_id)
        if current is not None and current.state in chosen.states:
            found.append(current)
            size += weight(current)
        await pace.give_way()
    return found, False


async def _walk(call: E2bCall, chosen: _Chosen, after: str) -> AsyncGenerator[Session, None]:
    """Yields sandboxes, the newest first. Reads some at a time, because each may hold hundreds of KiB."""
    step, pace = _FIRST_STEP, Pace()
    while True:
        some = await call.sessions.store.list(call.tenant, chosen.page(step, after))
        for session in some:
            if chosen.ends_at(session):
                return
            if chosen.has(session):
                yield session
        if len(some) < step:
            return
        after = some[-1].id
        step = _LONG_STEP if sum(map(weight, some)) < len(some) * _VIEW_BYTES else _FIRST_STEP
        await pace.give_way()


# -- showing


def show_new(call: E2bCall, session: Session) -> dict[str, Any]:
    template = template_of(call, session)
    shown = {
        "templateID": template,
        "sandboxID": sandbox_id_of(session.id),
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "domain": domain_of(call),
        "alias": template,
    }
    if call.caller.may(Scope.EXEC):
        shown["envdAccessToken"] = call.tokens.sign(Opens.ACCESS, session.id)
        shown["trafficAccessToken"] = call.tokens.sign(Opens.TRAFFIC, session.id)
    return shown


def _show_listed(call: E2bCall, session: Session) -> dict[str, Any]:
    limits, template = session.limits or Limits(), template_of(call, session)
    return {
        "templateID": template,
        "alias": template,
        "sandboxID": sandbox_id_of(session.id),
        "clientID": CLIENT_ID,
        "startedAt": timestamp(session.created_at),
        "endAt": timestamp(call.sessions.clock.wall_at(session.expires_at)),
        "cpuCount": max(1, math.ceil(limits.cpus)),
        "memoryMB": limits.memory_mb,
        "diskSizeMB": limits.disk_mb,
        "metadata": dict(session.metadata),
        "volumeMounts": [{"name": mount.name, "path": mount.path} for mount in session.volumes],
        "state": "paused" if session.state.is_paused else "running",
        "envdVersion": ENVD_VERSION,
    }


def template_of(call: E2bCall, session: Session) -> str:
    """Returns the id of the template that the sandbox was made from: of a snapshot, if its caller has named one."""
    if session.snapshot and not session.forked_from:
        with contextlib.suppress(UnknownEnvironment):
            if not call.context.environments(session.environment).snapshot:
                return session.snapshot
    if built := template_in(session.image):
        return built
    for template, environment in call.rules.templates.items():
        if environment == session.environment:
            return template
    return session.environment


def domain_of(call: E2bCall) -> str:
    """Returns the domain below which ports of sandboxes have names, as `E2bAddresses` has found it."""
    return call.header(DOMAIN_HEADER.decode())


HANDLERS: Mapping[str, Run] = {
    "e2b_create_sandbox": create,
    "e2b_create_sandbox_v2": create,
    "e2b_list_sandboxes": list_many_sandboxes,
    "e2b_list_sandboxes_v2": list_sandboxes,
    "e2b_get_sandbox": show,
    "e2b_kill_sandbox": kill,
    "e2b_set_timeout": set_timeout,
    "e2b_refresh_sandbox": refresh,
    "e2b_change_network": change_network,
}
