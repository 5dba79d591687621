"""The most that a caller may ask for, whatever the quota."""

import pytest

from warren.model.errors import InvalidRequest
from warren.model.spec import NO_CEILINGS, Ceilings, Limits
from warren.sandboxes.providers.host_limits import HostRoom
from warren.sessions.allowances import check_ceilings
from warren.worker.guard import Room, default_ceilings

MACHINE = Room(memory_total=24_000, memory_free=20_000, disk_total=250_000, disk_free=80_000, files_total=2_400_000)


def test_the_ceilings_of_a_machine() -> None:
    assert default_ceilings(MACHINE, 2, 32768) == Ceilings(12_000, 2.0, 4096, 125_000, 65536, 600_000)
    small = default_ceilings(Room(600, 500, 900, 800, files_total=50_000), 1, 1000)
    assert small == Ceilings(512, 2.0, 1024, 1024, 65536, 256 * 1024)
    check_ceilings(small, Limits(), Limits())


@pytest.mark.parametrize("name", ["memory_mb", "cpus", "pids", "disk_mb", "open_files"])
def test_more_is_refused_unless_the_environment_has_it(name: str) -> None:
    ceilings = default_ceilings(MACHINE, 2, 32768)
    above = Limits(**{name: int(getattr(ceilings, name)) + 1})
    with pytest.raises(InvalidRequest, match=f"{name} may be at most") as caught:
        check_ceilings(ceilings, above, Limits())
    assert "the option max_" in (caught.value.remedy or "")
    check_ceilings(ceilings, above, above)
    check_ceilings(NO_CEILINGS, above, Limits())


def test_many_processes_with_many_files_are_too_many_files() -> None:
    ceilings = default_ceilings(MACHINE, 2, 32768)
    check_ceilings(ceilings, Limits(pids=512, open_files=1024), Limits())
    with pytest.raises(InvalidRequest, match="open_files times pids"):
        check_ceilings(ceilings, Limits(pids=1024, open_files=1024), Limits())


def test_what_all_sandboxes_may_use_together() -> None:
    totals = HostRoom().totals(24_000, 32768)
    assert (totals.memory, totals.cpus, totals.pids) == (22_800 << 20, None, 24576)
    totals = HostRoom(total_memory_mb=1000, total_cpus=1.5, total_pids=99).totals(24_000, 32768)
    assert (totals.memory, totals.cpus, totals.pids) == (1000 << 20, 1.5, 99)
    assert HostRoom(min_free_memory_mb=23_000).totals(24_000, 32768).memory == 12_000 << 20


def test_large_numbers_are_written_out() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_ceilings(default_ceilings(MACHINE, 2, 32768), Limits(memory_mb=1024 * 1024), Limits())
    assert caught.value.message == "memory_mb may be at most 12000 on this server, 1048576 was asked for"
