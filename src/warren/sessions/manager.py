"""The use cases of sessions: create, find, use, change and end them."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from warren.interfaces.metering import Metering
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.store import Added, Key
from warren.interfaces.worker import WorkerStats
from warren.kernel.tracing import current_span
from warren.model.access import Caller
from warren.model.capability import Capability, network_needs
from warren.model.errors import (
    Conflict,
    QuotaExceeded,
    SandboxLost,
    SessionEnded,
    SessionNotFound,
    SessionPaused,
    Unavailable,
    WarrenError,
)
from warren.model.mismatch import Mismatch, describe
from warren.model.network import NetworkRules
from warren.model.preview import PreviewRules
from warren.model.secrets import authority_variables
from warren.model.session import (
    FAILED_CREATIONS,
    EndReason,
    Session,
    SessionState,
    check_key,
    check_metadata,
    check_seconds,
    check_thread_id,
)
from warren.model.spec import Layer
from warren.model.volume import VolumeWish
from warren.sessions.allowances import caps_of, check_lifetime
from warren.sessions.ending import unusable_error
from warren.sessions.lifecycle import Lifecycle
from warren.sessions.mismatches import mismatch_error
from warren.sessions.new_rows import NewRows, Offer
from warren.sessions.new_session import CreateResult, NewSession, fingerprint, previous_of
from warren.sessions.request_context import current_caller, note
from warren.sessions.uses import SandboxUse, SandboxUses


@dataclass(frozen=True, slots=True)
class SessionStats:
    """How many sessions are in which state, and the figures of each worker."""

    sessions: Mapping[str, int]
    workers: Mapping[str, WorkerStats]


@dataclass(slots=True)
class _Wanted:
    """A create. `admitted`: its image is there, and the quota of creates has counted it."""

    request: NewSession
    row: Session
    caller: Caller
    key: Key | None
    admitted: bool = False


class Sessions:
    """`keyed_commands` are the running commands that have an Idempotency-Key."""

    def __init__(self, lifecycle: Lifecycle, metering: Metering, offer: Offer) -> None:
        self.lifecycle = lifecycle
        self.metering = metering
        self.worker = lifecycle.basis.worker
        self.store = lifecycle.basis.store
        self.clock = lifecycle.basis.clock
        self.new_rows = NewRows(lifecycle, metering, offer)
        self.uses = SandboxUses(lifecycle, metering)
        self._environments = offer.environments
        self.keyed_commands: dict[Key, asyncio.Task[Any]] = {}

    def __repr__(self) -> str:
        return f"<Sessions {len(self.uses.running)} in use, {self.lifecycle!r}>"

    # -- creating

    async def create(self, tenant: str, request: NewSession, key: str = "") -> CreateResult:
        """Returns a new session, or the session that the thread or the Idempotency-Key already has."""
        self.uses.check_open()
        caller = current_caller()
        idempotency = Key(tenant, "create", check_key(key), fingerprint(request)) if key else None
        wanted = _Wanted(request, await self.new_rows.make(tenant, request, caller), caller, idempotency)
        while True:
            earlier = await self.store.of_thread(tenant, request.thread_id) if request.thread_id else None
            if (previous := previous_of(earlier)) != wanted.row.previous:
                wanted.row = replace(wanted.row, previous=previous)
            if earlier is None or not earlier.active:
                await self._admit(wanted)
            try:
                session, added = await self._add(wanted.row, idempotency, caller)
            except Unavailable:
                # A caller whose thread already has a session does not need the store to write.
                if earlier is None or idempotency is not None or not earlier.state.can_run:
                    raise
                session, added = earlier, Added.THREAD
            note(session_id=session.id)
            if (span := current_span.get()) is not None:
                span.note(session=session.id, environment=session.environment)
            if added is Added.NEW:
                has_no_name = not key and not request.thread_id
                started = await self.lifecycle.starting.start(session, end_if_abandoned=has_no_name)
                return CreateResult(started, created=True)
            result = await self._use_existing(session, added, wanted)
            if result is not None:
                return result

    async def _admit(self, wanted: _Wanted) -> None:
        """Only a request that may make a session waits for its image and counts as one, however often it is tried."""
        if wanted.admitted:
            return
        self.new_rows.check_provider(wanted.row)
        waits = wanted.key is None  # a caller with a key asks again
        wanted.row = await self.lifecycle.starting.prepare(wanted.row, wait=waits)
        wanted.row = await self.new_rows.with_volumes(wanted.row, wanted.request)
        await self.metering.count_create(wanted.caller)
        wanted.admitted = True

    async def _add(self, row: Session, key: Key | None, caller: Caller) -> tuple[Session, Added]:
        try:
            return await self.store.add(row, key, caps_of(caller))
        except QuotaExceeded:
            self.metering.report_limit(caller, "sessions")
            raise

    async def _use_existing(self, session: Session, added: Added, wanted: _Wanted) -> CreateResult | None:
        """Decides about the session that the store has found. Returns None if it is out of the way now: the caller
        tries again.

        Raises Misdirected for a session of another worker, which alone knows whether the start was a success.
        """
        lifecycle = self.lifecycle
        if session.state is SessionState.CREATING or lifecycle.activity.is_unsettled(session):
            session = await lifecycle.starting.wait_until_settled(session)
            if session.reason in FAILED_CREATIONS:
                raise Unavailable(f"the sandbox could not be made: {session.detail}", retry_after_s=1)
        mismatch: Mismatch = {}
        if session.state.lives:
            if session.state.can_be_lost:
                lifecycle.basis.worker_of(session)
            mismatch = self.new_rows.mismatch(session, wanted.request) if wanted.request.thread_id else {}
            if mismatch and wanted.request.on_mismatch != "keep":
                await self._replace(session, mismatch, wanted)
                return None
        if added is Added.KEY:
            return CreateResult(session, created=False, replayed=True, mismatch=mismatch)
        if session.state.is_paused and not session.auto_resume:
            return CreateResult(session, created=False, mismatch=mismatch)
        if session.state.lives:
            with contextlib.suppress(SessionEnded, SandboxLost, SessionPaused):  # it has just changed: try again
                session = session if session.state.can_run else await self.uses.resume(session)
                return CreateResult(await self.uses.record_of(session), created=False, mismatch=mismatch)
            return None
        if session.state is SessionState.LOST:
            if not wanted.request.replace_lost:
                raise unusable_error(session)
            await lifecycle.ending.end(session, EndReason.LOST, session.detail)
        else:
            await lifecycle.starting.wait_until_settled(session)
        return None

    async def _replace(self, session: Session, mismatch: Mismatch, wanted: _Wanted) -> None:
        """Ends the session if that is wanted and there can be another one. Raises SessionMismatch if it is not."""
        if wanted.key is not None:
            await self.store.release_key(wanted.key)  # `add` has given it to this session
        if wanted.request.on_mismatch == "error":
            raise mismatch_error(session, mismatch)
        await self._admit(wanted)
        await self.lifecycle.ending.end(session, EndReason.REPLACED, f"it had {describe(mismatch)}")

    # -- finding

    async def get(self, tenant: str, session_id: str) -> Session:
        note(session_id=session_id)
        return await self.lifecycle.basis.get(tenant, session_id)

    async def of_thread(self, tenant: str, thread_id: str) -> Session:
        session = await self.store.of_thread(tenant, check_thread_id(thread_id))
        if session is None:
            raise SessionNotFound(f"the thread {thread_id!r} has no session")
        note(session_id=session.id)
        return session

    async def find_sandbox(self, session: Session) -> Sandbox | None:
        """Returns the session's sandbox, without using it; None if it cannot be reached."""
        if not session.state.can_run:
            return None
        with contextlib.suppress(WarrenError):
            return await self.lifecycle.basis.sandbox_of(session)
        return None

    def image_of(self, session: Session) -> str:
        """The image of the session's sandbox: its own, or that of its environment as it is now."""
        if not session.image:
            with contextlib.suppress(WarrenError):
                return self._environments(session.environment).image
        return session.image

    async def stats(self) -> SessionStats:
        counts = await self.store.count()
        workers = {} if self.worker is None else {self.worker.name: self.worker.stats()}
        return SessionStats({str(state): count for state, count in counts.items()}, workers)

    # -- using and changing

    def using(
        self, tenant: str, session_id: str, *, counts: bool = True, check: Callable[[Session], object] | None = None
    ) -> SandboxUse:
        """The session and its sandbox for an `async with` block; with `counts` the block keeps the session alive. What
        `check` raises of a session is raised before that is resumed."""
        return SandboxUse(self.uses, tenant, session_id, counts, check=check)

    async def keep_alive(self, tenant: str, session_id: str) -> Session:
        return await self.uses.save(await self.uses.usable(tenant, session_id), at_once=True)

    async def pause(
        self, tenant: str, session_id: str, changes: Mapping[str, Any], *, to_disk: bool = False
    ) -> Session:
        """Stops everything in the sandbox, which keeps its memory, or with `to_disk` its files alone. `changes` are
        fields of the session to be set."""
        return await self.uses.pause(await self.uses.settled(tenant, session_id), changes, to_disk=to_disk)

    async def resume(self, tenant: str, session_id: str) -> Session:
        return await self.uses.resume(await self.uses.settled(tenant, session_id))

    async def patch(
        self,
        tenant: str,
        session_id: str,
        *,
        idle_timeout_s: float | None = None,
        max_lifetime_s: float | None = None,
        metadata: Mapping[str, str | None] | None = None,
    ) -> Session:
        """Sets time-outs, counted from the same beginnings as before, and merges metadata: None removes an entry."""
        while True:
            session = await self.uses.settled(tenant, session_id)
            merged = {**session.metadata, **(metadata or {})}
            idle = session.idle_timeout_s if idle_timeout_s is None else idle_timeout_s
            lifetime = session.max_lifetime_s if max_lifetime_s is None else max_lifetime_s
            check_lifetime(current_caller(), lifetime)
            changed = session.changed(
                idle_timeout_s=check_seconds("idle_timeout_s", idle),
                max_lifetime_s=check_seconds("max_lifetime_s", lifetime),
                metadata=check_metadata({name: value for name, value in merged.items() if value is not None}),
            )
            if await self.store.swap(changed):
                given = {"idle_timeout_s": idle_timeout_s, "max_lifetime_s": max_lifetime_s, "metadata": metadata}
                self.lifecycle.reports.changed(changed, *(name for name, value in given.items() if value is not None))
                return changed

    async def set_network(
        self, tenant: str, session_id: str, wanted: NetworkRules, *, keep_headers: bool = False
    ) -> Session:
        """Replaces what the sandbox may reach; when it returns, the new rules hold. If it fails after the rules were
        saved, the sandbox reaches nothing until they could be applied. With `keep_headers` the headers that its
        requests get stay as they are."""
        lifecycle = self.lifecycle
        async with lifecycle.networks.lock(session_id):
            while True:
                session = await self.uses.settled(tenant, session_id)
                lifecycle.basis.worker_of(session)
                rules = wanted.with_headers(session.network.headers) if keep_headers else wanted
                if rules.is_open and Layer.NO_NETWORK in session.require:
                    raise Conflict(
                        f"session {session_id} was created with the requirement no_network",
                        remedy="create a session without it",
                    )
                lifecycle.starting.check_provider(session.provider, network_needs(rules))
                # Secrets open their hosts whatever the rules say, and requests for these get other headers now.
                has_others = bool(session.secrets) and rules.headers != session.network.headers
                opens = has_others and bool(rules.headers)
                presets = await self.new_rows.check_network(rules, current_caller(), opens=opens)
                trust = authority_variables() if rules.headers_in_force() else {}
                env = {**presets.env(rules.allow), **trust, **session.env}
                changed = session.changed(network=rules, env=env, used=max(session.used, self.clock.now()))
                if await self.store.swap(changed):
                    break
            if rules.is_open or session.network.is_open or has_others:
                await lifecycle.networks.apply_changed(changed)
            lifecycle.reports.changed(changed, "network")
            return changed

    async def attach_volume(self, tenant: str, session_id: str, wish: VolumeWish) -> Session:
        session = await self.uses.usable(tenant, session_id)
        self.lifecycle.starting.check_provider(session.provider, {Capability.VOLUMES})
        return await self.lifecycle.volumes.attach(tenant, session_id, wish, self.uses.usable)

    async def detach_volume(self, tenant: str, session_id: str, path: str) -> Session:
        return await self.lifecycle.volumes.detach(tenant, session_id, path, self.uses.usable)

    async def change_previews(
        self, tenant: str, session_id: str, change: Callable[[PreviewRules], PreviewRules]
    ) -> Session:
        while True:
            session = await self.uses.settled(tenant, session_id)
            changed = session.changed(previews=change(session.previews))
            if await self.store.swap(changed):
                return changed

    # -- ending

    async def delete(self, tenant: str, session_id: str) -> Session:
        """Ends a session and waits until its sandbox is destroyed. Ending it again changes nothing."""
        session = await self.get(tenant, session_id)
        while session.active:
            if session.state is SessionState.STOPPING:
                return await self.lifecycle.starting.wait_until_settled(session)
            ended = await self.lifecycle.ending.end(session, EndReason.DELETED)
            session = ended or await self.get(tenant, session_id)
        return session

    async def stop(self, grace_s: float, *, destroy: bool) -> None:
        """Drains the sessions; with `destroy` it then ends them, otherwise the next server takes them over."""
        await self.drain(grace_s)
        if destroy:
            for session in await self.store.active():
                if not session.state.is_in_transition:
                    stopping = session.moved_to(SessionState.STOPPING, reason=EndReason.SHUTDOWN)
                    if await self.store.swap(stopping):
                        self.lifecycle.ending.begin_end(stopping)
        await self.lifecycle.wait_for_tasks()

    async def drain(self, grace_s: float) -> None:
        """Accepts no more work, and waits up to `grace_s` until no operation runs."""
        self.uses.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.uses.idle.wait()
                await self.lifecycle.activity.wait_until_started()

    @property
    def stopping(self) -> bool:
        return self.uses.stopping
