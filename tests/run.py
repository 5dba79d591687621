"""Runs the tests: most of them in several processes, then those that need the machine for themselves.

    python tests/run.py [--all] [arguments of pytest]

Without `--all` it leaves out the tests marked `extended`. With `--all` it runs each failed test once more, alone, at
the end. A test that passes then is flaky: the run stays green, but prints FLAKY with the logs of both attempts. More
than three flaky tests make it red. At the end it prints the slowest tests, the processor time of each folder, what the
run has left on the machine (which makes it red), and how many tests have passed and failed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import this_run
from leftovers import SandboxIds, wait_for_leftovers

MAX_FLAKY: Final = 3
_MAX_REPEATED: Final = 20  # with more failures something is really broken, and repeating them would take long
_SLOWEST: Final = 30
_PROCESSES: Final = 4
_FINISHED: Final = {0, 1, 5}  # exit codes of pytest: all passed, some failed, none were selected


@dataclass
class Result:
    """The result of one test. `step` is setup, call or teardown; a file that cannot be imported fails in `collect`."""

    test: str
    outcomes: dict[str, str] = field(default_factory=dict)
    duration_s: float = 0.0
    processor_s: float = 0.0
    log: str = ""

    @property
    def outcome(self) -> str:
        """A test without a call has crashed its process, or was not collected."""
        if "failed" in self.outcomes.values():
            return "failed"
        return "skipped" if "skipped" in self.outcomes.values() else "passed"

    @property
    def is_test(self) -> bool:
        return "collect" not in self.outcomes


@dataclass
class Part:
    """The results of one call of pytest."""

    exit_code: int
    results: dict[str, Result]

    @property
    def is_complete(self) -> bool:
        return self.exit_code in _FINISHED


def read_results(lines: Iterable[str]) -> dict[str, Result]:
    results: dict[str, Result] = {}
    for line in lines:
        values = json.loads(line)
        result = results.setdefault(values["test"], Result(values["test"]))
        # If a process dies, the one that takes its place may report a failed test again.
        if result.outcomes.get(values["step"]) != "failed":
            result.outcomes[values["step"]] = values["outcome"]
        result.duration_s += values["duration_s"]
        result.processor_s += values["processor_s"]
        if values["log"]:
            result.log += f"{values['log']}\n"
    return results


def run_pytest(arguments: Sequence[str]) -> Part:
    file = this_run.directory() / "results"
    here = str(Path(__file__).parent)
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "pytest", "-p", "processes", "-p", "results", f"--results={file}"]
    command += [f"--basetemp={this_run.basetemp()}", *arguments]
    environ = {**os.environ, "PYTHONPATH": path}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # keeps the bytecode of the hundreds of files that pytest compiles
    with subprocess.Popen(command, env=environ) as process:
        # SIGINT instead of SIGTERM: pytest then stops what its tests have started.
        signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGINT))
        exit_code = process.wait()
    try:
        return Part(exit_code, read_results(file.read_text().splitlines()))
    finally:
        file.unlink(missing_ok=True)


def repeat(failed: Sequence[str]) -> Part:
    """Runs these tests again, one after the other and alone on the machine."""
    print(f"\nonce more, alone: {len(failed)}", flush=True)
    file = this_run.directory() / "repeated"
    file.write_text("".join(f"{test}\n" for test in failed))
    try:
        return run_pytest(["--processes=1", f"@{file}"])
    finally:
        file.unlink()


@dataclass
class Summary:
    results: dict[str, Result]
    is_complete: bool
    repeated: dict[str, Result] = field(default_factory=dict)
    left: Sequence[str] = ()

    @property
    def flaky(self) -> list[str]:
        return [test for test, result in self.repeated.items() if result.outcome == "passed"]

    @property
    def failed(self) -> list[Result]:
        flaky = set(self.flaky)
        return [result for result in self.results.values() if result.outcome == "failed" and result.test not in flaky]

    @property
    def is_green(self) -> bool:
        has_tests = any(result.is_test for result in self.results.values())
        is_stable = not self.failed and len(self.flaky) <= MAX_FLAKY
        return self.is_complete and has_tests and is_stable and not self.left

    def lines(self, duration_s: float) -> Iterable[str]:
        yield from self._slowest()
        yield from self._folders()
        for test in self.flaky:
            yield f"FLAKY {test}"
            yield f"---- {test}: it failed\n{self.results[test].log or '(no output)'}"
            yield f"---- {test}: it passed alone\n{self.repeated[test].log or '(no output)'}"
        if len(self.flaky) > MAX_FLAKY:
            yield f"{len(self.flaky)} tests are flaky; more than {MAX_FLAKY} are too many"
        yield from (f"FAILED {result.test}" for result in self.failed)
        yield from (f"LEFT BEHIND {line}" for line in self.left)
        if not self.is_complete:
            yield "pytest did not come to its end"
        passed = sum(result.outcome == "passed" for result in self.results.values()) + len(self.flaky)
        skipped = sum(result.outcome == "skipped" for result in self.results.values())
        counts = [f"{passed} passed", f"{len(self.failed)} failed"]
        counts += [f"{skipped} skipped"] if skipped else []
        counts += [f"{len(self.flaky)} flaky"] if self.flaky else []
        yield f"{', '.join(counts)} in {duration_s:.2f}s"

    def _slowest(self) -> Iterable[str]:
        slowest = sorted(self.results.values(), key=lambda result: -result.duration_s)[:_SLOWEST]
        yield f"the {len(slowest)} slowest tests, with their set-up and teardown"
        yield from (f"{result.duration_s:8.2f}s {result.test}" for result in slowest)

    def _folders(self) -> Iterable[str]:
        """Yields the processor time by folder. A process counts when it ends, so some of it counts for a later test."""
        used: dict[str, list[float]] = {}
        for result in self.results.values():
            used.setdefault(str(Path(result.test.partition("::")[0]).parent), []).append(result.processor_s)
        yield "processor time by folder, without what nobody waited for"
        yield from (f"{sum(each):8.0f}s {len(each):6} tests {folder}" for folder, each in sorted(used.items()))


def run(everything: bool, processes: int, arguments: Sequence[str]) -> Summary:
    if everything:
        os.environ[this_run.EVERYTHING] = "1"
    selected = () if everything else ("-m", "not extended")
    part = run_pytest([f"--processes={processes}", *selected, *arguments])
    summary = Summary(part.results, part.is_complete)
    failed = [result.test for result in summary.failed if result.is_test]
    if everything and summary.is_complete and 0 < len(failed) <= _MAX_REPEATED:
        repeated = repeat(failed)
        summary.repeated = repeated.results if repeated.is_complete else {}
    return summary


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Runs the tests.", allow_abbrev=False)
    parser.add_argument("--all", action="store_true", help="the extended tests as well")
    parser.add_argument("--processes", type=int, default=_PROCESSES)
    options, arguments = parser.parse_known_args(argv)
    begun = time.monotonic()
    is_owner = this_run.join()
    ids = SandboxIds(this_run.directory())
    ids.start()
    summary = run(options.all, options.processes, arguments)
    seen = ids.stop()
    if is_owner:
        summary.left = wait_for_leftovers(this_run.name(), seen, kept=[this_run.basetemp()])
        this_run.end()
    print()
    for line in summary.lines(time.monotonic() - begun):
        print(line)
    return 0 if summary.is_green else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
