"""What the builds of templates have said, for the clients that follow them."""

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from warren.http.e2b.template_steps import STEP
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log

LONGEST_LINE: Final = 2000
_LOG_BYTES: Final = 1024 * 1024
_log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class LogEntry:
    at: float
    level: str
    message: str
    step: str = ""


class BuildLog:
    """What a build has said so far, up to a bound. `step` is the one that runs: `base`, or a number from 1."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._before = self._after = 0  # steps of the recipe that are not the template's own
        self.entries: list[LogEntry] = []
        self.step = "base"
        self.error = ""
        self._size = 0
        self._line = ""

    def note(self, line: str) -> None:
        """Takes a line of the process that builds."""
        try:
            values: Any = json.loads(line)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            _log.info("template_build_says", text=line[:LONGEST_LINE])
        elif {"before", "after"} <= values.keys():
            self._before, self._after = values["before"], values["after"]
        elif isinstance(step := values.get("step"), str):
            self._begin(step)
        elif isinstance(text := values.get("output"), str):
            self._add_output(text)
        elif isinstance(error := values.get("error"), str):
            self.end_line()
            self.error = STEP.sub(self._counted, error, count=1)
            self.add(self.error, "error")

    def add(self, message: str, level: str = "info") -> None:
        self._size += len(message) + 64
        if self._size <= _LOG_BYTES or level == "error":
            self.entries.append(LogEntry(self._clock.wall(), level, message[:LONGEST_LINE], self.step))

    def end_line(self) -> None:
        if self._line:
            self.add(self._line)
        self._line = ""

    def _begin(self, step: str) -> None:
        self.end_line()
        match = STEP.match(step)
        number = int(match[1]) - self._before if match else 0
        is_own = match is not None and 0 < number <= int(match[2]) - self._before - self._after
        if is_own:
            self.step = str(number)
        elif self.step != "base":
            self.step = "finalize"
        if is_own or not match:
            self.add(STEP.sub(self._counted, step, count=1))

    def _counted(self, match: re.Match[str]) -> str:
        """Numbers a step as the template counts it."""
        return f"step {int(match[1]) - self._before} of {int(match[2]) - self._before - self._after}: "

    def _add_output(self, text: str) -> None:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self.add(line.rstrip("\r"))
        self._line = self._line[-LONGEST_LINE:]
