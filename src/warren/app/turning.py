"""A state directory whose rows are in Redis, for several workers, and how it becomes one and stops being one.

    unit/rows       says that the rows are in Redis, and the name of the first worker; while it is there, `sessions.db`
                    counts for nothing
    unit/redis/     what Redis keeps
    unit/secret     how the processes know each other
    unit/*.log      what they say
    workers/NAME/   the state directories of all workers but the first, whose directory is the state directory itself

The first worker has the name of the server that was there alone, and so its sandboxes. Turning back needs all that
lasts to be with the first worker (`others_with_something`); nothing is lost on the way, and a crash leaves what was.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from warren.app import cluster_wiring
from warren.app.one_machine import COPIES_FILE, UNIT, WORKERS, rows_mark
from warren.app.wiring import DATABASE, build_encryption
from warren.config.settings import Settings
from warren.kernel.clock import Clock, ClusterClock, SystemClock
from warren.kernel.syncing import sync_file, sync_file_system
from warren.model.session import Session
from warren.stores.copying import Move, RedisSource, SqliteSource, copy_all, places
from warren.stores.redis_link import RedisLink, connect
from warren.stores.redis_store import RedisStore, check_it_is_ours
from warren.stores.sqlite import SqliteStore

REDIS: Final = "unit/redis"
SECRET: Final = "unit/secret"
_TIMEOUT_S: Final = 30.0
_LOG_ENDINGS: Final = ("", "-wal", "-shm")


def first_worker(state_dir: Path) -> str:
    """Returns the name of the worker that has the state directory itself; empty if the rows are not in Redis."""
    try:
        return rows_mark(state_dir).read_text().strip()
    except FileNotFoundError:
        return ""


def link_of(settings: Settings, url: str) -> RedisLink:
    return connect(url, timeout_s=_TIMEOUT_S, namespace=settings.redis_namespace)


async def move_rows_to_redis(settings: Settings, url: str) -> int:
    """Copies the rows of the server that was here alone to an empty Redis, which has them from now on. Returns how many
    sessions go on."""
    state_dir, link, moved = settings.state_dir, link_of(settings, url), 0
    encryption = build_encryption(settings)
    try:
        await check_it_is_ours(link, take=True)
        if (state_dir / DATABASE).exists():
            offset_s = await cluster_wiring.wait_for_redis_time(link)
            clock, _ = cluster_wiring.open_clock(state_dir, offset_s)
            source = SqliteSource(state_dir / DATABASE, encryption)
            try:
                move = _move(settings, SystemClock(), clock, settings.worker_id)
                moved = await copy_all(source, RedisStore(link, encryption), move)
            finally:
                source.close()
    finally:
        await link.close()
    _forget_copies(state_dir)
    sync_file_system(state_dir)  # Redis has written its log before it has answered
    _write(rows_mark(state_dir), f"{settings.worker_id}\n")
    _remove_database(state_dir / DATABASE)
    return moved


async def move_rows_from_redis(settings: Settings, url: str) -> int:
    """Copies the rows to the file of a server that is here alone. Returns how many sessions go on."""
    state_dir, link = settings.state_dir, link_of(settings, url)
    encryption, new = build_encryption(settings), settings.state_dir / UNIT / DATABASE
    _remove_database(new)
    try:
        clock, rebooted = cluster_wiring.open_clock(state_dir, await cluster_wiring.wait_for_redis_time(link))
        move = _move(settings, clock, SystemClock(), "", rebooted=rebooted)
        store = await SqliteStore.open(new, encryption=encryption)
        try:
            moved = await copy_all(RedisSource(link, encryption), store, move)
        finally:
            await store.close()
    finally:
        await link.close()
    sync_file(new)
    _remove_database(state_dir / DATABASE)
    new.replace(state_dir / DATABASE)
    sync_file(state_dir)
    _forget_copies(state_dir)
    rows_mark(state_dir).unlink()
    sync_file(state_dir / UNIT)
    return moved


async def others_with_something(settings: Settings, url: str) -> set[str]:
    """The workers, other than the first, that have sessions, or something else that lasts."""
    link = link_of(settings, url)
    try:
        return await places(RedisSource(link, build_encryption(settings))) - {settings.worker_id}
    finally:
        await link.close()


def _move(settings: Settings, old: Clock, new: Clock, place: str, *, rebooted: bool = False) -> Move:
    """Sessions of an earlier start of the machine keep their epoch: whoever takes them over finds that it is over."""
    ahead_s = _offset(new) - _offset(old)

    def change(session: Session) -> Session:
        moved = replace(session, worker=session.worker and settings.worker_id)
        if rebooted or session.epoch != old.epoch:
            return moved
        times = "started", "used", "ended", "paused_at"
        shifted = {name: at + ahead_s for name in times if (at := getattr(session, name)) is not None}
        return replace(moved, epoch=new.epoch, **shifted)

    return Move(change, place, new.epoch, new.now(), shares_snapshots=bool(settings.snapshot_store))


def _offset(clock: Clock) -> float:
    return clock.offset_s if isinstance(clock, ClusterClock) else 0.0


def _forget_copies(state_dir: Path) -> None:
    """Removes the copies that workers keep of their rows: they would publish them in a Redis that has them no more."""
    for directory in (state_dir, *(state_dir / WORKERS).glob("*")):
        _remove_database(directory / COPIES_FILE)


def _remove_database(path: Path) -> None:
    for ending in _LOG_ENDINGS:
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}")
    new.write_text(text)
    sync_file(new)
    new.replace(path)
    sync_file(path.parent)
