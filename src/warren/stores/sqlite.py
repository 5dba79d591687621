"""Sessions and records in one SQLite file: the store of a single machine.

Every call runs on the event loop itself: it takes some tens of microseconds, less than a thread would (docs/adr/0006).
Between BEGIN and COMMIT nothing awaits. The task `_keep_log_short` lets a thread copy the log into the file every few
seconds; writers wait for the short last part of that, readers never.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from warren.interfaces.records import Record
from warren.interfaces.store import (
    ANSWER_GONE,
    NO_CAPS,
    SHORT_ANSWER,
    Added,
    Caps,
    Held,
    Key,
    KeyLimits,
    KeyRecord,
    Page,
)
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.clock import Clock, SystemClock
from warren.kernel.logs import get_log
from warren.kernel.pacing import Pace
from warren.kernel.shielding import run_shielded
from warren.model.access import ANY_TENANT
from warren.model.errors import Unavailable, WarrenError
from warren.model.session import Session, SessionState
from warren.stores.common import (
    EVICTED_AT_ONCE,
    KeySums,
    check_caps,
    check_fingerprint,
    columns_of,
    counted_size,
    end_time,
    frees_key,
    matches_page,
    takes_more,
)
from warren.stores.encryption import Encryption
from warren.stores.session_json import decode_session, encode_session, metadata_text, to_text
from warren.stores.sqlite_file import ACTIVE_SQL, INACTIVE_SQL, SqliteFile, sql_list

CHECKPOINT_S: Final = 2.0
_PATIENCE_S: Final = 10.0
_LOOKED_AT: Final = 20  # answers read at once to find the oldest
_DECODED_ROWS: Final = 256  # rows that are not decoded again until they change
_DECODED_LONG_ROWS: Final = 8
_LONG_ROW: Final = 8 * 1024
_IDS_AT_ONCE: Final = 100
_ROWS_IN_MEMORY: Final = 4096  # long rows are not kept in memory

_EXPIRING: Final = sql_list(state for state in SessionState if state.expires)
_COUNTED: Final = sql_list(state for state in SessionState if state.is_counted)
_PAUSED: Final = f"state IN ({sql_list(state for state in SessionState if state.is_paused)})"
_INSERT: Final = """INSERT INTO sessions
    (id, tenant, thread_id, state, environment, version, created_at, deadline, epoch, ended, key_id, disk_mb, data)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_INSERT_IF_FREE: Final = f"""{_INSERT}
    ON CONFLICT (tenant, thread_id) WHERE {ACTIVE_SQL} AND thread_id != '' DO NOTHING"""
_FIND: Final = "SELECT data FROM sessions WHERE id = ?"
_GET: Final = "SELECT data FROM sessions WHERE id = ? AND tenant = ?"
# The common change, of times only, does not touch the indexes that contain the state.
_SWAP_SAME_STATE: Final = """UPDATE sessions SET version = ?, deadline = ?, data = ?
    WHERE id = ? AND tenant = ? AND version = ? AND state = ? AND epoch = ? AND ended IS ?"""
_SWAP: Final = """UPDATE sessions SET version = ?, deadline = ?, data = ?, state = ?, epoch = ?, ended = ?,
    disk_mb = ?
    WHERE id = ? AND tenant = ? AND version = ?"""
_ACTIVE_OF_THREAD: Final = f"""SELECT data FROM sessions
    WHERE tenant = ? AND thread_id = ? AND thread_id != '' AND {ACTIVE_SQL}"""
_ENDED_OF_THREAD: Final = f"""SELECT data FROM sessions
    WHERE tenant = ? AND thread_id = ? AND thread_id != '' AND {INACTIVE_SQL}
    ORDER BY created_at DESC, id DESC LIMIT 1"""
_PLACE: Final = "SELECT created_at, id FROM sessions WHERE id = ? AND {}"
_IDS: Final = """SELECT id, created_at FROM {} WHERE {} AND state IN ({}) AND (created_at, id) < (?, ?) {}
    ORDER BY created_at DESC, id DESC LIMIT ?"""
_ACTIVE: Final = f"SELECT data FROM sessions WHERE {ACTIVE_SQL}"
_ACTIVE_IDS: Final = f"SELECT id FROM sessions WHERE {ACTIVE_SQL}"
_DUE: Final = f"""SELECT data FROM sessions
    WHERE {ACTIVE_SQL} AND state IN ({_EXPIRING}) AND deadline <= ?
    ORDER BY deadline, id LIMIT ?"""
_COUNT_COLUMNS: Final = {
    state: f"count(*) FILTER (WHERE state = '{state}')"
    if state.is_active
    else f"(SELECT count(*) FROM sessions WHERE state = '{state}')"
    for state in SessionState
}
_COUNT: Final = f"SELECT {', '.join(_COUNT_COLUMNS.values())} FROM sessions WHERE {ACTIVE_SQL}"
_HELD: Final = f"""SELECT count(*) FILTER (WHERE NOT {_PAUSED}), total(disk_mb), count(*) FILTER (WHERE {_PAUSED}),
    count(*) FILTER (WHERE key_id = ?1 AND NOT {_PAUSED}), total(disk_mb) FILTER (WHERE key_id = ?1),
    count(*) FILTER (WHERE key_id = ?1 AND {_PAUSED}) FROM sessions
    WHERE tenant = ?2 AND {ACTIVE_SQL} AND state IN ({_COUNTED})"""
# Sessions with a GPU are few, and have no column of their own.
_HOLDERS_OF_GPUS: Final = f"""SELECT data FROM sessions
    WHERE tenant = ? AND {ACTIVE_SQL} AND state IN ({_COUNTED}) AND instr(data, '"gpus":')"""
_PURGE_SESSIONS: Final = f"DELETE FROM sessions WHERE {INACTIVE_SQL} AND (epoch != ? OR ended < ?)"
_PURGE_KEYS: Final = """DELETE FROM keys WHERE session_id IS NULL AND (epoch != ? OR made < ?)
    RETURNING tenant, length(answer)"""
_KEY_SUMS: Final = f"""SELECT tenant, count(*), sum(length(answer)) FILTER (WHERE length(answer) > {SHORT_ANSWER})
    FROM keys WHERE session_id IS NULL GROUP BY tenant"""
_OLDEST_ANSWERS: Final = f"""SELECT rowid, length(answer) FROM keys INDEXED BY answered_keys
    WHERE tenant = ? AND length(answer) > {SHORT_ANSWER} AND (tenant, scope, key) != (?, ?, ?)
    ORDER BY made LIMIT {_LOOKED_AT}"""
_REMEMBER_KEY: Final = """INSERT OR REPLACE INTO keys
    (tenant, scope, key, fingerprint, session_id, epoch, made, answer) VALUES (?, ?, ?, ?, ?, ?, ?, '')"""
_SESSION_OF_KEY: Final = """SELECT keys.fingerprint = ?, sessions.data
    FROM keys LEFT JOIN sessions ON sessions.id = keys.session_id
    WHERE keys.tenant = ? AND keys.scope = ? AND keys.key = ?"""
_ANSWER_OF_KEY: Final = "SELECT fingerprint = ?, answer FROM keys WHERE tenant = ? AND scope = ? AND key = ?"
_THE_KEY: Final = "tenant = ? AND scope = ? AND key = ? AND fingerprint = ?"
_RECORD: Final = 'kind, id, value, version, "group", due'
_INSERT_RECORD: Final = f"INSERT OR IGNORE INTO records ({_RECORD}) VALUES (?, ?, ?, ?, ?, ?)"
_CHANGE_RECORD: Final = """UPDATE records SET value = ?, version = ?, "group" = ?, due = ?
    WHERE kind = ? AND id = ? AND version = ?"""
_DUE_RECORDS: Final = f"SELECT {_RECORD} FROM records WHERE kind = ? AND due <= ? ORDER BY due, id LIMIT ?"

_log = get_log(__name__)


class SqliteRecords:
    """Records in the file. `writable` is awaited before each change, and returns when the file may be written; `sync`
    when all that was written is on the disk."""

    def __init__(
        self, file: SqliteFile, writable: Callable[[], Awaitable[None]], sync: Callable[[], Awaitable[None]]
    ) -> None:
        self._run = file.run
        self._writable = writable
        self._sync = sync

    async def get(self, kind: str, record_id: str) -> Record | None:
        row = self._run(f"SELECT {_RECORD} FROM records WHERE kind = ? AND id = ?", kind, record_id).fetchone()
        return None if row is None else Record(*row)

    async def put(self, record: Record) -> bool:
        await self._writable()
        if record.version == 1:
            return self._run(_INSERT_RECORD, *_record_row(record)).rowcount == 1
        changes = record.value, record.version, record.group, record.due
        return self._run(_CHANGE_RECORD, *changes, record.kind, record.id, record.version - 1).rowcount == 1

    async def delete(self, kind: str, record_id: str) -> bool:
        await self._writable()
        return self._run("DELETE FROM records WHERE kind = ? AND id = ?", kind, record_id).rowcount == 1

    async def list(self, kind: str, *, group: str = "", after: str = "", limit: int = 1000) -> Sequence[Record]:
        which, values = _of_kind(kind, group)
        sql = f"SELECT {_RECORD} FROM records WHERE {which} AND id > ? ORDER BY id LIMIT ?"
        return [Record(*row) for row in self._run(sql, *values, after, max(0, limit)).fetchall()]

    async def due(self, kind: str, now: float, limit: int) -> Sequence[Record]:
        return [Record(*row) for row in self._run(_DUE_RECORDS, kind, now, max(0, limit)).fetchall()]

    async def count(self, kind: str, *, group: str = "") -> int:
        which, values = _of_kind(kind, group)
        return int(self._run(f"SELECT count(*) FROM records WHERE {which}", *values).fetchone()[0])

    async def sync(self) -> None:
        await self._sync()


class SqliteStore:
    """The store. Use `open`, which makes the file if there is none; the directory must exist. With `encryption` the
    values of sessions' variables are encrypted. `alone` means that no other process writes sessions to the file, so
    active ones are kept in memory too."""

    @classmethod
    async def open(
        cls, path: Path, clock: Clock | None = None, encryption: Encryption | None = None, *, alone: bool = False
    ) -> "SqliteStore":
        return cls(await asyncio.to_thread(SqliteFile, path), clock or SystemClock(), encryption, alone=alone)

    def __init__(
        self, file: SqliteFile, clock: Clock, encryption: Encryption | None = None, *, alone: bool = False
    ) -> None:
        self._file = file
        self._alone = alone
        self._in_memory = BoundedDict[str, Session](_ROWS_IN_MEMORY)  # active sessions by id
        self._encryption = encryption
        self.records = SqliteRecords(file, self._writable, self._sync)
        self._run = file.run
        self.key_limits = KeyLimits()
        self._key_sums = KeySums((tenant, keys, size or 0) for tenant, keys, size in file.run(_KEY_SUMS).fetchall())
        self._clock = clock
        self._wrote = False
        self._closed = False
        decode = partial(decode_session, encryption=encryption)
        self._decoded_short, self._decoded_long = (
            lru_cache(_DECODED_ROWS)(decode),
            lru_cache(_DECODED_LONG_ROWS)(decode),
        )
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._checkpointing = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="warren-checkpoint")
        self._task = asyncio.create_task(self._keep_log_short(), name="session store checkpoints")

    def __repr__(self) -> str:
        return f"<SqliteStore {self._file.path}{' closed' if self._closed else ''}>"

    @property
    def revision(self) -> tuple[int, int]:
        return self._file.revision

    async def add(self, session: Session, key: Key | None = None, caps: Caps = NO_CAPS) -> tuple[Session, Added]:
        await self._writable()
        row = self._row(session)
        if key is None and caps == NO_CAPS and self._run(_INSERT_IF_FREE, *row).rowcount == 1:
            self._remember(session, row[-1])
            return session, Added.NEW
        with self._file.transaction():
            if key is not None and (known := self._standing_for(key)) is not None:
                return known, Added.KEY
            held = self._one(_ACTIVE_OF_THREAD, session.tenant, session.thread_id) if session.thread_id else None
            if held is None:
                self._check_caps(caps, session, None)
                self._run(_INSERT, *row)
            stored = held or session
            if key is not None and (held is None or held.state.is_usable):
                self._run(_REMEMBER_KEY, *_name(key), key.fingerprint, stored.id, session.epoch, session.started)
            return stored, Added.NEW if held is None else Added.THREAD

    async def remember_key(self, key: Key, session: Session) -> None:
        """Lets a key stand for a session that is there. For copies: `add` does it for all others."""
        await self._writable()
        self._run(_REMEMBER_KEY, *_name(key), key.fingerprint, session.id, session.epoch, session.started)

    async def get(self, tenant: str, session_id: str) -> Session | None:
        known = self._in_memory.get(session_id)
        if known is None:
            row = self._run(_GET, session_id, tenant).fetchone()
            if row is None:
                return None
            self._remember(known := self._decoded(row[0]), row[0])
        return known if known.tenant == tenant else None

    async def find(self, session_id: str) -> Session | None:
        row = self._run(_FIND, session_id).fetchone()
        return None if row is None else self._decoded(row[0])

    async def of_thread(self, tenant: str, thread_id: str) -> Session | None:
        active = self._one(_ACTIVE_OF_THREAD, tenant, thread_id)
        return active or self._one(_ENDED_OF_THREAD, tenant, thread_id)

    async def swap(self, session: Session, caps: Caps = NO_CAPS) -> bool:
        await self._writable()
        if caps == NO_CAPS:
            return self._swap(session)
        with self._file.transaction():
            before = self._one(_GET, session.id, session.tenant)
            if before is not None and before.version == session.version - 1:
                self._check_caps(caps, session, before)
            return self._swap(session)

    def _swap(self, session: Session) -> bool:
        times = session.version, session.deadline, encode_session(session, self._encryption)
        which = session.id, session.tenant, session.version - 1
        state = session.state, session.epoch, end_time(session)
        swapped = (
            self._run(_SWAP_SAME_STATE, *times, *which, *state).rowcount == 1
            or self._run(_SWAP, *times, *state, session.disk_mb, *which).rowcount == 1
        )
        if swapped:
            self._remember(session, times[-1])
        return swapped

    def _remember(self, session: Session, data: str | bytes) -> None:
        """Keeps an active session in memory. `data` is its row in the file."""
        self._in_memory.pop(session.id, None)
        if self._alone and session.state.is_active and len(data) < _LONG_ROW:
            self._in_memory[session.id] = session

    async def list(self, tenant: str, page: Page) -> Sequence[Session]:
        """Reads one row at a time, in turns with other work: there may be very many, and each may be long."""
        found: list[Session] = []
        sql, values = _query(tenant, page)
        pace = Pace()
        for session_id in self._ids(tenant, page):
            if len(found) >= page.limit:
                break
            row = self._run(sql, session_id, *values).fetchone()
            if row is not None and matches_page(page, session := self._decoded(row[0])):
                found.append(session)
            await pace.give_way()
        return found

    def _ids(self, tenant: str, page: Page) -> Iterator[str]:
        """Yields the ids of sessions in the page's states, newest first, from where the page begins. Reads no more than
        needed."""
        place: tuple[float, str] = (math.inf, "")
        of_tenant = _of_tenant(tenant)
        if not page.states:
            return
        if page.after:
            found = self._run(_PLACE.format(of_tenant), page.after, tenant).fetchone()
            if found is None:
                return
            place = found
        active = all(state.is_active for state in page.states)
        # Without the index, SQLite would walk through all ended sessions of a day, which may be very many.
        sql = _IDS.format(
            f"sessions INDEXED BY {'active' if active else 'listed'}",
            of_tenant,
            ", ".join("?" * len(page.states)),
            f"AND {ACTIVE_SQL}" if active else "",
        )
        step = -1 if active else _IDS_AT_ONCE
        while rows := self._run(sql, tenant, *sorted(page.states), *place, step).fetchall():
            yield from (session_id for session_id, _ in rows)
            if active:
                return
            place = rows[-1][1], rows[-1][0]

    async def active(self) -> Sequence[Session]:
        return [self._decoded(data) for (data,) in self._run(_ACTIVE).fetchall()]

    async def active_ids(self) -> Sequence[str]:
        return [session_id for (session_id,) in self._run(_ACTIVE_IDS).fetchall()]

    async def due(self, now: float, limit: int) -> Sequence[Session]:
        return [self._decoded(data) for (data,) in self._run(_DUE, now, max(0, limit)).fetchall()]

    async def count(self) -> Mapping[SessionState, int]:
        return dict(zip(_COUNT_COLUMNS, self._run(_COUNT).fetchone(), strict=True))

    async def held(self, tenant: str, key_id: str) -> tuple[Held, Held]:
        return self._held(tenant, key_id, self._count_gpus(tenant, key_id))

    def _held(self, tenant: str, key_id: str, gpus: tuple[int, int]) -> tuple[Held, Held]:
        row = map(int, self._run(_HELD, key_id, tenant).fetchone())
        sessions, disk, paused, of_key, disk_of_key, paused_of_key = row
        return Held(sessions, disk, gpus[0], paused), Held(of_key, disk_of_key, gpus[1], paused_of_key)

    async def purge(self, epoch: str, before: float) -> int:
        await self._writable()
        with self._file.transaction():
            purged = self._run(_PURGE_KEYS, epoch, before).fetchall()
            gone = self._run(_PURGE_SESSIONS, epoch, before).rowcount
        for tenant, length in purged:
            self._key_sums.add(tenant, -1, -_counted(length))
        return gone

    async def claim_key(self, key: Key, epoch: str, now: float) -> KeyRecord | None:
        await self._writable()
        with self._file.transaction():
            row = self._run(_ANSWER_OF_KEY, key.fingerprint, *_name(key)).fetchone()
            if row is None:
                self._key_sums.check_new(key.tenant, self.key_limits)
                self._run(_REMEMBER_KEY, *_name(key), key.fingerprint, None, epoch, now)
        if row is None:
            self._key_sums.add(key.tenant, 1, 0)
            return None
        check_fingerprint(row[0], key)
        return KeyRecord(key.fingerprint, to_text(row[1]))

    async def answer_key(self, key: Key, answer: str) -> None:
        await self._writable()
        size, change = counted_size(answer), 0
        with self._file.transaction():
            row = self._run(
                f"SELECT length(answer) FROM keys WHERE {_THE_KEY}", *_name(key), key.fingerprint
            ).fetchone()
            if row is None:
                return
            known = _counted(row[0])
            if excess := self._key_sums.excess(key.tenant, size - known, self.key_limits):
                change -= self._evict(key, excess)
                if self._key_sums.excess(key.tenant, size - known + change, self.key_limits):
                    answer, size = ANSWER_GONE, 0
            self._run(f"UPDATE keys SET answer = ? WHERE {_THE_KEY}", answer, *_name(key), key.fingerprint)
        self._key_sums.add(key.tenant, 0, size - known + change)

    def _evict(self, key: Key, excess: int) -> int:
        """Drops the tenant's oldest answers, but not that of `key`. Returns how many bytes it freed."""
        freed = 0
        for _ in range(0, EVICTED_AT_ONCE, _LOOKED_AT):
            for rowid, length in self._run(_OLDEST_ANSWERS, key.tenant, *_name(key)).fetchall():
                if freed >= excess:
                    return freed
                self._run("UPDATE keys SET answer = ? WHERE rowid = ?", ANSWER_GONE, rowid)
                freed += length
        return freed

    async def release_key(self, key: Key) -> None:
        await self._writable()
        gone = self._run(
            f"DELETE FROM keys WHERE {_THE_KEY} RETURNING session_id, length(answer)",
            *(*_name(key), key.fingerprint),
        ).fetchall()
        for session_id, length in gone:
            if session_id is None:
                self._key_sums.add(key.tenant, -1, -_counted(length))

    async def checkpoint(self) -> None:
        """Copies the log into the file. The event loop waits for no disk, and writers only for the last part."""
        async with self._checkpointing:
            self._wrote = False
            await self._in_thread(self._file.copy_log)
            # The first write to a restarted log waits for the disk, so `restart_log` makes it, and not the event loop.
            self._may_write.clear()
            try:
                await self._in_thread(self._file.restart_log)
            finally:
                self._may_write.set()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._in_memory.clear()
        self._task.cancel()
        await asyncio.wait([self._task])
        async with self._checkpointing:
            self._file.refuse()
            await self._in_thread(self._file.close)
        self._thread.shutdown(wait=False)

    async def _keep_log_short(self) -> None:
        logged = ""
        while True:
            await self._clock.sleep(CHECKPOINT_S)
            if not self._wrote:
                continue
            try:
                await self.checkpoint()
                logged = ""
            except WarrenError as exc:
                self._wrote = True
                if str(exc) != logged:
                    logged = str(exc)
                    _log.warning("sqlite_checkpoint_failed", action="retry", error=exc)

    async def _sync(self) -> None:
        await self._in_thread(self._file.sync_log)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        async def run() -> None:
            await asyncio.get_running_loop().run_in_executor(self._thread, work)

        await run_shielded(run())

    async def _writable(self) -> None:
        self._wrote = True
        if self._may_write.is_set():
            return
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not self._may_write.is_set():  # another checkpoint may begin before this task runs
                    await self._may_write.wait()
        except TimeoutError:
            raise Unavailable(
                f"the disk of the session store {self._file.path} has not answered for {_PATIENCE_S:.0f} s",
                remedy="look at the kernel's log for errors of the disk",
            ) from None

    def _row(self, session: Session) -> tuple[Any, ...]:
        return *columns_of(session), encode_session(session, self._encryption)

    def _check_caps(self, caps: Caps, session: Session, before: Session | None) -> None:
        if caps != NO_CAPS:
            held = self._held(session.tenant, session.key_id, self._held_gpus(caps, session))
            check_caps(caps, takes_more(session, before), *held)

    def _held_gpus(self, caps: Caps, session: Session) -> tuple[int, int]:
        """Returns the GPUs of the tenant and of its key. Queries only for a session that wants a GPU and has a
        limit."""
        if not session.gpus or caps.gpus is caps.key_gpus is None:
            return 0, 0
        return self._count_gpus(session.tenant, session.key_id)

    def _count_gpus(self, tenant: str, key_id: str) -> tuple[int, int]:
        found = [self._decoded(data) for (data,) in self._run(_HOLDERS_OF_GPUS, tenant).fetchall()]
        of_key = (len(one.gpus) for one in found if one.key_id == key_id)
        return sum(len(one.gpus) for one in found), sum(of_key)

    def _decoded(self, data: str | bytes) -> Session:
        return self._decoded_short(data) if len(data) < _LONG_ROW else self._decoded_long(data)

    def _one(self, sql: str, *values: Any) -> Session | None:
        row = self._run(sql, *values).fetchone()
        return None if row is None else self._decoded(row[0])

    def _standing_for(self, key: Key) -> Session | None:
        """Returns the session that a known key stands for. Raises KeyReused."""
        row = self._run(_SESSION_OF_KEY, key.fingerprint, *_name(key)).fetchone()
        if row is None or frees_key(session := self._decoded(row[1]) if row[1] is not None else None):
            return None
        check_fingerprint(row[0], key)
        return session


def _counted(length: int) -> int:
    return length if length > SHORT_ANSWER else 0


def _name(key: Key) -> tuple[str, str, str]:
    return key.tenant, key.scope, key.key


def _record_row(record: Record) -> tuple[Any, ...]:
    return record.kind, record.id, record.value, record.version, record.group, record.due


def _of_kind(kind: str, group: str) -> tuple[str, tuple[str, ...]]:
    return ('kind = ? AND "group" = ?', (kind, group)) if group else ("kind = ?", (kind,))


def _of_tenant(tenant: str) -> str:
    return "? IS NOT NULL" if tenant == ANY_TENANT else "tenant = ?"


def _query(tenant: str, page: Page) -> tuple[str, tuple[Any, ...]]:
    """Returns the query for a session that may match the page: metadata is compared as text only."""
    wanted, values = ["id = ?", _of_tenant(tenant)], [tenant]
    for column, value in (("thread_id", page.thread_id), ("environment", page.environment)):
        if value:
            wanted.append(f"{column} = ?")
            values.append(value)
    for name, value in page.metadata.items():
        wanted.append("instr(data, ?)")
        values.append(metadata_text(name, value))
    return f"SELECT data FROM sessions WHERE {' AND '.join(wanted)}", tuple(values)
