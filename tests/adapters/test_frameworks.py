"""Frameworks with sandboxes of Warren, newest and oldest release of each: what its folder here has, and its page.

`works.py` uses the adapter in every way and checks what it gets; `conformance.py` runs the framework's own suite, where
there is one; `hold.py` starts something long, to be interrupted; `page.py FILE` runs the program of the page;
`on_e2b.py` uses the sandbox of E2B that the framework has, unchanged, with the server in E2B's place.
"""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from adapters.framework import EXAMPLES, KEY, ROOT, VERSIONS, Framework, until
from e2e.conftest import NewState
from server_process import ServerProcess, running_server

HERE = Path(__file__).parent
NAMES = sorted(path.parent.name for path in HERE.glob("*/works.py"))
OF_E2B = sorted(path.parent.name for path in HERE.glob("*/on_e2b.py"))
SUITES = sorted(path.parent.name for path in HERE.glob("*/conformance.py") if path.parent.name in NAMES)

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600), pytest.mark.group_by("name")]


@pytest.fixture(scope="module")
def server(new_state: NewState, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    registry = tmp_path_factory.mktemp("registry")
    (registry / "environments").mkdir()
    workshop = "name: workshop\nimage: base\nroot: writable\nsudo: true\n"
    (registry / "environments" / "workshop.yaml").write_text(workshop)
    flags = ("--registry-dir", str(registry), "--pool-size", "4", "--max-sandboxes", "300")
    templates = {"WARREN_E2B_TEMPLATES": "base=e2b,code-interpreter-v1=e2b"}  # the image code-interpreter is not built
    with running_server(new_state(), *flags, WARREN_AUTH="true", WARREN_API_KEY=KEY, **templates) as server:
        yield server


@pytest.fixture(params=VERSIONS)
def framework(request: pytest.FixtureRequest, name: str, server: ServerProcess, tmp_path: Path) -> Framework:
    return Framework(name, request.param, server, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_it_works_and_its_errors_are_the_framework_s(framework: Framework) -> None:
    framework.run("works.py")
    assert framework.sessions() == []


@pytest.mark.parametrize("name", SUITES)
def test_the_framework_s_own_suite_passes(framework: Framework) -> None:
    assert re.search(r"^\d+ passed", framework.run("conformance.py"), flags=re.M)
    assert framework.sessions() == []


@pytest.mark.parametrize("name", OF_E2B)
def test_the_framework_s_own_sandbox_of_e2b_works(framework: Framework) -> None:
    framework.run("on_e2b.py")
    assert framework.sessions() == []


@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(framework: Framework) -> None:
    [example] = EXAMPLES.glob(f"{framework.name}*.py")  # not of the framework's own name: it would import itself
    assert framework.run(example)
    assert framework.sessions() == []


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_true(framework: Framework) -> None:
    page = (ROOT / "docs" / "integrations" / f"{framework.name.replace('_', '-')}.md").read_text()
    [program] = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    (framework.folder / "program.py").write_text(program)
    framework.run("page.py", "program.py")
    assert framework.sessions() == []


@pytest.mark.parametrize("name", NAMES)
def test_what_is_interrupted_leaves_nothing(framework: Framework) -> None:
    running = framework.start("hold.py")
    try:
        until(lambda: framework.sessions() != [], running)
        running.send_signal(signal.SIGINT)
        framework.wait(running)
    finally:
        running.kill()
        running.communicate()
    until(lambda: framework.sessions() == [])


@pytest.mark.parametrize("name", NAMES)
def test_the_types_fit(framework: Framework) -> None:
    if framework.version == "newest":  # old releases lack names that are looked up
        framework.check_types(f"warren.integrations.{framework.name}")
