"""Pauses sandboxes and resumes them.

A paused sandbox keeps its memory, or with `memory: false` its files alone: then its session is hibernated. Its time-out
begins anew when it is resumed: with what `connect` says, or, if its use resumes it, with what it was made with
(renewal_of).
"""

from collections.abc import Mapping

from starlette.responses import Response

from warren.http.context import answer_json
from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.control.bodies import read_flag
from warren.http.e2b.control.sandboxes import (
    DEFAULT_TIMEOUT_S,
    living_session,
    prolong,
    read_timeout,
    sandbox_in,
    show_new,
)
from warren.http.e2b.errors import E2bError
from warren.http.e2b.sandbox_url import check_address
from warren.model.session import Session


async def pause(call: E2bCall) -> Response:
    values = await call.json()
    read_flag(values, "requireHealthyGuest")  # a pause needs no agent inside
    to_disk = read_flag(values, "memory") is False
    session = await living_session(call)
    if session.state.is_paused:
        raise E2bError(409, f"the sandbox {call.params['sandbox_id']} is paused already")
    await call.sessions.pause(call.tenant, session.id, {}, to_disk=to_disk)
    return Response(status_code=204)


async def connect(call: E2bCall) -> Response:
    session = await living_session(call)
    connected = await _connect(call, session)
    return answer_json(show_new(call, connected), 201 if session.state.is_paused else 200)


async def resume(call: E2bCall) -> Response:
    """For clients before 2.5, which connect in this way."""
    session = await living_session(call)
    if not session.state.is_paused:
        raise E2bError(409, f"the sandbox {call.params['sandbox_id']} runs already")
    return answer_json(show_new(call, await _connect(call, session)), 201)


async def _connect(call: E2bCall, session: Session) -> Session:
    check_address(call, sandbox_in(call))
    values = await call.json()
    is_paused = session.state.is_paused
    drops_memory = read_flag(values, "memory") is False
    given = read_timeout(call, values, least=0)
    session = await prolong(call, session, DEFAULT_TIMEOUT_S if given is None else given, only_longer=not is_paused)
    if is_paused and drops_memory:
        await call.sessions.pause(call.tenant, session.id, {}, to_disk=True)
    return await call.sessions.resume(call.tenant, session.id) if session.state.is_paused else session


HANDLERS: Mapping[str, Run] = {
    "e2b_pause_sandbox": pause,
    "e2b_connect_sandbox": connect,
    "e2b_connect_sandbox_v2": connect,
    "e2b_resume_sandbox": resume,
}
