"""Images that recipes describe: built when they are first needed, ahead, from a Dockerfile; what fails."""

import asyncio
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import warm_parent
from e2e.api_client import Api
from e2e.image_state import index_networks, new_image_state
from server_process import ServerProcess, clean_environ, running_server

from warren import AsyncSandboxClient
from warren.images.store.store import ImageStore
from warren.model.errors import ImageBuildFailed, ImageBuilding

pytestmark = pytest.mark.anyio

PAGE = (Path(__file__).parents[2] / "docs/build.md").read_text()
EVERY_KIND = """\
name: every-kind
image:
  apt: sl
  python: [six]
  npm: is-number@7
  copy: [greeting.txt /opt/greeting.txt]
  run: [test -x /usr/games/sl, python3 -c 'import six', test -d /usr/local/lib/node_modules/is-number]
  env: {GREETING: /opt/greeting.txt}
"""


class Machine:
    """A state directory and a registry of its own."""

    def __init__(self, image_cache: Path, folder: Path) -> None:
        self.state = new_image_state(image_cache)
        self.folder = folder
        (folder / "environments").mkdir(parents=True)
        self.environ = {
            **clean_environ(),
            "WARREN_STATE_DIR": str(self.state),
            "WARREN_REGISTRY_DIR": str(folder),
            "WARREN_EGRESS_NETWORKS": index_networks(),
        }

    def write(self, name: str, text: str) -> None:
        (self.folder / "environments" / f"{name}.yaml").write_text(text)

    def warren(self, *arguments: str, code: int = 0, cwd: Path | None = None) -> str:
        done = warm_parent.run(
            [sys.executable, "-m", "warren.cli.main", *arguments],
            env=self.environ,
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == code, done.stderr[-4000:]
        return done.stdout if code == 0 else done.stderr

    def images(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in json.loads(self.warren("image", "list", "--json")) if one["current"]}


@pytest.fixture(scope="module")
def machine(image_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    machine = Machine(image_cache, tmp_path_factory.mktemp("registry"))
    yield machine
    left = [each.name for each in (machine.state / "images").iterdir() if each.name.startswith(".making")]
    shutil.rmtree(machine.state)
    assert left == []


@pytest.fixture(scope="module")
def server(machine: Machine) -> Iterator[ServerProcess]:
    options = {name: machine.environ[name] for name in ("WARREN_REGISTRY_DIR", "WARREN_EGRESS_NETWORKS")}
    with running_server(machine.state, "--pool-size", "1", "--pool-min", "0", **options) as server:
        yield server


@pytest.fixture
async def api(server: ServerProcess) -> AsyncIterator[Api]:
    async with Api(server.url) as api:
        yield api


def recipe(name: str, *commands: str, about: str = "") -> str:
    lines = "".join(f"    - {json.dumps(command)}\n" for command in commands)
    head = f"name: {name}\npool: {{size: 0, min: 0, max: 2}}\nimage:\n"
    return f"{head}  about: {json.dumps(about)}\n  run:\n{lines}"


def blocks(language: str) -> list[str]:
    return [part.partition("```")[0] for part in PAGE.split(f"```{language}\n")[1:]]


def test_from_three_packages_to_a_plot_in_two_commands(machine: Machine) -> None:
    """As docs/build.md says."""
    plots, analysis = blocks("yaml")
    machine.write("plots", plots)
    (commands,) = blocks("sh")
    build, run = commands.replace("> plot.svg", "").splitlines()
    machine.warren(*shlex.split(build)[1:])
    plot = machine.warren(*shlex.split(run)[1:])
    assert plot.startswith("<?xml")
    assert "</svg>" in plot
    assert machine.images()["environment/plots"]["source"].startswith("recipe ")
    machine.write("analysis", analysis)
    machine.warren("environments", "validate", str(machine.folder / "environments/analysis.yaml"))


@pytest.mark.extended
def test_what_an_image_is_built_on_is_built_first(machine: Machine) -> None:
    (machine.folder / "images").mkdir(exist_ok=True)
    for name, base in (("lower", "base"), ("middle", "lower"), ("one", "other"), ("other", "one")):
        text = f"name: {name}\nfrom: {base}\nrun: echo {name} >> /opt/names\n"
        (machine.folder / "images" / f"{name}.yaml").write_text(text)
    machine.write("upper", "name: upper\nimage: {from: middle, run: echo upper >> /opt/names}\n")
    assert machine.warren("run", "--environment", "upper", "--", "cat", "/opt/names").split() == [
        "lower",
        "middle",
        "upper",
    ]
    assert {"lower", "middle", "environment/upper"} <= set(machine.images())
    machine.warren("image", "remove", "middle")
    (machine.folder / "Dockerfile").write_text("FROM middle\nRUN echo file >> /opt/names\n")
    machine.warren("image", "build", "from-file", ".")
    root = ImageStore(machine.state).rootfs("from-file").path
    assert (root / "opt/names").read_text().split() == ["lower", "middle", "file"]
    said = machine.warren("image", "build", "one", code=125)
    assert "the image one is built on itself: one from other from one" in said


@pytest.mark.extended
def test_packages_of_every_kind(machine: Machine) -> None:
    (machine.folder / "environments" / "greeting.txt").write_text("hello\n")
    machine.write("every-kind", EVERY_KIND)
    machine.warren("environments", "build", "every-kind")
    seen = machine.warren("run", "--environment", "every-kind", "--", "sh", "-c", "cat /opt/greeting.txt")
    assert seen == "hello\n"
    root = ImageStore(machine.state).rootfs("environment/every-kind").path
    assert [*(root / "var/lib/apt/lists").rglob("*_Packages")] == []  # neither lists nor caches are left
    assert [*(root / "tmp").iterdir(), *(root / "root").glob(".npm")] == []


@pytest.mark.extended
async def test_a_session_waits_for_its_image_and_hears_how_far_it_is(machine: Machine, server: ServerProcess) -> None:
    machine.write("slow", recipe("slow", "sleep 4", "echo made > /made", about="5 s"))
    seen: list[ImageBuilding] = []
    async with AsyncSandboxClient(server.url, environment="slow", on_image_progress=seen.append) as client:
        assert (await client.execute("cat /made")).stdout == "made\n"
    assert seen
    assert {each.about for each in seen} == {"5 s"}
    assert any("step 1 of 2: run sleep 4" in each.step for each in seen)

    began = time.monotonic()
    async with AsyncSandboxClient(server.url, environment="slow", image_timeout_s=0) as client:
        assert (await client.execute("cat /made")).stdout == "made\n"
    assert time.monotonic() - began < 5


@pytest.mark.extended
async def test_the_answer_meanwhile(machine: Machine, server: ServerProcess, api: Api) -> None:
    machine.write("slower", recipe("slower", "sleep 6", "true"))
    body = {"environment": "slower"}
    keys = [{"Idempotency-Key": key} for key in ("one", "two")]
    asked = [api.refused("POST", "/api/sessions", body, status=503, code="image_building", headers=key) for key in keys]
    for problem in await asyncio.gather(*asked):
        assert problem["retryable"]
        assert {"step", "fraction", "about"} <= set(problem)
    async with api.ask("POST", "/api/sessions", body, headers=keys[0]) as answer:
        assert answer.headers["Retry-After"] == "2"
    async with api.ask("POST", "/v2/sandboxes", {"templateID": "slower"}, headers=keys[0]) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
        told = await answer.json()
        assert (set(told), told["code"]) == ({"code", "message", "error_code", "progress"}, 503)
        assert told["error_code"] == "image_building"
        assert told["progress"]["step"] in ("starting", "step 1 of 2: run sleep 6")
    assert await state_of(api, "slower") == "building"
    assert server.log.count("image_build_started image=environment/slower") == 1
    states = ["ended", "creating", "running"]
    assert (await api.get("/api/sessions", environment="slower", state=states))["sessions"] == []
    waited = await api.post("/create_session", {"thread_id": "t", **body})  # without a key
    assert waited["thread_id"] == "t"
    assert await state_of(api, "slower") == "ready"
    machine.write("e2bs", recipe("e2bs", "sleep 3"))
    await api.post("/v2/sandboxes", {"templateID": "e2bs", "timeout": 60}, status=201)  # waits too


@pytest.mark.extended
async def test_an_outdated_image_stays_in_use_until_the_new_one_is_ready(
    machine: Machine, server: ServerProcess, api: Api
) -> None:
    machine.write("moving", recipe("moving", "echo one > /made"))
    machine.warren("environments", "build", "moving")
    machine.write("moving", recipe("moving", "sleep 3; echo two > /made"))
    async with AsyncSandboxClient(server.url, environment="moving", image_timeout_s=0) as client:
        assert (await client.execute("cat /made")).stdout == "one\n"
        assert await state_of(api, "moving") == "building"
        await until_state(api, "moving", "ready")
        assert (await client.execute("cat /made")).stdout == "one\n"
    seen = ""
    async with asyncio.timeout(60):
        while seen != "two\n":  # sandboxes that were made ahead are replaced one by one
            async with AsyncSandboxClient(server.url, environment="moving", image_timeout_s=0) as client:
                seen = (await client.execute("cat /made")).stdout


async def test_a_build_that_fails_says_which_step_and_the_log_says_why(machine: Machine, server: ServerProcess) -> None:
    machine.write("failing", recipe("failing", "echo the reason is this; exit 3"))
    client = AsyncSandboxClient(server.url, environment="failing")
    with pytest.raises(ImageBuildFailed) as caught:
        await client.create_session()
    await client.close()
    said = str(caught.value)
    assert "the step 'step 1 of 1: run echo the reason is this; exit 3' failed" in said
    assert str(machine.state) not in said
    assert str(machine.folder) not in said
    assert "it ended with exit code 3" in server.log
    assert server.log.count("image_build_started image=environment/failing") == 1
    shown = machine.warren("environments", "build", "failing", code=125)
    assert "the reason is this" in shown
    assert "exit code 3" in shown


@pytest.mark.extended
def test_a_killed_server_takes_its_build_along(machine: Machine) -> None:
    machine.write("killed", recipe("killed", "sleep 120"))
    options = {name: machine.environ[name] for name in ("WARREN_REGISTRY_DIR",)}
    state = new_image_state(machine.state)
    server = ServerProcess(state, "--pool-size", "0", "--pool-min", "0", **options)
    server.start()
    try:
        asked = warm_parent.run(
            [
                *("curl", "-sS", "-X", "POST", f"{server.url}/api/sessions"),
                *("-H", "Idempotency-Key: k", "-d", '{"environment": "killed"}'),
            ],
            capture_output=True,
            text=True,
        )
        assert '"code": "image_building"' in asked.stdout
        builders = until_some(lambda: processes_with(f"--report {server.pid} "))
    finally:
        server.kill()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in builders):
        assert time.monotonic() < deadline, "the build outlives its server"
        time.sleep(0.05)
    assert [each.name for each in (state / "images").iterdir() if each.name.startswith(".making")] == []
    shutil.rmtree(state)


@pytest.mark.extended
def test_a_dockerfile_of_two_stages(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("print('it works')\n")
    (tmp_path / "secret.key").write_text("x")
    (tmp_path / ".dockerignore").write_text("*.key\n")
    (tmp_path / "Dockerfile").write_text(
        "ARG BASE=base\n"
        "FROM ${BASE} AS build\n"
        "WORKDIR /src\n"
        "COPY . .\n"
        "RUN mkdir /z && cp app.py /z/__main__.py && \\\n"
        "    # a comment between the lines\n"
        "    python3 -m zipapp /z -o /out.pyz && test ! -e secret.key\n"
        "FROM base\n"
        "ARG NOTE=none\n"
        "COPY --from=build --chmod=755 /out.pyz /opt/app.pyz\n"
        'RUN ["sh", "-c", "echo $NOTE > /opt/note"]\n'
        "VOLUME /data\n"
        'ENTRYPOINT ["python3", "/opt/app.pyz"]\n'
    )
    shown = machine.warren("image", "build", "-f", "Dockerfile", ".", "--build-arg", "NOTE=hello", code=0, cwd=tmp_path)
    assert shown == ""
    name = tmp_path.name.lower()
    seen = machine.warren(
        "run", "--image", name, "--", "sh", "-c", "python3 /opt/app.pyz; cat /opt/note; test ! -e /src"
    )
    assert seen == "it works\nhello\n"
    first = machine.images()[name]["version"]
    machine.warren("image", "build", name, "-f", "Dockerfile", ".", "--build-arg", "NOTE=hello", cwd=tmp_path)
    assert machine.images()[name]["version"] == first
    (tmp_path / "Dockerfile").write_text("FROM base\nRUN --mount=type=secret,id=x true\n")
    refused = machine.warren("image", "build", "x", "-f", "Dockerfile", ".", code=125, cwd=tmp_path)
    assert "Dockerfile:2: --mount is not supported, but for type=cache" in refused


def test_names_that_there_are_not(machine: Machine) -> None:
    assert "did you mean python?" in machine.warren("image", "build", "pyhton", code=125)
    assert "names that begin with environment/" in machine.warren(
        *("image", "build", "environment/x", "--run", "true"), code=125
    )
    assert "is not the name of a package" in machine.warren("image", "build", "x", "--apt=-y", code=125)


async def state_of(api: Api, name: str) -> str:
    found = (await api.get("/api/environments"))["environments"]
    return str(next(one["image_state"] for one in found if one["name"] == name))


async def until_state(api: Api, name: str, state: str) -> None:
    async with asyncio.timeout(60):
        while await state_of(api, name) != state:
            await asyncio.sleep(0.1)


def processes_with(text: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in words:
            found.append(int(path.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def until_some(find: Any) -> list[int]:
    deadline = time.monotonic() + 20
    while not (found := find()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return list(found)
