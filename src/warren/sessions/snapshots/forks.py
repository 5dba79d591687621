"""Forks sessions: saves the disk of one once, and starts several others from it.

Files are carried, and nothing else: no processes and no memory, no thread, no links to previews, and of secrets only
their names.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from warren.interfaces.store import ANSWER_GONE, Key
from warren.kernel.shielding import run_shielded
from warren.model.errors import Conflict, InvalidRequest, SessionNotFound, WarrenError
from warren.model.gpus import ANY
from warren.model.session import Session, SessionState, check_key
from warren.model.session_log import LogLevel
from warren.model.snapshot import Snapshot, SnapshotOwner, SnapshotWish
from warren.model.tenant_images import reference_in
from warren.sessions.ending import unusable_error
from warren.sessions.manager import Sessions
from warren.sessions.new_session import NewSession, fingerprint
from warren.sessions.request_context import note, set_if_undelivered
from warren.sessions.snapshots.service import Snapshots


@dataclass(frozen=True, slots=True)
class Fork:
    """`threads` of the new sessions, or none for any of them. `metadata` is added to the source's. `changes` are those
    of the requests for the new sessions. With `all_may_fail` there is a result, too, if none could be made."""

    count: int = 1
    threads: Sequence[str] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    all_may_fail: bool = False


@dataclass(frozen=True, slots=True)
class ForkResult:
    """`errors` has those of the sessions that could not be made, by their number."""

    sessions: Sequence[Session]
    errors: Mapping[int, WarrenError] = field(default_factory=dict)
    replayed: bool = False


@contextlib.asynccontextmanager
async def saveable(sessions: Sessions, tenant: str, session_id: str) -> AsyncIterator[Session]:
    """Yields a session that has a sandbox, and keeps it alive meanwhile. One that stands still goes on doing so."""
    session = await sessions.get(tenant, session_id)
    if session.state is SessionState.CREATING:
        session = await sessions.lifecycle.starting.wait_until_settled(session)
    if session.state is SessionState.HIBERNATED:
        session = await sessions.uses.usable(tenant, session_id)
    if not session.state.can_be_lost:
        raise unusable_error(session)
    sessions.uses.check_open()
    sessions.lifecycle.basis.worker_of(session)
    async with sessions.using(tenant, session_id) if session.state.can_run else contextlib.nullcontext():
        yield session


async def save(sessions: Sessions, snapshots: Snapshots, tenant: str, session_id: str, wish: SnapshotWish) -> Snapshot:
    async with saveable(sessions, tenant, session_id) as session:
        return await snapshots.save(session, wish)


async def fork(
    sessions: Sessions, snapshots: Snapshots, tenant: str, session_id: str, asked: Fork, key: str = ""
) -> ForkResult:
    """Makes the sessions; with a key once, however often it is asked for."""
    if asked.threads and len(asked.threads) != asked.count:
        raise InvalidRequest(f"{len(asked.threads)} thread_ids for {asked.count} sessions", remedy="give one for each")
    if len(set(asked.threads)) < len(asked.threads):
        raise InvalidRequest("a thread has one session at a time, and thread_ids names one twice")
    if not key:
        return await _fork(sessions, snapshots, tenant, session_id, asked)
    name = Key(tenant, f"fork {session_id}", check_key(key), fingerprint(asked))
    # Nothing is awaited between the look and the entry: those who ask at the same time wait for one task.
    running: asyncio.Task[ForkResult] | None = snapshots.forking.get(name)
    if running is not None:
        return replace(await asyncio.shield(running), replayed=True)
    work = _fork_once(sessions, snapshots, name, session_id, asked)
    task: asyncio.Task[ForkResult] = sessions.lifecycle.activity.tasks.run(work, f"forking {session_id}")
    snapshots.forking[name] = task
    task.add_done_callback(lambda _: snapshots.forking.pop(name, None))
    return await asyncio.shield(task)


async def _fork_once(sessions: Sessions, snapshots: Snapshots, name: Key, session_id: str, asked: Fork) -> ForkResult:
    """Makes the sessions although the caller may leave: one that asks again gets the same."""
    known = await sessions.store.claim_key(name, sessions.clock.epoch, sessions.clock.now())
    if known is not None:
        return await _replay(sessions, name.tenant, known.answer)
    try:
        result = await _fork(sessions, snapshots, name.tenant, session_id, asked, has_key=True)
    except BaseException:
        await run_shielded(sessions.store.release_key(name))
        raise
    errors = {number: [exc.code, exc.message, exc.remedy] for number, exc in result.errors.items()}
    answer = json.dumps({"sessions": [one.id for one in result.sessions], "errors": errors})
    await run_shielded(sessions.store.answer_key(name, answer))
    return result


async def _replay(sessions: Sessions, tenant: str, answer: str) -> ForkResult:
    if not answer:
        raise Conflict(
            "the fork of this Idempotency-Key was interrupted",
            remedy="sessions that it made have `forked_from`: GET /api/sessions lists them",
        )
    if answer == ANSWER_GONE:
        raise Conflict("the sessions of this Idempotency-Key were made, and its answer is no longer kept")
    values = json.loads(answer)
    rows = [await sessions.store.get(tenant, each) for each in values["sessions"]]
    errors = {
        int(number): WarrenError.by_code.get(code, WarrenError)(message, remedy=remedy)
        for number, (code, message, remedy) in values["errors"].items()
    }
    return ForkResult([row for row in rows if row is not None], errors, replayed=True)


async def _fork(
    sessions: Sessions, snapshots: Snapshots, tenant: str, session_id: str, asked: Fork, *, has_key: bool = False
) -> ForkResult:
    async with saveable(sessions, tenant, session_id) as source:
        snapshot = await snapshots.save(source, SnapshotWish(owner=SnapshotOwner.FORK))
    async with snapshots.present(snapshot):
        return await _fork_from(sessions, snapshots, source, snapshot, asked, has_key=has_key)


async def _fork_from(
    sessions: Sessions, snapshots: Snapshots, source: Session, snapshot: Snapshot, asked: Fork, *, has_key: bool
) -> ForkResult:
    made, errors = list[Session](), dict[int, WarrenError]()

    async def make(number: int) -> None:
        thread_id = asked.threads[number] if asked.threads else ""
        try:
            made.append(await _create(sessions, source, snapshot, asked, thread_id))
        except WarrenError as exc:
            errors[number] = exc

    def abandon() -> None:
        for session in made:
            if not session.thread_id:
                sessions.lifecycle.activity.tasks.run(_end(sessions, session), f"abandoning {session.id}")

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(asked.count):
                group.create_task(make(number))
    except BaseException:
        abandon()
        raise
    finally:
        await run_shielded(snapshots.remove(snapshot, "used"))
    note(session_id=source.id, forks=[session.id for session in made])
    set_if_undelivered(None if has_key else abandon)
    if errors and not made and not asked.all_may_fail:
        raise errors[min(errors)]
    return ForkResult(made, errors)


async def _create(sessions: Sessions, source: Session, snapshot: Snapshot, asked: Fork, thread_id: str) -> Session:
    request = NewSession(
        environment=source.environment,
        thread_id=thread_id,
        image=reference_in(source.image) or source.image,
        limits=asdict(source.limits) if source.limits else {},
        require=source.require,
        env=source.env,
        metadata={**source.metadata, **asked.metadata},
        idle_timeout_s=source.idle_timeout_s,
        max_lifetime_s=source.max_lifetime_s,
        on_idle=source.on_idle,
        on_timeout=source.on_timeout,
        renewal_s=source.renewal_s,
        max_paused_s=source.max_paused_s,
        auto_resume=source.auto_resume,
        logs=source.logs or LogLevel.OFF,
        provider=source.provider,
        network=source.network,
        secrets=source.secrets,
        agent_config=source.agent or source.agent_config,
        gpus=(ANY,) * len(source.gpus),
        snapshot=snapshot.id,
        forked_from=source.id,
    )
    if thread_id:
        earlier = await sessions.store.of_thread(source.tenant, thread_id)
        if earlier is not None and earlier.active:
            raise Conflict(f"the thread {thread_id!r} has a session", remedy="name a thread that has none")
    result = await sessions.create(source.tenant, replace(request, **asked.changes))
    if not result.created:
        raise Conflict(f"the thread {thread_id!r} has a session", remedy="name a thread that has none")
    return result.session


async def _end(sessions: Sessions, session: Session) -> None:
    with contextlib.suppress(SessionNotFound):
        await sessions.delete(session.tenant, session.id)
