"""Progress on stderr: one line that moves on a terminal, a line per step in a log."""

import sys
import time
from typing import Self


class ProgressLine:
    """Call it with a step and, where known, the fraction done. Use as a context manager."""

    _QUIET_S = 10.0  # in a log, how long to wait before saying that the same step still runs

    def __init__(self, title: str) -> None:
        self._title = title
        self._started = time.monotonic()
        self._moving = sys.stderr.isatty()
        self._last_step = ""
        self._last_time = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._moving:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def __call__(self, step: str, fraction: float | None) -> None:
        now = time.monotonic()
        if self._moving and now - self._last_time > 0.1:
            sys.stderr.write(f"\r\033[K{self._line(step, fraction, now)}")
        elif not self._moving and (step != self._last_step or now - self._last_time > self._QUIET_S):
            sys.stderr.write(f"{self._line(step, fraction, now)}\n")
        else:
            return
        sys.stderr.flush()
        self._last_step, self._last_time = step, now

    def _line(self, step: str, fraction: float | None, now: float) -> str:
        percent = "    " if fraction is None else f"{fraction:4.0%}"
        return f"{self._title} {percent} {now - self._started:4.0f} s  {step}"
