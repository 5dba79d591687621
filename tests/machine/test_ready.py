"""`/ready` while no sandbox can be made: 503 with the reason, which is in the log too, and 200 once it is cured."""

import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from copied_image import add_image
from server_process import ServerProcess
from this_run import new_state_dir, patience

import warren
from warren.images.store.store import ImageStore

BIN = Path(warren.__file__).parent / "bin"
_PATIENCE_S = patience(60.0)


@pytest.fixture
def state() -> Iterator[Path]:
    path = new_state_dir()
    yield path
    shutil.rmtree(path)


def ask(server: ServerProcess, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{server.url}{path}", timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, json.loads(exc.read())


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def check(
    server: ServerProcess,
    reason: str,
    remedy: str,
    cure: Callable[[], object] | None = None,
    code: str = "provider_unavailable",
) -> None:
    try:
        server.start(wait=False)
        wait_for(lambda: "Warren serves" in server.log)
        status, problem = ask(server, "/ready")
        assert (status, problem["code"]) == (503, code)
        assert problem["detail"].startswith(f"no sandbox can be made: {reason}")
        assert remedy in problem["remedy"]
        assert ask(server, "/health")[0] == 200
        wait_for(lambda: "server_not_ready" in server.log and reason in server.log)
        if cure is not None:
            cure()
            wait_for(lambda: ask(server, "/ready")[0] == 200)
            wait_for(lambda: "server_ready" in server.log)
    finally:
        server.stop()


def test_an_agent_that_is_missing(state: Path, image_cache: Path, tmp_path: Path) -> None:
    shutil.copy(BIN / "warren-launch", tmp_path)
    (state / "images").symlink_to(image_cache / "images")
    server = ServerProcess(state, "--pool-size", "0", WARREN_BIN_DIR=str(tmp_path))
    remedy = "pip install --force-reinstall --no-deps warren-sandbox"
    check(server, "the program warren-agent is missing", remedy, lambda: shutil.copy(BIN / "warren-agent", tmp_path))


def test_an_image_that_is_missing(state: Path, image_cache: Path) -> None:
    server = ServerProcess(state, "--pool-size", "1", CONTAINER_IMAGE="mine")
    reason, base = "there is no image 'mine' on this machine", ImageStore(image_cache).rootfs("base").path.parent
    check(server, reason, "warren image pull mine", lambda: add_image(state, "mine", base))
    assert server.log.count(" server_started version=") == 1
    lines = [line for line in server.log.splitlines() if " sandbox_not_created " in line]
    assert lines
    assert all(f'error="{reason}" remedy="warren image pull mine;' in line for line in lines)


def test_a_base_that_is_missing_is_built(state: Path) -> None:
    """The build ends with the server."""
    server = ServerProcess(state, "--pool-size", "1")
    reason = "the image of this environment is being built; it takes about 1 min"
    check(server, reason, "try again in a moment", code="image_building")
    assert server.log.count(" image_build_started image=base ") == 1
    assert " sandbox_not_created " not in server.log
    assert list((state / "images").glob("base")) == []


def test_a_runtime_that_is_missing(state: Path, image_cache: Path) -> None:
    (state / "images").symlink_to(image_cache / "images")
    server = ServerProcess(state, "--runtime", "runsc")
    check(server, "no OCI runtime works here (runsc: ", "install crun or runc")
