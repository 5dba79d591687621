"""What commands print: tables, durations and sizes for people, JSON for programs, bytes, progress on stderr."""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Self

import click

from warren.config.settings import wants_colour

STREAM_FDS: Final = {"stdout": 1, "stderr": 2, "terminal": 1}
CLEAR_SCREEN: Final = "\033[H\033[2J"
_MIB: Final = 1024 * 1024
_GAP: Final = 2


def print_json(values: Any) -> None:
    click.echo(json.dumps(values, indent=2))


class Coloured(NamedTuple):
    """A value of a table that has a colour on a terminal: one that click.style knows."""

    value: object
    colour: str


def print_table(
    titles: Sequence[str], rows: Sequence[Sequence[object]], *, spare: Sequence[str] = (), cut: Sequence[str] = ()
) -> None:
    """Prints a table. On a terminal that is too narrow the columns `spare` are left out, the first one first, and then
    values of the columns `cut` are shortened; elsewhere all of it is printed."""
    lines = [list(titles), *([_printable(value) for value in row] for row in rows)]
    widths = {title: max(len(line[column]) for line in lines) for column, title in enumerate(titles)}
    if (spare or cut) and sys.stdout.isatty():
        _fit(widths, shutil.get_terminal_size().columns, spare, cut)
    shown = [(titles.index(title), width) for title, width in widths.items()]
    has_colour = _has_colour()
    for line, row in zip(lines, (titles, *rows), strict=True):
        cells = []
        for column, width in shown:
            text = line[column] if len(line[column]) <= width else f"{line[column][: width - 1]}…"
            padding, value = " " * (width - len(text)), row[column]
            if has_colour and isinstance(value, Coloured):
                text = click.style(text, fg=value.colour)
            cells.append(text + padding)
        click.echo("  ".join(cells).rstrip())


def _fit(widths: dict[str, int], room: int, spare: Sequence[str], cut: Sequence[str]) -> None:
    """Removes the columns `spare` and narrows the columns `cut`, as far as it takes to fit into `room`."""

    def missing() -> int:
        return sum(widths.values()) + _GAP * (len(widths) - 1) - room

    for title in spare:
        if missing() > 0:
            del widths[title]
    while missing() > 0 and (wide := [title for title in cut if widths[title] > len(title)]):
        widths[max(wide, key=widths.__getitem__)] -= 1


def _has_colour() -> bool:
    """Whether colours may be printed: on a terminal that has them, unless NO_COLOR says otherwise."""
    return sys.stdout.isatty() and wants_colour()


def _printable(value: object) -> str:
    """Removes control characters: names come from others, and must not move the cursor or colour the terminal."""
    value = value.value if isinstance(value, Coloured) else value
    return printable("-" if value in (None, "") else str(value))


def printable(text: str, keep: str = "") -> str:
    return "".join(character if character.isprintable() or character in keep else "?" for character in text)


def format_seconds(seconds: float) -> str:
    """Returns a duration as a person would say it, with one figure: 45 s, 12 min, 3 h, 2 d."""
    if seconds < 0:
        return "now"
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_age(timestamp: str) -> str:
    return format_seconds(max(0.0, seconds_since(timestamp)))


def format_mib(count: float) -> str:
    return f"{count / _MIB:.1f} MiB"


def format_size(mib: float) -> str:
    """Returns a size in few characters, as options take it: 512M, 1G, 1.5G."""
    return f"{round(mib / 1024, 1):.15g}G" if mib >= 1024 else f"{mib:.15g}M"


def seconds_since(timestamp: str) -> float:
    """Returns the seconds since a time; negative for a time in the future."""
    return (datetime.now(UTC) - datetime.fromisoformat(timestamp)).total_seconds()


def write_bytes(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Repeater:
    """Calls `repeat` in a thread when nothing was printed for a while: a log shows that a long step still runs.

    `repeat` holds `lock` when it is called. Whoever prints holds it too, and calls `printed`. The first call of
    `printed` starts the thread, `end` ends it.
    """

    def __init__(self, every_s: float, repeat: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self._every_s, self._repeat = every_s, repeat
        self._printed_at = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def printed(self) -> None:
        self._printed_at = time.monotonic()
        if self._thread is None and not self._ended.is_set():
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(max(0.01, self._printed_at + self._every_s - time.monotonic())):
            with self.lock:
                if time.monotonic() < self._printed_at + self._every_s:
                    continue
                try:
                    self._repeat()
                except OSError:  # nobody reads stderr any more
                    return
                self._printed_at = time.monotonic()


class ProgressLine:
    """Progress on stderr: one line that is rewritten on a terminal, a line per step in a log, again every few seconds.

    Call it with the step and, where known, the fraction done. Use it as a context manager.
    """

    _REPEAT_S = 9.0  # in a log, a step that still runs is repeated this often

    def __init__(self, title: str) -> None:
        self._title = title
        self._started = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._last: tuple[str, float | None] = "", None
        self._last_time = 0.0
        self._repeater = Repeater(self._REPEAT_S, lambda: self._write_line(*self._last))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._repeater.end()
        if self._is_terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def __call__(self, step: str, fraction: float | None) -> None:
        now = time.monotonic()
        if self._is_terminal:
            if now - self._last_time > 0.1:
                self._last_time = now
                sys.stderr.write(f"\r\033[K{self._line(step, fraction, now)}")
                sys.stderr.flush()
            return
        with self._repeater.lock:
            is_new, self._last = step != self._last[0], (step, fraction)
            if is_new:
                self._write_line(step, fraction)
                self._repeater.printed()

    def _write_line(self, step: str, fraction: float | None) -> None:
        sys.stderr.write(f"{self._line(step, fraction, time.monotonic())}\n")
        sys.stderr.flush()

    def _line(self, step: str, fraction: float | None, now: float) -> str:
        percent = "    " if fraction is None else f"{fraction:4.0%}"
        return f"{self._title} {percent} {now - self._started:4.0f} s  {step}"
