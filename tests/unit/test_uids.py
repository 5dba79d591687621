"""Uid ranges: nobody shares one, nothing is lost for good."""

import fcntl
import multiprocessing
import subprocess
from pathlib import Path

import pytest

from warren.model.errors import ProviderUnavailable
from warren.sandboxes.host.uids import COUNT, FIRST, RANGE, UidRanges, uid_base


def owner(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.mkdir()
    return path


def test_a_claim_is_its_owners_until_it_is_released(tmp_path: Path) -> None:
    ranges, mine = UidRanges(tmp_path / "uids"), owner(tmp_path, "mine")
    index = ranges.claim(mine)
    assert ranges.owner(index) == mine
    ranges.release(index, mine)
    assert ranges.owner(index) is None


def test_releasing_twice_or_what_is_somebody_elses_changes_nothing(tmp_path: Path) -> None:
    ranges, one, two = UidRanges(tmp_path / "uids", count=1), owner(tmp_path, "one"), owner(tmp_path, "two")
    index = ranges.claim(one)
    ranges.release(index, one)
    ranges.release(index, one)
    assert ranges.claim(two) == index
    ranges.release(index, one)
    assert ranges.owner(index) == two


def test_a_claim_whose_owner_is_gone_is_taken_over(tmp_path: Path) -> None:
    ranges, dead, live = UidRanges(tmp_path / "uids", count=1), owner(tmp_path, "dead"), owner(tmp_path, "live")
    index = ranges.claim(dead)
    dead.rmdir()
    assert ranges.claim(live) == index
    assert ranges.owner(index) == live


def test_when_all_are_taken_it_says_so(tmp_path: Path) -> None:
    ranges, mine = UidRanges(tmp_path / "uids", count=2), owner(tmp_path, "mine")
    ranges.claim(mine)
    ranges.claim(mine)
    with pytest.raises(ProviderUnavailable, match="all 2 uid ranges are in use"):
        ranges.claim(mine)


def claim_some(directory: Path, mine: Path, count: int) -> list[int]:
    ranges = UidRanges(directory, count=200)
    return [ranges.claim(mine) for _ in range(count)]


def test_several_processes_never_get_the_same_range(tmp_path: Path) -> None:
    mine = owner(tmp_path, "mine")
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        claims = pool.starmap(claim_some, [(tmp_path / "uids", mine, 40)] * 4)
    indices = [index for some in claims for index in some]
    assert len(set(indices)) == 160


@pytest.mark.parametrize(("index", "base"), [(0, 0x78000000), (1, 0x78010000), (COUNT - 1, 0xF7FF0000)])
def test_ranges_lie_side_by_side_below_the_last_uid(index: int, base: int) -> None:
    assert uid_base(index) == base
    assert base >= FIRST
    assert base + RANGE <= 0xFFFFFFFF


@pytest.mark.parametrize("index", [-1, COUNT])
def test_there_is_no_range_beyond(index: int) -> None:
    with pytest.raises(ValueError, match="not the number"):
        uid_base(index)


def test_an_owner_that_forgot_its_claim_can_still_release_it(tmp_path: Path) -> None:
    ranges, one, two = UidRanges(tmp_path / "uids"), owner(tmp_path, "one"), owner(tmp_path, "two")
    first, second = ranges.claim(one), ranges.claim(two)
    ranges.release_all(one)
    assert (ranges.owner(first), ranges.owner(second)) == (None, two)


def test_a_range_that_a_process_still_lives_in_is_not_taken_over(tmp_path: Path) -> None:
    ranges, gone, live = UidRanges(tmp_path / "uids", count=1), owner(tmp_path, "gone"), owner(tmp_path, "live")
    index = ranges.claim(gone)
    gone.rmdir()
    survivor = subprocess.Popen(["sleep", "60"], user=uid_base(index) + 1000)
    try:
        with pytest.raises(ProviderUnavailable):
            ranges.claim(live)
    finally:
        survivor.kill()
        survivor.wait()
    assert ranges.claim(live) == index


def test_nobody_waits_for_somebody_who_stands_still_with_the_lock(tmp_path: Path) -> None:
    ranges = UidRanges(tmp_path / "uids", count=2)
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    claimed = ranges.claim(one)
    with (tmp_path / "uids" / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert ranges.claim(other) != claimed
        ranges.release(claimed, one)
        assert ranges.owner(claimed) is None
        other.rmdir()  # its claim is stale, and it would take the lock to take it over
        assert ranges.claim(one) == claimed
        with pytest.raises(ProviderUnavailable):
            ranges.claim(one)
