"""The progress of image builds: lines on stderr for people and logs, lines of JSON for a server."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from warren.cli.output import Repeater, printable

_CACHED: Final = "(cached)"


class StepLines:
    """Prints a line for each step, with its seconds. On a terminal it shows the step that runs, too; in a log it prints
    a line when a step begins, every few seconds the last line that the step has written, and the step again if it
    writes nothing. Whoever makes one calls `end` when the build is over."""

    _REPEAT_S = 5.0
    _SILENT_S = 9.0

    def __init__(self, title: str) -> None:
        self._title = title
        self._step, self._began, self._shown = "", 0.0, 0.0
        self._is_terminal = sys.stderr.isatty()
        self._repeater = Repeater(self._SILENT_S, self._show_step_again)

    def end(self, *, failed: bool = False) -> None:
        self._repeater.end()
        self.end_step(failed=failed)

    def __call__(self, step: str, fraction: float | None) -> None:
        percent = "" if fraction is None else f" {fraction:.0%}"
        if step == self._step:
            self._show_more(f"{percent.strip()} done" if percent else "")
            return
        self.end_step()
        self._step, self._began = step, time.monotonic()
        self._shown = self._began
        if self._is_terminal:
            self._write(f"\r\033[K{self._title}{percent}: {one_line(step)[:100]} …")
        elif not step.endswith(_CACHED):
            self._write(f"{self._title}{percent}: {one_line(step)} …\n")

    def output(self, text: str) -> None:
        """Shows some of what steps write: the last lines are shown in full if one fails."""
        lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
        self._show_more(one_line(lines[-1]) if lines else "")

    def _show_more(self, text: str) -> None:
        now = time.monotonic()
        if not text or now < self._shown + self._REPEAT_S:
            return
        self._shown = now
        if self._is_terminal:
            self._write(f"\r\033[K{self._title}: {one_line(self._step)[:50]} … {now - self._began:.0f} s, {text[:50]}")
        else:
            self._write(f"{self._title}: … {now - self._began:.0f} s, {text[:200]}\n")

    def _show_step_again(self) -> None:
        if self._step:
            self._write(f"{self._title}: … {time.monotonic() - self._began:.0f} s, {one_line(self._step)}\n")

    def end_step(self, *, failed: bool = False) -> None:
        if not self._step:
            return
        took = "" if self._step.endswith(_CACHED) else f" {time.monotonic() - self._began:.1f} s"
        self._write("\r\033[K" if self._is_terminal else "")
        self._write(f"{self._title}: {one_line(self._step)}{' failed after' if failed else ''}{took}\n")
        self._step = ""

    def _write(self, text: str) -> None:
        with self._repeater.lock:
            sys.stderr.write(text)
            sys.stderr.flush()
            if not self._is_terminal:
                self._repeater.printed()


class ReportLines:
    """Writes lines of JSON on stdout, for the server that has started this process; with `output` also what steps
    write, and how far a long step is."""

    _REPEAT_S = 5.0

    def __init__(self, *, output: bool = False) -> None:
        self._last: tuple[str, int] = "", 0
        self._written = 0.0
        self._with_output = output

    def __call__(self, step: str, fraction: float | None) -> None:
        now, percent = time.monotonic(), int(100 * (fraction or 0))
        if step != self._last[0] or (percent != self._last[1] and not self._with_output):
            self._last, self._written = (step, percent), now
            self.write({"step": one_line(step), "fraction": fraction})
        elif self._with_output and percent != self._last[1] and now > self._written + self._REPEAT_S:
            self._last, self._written = (step, percent), now
            self.write({"output": f"{one_line(step)}: {percent} %\n"})

    def output(self, text: str) -> None:
        """Reports what a step writes, if the server wants that. The last lines of a step that fails are in its error in
        any case."""
        if self._with_output:
            self.write({"output": text})

    def write(self, values: dict[str, Any]) -> None:
        sys.stdout.write(f"{json.dumps(values)}\n")
        sys.stdout.flush()


def one_line(step: str) -> str:
    """Returns a step on one line: commands may have several."""
    first = step.strip().split("\n", 1)
    return printable(first[0][:300]) + (" …" if len(first) > 1 or len(first[0]) > 300 else "")


@contextmanager
def shown_steps(title: str) -> Iterator[StepLines]:
    lines = StepLines(title)
    try:
        yield lines
    except BaseException:
        lines.end(failed=True)
        raise
    lines.end()
