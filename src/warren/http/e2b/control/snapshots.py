"""Snapshots and forks: the files of a sandbox, from which others start. Memory and processes are not in them.

To E2B's clients a snapshot is a template. Its id is the snapshot's, and creating a sandbox takes that or its name,
which may have a tag.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from starlette.responses import Response

from warren.http.context import answer_json
from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.control.bodies import bad, read_flag, read_text, read_whole, whole_in_query
from warren.http.e2b.control.sandboxes import living_session, read_timeout, renewal_of, show_new
from warren.http.e2b.control.template_lookup import is_template, plain_name, snapshots_of
from warren.http.e2b.errors import E2bError, as_e2b_error
from warren.http.e2b.template_records import DEFAULT_TAG
from warren.model.e2b import session_id_of
from warren.model.errors import SessionNotFound
from warren.model.preview import PreviewRules
from warren.model.session import LONGEST_S, Session
from warren.model.snapshot import MAX_FORKS, Snapshot, SnapshotWish, check_snapshot_name, is_snapshot_id
from warren.sessions.allowances import longest_life
from warren.sessions.request_context import note, set_longest_wait
from warren.sessions.snapshots import forks

_FORK_TIMEOUT_S: Final = 15
_MAX_ON_PAGE: Final = 100
_LONGEST_WAIT_S: Final = 50.0


async def create_snapshot(call: E2bCall) -> Response:
    values = await call.json()
    name = plain_name(read_text(values, "name") or "")
    if read_flag(values, "memory"):
        raise E2bError(501, "memory is not supported in snapshots, which have files alone: leave it out, or say false")
    if name and await is_template(call, check_snapshot_name(name).partition(":")[0]):
        raise bad(f"{name!r} is the name of a template; give the snapshot another one")
    session = await living_session(call)
    saved = await forks.save(call.sessions, snapshots_of(call), call.tenant, session.id, SnapshotWish(name))
    note(snapshot=saved.id)
    return answer_json(_view(saved), 201)


async def list_snapshots(call: E2bCall) -> Response:
    limit = whole_in_query(call.parameter("limit"), "limit", 1, 1 << 31) or _MAX_ON_PAGE
    after, of_sandbox = call.parameter("nextToken"), call.parameter("sandboxID")
    if after and not is_snapshot_id(after):
        raise bad("nextToken is not one of this server")
    try:
        session_id = session_id_of(of_sandbox) if of_sandbox else ""
    except SessionNotFound:
        return answer_json([])
    found, more = await snapshots_of(call).records.list(
        call.tenant,
        session_id=session_id,
        after=after,
        limit=min(limit, _MAX_ON_PAGE),
        name=plain_name(call.parameter("name")),
    )
    return answer_json([_view(each) for each in found], 200, {"x-next-token": more} if more else {})


def _view(snapshot: Snapshot) -> dict[str, Any]:
    """A name has its tag in it, as E2B's have."""
    name = snapshot.name if not snapshot.name or ":" in snapshot.name else f"{snapshot.name}:{DEFAULT_TAG}"
    return {"snapshotID": snapshot.id, "names": [name] if name else []}


async def fork(call: E2bCall) -> Response:
    """Each fork is one of the results, also one that could not be made."""
    values = await call.json()
    count = read_whole(values, "count", 1, MAX_FORKS) or 1
    timeout_s = read_timeout(call, values, least=1) or min(_FORK_TIMEOUT_S, longest_life(call.caller))
    source = await living_session(call)
    previews = source.previews
    changes = {
        "idle_timeout_s": LONGEST_S,
        "max_lifetime_s": timeout_s,
        "renewal_s": renewal_of(call, timeout_s),
        "previews": PreviewRules(previews.everything, by_token=previews.by_token, host_mask=previews.host_mask),
    }
    set_longest_wait(_LONGEST_WAIT_S)
    asked = forks.Fork(count, changes=changes, all_may_fail=True)
    result = await forks.fork(call.sessions, snapshots_of(call), call.tenant, source.id, asked)
    made = iter(result.sessions)
    return answer_json([_result(call, result, number, made) for number in range(count)], 201)


def _result(call: E2bCall, result: forks.ForkResult, number: int, made: Iterator[Session]) -> dict[str, Any]:
    if (failure := result.errors.get(number)) is None:
        return {"sandbox": show_new(call, next(made))}
    error = as_e2b_error(failure)
    return {"error": {"code": error.status, "message": error.message, **error.details}}


HANDLERS: Mapping[str, Run] = {
    "e2b_create_snapshot": create_snapshot,
    "e2b_list_snapshots": list_snapshots,
    "e2b_fork_sandbox": fork,
}
