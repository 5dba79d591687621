"""Who is ended for holding too many locks: a list of owners in, processes out."""

import pytest

from warren.sandboxes.host.file_locks import MAX_LOCKS, Pause, find_offenders

SANDBOXES = {1: None, **dict.fromkeys(range(100, 200), 7), **dict.fromkeys(range(200, 300), 8)}


@pytest.mark.parametrize(
    ("owners", "offenders"),
    [
        ([100] * MAX_LOCKS, []),
        ([100] * (MAX_LOCKS + 1), [100]),
        ([1] * 60_000, []),
        ([1] * 60_000 + [100] * 5000, [100]),
        ([200] * MAX_LOCKS + [100] * 10 + [101] * MAX_LOCKS, [101]),
        ([*range(100, 200)] * 50, [*range(100, 150)]),
        ([1] * 65_536 + [100] * 257, [100]),
        ([1] * 65_536 + [100] * 256 + [200] * 10, []),
    ],
    ids=["few", "many", "the host's", "many beside the host's", "one of two", "spread", "too long a list", "harmless"],
)
def test_the_holders_of_most_locks_are_ended(owners: list[int], offenders: list[int]) -> None:
    found = find_offenders(owners, SANDBOXES.get)
    assert len(found) == pytest.approx(len(offenders), abs=1)
    assert {SANDBOXES[pid] for pid in found} == {SANDBOXES[pid] for pid in offenders}


def test_the_list_is_not_read_all_the_time_for_locks_that_are_allowed() -> None:
    """Reading it stops the locks of the whole machine."""
    pause = Pause()
    assert not pause.is_over(MAX_LOCKS, 0.0)
    assert pause.is_over(MAX_LOCKS + 1, 0.0)
    pause.note(MAX_LOCKS + 1, 0.0, 0.3, found=False)
    assert not pause.is_over(MAX_LOCKS + 1, 6.2)
    assert not pause.is_over(None, 6.2)
    assert pause.is_over(MAX_LOCKS + 1, 6.4)


def test_many_more_locks_than_at_the_last_look_end_the_pause() -> None:
    pause = Pause()
    pause.note(MAX_LOCKS + 1, 0.0, 0.3, found=False)
    assert not pause.is_over(2 * MAX_LOCKS, 0.5)
    assert pause.is_over(2 * MAX_LOCKS + 3, 0.5)


def test_there_is_no_pause_after_somebody_was_found() -> None:
    pause = Pause()
    pause.note(MAX_LOCKS + 1, 0.0, 0.3, found=True)
    assert pause.is_over(MAX_LOCKS + 1, 0.3)
