"""Saves files of sandboxes as artifacts, and finds, reads and deletes artifacts.

Handlers call `save_artifacts` after a command and `store_bytes` for what the server itself has; Lifecycle calls
`save_at_end` before it destroys a sandbox. `run` removes what has expired, and contents that a crash left without a
record.

The sum of a tenant's bytes is charged before a content is written, and given back if nothing comes of it. Everything in
a sandbox may be hostile: what is read of it is bounded by number, size and time.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from warren.clock import Clock
from warren.interfaces.artifacts import ArtifactStore
from warren.interfaces.records import Record, RecordStore
from warren.interfaces.sandbox import Sandbox
from warren.logs import get_log
from warren.model.artifact import (
    ARTIFACTS_DIR,
    MOST_TOLD,
    Artifact,
    ArtifactRules,
    Filter,
    LeftOut,
    Saved,
    SavedAtEnd,
    check_mime,
    check_name,
    check_patterns,
    is_artifact_id,
    mime_of,
    name_of,
    new_artifact_id,
    short_path,
)
from warren.model.errors import (
    FileNotFound,
    InvalidPath,
    InvalidRequest,
    LimitReached,
    NotFound,
    QuotaExceeded,
    SandboxLost,
    Unavailable,
    WarrenError,
)
from warren.model.events import ArtifactCreatedData, ArtifactsLeftOutData, Event, EventKind
from warren.model.operations import FileInfo, FileKind, Search, SearchMatch, check_path
from warren.model.session import EndReason, Session
from warren.model.spec import MIB, WORKSPACE
from warren.pacing import Pace
from warren.sessions.event_hub import EventHub
from warren.sessions.output_events import close_source
from warren.shielding import run_shielded

if TYPE_CHECKING:
    from warren.sessions.operations.call import Call

KIND: Final = "artifact"
_USE: Final = "artifact_use"
_MAGIC: Final = frozenset("*?[{\\")
_DEPTH: Final = 64
_MOST_LOOKED_AT: Final = 20_000
_FIND_S: Final = 5.0  # in which a sandbox must say at its end whether there is something to save
_SAVE_S: Final = 60.0
_SEARCH_S: Final = 30.0
_PAGE: Final = 200
_MOST_SCANNED: Final = 5000
_EXPIRE_EVERY_S: Final = 60.0
_SWEEP_EVERY_S: Final = 3600.0
_LEFT_AFTER_S: Final = 3600.0  # content without a record in a store of several processes is no work of theirs any more
_TRIES: Final = 50
_AT_ONCE: Final = 6
_NOT_SAVED: Final = {FileKind.SYMLINK: "it is a link", FileKind.OTHER: "it is no regular file"}

_log = get_log(__name__)

BoundOf = Callable[[Session], Awaitable[int | None]]
LimitReport = Callable[[Session], Awaitable[None]]


async def save_artifacts(call: "Call", paths: Sequence[str]) -> Saved:
    """Saves the files of the call's session that these paths and globs name; nothing if there are none."""
    if not paths:
        return Saved()
    check_patterns(paths)
    async with call.sessions.using(call.tenant, call.session_id) as (session, sandbox):
        return await call.artifacts.save(session, sandbox, paths)


async def save_after(call: "Call", paths: Sequence[str]) -> Saved:
    """The same after a command whose result must not get lost: what is wrong is told as left out."""
    try:
        return await save_artifacts(call, paths)
    except WarrenError as exc:
        return Saved(left_out=(LeftOut("", str(exc)),), left_out_count=1)


async def store_bytes(call: "Call", name: str, mime: str, data: bytes) -> Artifact:
    """Saves bytes that the server has as an artifact of the call's session, such as a picture that code has drawn."""
    session = await call.sessions.get(call.tenant, call.session_id)
    return await call.artifacts.save_bytes(session, name, mime, data)


def check_paths(paths: Sequence[str]) -> None:
    """Raises what is wrong with paths and globs, before anything is done."""
    for path in check_patterns(paths):
        check_path(path)
        if _MAGIC.intersection(path):
            _search_for(path)


def _search_for(glob: str) -> Search:
    if glob.startswith("/"):
        if not glob.startswith(f"{WORKSPACE}/"):
            raise InvalidRequest(f"the glob {glob[:80]!r} leads out of {WORKSPACE}", remedy="name the file itself")
        glob = glob[len(WORKSPACE) :]
    return Search(WORKSPACE, glob, max_matches=_MOST_LOOKED_AT, timeout_s=_SEARCH_S)


async def _no_bound(session: Session) -> int | None:
    return None


async def _no_report(session: Session) -> None:
    return None


@dataclass(slots=True)
class _Standing:
    """What a session has saved so far, and what is on its way."""

    count: int = 0
    size: int = 0
    known: dict[tuple[str, str], Artifact] = field(default_factory=dict)  # by name and hash

    def take_back(self, size: int) -> None:
        self.count -= 1
        self.size -= size


class _Tally:
    """What came of one call: bounded, however many files there are."""

    def __init__(self) -> None:
        self.artifacts: list[Artifact] = []
        self.left_out: list[LeftOut] = []
        self.left_out_count = 0

    def leave_out(self, path: str, why: str) -> None:
        self.left_out_count += 1
        if len(self.left_out) < MOST_TOLD:
            self.left_out.append(LeftOut(short_path(path), why))

    def result(self) -> Saved:
        return Saved(tuple(self.artifacts), tuple(self.left_out), self.left_out_count)


class Artifacts:
    """Without a `store` this process only knows of artifacts that others keep. `place` is the name by which others
    reach the contents that are kept here; empty: they reach the same store. `bound_of` gives the most bytes that the
    tenant of a session may have in all; `report_limit` is called when it has them.
    """

    def __init__(
        self,
        records: RecordStore,
        store: ArtifactStore | None,
        clock: Clock,
        *,
        rules: ArtifactRules | None = None,
        place: str = "",
        events: EventHub | None = None,
        bound_of: BoundOf = _no_bound,
        report_limit: LimitReport = _no_report,
        fault: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._records, self._store, self._clock = records, store, clock
        self._rules = rules or ArtifactRules()
        self._place = place
        self._events = events or EventHub()
        self._bound_of, self._report_limit = bound_of, report_limit
        self._fault = fault
        self._saving: set[str] = set()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<Artifacts in {self._store!r}, {len(self._saving)} being saved>"

    # -- saving

    async def save(self, session: Session, sandbox: Sandbox, paths: Sequence[str]) -> Saved:
        """Saves what the paths and globs name. A path that does not exist, and a file that cannot be saved, are left
        out; what is wrong with a glob raises InvalidRequest."""
        tally = _Tally()
        with _at_most(_SAVE_S, tally):
            async with asyncio.timeout(_SAVE_S), self._lock(session):
                files = self._named_files(sandbox, check_patterns(paths), tally)
                await self._save_files(session, sandbox, files, tally)
        self._report_left_out(session, tally)
        return tally.result()

    async def save_at_end(self, session: Session, find: Callable[[], Awaitable[Sandbox]]) -> SavedAtEnd | None:
        """Saves what is below /workspace/artifacts, before the sandbox is destroyed; None if there is nothing. Raises
        nothing: whatever is wrong, the session must end."""
        if self._store is None or session.reason in (EndReason.LOST, EndReason.FAILED):
            return None
        tally = _Tally()
        try:
            with _at_most(_SAVE_S, tally):
                async with asyncio.timeout(_SAVE_S), self._lock(session):
                    if (sandbox := await self._find_filled(find)) is not None:
                        await self._save_files(session, sandbox, _below(sandbox, ARTIFACTS_DIR, tally), tally)
        except Exception as exc:
            unknown = not isinstance(exc, WarrenError)
            _log.warning("artifacts_not_saved", session=session.id, error=exc, exc=exc if unknown else None)
            tally.leave_out(ARTIFACTS_DIR, "it could not be read" if unknown else str(exc))
        self._report_left_out(session, tally)
        if not tally.artifacts and not tally.left_out_count:
            return None
        size = sum(artifact.size for artifact in tally.artifacts)
        return SavedAtEnd(len(tally.artifacts), size, tally.left_out_count, tuple(tally.left_out))

    async def _find_filled(self, find: Callable[[], Awaitable[Sandbox]]) -> Sandbox | None:
        """The sandbox, if it has something to save; what ran in it has then ended, so that its files stay as they
        are."""
        try:
            async with asyncio.timeout(_FIND_S):
                sandbox = await find()
                info = await sandbox.stat(ARTIFACTS_DIR)
        except FileNotFound:
            return None
        except TimeoutError:
            raise Unavailable("the sandbox did not answer") from None
        if info.kind is not FileKind.DIRECTORY:
            return None
        with contextlib.suppress(WarrenError):
            await sandbox.kill_all()
        return sandbox

    async def save_bytes(self, session: Session, name: str, mime: str, data: bytes) -> Artifact:
        check_name(name)
        async with self._lock(session):
            standing = await self._standing(session)
            self._check_room(standing, len(data))
            return await self._save(session, standing, name, "", check_mime(mime), len(data), _one(data))

    async def _save_files(
        self, session: Session, sandbox: Sandbox, files: AsyncGenerator[FileInfo, None], tally: _Tally
    ) -> None:
        """Some at the same time: each waits for the disk."""
        standing, slots = await self._standing(session), asyncio.Semaphore(_AT_ONCE)
        done, failures = set[int](), list[WarrenError]()  # done: hashes, as names could be too much to keep

        async def save(info: FileInfo) -> None:
            try:
                tally.artifacts.append(await self._save_file(session, sandbox, standing, info))
            except (Unavailable, SandboxLost) as exc:
                failures.append(exc)  # it would be the same with all others
            except (WarrenError, _NotSaved) as exc:
                tally.leave_out(info.path, str(exc))
            finally:
                slots.release()

        try:
            async with asyncio.TaskGroup() as group:
                async for info in files:
                    if (known := hash(info.path)) not in done:
                        done.add(known)
                        await slots.acquire()
                        group.create_task(save(info))
                    if failures:
                        break
        finally:
            await close_source(files)
        if failures:
            raise failures[0]

    async def _save_file(self, session: Session, sandbox: Sandbox, standing: _Standing, info: FileInfo) -> Artifact:
        """As many bytes as it has now: it may grow while it is read."""
        if info.kind in _NOT_SAVED:
            raise _NotSaved(_NOT_SAVED[info.kind])
        self._check_room(standing, info.size)
        name = check_name(name_of(info.path))
        data = sandbox.read(info.path, length=info.size)
        try:
            return await self._save(session, standing, name, info.path, mime_of(name), info.size, data)
        finally:
            await close_source(data)

    def _check_room(self, standing: _Standing, size: int) -> None:
        rules = self._rules
        if standing.count >= rules.max_count:
            raise LimitReached(f"the session has {rules.max_count} artifacts", remedy="delete some, or pack the files")
        if standing.size + size > rules.max_bytes:
            raise LimitReached(
                f"it has {size} bytes, and a session may save {rules.max_bytes} in all", remedy="save less"
            )

    async def _standing(self, session: Session) -> _Standing:
        standing = _Standing()
        async for artifact in self._of_session(session.tenant, session.id):
            standing.count += 1
            standing.size += artifact.size
            standing.known[artifact.name, artifact.sha256] = artifact
        return standing

    async def _save(
        self,
        session: Session,
        standing: _Standing,
        name: str,
        path: str,
        mime: str,
        size: int,
        data: AsyncIterable[bytes],
    ) -> Artifact:
        store = self._here()
        now = self._clock.wall()
        artifact_id = new_artifact_id(now)
        standing.count += 1
        standing.size += size
        try:
            await self._charge(session, size)
        except BaseException:
            standing.take_back(size)
            raise
        unused, is_saved = size, False
        self._saving.add(artifact_id)
        try:
            content = await store.put(session.tenant, artifact_id, data)
            self._fault("content stored")
            known = standing.known.get((name, content.sha256))
            if known is not None and await self._records.get(KIND, _id(known.tenant, known.id)) is not None:
                await run_shielded(store.delete(session.tenant, artifact_id))
                return known
            artifact = Artifact(
                artifact_id,
                session.tenant,
                session.id,
                session.thread_id,
                name,
                path,
                content.size,
                content.sha256,
                mime,
                now,
                now + self._rules.ttl_s,
                self._place,
            )
            unused, is_saved = size - content.size, True  # perhaps: if the store's answer gets lost
            await self._records.put(_record(artifact))
            self._fault("record stored")
        finally:
            self._saving.discard(artifact_id)
            if not is_saved:
                standing.take_back(size)
            await run_shielded(self._give_back(session.tenant, unused))
        standing.known[name, artifact.sha256] = artifact
        self._report_created(artifact)
        return artifact

    async def _named_files(
        self, sandbox: Sandbox, paths: Sequence[str], tally: _Tally
    ) -> AsyncGenerator[FileInfo, None]:
        for path in paths:
            try:
                info = await sandbox.stat(check_path(path))
            except (FileNotFound, InvalidPath) as exc:
                if not _MAGIC.intersection(path):
                    tally.leave_out(path, exc.message)
                    continue
                found = _matches(sandbox, path, tally)
            else:
                found = _below(sandbox, info.path, tally) if info.kind is FileKind.DIRECTORY else _only(info)
            try:
                async for one in found:
                    yield one
            finally:
                await close_source(found)

    # -- what a tenant has in all

    async def _charge(self, session: Session, size: int) -> None:
        """Raises QuotaExceeded if the tenant would have more than it may."""
        bound = await self._bound_of(session)
        if not await self._change_use(session.tenant, size, bound):
            await self._report_limit(session)
            raise QuotaExceeded(
                f"the tenant's artifacts may have {bound} bytes in all",
                remedy="delete artifacts, or ask the operator for more",
            )

    async def _give_back(self, tenant: str, size: int) -> None:
        try:
            await self._change_use(tenant, -size, None)
        except WarrenError as exc:
            _log.warning("artifact_use_not_saved", tenant=tenant, action="count_later", error=exc)

    async def _change_use(self, tenant: str, size: int, bound: int | None) -> bool:
        if not size:
            return True
        for attempt in range(_TRIES):
            current = await self._records.get(_USE, tenant)
            total = max(0, (int(current.value) if current else 0) + size)
            if bound is not None and size > 0 and total > bound:
                return False
            changed = current.changed(str(total)) if current else Record(_USE, tenant, str(total))
            if await self._records.put(changed):
                return True
            await asyncio.sleep(0.001 * attempt)
        raise Unavailable("the sum of the tenant's artifacts changes all the time", retry_after_s=1)

    async def used_bytes(self, tenant: str) -> int:
        current = await self._records.get(_USE, tenant)
        return int(current.value) if current else 0

    # -- finding

    async def list(
        self,
        tenant: str,
        *,
        session_id: str = "",
        thread_id: str = "",
        name: str = "",
        after: str = "",
        limit: int = 100,
    ) -> tuple[list[Artifact], str | None]:
        """The newest first, and the id after which the next page begins; a page may have fewer than `limit`."""
        found: list[Artifact] = []
        wanted = Filter.of(session_id=session_id, thread_id=thread_id, name=name)
        scanned, last = 0, ""
        source = self._of_session(tenant, session_id, after) if session_id else self._of_tenant(tenant, after)
        async with contextlib.aclosing(source):
            async for artifact in source:
                if len(found) == limit or scanned == _MOST_SCANNED:
                    return found, last
                scanned, last = scanned + 1, artifact.id
                if wanted.fits(artifact):
                    found.append(artifact)
        return found, None

    async def _of_tenant(self, tenant: str, after: str = "") -> AsyncGenerator[Artifact, None]:
        at, pace = _id(tenant, after), Pace()
        while page := await self._records.list(KIND, after=at, limit=_PAGE):
            for record in page:
                if not record.id.startswith(f"{tenant}/"):
                    return
                if (artifact := self._read_record(record)) is not None:
                    yield artifact
                await pace.give_way()
            at = page[-1].id

    async def _of_session(self, tenant: str, session_id: str, after: str = "") -> AsyncGenerator[Artifact, None]:
        at, pace = _id(tenant, after) if after else "", Pace()
        while page := await self._records.list(KIND, group=session_id, after=at, limit=_PAGE):
            for record in page:
                artifact = self._read_record(record)
                if artifact is not None and artifact.tenant == tenant:
                    yield artifact
                await pace.give_way()
            at = page[-1].id

    def _read_record(self, record: Record) -> Artifact | None:
        """None for one that has expired, or is damaged."""
        try:
            artifact = Artifact.from_mapping(json.loads(record.value))
        except (ValueError, TypeError) as exc:
            _log.warning("artifact_record_damaged", artifact=record.id, error=exc)
            return None
        return artifact if artifact.expires_at > self._clock.wall() else None

    async def get(self, tenant: str, artifact_id: str) -> Artifact:
        """Raises NotFound, also for those of other tenants."""
        record = await self._records.get(KIND, _id(tenant, artifact_id)) if is_artifact_id(artifact_id) else None
        artifact = self._read_record(record) if record else None
        if artifact is None:
            raise NotFound(
                f"there is no artifact {artifact_id[:80]!r}", remedy="GET /api/artifacts lists those there are"
            )
        return artifact

    async def read(self, artifact: Artifact, start: int, end: int) -> AsyncGenerator[bytes, None]:
        if artifact.place != self._place:
            raise Unavailable(
                f"the worker {artifact.place!r}, which keeps the artifact, is not here",
                remedy="try again when it is back",
                retry_after_s=5,
            )
        source = self._here().read(artifact.tenant, artifact.id, start, end)
        async with contextlib.aclosing(source):
            async for part in source:
                yield part

    async def delete(self, tenant: str, artifact_id: str) -> None:
        """The content goes after the record; if it is kept elsewhere, whoever keeps it removes it within the hour."""
        await self._remove(await self.get(tenant, artifact_id))

    async def _remove(self, artifact: Artifact) -> None:
        if not await self._records.delete(KIND, _id(artifact.tenant, artifact.id)):
            return
        await run_shielded(self._give_back(artifact.tenant, artifact.size))
        if self._store is not None and artifact.place == self._place:
            try:
                await self._store.delete(artifact.tenant, artifact.id)
            except WarrenError as exc:
                _log.warning("artifact_content_not_deleted", artifact=artifact.id, action="delete_later", error=exc)

    def _here(self) -> ArtifactStore:
        if self._store is None:
            raise Unavailable("this process keeps no artifacts", remedy="set artifact_store")
        return self._store

    # -- expiry, and what crashes leave

    async def run(self) -> None:
        """Removes what has expired each minute; at first and each hour contents without records."""
        swept = -_SWEEP_EVERY_S
        while True:
            try:
                await self.expire()
                if self._clock.now() - swept >= _SWEEP_EVERY_S:
                    await self.sweep()
                    swept = self._clock.now()
            except Exception as exc:
                # Nothing would ever expire without this loop, so it goes on whatever a part of it raises.
                _log.error("artifact_expiry_failed", error=exc, exc=None if isinstance(exc, WarrenError) else exc)
            await self._clock.sleep(_EXPIRE_EVERY_S)

    async def expire(self) -> None:
        while due := await self._records.due(KIND, self._clock.wall(), _PAGE):
            for record in due:
                try:
                    artifact = Artifact.from_mapping(json.loads(record.value))
                except (ValueError, TypeError):
                    await self._records.delete(KIND, record.id)
                else:
                    await self._remove(artifact)

    async def sweep(self) -> None:
        """Removes contents without a record, and counts anew what tenants have."""
        if self._store is None:
            return
        latest = self._clock.wall() - _LEFT_AFTER_S if self._store.shared else None
        async with contextlib.aclosing(self._store.list()) as kept:
            async for one in kept:
                # Whoever saves has its id in `_saving` before the content is there, and until the record is.
                if one.artifact_id in self._saving or (latest is not None and one.modified > latest):
                    continue
                if await self._records.get(KIND, _id(one.tenant, one.artifact_id)) is None:
                    _log.info("artifact_left_over", tenant=one.tenant, artifact=one.artifact_id, action="deleted")
                    await self._store.delete(one.tenant, one.artifact_id)
        after = ""
        while page := await self._records.list(_USE, after=after, limit=_PAGE):
            for record in page:
                await self._count_anew(record)
            after = page[-1].id

    async def _count_anew(self, use: Record) -> None:
        """Gives way to whoever changes the sum meanwhile; the next time it is counted again."""
        if self._saving:
            return
        total = 0
        async for artifact in self._of_tenant(use.id):
            total += artifact.size
        if total != int(use.value) and not self._saving:
            await self._records.put(use.changed(str(total)))

    # -- reporting

    def _report_created(self, artifact: Artifact) -> None:
        _log.info("artifact_created", artifact=artifact.id, session=artifact.session_id, size=artifact.size)
        data = ArtifactCreatedData(
            artifact.id, artifact.name, artifact.size, artifact.sha256, artifact.mime, artifact.thread_id or None
        )
        kind = EventKind.ARTIFACT_CREATED
        self._events.publish(Event(kind, artifact.tenant, self._clock.wall(), data, artifact.session_id))

    def _report_left_out(self, session: Session, tally: _Tally) -> None:
        if tally.left_out_count:
            first = tally.left_out[0]
            data = ArtifactsLeftOutData(tally.left_out_count, first.path, first.why, session.thread_id or None)
            kind = EventKind.ARTIFACT_LEFT_OUT
            self._events.publish(Event(kind, session.tenant, self._clock.wall(), data, session.id))

    def _lock(self, session: Session) -> asyncio.Lock:
        """Held while a session saves, so that what it may save in all is counted right."""
        return self._locks.setdefault(session.id, asyncio.Lock())


class _NotSaved(Exception):
    """Why a file is not saved."""


@contextlib.contextmanager
def _at_most(seconds: float, tally: _Tally) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        tally.leave_out("", f"there was more than could be saved in {seconds:g} s")


async def _one(data: bytes) -> AsyncGenerator[bytes, None]:
    for at in range(0, len(data), MIB):
        yield data[at : at + MIB]


async def _only(info: FileInfo) -> AsyncGenerator[FileInfo, None]:
    yield info


async def _below(sandbox: Sandbox, directory: str, tally: _Tally) -> AsyncGenerator[FileInfo, None]:
    """Everything in a directory but directories. Links are not followed."""
    looked_at = 0
    entries = sandbox.entries(directory, depth=_DEPTH)
    try:
        async for info in entries:
            looked_at += 1
            if looked_at > _MOST_LOOKED_AT:
                tally.leave_out(directory, f"it has more than {_MOST_LOOKED_AT} entries: the others were not looked at")
                return
            if info.kind is not FileKind.DIRECTORY:
                yield info
    finally:
        await close_source(entries)


async def _matches(sandbox: Sandbox, glob: str, tally: _Tally) -> AsyncGenerator[FileInfo, None]:
    found = sandbox.search(_search_for(glob))
    seen = 0
    try:
        async for match in found:
            if not isinstance(match, SearchMatch):
                if match.truncated:
                    tally.leave_out(glob, "the search was ended: it found or took too much")
            elif match.kind is not FileKind.DIRECTORY:
                seen += 1
                with contextlib.suppress(FileNotFound):
                    yield await sandbox.stat(match.path)
    finally:
        await close_source(found)
    if not seen:
        tally.leave_out(glob, "no file fits it")


async def place_of(records: RecordStore, tenant: str, artifact_id: str) -> str:
    """The worker that keeps the content of an artifact; "" if every process reaches it, or there is no such one."""
    record = await records.get(KIND, _id(tenant, artifact_id)) if is_artifact_id(artifact_id) else None
    if record is None:
        return ""
    try:
        return str(json.loads(record.value)["place"])
    except (ValueError, TypeError, KeyError):
        return ""


def _id(tenant: str, artifact_id: str) -> str:
    """No tenant's name has a slash in it, so all of a tenant's are one range of ids."""
    return f"{tenant}/{artifact_id}"


def _record(artifact: Artifact) -> Record:
    value = json.dumps(artifact.as_mapping())
    return Record(KIND, _id(artifact.tenant, artifact.id), value, group=artifact.session_id, due=artifact.expires_at)
