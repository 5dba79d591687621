"""When the machine is full, and when it is close to it."""

from pathlib import Path

import pytest

from warren.interfaces.worker import GuardStats
from warren.model.errors import MachineFull
from warren.sandboxes.host.machine_size import usable_cores
from warren.worker.guard import (
    MachineGuard,
    Reserve,
    Room,
    default_disk_reserve,
    default_memory_reserve,
    is_tight,
    most_ahead,
    read_room,
    refusal,
)

RESERVE = Reserve(memory=1000, disk=500, max_sandboxes=10)


def room(memory: int = 10_000, disk: int = 10_000) -> Room:
    return Room(memory_total=16_000, memory_free=memory, disk_total=100_000, disk_free=disk)


@pytest.mark.parametrize(
    ("there", "live", "creating", "says"),
    [
        (room(), 0, 0, None),
        (room(), 9, 0, None),
        (room(), 10, 0, "10 sandboxes on this machine, 10 are allowed"),
        (room(), 7, 3, "10 sandboxes on this machine"),
        (room(memory=1008), 0, 0, None),
        (room(memory=1007), 0, 0, "999 MiB of memory to spare, 1000 MiB must stay free"),
        (room(memory=1030), 0, 2, None),
        (room(memory=1030), 0, 3, "998 MiB of memory"),
        (room(memory=3), 0, 0, "0 MiB of memory"),
        (room(disk=500), 0, 0, None),
        (room(disk=499), 0, 0, "499 MiB free, 500 MiB must stay free"),
    ],
)
def test_one_more_or_not(there: Room, live: int, creating: int, says: str | None) -> None:
    error = refusal(there, RESERVE, live, creating)
    if says is None:
        assert error is None
    else:
        assert error is not None
        assert says in error.message
        assert error.remedy
        assert error.retry_after_s


@pytest.mark.parametrize(
    ("there", "was_tight", "tight"),
    [
        (room(), False, False),
        (room(memory=1999), False, True),
        (room(memory=2000), False, False),
        (room(memory=2000), True, True),
        (room(memory=3000), True, False),
        (room(disk=999), False, True),
    ],
)
def test_close_to_full_begins_earlier_than_it_ends(there: Room, was_tight: bool, tight: bool) -> None:
    assert is_tight(there, RESERVE, was_tight=was_tight) is tight


@pytest.mark.parametrize(("total", "reserve"), [(1000, 256), (5120, 256), (100_000, 5000)])
def test_the_reserve_of_memory_is_a_twentieth(total: int, reserve: int) -> None:
    assert default_memory_reserve(Room(total, 0, 0, 0)) == reserve


@pytest.mark.parametrize(("total", "reserve"), [(1000, 20), (51_200, 1024), (1_000_000, 1024)])
def test_the_reserve_of_disk_is_less_on_a_small_one(total: int, reserve: int) -> None:
    assert default_disk_reserve(Room(0, 0, total, 0)) == reserve


class Machine:
    """A machine whose figures the test sets, and that counts how often it is read."""

    def __init__(self) -> None:
        self.there: Room | OSError = room()
        self.now, self.reads = 100.0, 0

    def read(self, _: Path) -> Room:
        self.reads += 1
        if isinstance(self.there, OSError):
            raise self.there
        return self.there

    def guard(self) -> MachineGuard:
        return MachineGuard(Path("/"), 1000, 500, 10, room=self.read, now=lambda: self.now)


def test_a_reading_serves_for_a_moment() -> None:
    machine = Machine()
    guard = machine.guard()
    guard.check(0)
    guard.check(0)
    assert machine.reads == 1
    machine.now, machine.there = machine.now + 0.3, room(memory=0)
    with pytest.raises(MachineFull):
        guard.check(0)
    assert machine.reads == 2


def test_zero_is_a_reserve_of_nothing() -> None:
    guard = MachineGuard(Path("/"), 0, 0, room=lambda _: room(memory=20, disk=0))
    guard.check(0)
    assert not guard.pressure()


def test_pressure_goes_away_when_there_is_room_again() -> None:
    machine = Machine()
    guard = machine.guard()
    seen = []
    for memory in (10_000, 1500, 2500, 4000):
        machine.now, machine.there = machine.now + 1, room(memory=memory)
        seen.append(guard.pressure())
    assert seen == [False, True, True, False]


def test_the_figures_are_told_also_while_the_machine_cannot_be_read() -> None:
    machine = Machine()
    guard = machine.guard()
    before = guard.stats()
    machine.now, machine.there = machine.now + 1, OSError(24, "too many open files")
    with pytest.raises(OSError, match="too many"):
        guard.check(0)
    assert (
        before
        == guard.stats()
        == GuardStats(
            memory_free_mb=10_000,
            memory_reserve_mb=1000,
            disk_free_mb=10_000,
            disk_reserve_mb=500,
            max_sandboxes=10,
            pressure=False,
            pool_ceiling=5,
        )
    )


@pytest.mark.parametrize(
    ("why", "memory", "most", "live", "ceiling"),
    [
        ("a quarter of what is above three reserves, 8 MiB each", 10_000, 4000, 0, 218),
        ("none where memory is short", 3_000, 4000, 0, 0),
        ("and none where it is very short", 10, 4000, 0, 0),
        ("half of the sandboxes that may still be made", 10_000, 100, 80, 10),
        ("none on a machine that has all it may have", 10_000, 100, 110, 0),
    ],
)
def test_how_many_pools_may_hold_when_they_grow(why: str, memory: int, most: int, live: int, ceiling: int) -> None:
    assert most_ahead(room(memory=memory), Reserve(1000, 500, most), live) == ceiling, why


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    here = read_room(tmp_path / "not" / "there" / "yet")
    assert 0 < here.memory_free <= here.memory_total
    assert 0 <= here.disk_free <= here.disk_total
    assert usable_cores() >= 1


def test_the_guard_says_what_it_sees() -> None:
    assert repr(Machine().guard()) == "<MachineGuard 10000 MiB of memory and 10000 MiB of disk free>"


def test_what_destroyed_sandboxes_give_back_counts_as_free() -> None:
    guard = MachineGuard(
        Path("/"), 1000, 500, room=lambda _: room(disk=450), now=iter(range(1, 100)).__next__, freeing=lambda: 60 << 20
    )
    guard.check(live=0)
    assert guard.room().disk_free == 510
