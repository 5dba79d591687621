"""Saves files of sandboxes as artifacts, and reads and deletes artifacts.

Handlers save files after a command, and bytes that the server itself has (operations/artifact_saving.py);
`SessionEnding` calls `save_at_end` before it destroys a sandbox. `artifact_files.py` finds the files,
`artifact_records.py` what was saved; `artifact_expiry.py` removes what has expired.

The sum of a tenant's bytes is charged before a content is written, and given back if nothing comes of it. Everything in
a sandbox may be hostile: what is read of it is bounded by number, size and time.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

from warren.interfaces.artifacts import ArtifactStore
from warren.interfaces.records import RecordStore
from warren.interfaces.sandbox import Sandbox
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.model.artifact import (
    ARTIFACTS_DIR,
    Artifact,
    ArtifactRules,
    SavedAtEnd,
    SaveResult,
    check_mime,
    check_name,
    check_patterns,
    mime_of,
    name_of,
    new_artifact_id,
)
from warren.model.errors import FileNotFound, LimitReached, QuotaExceeded, SandboxLost, Unavailable, WarrenError
from warren.model.events import ArtifactCreatedData, ArtifactsLeftOutData, Event, EventKind
from warren.model.operations import FileInfo, FileKind
from warren.model.session import EndReason, Session
from warren.model.spec import MIB
from warren.sessions.artifact_files import Tally, files_below, named_files
from warren.sessions.artifact_records import ArtifactRecords
from warren.sessions.event_hub import EventHub
from warren.sessions.output_events import close_source

_FIND_S: Final = 5.0  # how long a sandbox that ends may take to say whether it has something to save
_SAVE_S: Final = 60.0
_AT_ONCE: Final = 6
_NOT_SAVED: Final = {FileKind.SYMLINK: "it is a link", FileKind.OTHER: "it is no regular file"}

_log = get_log(__name__)

BoundOf = Callable[[Session], Awaitable[int | None]]
LimitReport = Callable[[Session], Awaitable[None]]


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
        self.records, self.store, self._clock = ArtifactRecords(records, clock), store, clock
        self._rules = rules or ArtifactRules()
        self._place = place
        self._events = events or EventHub()
        self._bound_of, self._report_limit = bound_of, report_limit
        self._fault = fault
        self.saving: set[str] = set()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<Artifacts in {self.store!r}, {len(self.saving)} being saved>"

    # -- saving

    async def save(self, session: Session, sandbox: Sandbox, paths: Sequence[str]) -> SaveResult:
        """Saves what the paths and globs name. A path that does not exist, and a file that cannot be saved, are left
        out; what is wrong with a glob raises InvalidRequest."""
        tally = Tally()
        with _at_most(_SAVE_S, tally):
            async with asyncio.timeout(_SAVE_S), self._lock(session):
                files = named_files(sandbox, check_patterns(paths), tally)
                await self._save_files(session, sandbox, files, tally)
        self._report_left_out(session, tally)
        return tally.result()

    async def save_at_end(self, session: Session, find: Callable[[], Awaitable[Sandbox]]) -> SavedAtEnd | None:
        """Saves what is below /workspace/artifacts, before the sandbox is destroyed; None if there is nothing. Raises
        nothing: whatever is wrong, the session must end."""
        if self.store is None or session.reason in (EndReason.LOST, EndReason.FAILED):
            return None
        tally = Tally()
        try:
            with _at_most(_SAVE_S, tally):
                async with asyncio.timeout(_SAVE_S), self._lock(session):
                    if (sandbox := await self._find_filled(find)) is not None:
                        await self._save_files(session, sandbox, files_below(sandbox, ARTIFACTS_DIR, tally), tally)
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
        """Returns the sandbox if it has something to save, else None. Kills what runs in it, so that its files do not
        change while they are saved."""
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
        self, session: Session, sandbox: Sandbox, files: AsyncGenerator[FileInfo, None], tally: Tally
    ) -> None:
        """Saves several files at the same time, because each mostly waits for the disk. Raises a failure that all
        others would meet too."""
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
        """Saves as many bytes as the file has now: it may grow while it is read, and no more were checked."""
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
        async for artifact in self.records.of_session(session.tenant, session.id):
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
        # Counted before the first await: `_save_files` runs several of these with the same standing.
        standing.count += 1
        standing.size += size
        try:
            await self._charge(session, size)
        except BaseException:
            standing.take_back(size)
            raise
        unused, is_saved = size, False
        self.saving.add(artifact_id)
        try:
            content = await store.put(session.tenant, artifact_id, data)
            self._fault("content stored")
            known = standing.known.get((name, content.sha256))
            if known is not None and await self.records.exists(known.tenant, known.id):
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
            # Set before the store answers: if its answer gets lost, the record may be there all the same.
            unused, is_saved = size - content.size, True
            await self.records.add(artifact)
            self._fault("record stored")
        finally:
            self.saving.discard(artifact_id)
            if not is_saved:
                standing.take_back(size)
            await run_shielded(self.records.give_back(session.tenant, unused))
        standing.known[name, artifact.sha256] = artifact
        self._report_created(artifact)
        return artifact

    # -- what a tenant has in all

    async def _charge(self, session: Session, size: int) -> None:
        """Raises QuotaExceeded if the tenant would have more than it may."""
        bound = await self._bound_of(session)
        if not await self.records.change_use(session.tenant, size, bound):
            await self._report_limit(session)
            raise QuotaExceeded(
                f"the tenant's artifacts may have {bound} bytes in all",
                remedy="delete artifacts, or ask the operator for more",
            )

    # -- what was saved

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
        """Deletes the record, then the content. Content that is kept elsewhere is removed within the hour by whoever
        keeps it."""
        await self.remove(await self.records.get(tenant, artifact_id))

    async def remove(self, artifact: Artifact) -> None:
        if not await self.records.remove(artifact):
            return
        await run_shielded(self.records.give_back(artifact.tenant, artifact.size))
        if self.store is not None and artifact.place == self._place:
            try:
                await self.store.delete(artifact.tenant, artifact.id)
            except WarrenError as exc:
                _log.warning("artifact_content_not_deleted", artifact=artifact.id, action="delete_later", error=exc)

    def _here(self) -> ArtifactStore:
        if self.store is None:
            raise Unavailable("this process keeps no artifacts", remedy="set artifact_store")
        return self.store

    # -- reporting

    def _report_created(self, artifact: Artifact) -> None:
        _log.info("artifact_created", artifact=artifact.id, session=artifact.session_id, size=artifact.size)
        data = ArtifactCreatedData(
            artifact.id, artifact.name, artifact.size, artifact.sha256, artifact.mime, artifact.thread_id or None
        )
        kind = EventKind.ARTIFACT_CREATED
        self._events.publish(Event(kind, artifact.tenant, self._clock.wall(), data, artifact.session_id))

    def _report_left_out(self, session: Session, tally: Tally) -> None:
        if tally.left_out_count:
            first = tally.left_out[0]
            data = ArtifactsLeftOutData(tally.left_out_count, first.path, first.why, session.thread_id or None)
            kind = EventKind.ARTIFACT_LEFT_OUT
            self._events.publish(Event(kind, session.tenant, self._clock.wall(), data, session.id))

    def _lock(self, session: Session) -> asyncio.Lock:
        """The lock that a session holds while it saves, so that what it may save in all is counted right."""
        return self._locks.setdefault(session.id, asyncio.Lock())


class _NotSaved(Exception):
    """Why a file is not saved."""


@contextlib.contextmanager
def _at_most(seconds: float, tally: Tally) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        tally.leave_out("", f"there was more than could be saved in {seconds:g} s")


async def _one(data: bytes) -> AsyncGenerator[bytes, None]:
    for at in range(0, len(data), MIB):
        yield data[at : at + MIB]
