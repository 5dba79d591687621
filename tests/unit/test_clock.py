"""The two clocks, and what belongs together on them."""

from warren.kernel.clock import CLOCK_WAS_SET_S, SystemClock


class SetClock(SystemClock):
    """Its time of day is read a little later each time, and can be set."""

    def __init__(self) -> None:
        self.ahead = 0.0
        super().__init__()

    def wall(self) -> float:
        self.ahead += 0.001
        return super().wall() + self.ahead


def test_a_moment_has_the_same_time_of_day_each_time_it_is_asked_for() -> None:
    clock = SetClock()
    moment = clock.now() + 60
    assert len({clock.wall_at(moment) for _ in range(100)}) == 1


def test_a_clock_that_was_set_is_followed() -> None:
    clock = SetClock()
    moment = clock.now() + 60
    before = clock.wall_at(moment)
    clock.ahead += 3600
    assert 3600 - CLOCK_WAS_SET_S < clock.wall_at(moment) - before < 3601
