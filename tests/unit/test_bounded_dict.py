"""The bounded dictionary of the caches."""

from warren.kernel.bounded_dict import BoundedDict


def full() -> BoundedDict[str, int]:
    entries = BoundedDict[str, int](3)
    for number, name in enumerate("abc"):
        entries[name] = number
    return entries


def test_one_entry_too_many_removes_the_oldest() -> None:
    entries = full()
    entries["d"] = 3
    assert list(entries) == ["b", "c", "d"]


def test_an_entry_that_is_written_again_is_the_newest() -> None:
    entries = full()
    entries["a"] = 10
    entries["d"] = 3
    assert dict(entries) == {"c": 2, "a": 10, "d": 3}


def test_reading_does_not_count_as_use_and_moving_does() -> None:
    entries = full()
    assert entries["a"] == 0
    entries.move_to_end("b")
    entries["d"] = 3
    entries["e"] = 4
    assert list(entries) == ["b", "d", "e"]


def test_setdefault_and_update_keep_the_bound() -> None:
    entries = full()
    assert entries.setdefault("d", 7) == 7
    entries.update(e=8, f=9)
    assert list(entries) == ["d", "e", "f"]
