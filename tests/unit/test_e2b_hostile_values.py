"""Values that a hostile client or sandbox makes up for E2B's wire: none is an internal error, none takes long."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

import pytest
from busiest_turn import MAX_S, busiest_turn
from this_run import patience

from warren.http.e2b.control.bodies import read_whole
from warren.http.e2b.envd.filesystem import entry_of
from warren.http.e2b.envd.places import Rights
from warren.http.e2b.envd.started import StartedCommand, StartedCommands
from warren.http.e2b.envd.state import EnvdState
from warren.http.e2b.envd.watchers import MAX_WATCHERS, Directory, Watcher
from warren.http.e2b.errors import E2bError
from warren.http.e2b.users import resolve
from warren.model.errors import UnknownUser
from warren.model.operations import Change, FileEvent, FileInfo, FileKind
from warren.model.spec import SandboxSpec
from warren.testing.fake_provider import FakeProvider

pytestmark = pytest.mark.anyio


@contextmanager
def soon(limit_s: float) -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < patience(limit_s)


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e300, float("inf"), float("nan"), 1.5, True, "1", [1]])
def test_a_number_that_is_none_or_too_large_is_refused(value: object) -> None:
    with pytest.raises(E2bError) as refused:
        read_whole({"timeout": value}, "timeout", 0, 100)
    assert refused.value.status == 400
    assert [read_whole({"timeout": one}, "timeout", 0, 100) for one in (7, 7.0, None)] == [7, 7, None]


@pytest.mark.parametrize("seconds", [1e18, 253402300800.0, -1e18])
def test_a_file_may_have_any_time(seconds: float) -> None:
    entry = entry_of(FileInfo("/tmp/a", FileKind.FILE, 0, 0o644, 1000, 1000, seconds))
    assert entry["modifiedTime"].endswith("Z")


async def test_a_list_of_users_is_searched_soon() -> None:
    sandbox = await FakeProvider().create(SandboxSpec(sudo=True))
    lines = b"\n" * 200_000 + b"ann:x:1:1:Ann:/home/ann:/bin/sh\nbob:x:1:1:Bob:home:\n\xff:x:1:1::/f:\n"
    await sandbox.write("/etc/passwd", lines, user="root")
    with soon(0.05):
        assert (await resolve(sandbox, "ann")).home == "/home/ann"
    assert (await resolve(sandbox, "bob")).home == "/"
    assert (await resolve(sandbox, "\udcff")).home == "/f"
    for name in ("nn", "ann:x", "Ann", "a.n", "ann\n"):
        with pytest.raises(UnknownUser):
            await resolve(sandbox, name)


class Burst(Directory):
    """Its events come all at once."""

    async def watch(self) -> AsyncGenerator[FileEvent, None]:  # type: ignore[override]
        yield FileEvent(Change.WATCHING, "/tmp", True)
        await asyncio.sleep(0.02)
        for number in range(3000):
            yield FileEvent(Change.MODIFIED, f"/tmp/{number}", False)


async def test_many_watchers_of_a_busy_directory_leave_time_for_others() -> None:
    sandbox, state = await FakeProvider().create(SandboxSpec()), EnvdState()
    directory = Burst(sandbox, Rights("", "", "/tmp"), {"path": "/tmp"}, state.turn_of("ses_1"))
    watchers = [Watcher(state, "ses_1", directory) for _ in range(MAX_WATCHERS)]
    for watcher in watchers:
        await watcher.begin()
    async with busiest_turn() as busiest:
        while state.watchers:
            await asyncio.sleep(0)
    assert busiest.seconds < MAX_S


def test_a_sandbox_leaves_others_room_for_their_events() -> None:
    state, mib = EnvdState(), 1024 * 1024
    taken = sum(state.take_room("ses_1", mib) for _ in range(100))
    assert 6 <= taken <= 8
    assert all(state.take_room("ses_2", mib) for _ in range(6))
    state.give_back_room("ses_1", taken * mib)
    assert state.take_room("ses_1", 6 * mib)


def test_a_sandbox_cannot_push_out_what_is_known_of_commands_of_others() -> None:
    started = StartedCommands(max_characters=80_000)
    started.add("ses_1", "first", StartedCommand({"cmd": "a"}, tag="mine"))
    for number in range(1000):
        started.add("ses_2", f"p{number}", StartedCommand({"cmd": "b"}, size=500))
    assert started.find("ses_1", "first") is not None
    assert started.find("ses_2", "p0") is None
    assert started.find("ses_2", "p999") is not None
    for number in range(100):
        started.add(f"ses_{number + 3}", "p", StartedCommand({"cmd": "c"}, size=8000))
    assert started.find("ses_102", "p") is not None
    assert int(repr(started).split()[1]) < 20
