"""The disk with the state directory is full: clear refusals, nothing half-made, and all is well when there is room."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.caller import Caller, calling
from faults.faulty_server import ARGV
from faults.host_view import sandboxes
from faults.invariants import Ledger, check, check_held, occupied, settled
from faults.test_kill_points import has_ended
from faults.world import FLAGS, new_state, remove_state, until
from server_process import ServerProcess
from this_run import patience

pytestmark = pytest.mark.anyio

COLD: dict[str, Any] = {"limits": {"memory_mb": 256}}
SEEN_S = 0.3  # the guard looks at the disk that often


@pytest.fixture
def small_state(image_cache: Path) -> Iterator[Path]:
    """A state directory on a file system of its own, of 96 MiB."""
    path = new_state(image_cache)
    (path / "images").unlink()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m,mode=700", "tmpfs", path], check=True)
    (path / "images").symlink_to(image_cache / "images")
    yield path
    (path / "ballast").unlink(missing_ok=True)
    remove_state(path)
    subprocess.run(["umount", "--lazy", path], check=True)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def server(small_state: Path) -> Iterator[ServerProcess]:
    timeout_s = str(round(patience(10)))  # the first claim waits for the pool of a server that has just started
    server = ServerProcess(
        small_state, *FLAGS, argv=ARGV, WARREN_CLAIM_TIMEOUT_S=timeout_s, WARREN_DISK_OVERCOMMIT="1000"
    )
    server.log_path = small_state.with_suffix(".log")
    server.start()
    yield server
    server.kill()
    server.log_path.unlink()


@pytest.fixture
async def caller(server: ServerProcess) -> AsyncIterator[Caller]:
    async with calling(server.url) as caller:
        yield caller


def fill(state_dir: Path) -> None:
    """To the last byte."""
    with (state_dir / "ballast").open("ab", buffering=0) as ballast:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    ballast.write(bytes(size))
            except OSError:
                continue


def free(state_dir: Path) -> None:
    (state_dir / "ballast").unlink()


@pytest.mark.extended
async def test_creates_are_refused_and_sessions_go_on(caller: Caller, small_state: Path) -> None:
    ledger = Ledger()
    held = await occupied(caller, ledger, idle_timeout_s=patience(30))
    await settled(caller, small_state)
    fill(small_state)
    await asyncio.sleep(SEEN_S)
    for body in (COLD, {"thread_id": "t"}, {}, {}, {}, {}):
        assert await caller.output(held.id, "echo alive") == "alive\n"  # or it would expire on a slow machine
        answer = await caller.create(**body)
        if answer.ok:  # from the pool, and the store had a little room left
            ledger.holds(answer.body)
            continue
        assert (answer.status, answer.body["code"]) in ((503, "machine_full"), (507, "no_space")), answer
        assert answer.body["remedy"]
    assert not answer.ok
    await fill_the_store(caller, small_state, held.id)
    for _ in range(30):  # longer than the time after which use is written down
        fill(small_state)  # sandboxes of the pool that are given up leave room
        assert await caller.output(held.id, "echo alive") == "alive\n"
        await asyncio.sleep(0.3)
    free(small_state)
    await asyncio.sleep(SEEN_S)
    await settled(caller, small_state)
    (await caller.create(**COLD)).good()
    (await caller.create(thread_id="t")).good()
    await check(caller, small_state, ledger)


async def fill_the_store(caller: Caller, state_dir: Path, used: str) -> None:
    """Until not one row fits any more. The session that is used meanwhile does not expire."""
    bulk = {f"m{number}": "x" * 4096 for number in range(60)}
    for metadata in (bulk, {}):
        while (await caller.create(metadata=metadata, **COLD)).status != 507:
            fill(state_dir)
            assert await caller.output(used, "echo alive") == "alive\n"


@pytest.mark.extended
async def test_what_expires_or_is_deleted_meanwhile_is_gone_in_the_end(caller: Caller, small_state: Path) -> None:
    ledger = Ledger()
    held = await occupied(caller, ledger)
    expiring = (await caller.create(idle_timeout_s=2)).good()["session_id"]
    deleted = [(await caller.create()).good()["session_id"] for _ in range(3)]
    await settled(caller, small_state)
    fill(small_state)
    for session_id in deleted:
        answer = await caller.delete(session_id)
        assert answer.ok or (answer.status, answer.body["code"]) == (507, "no_space"), answer
        if answer.ok:
            ledger.dropped(session_id)
    await asyncio.sleep(4)
    await check_held(caller, held)
    free(small_state)
    await until(lambda: has_ended(caller, expiring), "it has expired")
    for session_id in deleted:
        (await caller.delete(session_id)).good()
        ledger.dropped(session_id)
    await check(caller, small_state, ledger)
    assert len(sandboxes(small_state)) <= 1 + 4


@pytest.mark.extended
async def test_a_server_killed_on_a_full_disk_starts_when_there_is_room(
    server: ServerProcess, caller: Caller, small_state: Path
) -> None:
    ledger = Ledger()
    await occupied(caller, ledger)
    fill(small_state)
    await caller.create(**COLD)
    server.kill()
    free(small_state)
    server.start()
    await check(caller, small_state, ledger)
