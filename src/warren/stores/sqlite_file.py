"""The SQLite file of the session store: opens it, translates errors into ours, copies the log into the file.

There are two connections. `run` and `transaction` use the first, on the event loop: in WAL mode with synchronous=NORMAL
a commit writes to the page cache and waits for no disk. `copy_log` and `restart_log`, which wait for the disk, use the
second one, in a thread. The first write after the log was copied completely starts the log again and waits for the
disk, so `restart_log` makes that write itself; nobody else may write meanwhile.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from warren.interfaces.store import SHORT_ANSWER
from warren.model.errors import Conflict, NoSpace, Unavailable, WarrenError
from warren.model.session import SessionState
from warren.stores.session_json import to_storable

VERSION: Final = 1
_OURS: Final = 0x57_41_52_4E  # "WARN": application_id, which tells our files from those of other programs
_BUSY_S: Final = 10.0  # how long opening waits for another program
_BUSY_ON_LOOP_S: Final = 0.25
_BUSY_IN_THREAD_S: Final = 1.0
_PAGE_BYTES: Final = 2048  # every page that changes goes to the log whole
_SMALLEST: Final = 512
_LARGE_LOG: Final = 64 * 1024 * 1024


def sql_list(states: Iterable[SessionState]) -> str:
    return ", ".join(f"'{state}'" for state in sorted(states))


def _inactive_sql() -> str:
    inactive = [f"state = '{state}'" for state in SessionState if not state.is_active]
    return inactive[0] if len(inactive) == 1 else f"({' OR '.join(inactive)})"


# SQLite uses a partial index only for a query that repeats the index's condition word for word.
ACTIVE_SQL: Final = " AND ".join(f"state != '{state}'" for state in SessionState if not state.is_active)
INACTIVE_SQL: Final = _inactive_sql()

# `data` holds the whole session; the other columns repeat some of it for queries.
_TABLES: Final = (
    """CREATE TABLE sessions (
        id TEXT PRIMARY KEY, tenant TEXT NOT NULL, thread_id TEXT NOT NULL, state TEXT NOT NULL,
        environment TEXT NOT NULL, version INTEGER NOT NULL, created_at REAL NOT NULL, deadline REAL NOT NULL,
        epoch TEXT NOT NULL, ended REAL, key_id TEXT NOT NULL, disk_mb INTEGER NOT NULL, data TEXT NOT NULL)""",
    """CREATE TABLE keys (
        tenant TEXT NOT NULL, scope TEXT NOT NULL, key TEXT NOT NULL, fingerprint TEXT NOT NULL,
        session_id TEXT REFERENCES sessions (id) ON DELETE CASCADE,
        epoch TEXT NOT NULL, made REAL NOT NULL, answer TEXT NOT NULL, UNIQUE (tenant, scope, key))""",
    """CREATE TABLE records (
        kind TEXT NOT NULL, id TEXT NOT NULL, value TEXT NOT NULL, version INTEGER NOT NULL,
        "group" TEXT NOT NULL, due REAL, PRIMARY KEY (kind, id)) WITHOUT ROWID""",
    f"PRAGMA application_id = {_OURS}",
    f"PRAGMA user_version = {VERSION}",
)
_INDEXES: Final = {
    "active_threads": f"""CREATE UNIQUE INDEX active_threads ON sessions (tenant, thread_id)
        WHERE {ACTIVE_SQL} AND thread_id != ''""",
    "ended_threads": f"""CREATE INDEX ended_threads ON sessions (tenant, thread_id, created_at, id)
        WHERE {INACTIVE_SQL} AND thread_id != ''""",
    "listed": "CREATE INDEX listed ON sessions (tenant, created_at, id, state)",
    "active": f"CREATE INDEX active ON sessions (deadline, id, state) WHERE {ACTIVE_SQL}",
    "held": f"CREATE INDEX held ON sessions (tenant, state, key_id, disk_mb) WHERE {ACTIVE_SQL}",
    "over": f"CREATE INDEX over ON sessions (epoch, ended) WHERE {INACTIVE_SQL}",
    "keys_of_sessions": "CREATE INDEX keys_of_sessions ON keys (session_id) WHERE session_id IS NOT NULL",
    "claimed_keys": "CREATE INDEX claimed_keys ON keys (epoch, made) WHERE session_id IS NULL",
    "answered_keys": f"CREATE INDEX answered_keys ON keys (tenant, made) WHERE length(answer) > {SHORT_ANSWER}",
    "grouped_records": 'CREATE INDEX grouped_records ON records (kind, "group", id)',
    "due_records": "CREATE INDEX due_records ON records (kind, due, id) WHERE due IS NOT NULL",
}

_NO_SPACE: Final = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}
_REMEDIES: Final = {
    sqlite3.SQLITE_NOTADB: "move it away, with its -wal and -shm; the next start then makes a new, empty one",
    sqlite3.SQLITE_CORRUPT: "move it away, with its -wal and -shm; the next start then makes a new, empty one",
    sqlite3.SQLITE_CANTOPEN: "its directory must exist and this user must be allowed to write there",
    sqlite3.SQLITE_READONLY: "this user must be allowed to write the file and its directory",
    sqlite3.SQLITE_BUSY: "end the other program that has it open",
}


class SqliteFile:
    """The open file. Its methods block, except `run` and `transaction`, which wait for no disk. Raises only errors of
    ours."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = str(path)
        with self._our_errors(), contextlib.ExitStack() as undo:
            _make_new(path)
            self._loop = undo.enter_context(contextlib.closing(_connected(path)))
            self._prepare()
            self._side = undo.enter_context(contextlib.closing(_connected(path)))
            _wait_for_others(self._loop, _BUSY_ON_LOOP_S)
            _wait_for_others(self._side, _BUSY_IN_THREAD_S)
            undo.pop_all()
        self._name = path.name  # later errors reach callers, who must not see paths of this machine

    def run(self, sql: str, *values: Any) -> sqlite3.Cursor:
        try:
            return self._loop.execute(sql, values)
        except UnicodeEncodeError:
            return self.run(sql, *map(to_storable, values))
        except sqlite3.Error as exc:
            raise self._ours(exc) from exc

    @property
    def revision(self) -> tuple[int, int]:
        """A value that changes with every change, by this process or another."""
        return self._loop.total_changes, self.run("PRAGMA data_version").fetchone()[0]

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        # IMMEDIATE takes the write lock now: taken later, after a read, it could fail with SQLITE_BUSY.
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            if self._loop.in_transaction:
                self._loop.rollback()
            raise

    def copy_log(self) -> None:
        """Copies what was written so far into the file; others may continue to write."""
        with self._our_errors():
            self._side.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def restart_log(self) -> None:
        """Copies the rest into the file and starts the log again. Nobody may write meanwhile."""
        mode = "TRUNCATE" if self.log_bytes() > _LARGE_LOG else "PASSIVE"
        with self._our_errors():
            self._side.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
            # Any write starts the log again and waits for the disk; this one changes nothing.
            self._side.execute(f"PRAGMA user_version = {VERSION}")

    def sync_log(self) -> None:
        """Waits until what was written so far is on the disk. What the log has no longer is in the file there."""
        with self._our_errors(), contextlib.suppress(FileNotFoundError):
            fd = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)

    def log_bytes(self) -> int:
        try:
            return Path(f"{self.path}-wal").stat().st_size
        except FileNotFoundError:
            return 0

    def refuse(self) -> None:
        """Makes `run` raise Unavailable from now on. Waits for no disk: the other connection is still open."""
        self._loop.close()

    def close(self) -> None:
        """Closes the file; call `refuse` before. Closing the last connection copies the log into the file and removes
        the log."""
        with self._our_errors():
            self._side.close()

    def _prepare(self) -> None:
        self._check_it_is_ours()
        if self.path.stat().st_mode & 0o077:
            self.path.chmod(0o600)
        self._loop.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        if self._loop.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise Unavailable(f"the file system of {self.path} cannot hold a session store: it has no shared memory")
        with self.transaction():
            if self._is_empty():
                for statement in _TABLES:
                    self._loop.execute(statement)
            self._make_indexes()

    def _make_indexes(self) -> None:
        """Remakes the indexes whose definition has changed: some contain which states are active."""
        present = dict(self._loop.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index'").fetchall())
        for name, statement in _INDEXES.items():
            if present.get(name) != statement:
                self._loop.execute(f"DROP INDEX IF EXISTS {name}")
                self._loop.execute(statement)

    def _is_empty(self) -> bool:
        return self._loop.execute("SELECT 1 FROM sqlite_master").fetchone() is None

    def _check_it_is_ours(self) -> None:
        if self._is_empty():
            return
        if self._loop.execute("PRAGMA application_id").fetchone()[0] != _OURS:
            raise Unavailable(
                f"{self.path} is a database of another program",
                remedy="name another file for the session store, or move this one away",
            )
        version = self._loop.execute("PRAGMA user_version").fetchone()[0]
        if version != VERSION:
            raise Unavailable(
                f"the session store {self.path} has version {version}; this Warren knows version {VERSION}",
                remedy="use the Warren that wrote it, or move the file away",
            )

    @contextlib.contextmanager
    def _our_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as exc:
            raise self._ours(exc) from exc

    def _ours(self, exc: Exception) -> WarrenError:
        code = getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_CANTOPEN if isinstance(exc, OSError) else 0)
        if code in _NO_SPACE:
            return NoSpace(f"no space left for the session store {self._name}", remedy="free space on its file system")
        if isinstance(exc, sqlite3.IntegrityError):
            return Conflict(f"the session store has it already: {exc}")
        return Unavailable(f"the session store {self._name}: {exc}", remedy=_REMEDIES.get(code & 0xFF, ""))


def _make_new(path: Path) -> None:
    """Makes the file private from the start, because sessions hold secrets. SQLite gives the files next to it the same
    mode."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if 0 < path.stat().st_size < _SMALLEST:  # SQLite would take it for empty and overwrite it
            error = sqlite3.DatabaseError("file is not a database")
            error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
            raise error from None


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    _wait_for_others(connection, _BUSY_S)
    for pragma in ("synchronous = NORMAL", "wal_autocheckpoint = 0", "foreign_keys = ON", "temp_store = MEMORY"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _wait_for_others(connection: sqlite3.Connection, seconds: float) -> None:
    connection.execute(f"PRAGMA busy_timeout = {seconds * 1000:.0f}")
