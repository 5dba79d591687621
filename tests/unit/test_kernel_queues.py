"""The watches of uncharged memory look at all sandboxes when somebody takes memory, not when sandboxes are made."""

import os
from collections.abc import Iterator

import pytest

from warren.sandboxes.host.kernel_queues import GROWTH, QueueWatch, WatchedSandbox

MIB = 1 << 20


class Machine(QueueWatch):
    """Sandboxes that take memory by being there, and one that takes more of it on purpose."""

    name = "memory of a test"
    most = 4 * MIB
    taken_by_each = MIB
    sandboxes = taken = looks = 0

    def __init__(self) -> None:
        super().__init__(self._all, lambda: Machine.sandboxes)

    @staticmethod
    def figure() -> int:
        return Machine.sandboxes * Machine.taken_by_each + Machine.taken

    @staticmethod
    def held(pid: int) -> int:
        return 0

    def _all(self) -> Iterator[WatchedSandbox]:
        Machine.looks += 1
        yield WatchedSandbox(os.getpid(), list)

    def make(self, count: int) -> int:
        """Makes sandboxes, and returns how often all were looked at meanwhile."""
        before = Machine.looks
        for _ in range(count):
            Machine.sandboxes += 1
            self.check()
        return Machine.looks - before

    def check(self) -> bool:
        if grown := self._is_too_much():
            self._end_offenders()
        return grown


@pytest.fixture
def machine() -> Machine:
    Machine.sandboxes = Machine.taken = Machine.looks = 0
    Machine.taken_by_each = MIB
    return Machine()


def test_it_learns_what_a_sandbox_takes(machine: Machine) -> None:
    assert machine.make(1000) == 1
    Machine.taken_by_each = 1100 << 10  # as more of them there are, more each
    assert machine.make(1000) <= 3


def test_it_sees_what_somebody_takes_beside_new_sandboxes(machine: Machine) -> None:
    machine.make(1000)
    for _ in range(3):
        Machine.taken += GROWTH + MIB
        assert machine.check()
        assert not machine.check()


def test_what_is_taken_while_few_are_made_is_not_taken_for_usual(machine: Machine) -> None:
    assert machine.make(49) == 1
    assert machine.usual == MIB
    Machine.taken += 3 * GROWTH
    assert machine.make(5) == 1
    assert machine.usual == MIB


def test_the_memory_of_sandboxes_that_have_gone_is_no_credit(machine: Machine) -> None:
    machine.make(1000)
    Machine.sandboxes = 10
    assert not machine.check()
    Machine.taken += GROWTH + MIB
    assert machine.check()
