"""Inspect AI with sandboxes of Warren, newest and oldest release: its own suite, an evaluation, and what goes wrong."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from adapters.framework import EXAMPLES, KEY, ROOT, VERSIONS, Framework, until
from e2e.conftest import NewState
from server_process import ServerProcess, running_server

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600), pytest.mark.group("inspect")]
_CHECKS = {"newest": 44, "oldest": 34}


@pytest.fixture(scope="module")
def server(new_state: NewState, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    registry = tmp_path_factory.mktemp("registry")
    (registry / "environments").mkdir()
    workshop = "name: workshop\nimage: base\nroot: writable\nsudo: true\n"
    (registry / "environments" / "workshop.yaml").write_text(workshop)
    flags = ("--registry-dir", str(registry), "--pool-size", "4", "--max-sandboxes", "300")
    with running_server(new_state(), *flags, WARREN_AUTH="true", WARREN_API_KEY=KEY) as server:
        yield server


@pytest.fixture(params=VERSIONS)
def inspect(request: pytest.FixtureRequest, server: ServerProcess, tmp_path: Path) -> Framework:
    return Framework("inspect", request.param, server, tmp_path)


def test_the_suite_of_inspect_passes(inspect: Framework) -> None:
    said = inspect.run("conformance.py")
    assert f"{_CHECKS[inspect.version]} passed" in said
    assert inspect.sessions() == []


def test_errors_are_those_of_inspect(inspect: Framework) -> None:
    inspect.run("errors.py")


def test_the_example_runs(inspect: Framework) -> None:
    said = inspect.run(EXAMPLES / "inspect_eval.py")
    assert said.startswith("sea.txt: It has 6 words.\nroad.txt: It has 2 words.\nsuccess accuracy 1")
    assert inspect.sessions() == []


def test_a_hundred_samples_at_once(inspect: Framework) -> None:
    assert "success Counter({'C': 100})" in inspect.run("many.py", "100", "1", str(inspect.folder))
    assert inspect.sessions() == []


def test_an_interrupted_evaluation_leaves_nothing(inspect: Framework) -> None:
    running = inspect.start("many.py", "3", "600", str(inspect.folder))
    try:
        until(lambda: len(inspect.sessions()) == 3)
        running.send_signal(signal.SIGINT)
        inspect.wait(running)
    finally:
        running.kill()
        running.communicate()
    until(lambda: inspect.sessions() == [])


def test_what_a_killed_evaluation_has_left_is_cleaned_up(inspect: Framework) -> None:
    running = inspect.start("many.py", "2", "600", str(inspect.folder))
    until(lambda: len(inspect.sessions()) == 2)
    running.kill()
    running.communicate()
    first = inspect.sessions()[0]
    assert f"ended: {first}" in inspect.run_program("inspect", "sandbox", "cleanup", "warren", first)
    assert first not in inspect.sessions()
    assert inspect.run_program("inspect", "sandbox", "cleanup", "warren").count("ended: ") == 1
    assert inspect.sessions() == []
    assert "no sessions of Inspect" in inspect.run_program("inspect", "sandbox", "cleanup", "warren")


def test_the_types_fit(inspect: Framework) -> None:
    if inspect.version == "newest":  # old releases lack names that are looked up
        inspect.check_types("warren.integrations.inspect_ai")


def test_the_page_is_true(inspect: Framework) -> None:
    page = (ROOT / "docs" / "integrations" / "inspect.md").read_text()
    [program] = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    [config] = re.findall(r"^```yaml\n(.*?)^```", page, flags=re.M | re.S)
    (inspect.folder / "warren.yaml").write_text(config)
    (inspect.folder / "task.py").write_text(program)
    assert inspect.run("page.py", "task.py") == "None ['C']\n"
    assert inspect.sessions() == []
