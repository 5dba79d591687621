"""Progress in a log: a step that runs for long is repeated, so that nobody takes the program for stuck."""

import re
import time
from collections.abc import Callable

import pytest

from warren.cli.build_lines import StepLines
from warren.cli.output import ProgressLine


class OftenProgressLine(ProgressLine):
    _REPEAT_S = 0.02


class OftenStepLines(StepLines):
    _SILENT_S = 0.02


def printed_until(capfd: pytest.CaptureFixture[str], is_enough: Callable[[str], bool]) -> str:
    text, deadline = "", time.monotonic() + 10
    while not is_enough(text) and time.monotonic() < deadline:
        time.sleep(0.01)
        text += capfd.readouterr().err
    return text


def test_a_step_that_reports_nothing_is_repeated_with_its_seconds(capfd: pytest.CaptureFixture[str]) -> None:
    with OftenProgressLine("image base") as progress:
        progress("unpacking the core", 0.15)
        text = printed_until(capfd, lambda text: text.count("\n") >= 3)
    lines = text.splitlines()
    assert len(lines) >= 3
    assert all(re.fullmatch(r"image base  15% +\d+ s  unpacking the core", line) for line in lines), lines
    capfd.readouterr()
    time.sleep(0.1)
    assert capfd.readouterr().err == ""  # it is over


def test_a_step_of_a_recipe_that_writes_nothing_is_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    lines = OftenStepLines("image tools")
    lines("RUN sleep 600", None)
    text = printed_until(capfd, lambda text: text.count("\n") >= 3)
    lines.end()
    assert text.splitlines()[:1] == ["image tools: RUN sleep 600 …"]
    assert text.splitlines()[1:3] == ["image tools: … 0 s, RUN sleep 600"] * 2
    capfd.readouterr()
    time.sleep(0.1)
    assert capfd.readouterr().err == ""


def test_nothing_is_repeated_more_often_than_in_ten_seconds() -> None:
    assert max(ProgressLine._REPEAT_S, StepLines._SILENT_S) <= 10
