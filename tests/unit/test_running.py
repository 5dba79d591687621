"""How the tests themselves are run: what is green, flaky and red, and what counts as left behind by a run."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import this_run
from leftovers import SandboxIds, leftovers

RUN = Path(__file__).parents[1] / "run.py"
GOOD = "def test_good(): pass\n"
BAD = "def test_bad():\n    print('why it is bad')\n    assert False\n"
FLAKY = """
from pathlib import Path
def test_flaky{number}():
    attempts = Path("attempts{number}")
    attempts.write_text((attempts.read_text() if attempts.exists() else "") + "x")
    print("attempt", len(attempts.read_text()))
    assert attempts.read_text() == "xx"
"""
STUCK = """
import asyncio, socket, pytest
pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("error")]
@pytest.fixture
def anyio_backend():
    return "asyncio", {"use_uvloop": True}
@pytest.fixture
async def loop():
    yield asyncio.get_running_loop()
class Client(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
async def test_that_leaves_a_connection_open(loop):
    ours, theirs = socket.socketpair()
    with theirs:
        transport, _ = await loop.create_connection(Client, sock=ours)
        transport.pause_reading()
async def test_in_a_new_loop(loop): pass
"""


class Suite:
    """A tiny suite in a directory of its own, and how a run of it ends. Such a run is not part of this one."""

    def __init__(self, place: Path) -> None:
        self._place = place
        (place / "pytest.ini").write_text("[pytest]\nmarkers =\n    extended\n")

    def run(self, *sources: str, everything: bool = True) -> tuple[int, str]:
        for number, source in enumerate(sources):
            (self._place / f"test_{number}.py").write_text(source)
        environ = {name: value for name, value in os.environ.items() if name not in (this_run.VARIABLE, "TMPDIR")}
        environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # importing them takes longer than the suites do
        command = [sys.executable, str(RUN), "--processes", "2", *(["--all"] if everything else []), "-q"]
        done = subprocess.run(
            command, cwd=self._place, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def last_line(output: str) -> str:
    return output.splitlines()[-1].rpartition(" in ")[0]


def test_a_run_without_a_failure_is_green_and_tells_what_took_long(suite: Suite) -> None:
    code, output = suite.run(GOOD, "import time\ndef test_slow(): time.sleep(0.3)\n")
    assert (code, last_line(output)) == (0, "2 passed, 0 failed")
    slowest = output.partition("slowest tests")[2].splitlines()[1]
    assert slowest.endswith("test_1.py::test_slow")


def test_a_test_that_fails_twice_is_red(suite: Suite) -> None:
    code, output = suite.run(GOOD, BAD)
    assert (code, last_line(output)) == (1, "1 passed, 1 failed")
    assert "FAILED test_1.py::test_bad" in output.splitlines()
    assert "FLAKY" not in output


def test_a_test_that_passes_alone_is_flaky_and_both_logs_are_shown(suite: Suite) -> None:
    code, output = suite.run(GOOD, FLAKY.format(number=1))
    assert (code, last_line(output)) == (0, "2 passed, 0 failed, 1 flaky")
    summary = output.partition("FLAKY test_1.py::test_flaky1\n")[2]
    first, second = summary.split("it passed alone")
    assert "attempt 1" in first
    assert "assert attempts" in first
    assert "attempt 2" in second


@pytest.mark.extended
def test_three_flaky_tests_are_green_and_four_are_red(tmp_path: Path) -> None:
    for count, expected in ((3, 0), (4, 1)):
        place = tmp_path / str(count)
        place.mkdir()
        code, output = Suite(place).run(*(FLAKY.format(number=number) for number in range(count)))
        assert (code, last_line(output)) == (expected, f"{count} passed, 0 failed, {count} flaky")


@pytest.mark.extended
def test_without_the_extended_tests_nothing_is_repeated(suite: Suite) -> None:
    code, output = suite.run(GOOD, FLAKY.format(number=1), everything=False)
    assert (code, last_line(output)) == (1, "1 passed, 1 failed")


@pytest.mark.extended
def test_a_failing_fixture_is_repeated_too(suite: Suite) -> None:
    source = FLAKY.format(number=1).replace("def test_flaky1", "import pytest\n@pytest.fixture\ndef broken")
    code, output = suite.run(source + "\ndef test_with_it(broken): pass\n")
    assert (code, last_line(output)) == (0, "1 passed, 0 failed, 1 flaky")


def test_a_file_that_cannot_be_imported_is_red(suite: Suite) -> None:
    code, output = suite.run(GOOD, "import nothing_of_this_name\n")
    assert code == 1
    assert "nothing_of_this_name" in output
    assert "FAILED test_1.py" in output.splitlines()


def test_a_test_that_crashes_its_process_is_red_and_the_others_run(suite: Suite) -> None:
    code, output = suite.run(GOOD, "import os\ndef test_crash(): os._exit(7)\n", GOOD, GOOD)
    assert code == 1
    assert "FAILED test_1.py::test_crash" in output.splitlines()


@pytest.mark.extended
def test_a_test_that_crashed_its_process_once_is_flaky(suite: Suite) -> None:
    source = FLAKY.format(number=1).replace(
        "    assert", "    import os\n    if attempts.read_text() == 'x': os._exit(7)\n    assert"
    )
    code, output = suite.run(GOOD, source, GOOD)
    assert (code, last_line(output)) == (0, "3 passed, 0 failed, 1 flaky")
    assert "crashed" in output.partition("FLAKY")[2]


@pytest.mark.extended
def test_an_event_loop_that_cannot_be_closed_fails_one_test(suite: Suite, tmp_path: Path) -> None:
    hook = "from event_loops import pytest_runtest_teardown\n"
    (tmp_path / "conftest.py").write_text(f"{hook}pytest_plugins = ['anyio.pytest_plugin']\n")
    code, output = suite.run(STUCK + "async def test_in_another_one(loop): pass\n", everything=False)
    assert code == 1
    assert "FAILED test_0.py::test_that_leaves_a_connection_open\n2 passed, 1 failed in " in output
    assert "Device or resource busy" in output


def test_a_run_without_any_test_is_red(suite: Suite) -> None:
    assert suite.run()[0] == 1


def test_serial_tests_run_after_all_others(suite: Suite) -> None:
    note = "open('order', 'a').write('{name} ')"
    serial = f"import pytest\n@pytest.mark.serial\ndef test_serial(): {note.format(name='serial')}\n"
    slow = f"import time\ndef test_slow():\n    time.sleep(0.5)\n    {note.format(name='slow')}\n"
    code, output = suite.run(serial, slow)
    assert (code, last_line(output)) == (0, "2 passed, 0 failed")
    assert (suite._place / "order").read_text() == "slow serial "


def test_extended_tests_run_only_with_everything(suite: Suite) -> None:
    extended = "import pytest\n@pytest.mark.extended\ndef test_extended(): pass\n"
    assert last_line(suite.run(GOOD, extended, everything=False)[1]) == "1 passed, 0 failed"
    assert last_line(suite.run(GOOD, extended)[1]) == "2 passed, 0 failed"


def test_a_process_that_is_left_behind_is_red(suite: Suite) -> None:
    source = "import subprocess\ndef test_x(): print(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid)\n"
    code, output = suite.run(source, everything=False)
    left = [line for line in output.splitlines() if line.startswith("LEFT BEHIND process")]
    for line in left:
        os.kill(int(line.split()[3].rstrip(":")), 9)
    assert code == 1
    assert len(left) == 1
    assert left[0].endswith("sleep 1000")


# -- what counts as left behind


@contextlib.contextmanager
def sleeper(**environ: str) -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], **environ}) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_only_processes_of_the_run_count() -> None:
    with sleeper(TEST_RUN="warren-test-one") as ours, sleeper(TEST_RUN="warren-test-two") as theirs:
        assert leftovers("warren-test-one", frozenset()) == [f"process {ours}: sleep 60"]
        assert leftovers("warren-test-two", frozenset()) == [f"process {theirs}: sleep 60"]


def test_only_directories_of_the_run_count() -> None:
    mine, other = Path("/tmp/warren-test-mine-0"), Path("/tmp/warren-test-other-0")
    try:
        for root in (mine, other):
            (root / "state").mkdir(parents=True)
            (root / "kept").mkdir()
        assert leftovers(mine.name, frozenset(), kept=[mine / "kept"]) == [f"directory {mine}/state"]
    finally:
        for path in (*mine.iterdir(), *other.iterdir(), mine, other):
            path.rmdir()


def test_only_mounts_of_the_run_count(tmp_path: Path) -> None:
    points = [tmp_path / name for name in ("warren-test-mine-1", "warren-test-other-1")]
    try:
        for point in points:
            point.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "none", point], check=True)
        assert leftovers("warren-test-mine-1", frozenset()) == [f"mount {points[0]}"]
    finally:
        for point in points:
            subprocess.run(["umount", point], check=False)


def test_only_cgroups_of_sandboxes_of_the_run_count(tmp_path: Path) -> None:
    top = next(path for path in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")) if path.is_dir()) / "warren"
    existed = top.is_dir()
    ours, theirs = f"{os.getpid():032x}", f"{os.getpid() + (1 << 40):032x}"
    ids = SandboxIds(tmp_path)
    (tmp_path / "state" / "sandboxes" / ours).mkdir(parents=True)
    ids.start()
    try:
        for name in (ours, theirs):
            (top / name).mkdir(parents=True)
        assert leftovers("warren-test-none", ids.stop()) == [f"cgroup {top}/{ours}"]
    finally:
        for path in (top / ours, top / theirs, *([] if existed else [top])):
            with contextlib.suppress(OSError):
                path.rmdir()
