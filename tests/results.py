"""A pytest plugin for tests/run.py: writes what became of each test to the file `--results`, as lines of JSON."""

import json
from pathlib import Path
from typing import TextIO

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, help="the file for lines of JSON")


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")  # pytest-xdist: the controller hears of everything the workers do
    if config.option.results and not is_worker:
        file = config.option.results.open("w")
        config.add_cleanup(file.close)
        config.pluginmanager.register(_Writer(file))


class _Writer:
    def __init__(self, file: TextIO) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._write(report, duration_s=report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(report, duration_s=0.0)

    def _write(self, report: pytest.TestReport | pytest.CollectReport, duration_s: float) -> None:
        log = "\n".join([report.longreprtext, *(f"-- {title}\n{text}" for title, text in report.sections)])
        values = {
            "test": report.nodeid,
            "step": getattr(report, "when", "collect"),
            "outcome": report.outcome,
            "duration_s": duration_s,
            "log": log.strip(),
        }
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()
