"""A pytest plugin for tests/run.py: writes the result of each test to the file `--results`, as lines of JSON."""

import json
import resource
from collections.abc import Generator
from pathlib import Path
from typing import TextIO

import pytest
import warm_parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, help="the file for lines of JSON")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.results:
        file = config.option.results.open("w")
        config.add_cleanup(file.close)
        config.pluginmanager.register(_Writer(file))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the processor time that this process and its children used since the previous report."""
    global _used_s
    report = yield
    before_s, _used_s = _used_s, _processor_s()
    report.processor_s = _used_s - before_s
    return report


def _processor_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + warm_parent.processor_s


_used_s = _processor_s()


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
            "processor_s": getattr(report, "processor_s", 0.0),
            "log": log.strip(),
        }
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()
