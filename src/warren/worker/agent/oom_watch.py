"""Whether running out of memory ended a command.

The kernel counts, per sandbox, how many processes it killed for want of memory. A command that died
of signal 9 (or says so by exit code 137) while that count rose ran out of memory. If it failed in another
way, because only a child of it was killed, it is blamed as well, unless another command ran at the
same time: then nobody can tell whose child that was.
"""

from collections.abc import Callable


class OomWatch:
    """One command's view: made when it starts, asked when it has ended."""

    __slots__ = ("_before", "alone")

    def __init__(self, before: int) -> None:
        self._before = before
        self.alone = True

    def blames(self, now: int, exit_code: int, signal: int | None) -> bool:
        if now <= self._before or exit_code == 0:
            return False
        return signal == 9 or exit_code == 137 or self.alone


class OomLedger:
    """Who runs at the same time as whom, by process id."""

    def __init__(self, oom_kills: Callable[[], int]) -> None:
        self._oom_kills = oom_kills
        self._running: dict[str, OomWatch] = {}
        self._verdicts: dict[str, bool] = {}

    def begin(self, process_id: str) -> None:
        watch = OomWatch(self._oom_kills())
        if self._running:
            watch.alone = False
            for other in self._running.values():
                other.alone = False
        self._running[process_id] = watch

    def ended(self, process_id: str, exit_code: int, signal: int | None) -> bool:
        """Whether it was for want of memory. Asked again, the answer is the same."""
        watch = self._running.pop(process_id, None)
        if watch is not None:
            self._verdicts[process_id] = exit_code != 0 and watch.blames(self._oom_kills(), exit_code, signal)
        return self._verdicts.get(process_id, False)

    def forget(self, process_id: str) -> None:
        self._running.pop(process_id, None)
        self._verdicts.pop(process_id, None)
