"""A pytest plugin that runs the tests in several processes: it collects them once and forks with everything imported.

    pytest -p processes --processes 4

Tests of one group run in one process, so that what they share is made once. A group is the tests with the same `group`
mark, else those of a file, which `group_by` divides. A process takes the next group when it has begun the last test of
the previous one. Tests marked `serial` run at the end, in one process, while no other test runs.

The parent runs no test. It reports what the processes tell it. If a process dies, the test that it was running has
failed, and another process goes on with the rest of its groups.
"""

import gc
import os
import random
import signal
import struct
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Final, NoReturn

import pytest
from _pytest.reports import TestReport
from _pytest.runner import runtestprotocol

_NUMBER: Final = struct.Struct("I")
_SERIAL: Final = "serial"
_GROUP: Final = "group"
_GROUP_BY: Final = "group_by"
_CLASS: Final = "class"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=0, help="run the tests in so many forked processes")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{_SERIAL}: it runs when no other test does")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if not session.config.option.processes or session.config.option.collectonly:
        return None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{session.testsfailed} errors during collection")
    # The first call empties the base directory, so it must come before there are processes that use it.
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()  # keeps the collector of a child from writing to shared pages, which would copy them
    serial = [item for item in session.items if item.get_closest_marker(_SERIAL)]
    together = [item for item in session.items if not item.get_closest_marker(_SERIAL)]
    _Pool(session, groups_of(together)).run(session.config.option.processes)
    _Pool(session, [serial] if serial else []).run(1)
    return True


def groups_of(items: Iterable[pytest.Item]) -> list[list[pytest.Item]]:
    """Returns the items by group, in the order in which the groups first appear."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(group_of(item), []).append(item)
    return list(groups.values())


def group_of(item: pytest.Item) -> str:
    if marker := item.get_closest_marker(_GROUP):
        return str(marker.args[0])
    file, *names = item.nodeid.partition("[")[0].split("::")
    parts = [file]
    if marker := item.get_closest_marker(_GROUP_BY):
        parameters = getattr(item, "callspec", None)
        values = parameters.params if parameters else {}
        parts += [names[0] if what == _CLASS else str(values.get(what)) for what in marker.args]
    return "::".join(parts)


@dataclass
class _Process:
    """What the parent knows of a process: the tests that it has taken and not finished, and the one that it runs."""

    number: int
    pid: int
    pidfd: int
    reports: "Connection[Any, Any]"
    taken: list[pytest.Item] = field(default_factory=list)
    running: pytest.Item | None = None
    has_begun: bool = False


class _Pool:
    def __init__(self, session: pytest.Session, groups: Sequence[Sequence[pytest.Item]]) -> None:
        self._session = session
        self._groups = groups
        self._processes: list[_Process] = []
        # Children read the numbers of groups from it until it is empty. A pipe holds 16,000 of them.
        self._queue, writer = os.pipe()
        os.write(writer, b"".join(_NUMBER.pack(number) for number in range(len(groups))))
        os.close(writer)

    def run(self, count: int) -> None:
        try:
            for number in range(min(count, len(self._groups))):
                self._fork(number, [])
            while self._processes:
                self._wait()
                if reason := self._session.shouldfail or self._session.shouldstop:
                    raise self._session.Failed(reason)
        finally:
            os.close(self._queue)
            self._interrupt()

    def _interrupt(self) -> None:
        for process in self._processes:
            signal.pidfd_send_signal(process.pidfd, signal.SIGINT)
        for process in self._processes:
            os.waitpid(process.pid, 0)

    def _fork(self, number: int, first: Sequence[pytest.Item]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        reader, writer = Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            reader.close()
            _Child(self._session, self._groups, self._queue, writer).run_and_exit(number, first)
        writer.close()
        self._processes.append(_Process(number, pid, os.pidfd_open(pid), reader, taken=list(first)))

    def _wait(self) -> None:
        """Handles the messages of the processes, and the end of those that have ended."""
        ready = wait([each for process in self._processes for each in (process.reports, process.pidfd)])
        for process in list(self._processes):
            if process.reports in ready or process.pidfd in ready:
                self._read(process)
            if process.pidfd in ready:
                self._processes.remove(process)
                self._ended(process)

    def _read(self, process: _Process) -> None:
        while process.reports.poll():
            try:
                kind, value = process.reports.recv()
            except EOFError:
                return
            match kind:
                case "group":
                    process.taken += self._groups[value]
                case "test":
                    process.running = process.taken.pop(0)
                    process.has_begun = True
                case "report":
                    hook = self._session.config.hook
                    report = hook.pytest_report_from_serializable(config=self._session.config, data=value)
                    hook.pytest_runtest_logreport(report=report)
                case "done":
                    process.running = None

    def _ended(self, process: _Process) -> None:
        _, status = os.waitpid(process.pid, 0)
        os.close(process.pidfd)
        process.reports.close()
        if process.running is not None:
            text = f"the process crashed while it ran this test: exit code {os.waitstatus_to_exitcode(status)}"
            item = process.running
            report = TestReport(item.nodeid, item.location, {}, "failed", text, "call")
            self._session.config.hook.pytest_runtest_logreport(report=report)
        if status and not process.has_begun:
            raise self._session.Failed("a process ended before its first test")
        if status:
            self._fork(process.number, process.taken)


class _Child:
    """One process that runs tests. The parent does the reporting."""

    def __init__(
        self,
        session: pytest.Session,
        groups: Sequence[Sequence[pytest.Item]],
        queue: int,
        parent: "Connection[Any, Any]",
    ) -> None:
        self._session = session
        self._groups = groups
        self._queue = queue
        self._parent = parent

    def run_and_exit(self, number: int, first: Sequence[pytest.Item]) -> NoReturn:
        code = 3
        try:
            self._prepare(number)
            self._run(first)
            code = 0
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._session._setupstate.teardown_exact(None)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)

    def _prepare(self, number: int) -> None:
        """Separates what the processes would share: captured output, temporary directories, random numbers."""
        config = self._session.config
        for stream in self._captured():
            with tempfile.TemporaryFile() as own:
                os.dup2(own.fileno(), stream.tmpfile.fileno())  # in place: modules may have kept the file object
        factory = config._tmp_path_factory  # type: ignore[attr-defined]
        base = factory.getbasetemp() / str(number)
        base.mkdir(mode=0o700, exist_ok=True)
        factory._basetemp = base
        random.seed()
        config.pluginmanager.register(self)

    def _captured(self) -> Iterator[Any]:
        capture = self._session.config.pluginmanager.getplugin("capturemanager")
        streams = capture and capture._global_capturing
        return (each for each in (streams and streams.out, streams and streams.err) if hasattr(each, "tmpfile"))

    def _run(self, first: Sequence[pytest.Item]) -> None:
        items = self._items(first)
        item = next(items, None)
        while item is not None:
            following = next(items, None)
            self._parent.send(("test", None))
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._parent.send(("done", None))
            item = following

    def _items(self, first: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
        yield from first
        while number := os.read(self._queue, _NUMBER.size):
            (index,) = _NUMBER.unpack(number)
            self._parent.send(("group", index))
            yield from self._groups[index]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            values = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
            self._parent.send(("report", values))
        return True
