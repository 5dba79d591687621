"""The logs of sessions of one process: what is added to them, read from them, and known of them.

`LoggedSandbox` adds entries, which a thread writes (writer.py). A record for each log says how long it is and when it
expires (records.py); `run` keeps the records up to date, the logs within the quotas of their tenants, and removes those
that have expired. Handlers read and delete.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warren.governance.session_logs.entries import CommandLogs, NewEntry
from warren.governance.session_logs.files import NOTHING, LogFiles, Name, Written, can_be_named, our_errors
from warren.governance.session_logs.records import LogRecords
from warren.governance.session_logs.writer import LogWriter, Room
from warren.interfaces.records import RecordStore
from warren.interfaces.secrets import NoSecrets, SecretSource
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.clock import Clock
from warren.kernel.fair_thread import fair_thread
from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.model.errors import SessionNotFound, Unavailable, WarrenError
from warren.model.events import Event, EventKind
from warren.model.session import Session, SessionState
from warren.model.session_log import LogLevel, LogPage, LogRecord
from warren.model.spec import MIB
from warren.sessions.schemas import timestamp

if TYPE_CHECKING:
    from warren.governance.session_logs.logged_sandbox import RunningLog

_TICK_S: Final = 1.0
_SAVE_EVERY_S: Final = 30.0
_EXPIRE_EVERY_S: Final = 60.0
_SWEEP_EVERY_S: Final = 3600.0
_LOOK_AGAIN_S: Final = 3600.0  # whether a session whose end was not seen has ended
_BOUND_S: Final = 10.0
_SECRETS_S: Final = 60.0
_FLUSH_S: Final = 2.0
_LOOK_S: Final = 0.02
_KEPT_AFTER_END_S: Final = 60.0
_OFFSET_LOOKED_AT: Final = 1000

_log = get_log(__name__)

ENDS: Final = frozenset({EventKind.SESSION_ENDED, EventKind.SESSION_EXPIRED})
FindSession = Callable[[str, str], Awaitable[Session | None]]
BoundOf = Callable[[Session], Awaitable[int | None]]


@dataclass(frozen=True, slots=True)
class LogRules:
    """`session_bytes`: what the log of one session may take on the disk. `retention_s`: how long it is kept after the
    session's end. `min_free` bytes of the disk stay free."""

    session_bytes: int = 10 * MIB
    retention_s: float = 7 * 86400.0
    with_commands: bool = True
    min_free: int = 0


@dataclass(slots=True)
class _Known:
    """A log that this process has written to."""

    level: LogLevel
    session: Session | None
    written: Written = NOTHING
    saved_bytes: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    ended_at: float | None = None
    is_changed: bool = False
    saved: float | None = None
    bound: int | None = None
    bound_until: float = 0.0


def _known_by(record: LogRecord) -> _Known:
    written = Written(record.bytes, record.entries)
    return _Known(record.level, None, written, record.bytes, record.first_at, record.last_at, saved=0.0)


async def _no_bound(session: Session) -> int | None:
    return None


class Logs:
    """Keeps the contract of interfaces/session_logs.py. Without a `directory` it reads and writes nothing, and only
    knows of logs that others keep: a coordinator. `place` is the name by which others reach the logs that are kept
    here. `bound_of` gives the bytes that the logs of a session's tenant may take."""

    def __init__(
        self,
        directory: Path | None,
        records: RecordStore,
        find_session: FindSession,
        clock: Clock,
        *,
        rules: LogRules | None = None,
        place: str = "",
        bound_of: BoundOf = _no_bound,
        secrets: SecretSource | None = None,
    ) -> None:
        self.rules, self._clock, self._place = rules or LogRules(), clock, place
        self.records = LogRecords(records, clock)
        self._find_session, self._bound_of, self._secrets = find_session, bound_of, secrets or NoSecrets()
        self._known: dict[Name, _Known] = {}
        self._rooms: dict[Name, Room] = {}
        self._waiting: dict[Name, set[asyncio.Future[None]]] = {}
        self._values = BoundedDict[tuple[str, tuple[str, ...]], tuple[float, set[str]]](256)
        self.running: dict[tuple[str, str], RunningLog] = {}
        """The commands that were started, by session and process id."""
        self._loop = asyncio.get_running_loop()
        self.files: LogFiles | None = None
        self.writer: LogWriter | None = None
        if directory is not None:
            self.files = LogFiles(directory, self.rules.session_bytes, self._note, min_free=self.rules.min_free)
            self.writer = LogWriter(
                self.files,
                CommandLogs(with_text=self.rules.with_commands),
                room=lambda name: self._rooms.get(name, Room.ALL),
                wake=self._wake_from_thread,
                wall=clock.wall,
            )

    def __repr__(self) -> str:
        return f"<Logs: {len(self._known)} known, {len(self.running)} commands running>"

    # -- adding

    def add(self, new: NewEntry, session: Session) -> None:
        if self.writer is None or not can_be_named(session.id):
            return
        new.at = self._clock.wall()
        if (known := self._known.get(new.name)) is None:
            known = self._known[new.name] = _Known(new.level, session)
        known.session = session
        known.first_at, known.last_at = known.first_at or new.at, new.at
        self.writer.add(new)

    def _note(self, text: str) -> dict[str, Any]:
        return {"at": timestamp(self._clock.wall()), "kind": "note", "text": text}

    def _wake_from_thread(self, written: Mapping[Name, Written]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._note_written, dict(written))

    def _note_written(self, written: Mapping[Name, Written]) -> None:
        for name, now in written.items():
            if (known := self._known.get(name)) is not None:
                known.written, known.is_changed = now, True
            self._wake(name)

    def _wake(self, name: Name) -> None:
        for waiting in self._waiting.pop(name, ()):
            if not waiting.done():
                waiting.set_result(None)

    def note_event(self, event: Event) -> None:
        """Called with events, of which the ends of sessions matter."""
        if event.kind not in ENDS:
            return
        name = event.tenant, event.session_id
        if (known := self._known.get(name)) is not None:
            known.ended_at, known.is_changed, known.saved = event.at, True, None
        self._wake(name)

    async def secret_values(self, session: Session) -> set[str] | None:
        """Returns the values of the session's secrets; None if they cannot be read now."""
        key = session.tenant, session.secrets
        known = self._values.get(key)
        if known is not None and self._clock.now() < known[0]:
            return known[1]
        try:
            found = await self._secrets.find(session.tenant, session.secrets)
        except WarrenError:
            return None
        values = {text for secret in found for text in (secret.value, secret.carried)}
        self._values[key] = self._clock.now() + _SECRETS_S, values
        return values

    async def offset_of(self, session: Session, process_id: str) -> int:
        """Returns up to where the output of a command was logged."""
        if self.files is None:
            return 0
        name, files = (session.tenant, session.id), self.files
        read = partial(files.read, name, 0, 0, ("output",), _OFFSET_LOOKED_AT)
        try:
            found = await fair_thread().run(session.tenant, read)
        except OSError:
            return 0
        ends = [int(each.get("until", 0)) for each in found.entries if each.get("command_id") == process_id]
        return max(ends, default=0)

    # -- reading and deleting

    async def flush(self) -> None:
        """Returns when what was added before is written; after a while in any case."""
        if self.writer is None:
            return
        goal, until = self.writer.last_added(), self._loop.time() + _FLUSH_S
        while not self.writer.has_written(goal) and self._loop.time() < until:  # noqa: ASYNC110 (a thread writes)
            await asyncio.sleep(_LOOK_S)

    async def read(
        self,
        tenant: str,
        session_id: str,
        *,
        after: int = 0,
        limit: int = 100,
        kinds: Collection[str] = (),
        last: int | None = None,
    ) -> LogPage:
        name = tenant, session_id
        record, session = await self._find(name)
        level = LogLevel(session.logs or LogLevel.OFF) if session else record.level if record else LogLevel.OFF
        ended = session is None or session.state is SessionState.ENDED
        if self.files is None or self.writer is None or (record is None and name not in self._known):
            return LogPage(level, [], after, ended=ended, record=record)
        await self.flush()
        with our_errors():
            found = await fair_thread().run(tenant, partial(self.files.read, name, after, limit, kinds, last))
        return LogPage(level, found.entries, found.next, found.more, ended, record)

    async def _find(self, name: Name) -> tuple[LogRecord | None, Session | None]:
        """Raises SessionNotFound, and Unavailable if the log is kept elsewhere."""
        record = await self.records.get(name) if can_be_named(name[1]) else None
        session = await self._find_session(*name)
        if record is None and session is None:
            raise SessionNotFound(
                f"there is no session {name[1][:80]!r}, and no log of one",
                remedy="GET /api/sessions lists those there are",
            )
        if record is not None and record.place != self._place:
            raise Unavailable(
                f"the worker {record.place!r}, which keeps the log, is not here",
                remedy="try again when it is back",
                retry_after_s=5,
            )
        return record, session

    async def wait(self, tenant: str, session_id: str, after: int, timeout_s: float) -> None:
        name = tenant, session_id
        if (known := self._known.get(name)) is not None and known.written.last > after:
            return
        waiting = self._loop.create_future()
        self._waiting.setdefault(name, set()).add(waiting)
        try:
            async with asyncio.timeout(timeout_s):
                await waiting
        except TimeoutError:
            pass
        finally:
            if name in self._waiting:
                self._waiting[name].discard(waiting)
                if not self._waiting[name]:
                    del self._waiting[name]

    async def delete(self, tenant: str, session_id: str) -> None:
        """Deletes the record, then the files. Files that are kept elsewhere are removed within the hour by whoever
        keeps them."""
        name = tenant, session_id
        try:
            await self._find(name)
        except Unavailable:
            if self.files is not None:
                raise
        await self.flush()
        await run_shielded(self._remove(name))

    async def _remove(self, name: Name) -> None:
        await self.records.remove(name)
        if (known := self._known.get(name)) is not None:
            known.written = known.written._replace(bytes=0)
            known.saved_bytes, known.saved, known.is_changed = 0, None, False
        if self.files is not None:
            with our_errors():
                await asyncio.to_thread(self.files.delete, name)

    async def used_bytes(self, tenant: str | None) -> int:
        return await self.records.used_bytes(tenant)

    # -- the task

    async def run(self) -> None:
        """Saves what has changed each second, removes what has expired each minute, and what has no record each
        hour."""
        expired = swept = None
        while True:
            now = self._clock.now()
            try:
                if swept is None or now - swept >= _SWEEP_EVERY_S:
                    await self.sweep()
                    swept = now
                if expired is None or now - expired >= _EXPIRE_EVERY_S:
                    await self.expire()
                    expired = now
                await self.save_changes()
            except Exception as exc:
                # Nothing would ever expire without this loop, so it goes on whatever a part of it raises.
                _log.error("session_logs_not_kept_up", error=exc, exc=None if isinstance(exc, WarrenError) else exc)
            await self._clock.sleep(_TICK_S)

    async def save_changes(self, *, all_of_them: bool = False) -> None:
        now = self._clock.now()
        changed = {name: known for name, known in self._known.items() if known.is_changed}
        for name, known in changed.items():
            if all_of_them or known.saved is None or now - known.saved >= _SAVE_EVERY_S:
                known.is_changed = False
                before, known.saved_bytes = known.saved_bytes, known.written.bytes
                known.saved = now
                try:
                    await self._save(name, known)
                except BaseException:
                    known.is_changed, known.saved_bytes, known.saved = True, before, None
                    raise
        await self._bound(changed)
        for name, known in list(self._known.items()):
            is_over = known.ended_at is not None and self._clock.wall() - known.ended_at > _KEPT_AFTER_END_S
            if is_over and not known.is_changed:
                del self._known[name]
                self._rooms.pop(name, None)

    async def _save(self, name: Name, known: _Known) -> None:
        ends = known.ended_at
        record = LogRecord(
            *name,
            known.level,
            known.written.bytes,
            known.written.last,
            known.first_at,
            known.last_at,
            ends,
            None if ends is None else ends + self.rules.retention_s,
            self._place,
        )
        await self.records.save(record, self._clock.wall() + _LOOK_AGAIN_S)

    async def _bound(self, changed: Mapping[Name, _Known]) -> None:
        """Says which logs may not be written to, because their tenants have used up their quotas."""
        used: dict[str, int] = {}
        now = self._clock.now()
        for name, known in changed.items():
            if known.session is None:
                continue
            if now >= known.bound_until:
                known.bound, known.bound_until = await self._bound_of(known.session), now + _BOUND_S
            if known.bound is None:
                self._rooms.pop(name, None)
                continue
            tenant = name[0]
            if tenant not in used:
                unsaved = sum(
                    each.written.bytes - each.saved_bytes for of, each in self._known.items() if of[0] == tenant
                )
                used[tenant] = await self.records.used_bytes(tenant) + unsaved
            room = _room(used[tenant], known.bound)
            if room is Room.ALL:
                self._rooms.pop(name, None)
            else:
                self._rooms[name] = room

    async def expire(self) -> None:
        async for record in self._due():
            name, wall = (record.tenant, record.session_id), self._clock.wall()
            if record.ended_at is None:
                session = await self._find_session(*name)
                if session is None or not session.active:
                    record = replace(record, ended_at=wall, expires_at=wall + self.rules.retention_s)
                await self.records.save(record, wall + _LOOK_AGAIN_S)
            elif record.expires_at is None or record.expires_at <= wall:
                await self._remove(name)

    async def _due(self) -> AsyncIterator[LogRecord]:
        """Those of other workers are theirs to look after, unless these do not come back."""
        for record in await self.records.due():
            late = record.expires_at is not None and self._clock.wall() - record.expires_at > _SWEEP_EVERY_S
            if record.place == self._place or late:
                yield record

    async def sweep(self) -> None:
        """Removes logs that have no record and no session, makes records of those that have lost theirs, and counts
        anew what tenants have."""
        if self.files is None:
            return
        files = self.files
        with our_errors():
            names = await asyncio.to_thread(lambda: list(files.names()))
        for name in names:
            if name in self._known:
                continue
            if (record := await self.records.get(name)) is not None:
                if record.ended_at is None:  # so that the end of its session is noted
                    self._known.setdefault(name, _known_by(record))
                continue
            session = await self._find_session(*name)
            # In a cluster others remove the record of a log whose session has ended; alone, only a crash does.
            if session is None or not session.logs or (self._place and not session.active):
                _log.info("session_log_left_over", tenant=name[0], session=name[1], action="deleted")
                await asyncio.to_thread(files.delete, name)
                continue
            written = await asyncio.to_thread(files.written, name)
            found = LogRecord(*name, LogLevel(session.logs), *written, last_at=self._clock.wall(), place=self._place)
            await self.records.save(found, self._clock.wall())
        await self.records.count_anew()

    async def close(self) -> None:
        if self.writer is not None:
            await asyncio.to_thread(self.writer.close)
            await asyncio.sleep(0)  # what the thread has said last
            with contextlib.suppress(WarrenError):
                await self.save_changes(all_of_them=True)


def _room(used: int, bound: int) -> Room:
    """Of a quota the last tenth, and 64 KiB at least, is for entries without output."""
    if used >= bound:
        return Room.NOTHING
    return Room.NO_OUTPUT if used >= bound - max(bound // 10, 64 * 1024) else Room.ALL
