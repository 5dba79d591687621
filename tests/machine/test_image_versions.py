"""Images that change while a server runs: sandboxes keep their version, the pool gets the new one, the old one goes."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import this_run
import warm_parent
from server_process import ServerProcess, clean_environ

from warren import SandboxClient
from warren.images.store.store import ImageStore
from warren.model.errors import WarrenError

POOL = ("--pool-size", "2", "--pool-min", "2", "--pool-max", "2")
READ = "ls /etc | grep pip.conf; cat /etc/pip.conf"  # a directory and a file that nobody has read before
CONTENT = "pip.conf\n[global]\nbreak-system-packages = true\n"


@pytest.fixture
def state() -> Iterator[Path]:
    path = this_run.new_state_dir()
    ImageStore(path).build("host")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def server(state: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(state, "--environment", "host", *POOL, "--on-stop", "destroy")
    server.start()
    yield server
    if not server.alive:
        server.start()
    assert server.stop() == 0, server.log[-3000:]


def warren(state: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "warren.cli.main", "image", *arguments]
    environ = {**clean_environ(), "WARREN_STATE_DIR": str(state)}
    return warm_parent.run(argv, env=environ, capture_output=True, text=True, timeout=60)


def versions(state: Path) -> dict[str, tuple[bool, int]]:
    """By version: whether it is current, and how many sandboxes use it."""
    return {one.version: (one.current, one.sandboxes) for one in ImageStore(state).list()}


def wait_until(condition: Callable[[], bool], server: ServerProcess, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, server.log[-6000:]
        time.sleep(0.1)


def test_a_rebuilt_image_is_for_new_sandboxes_and_the_old_one_goes_with_its_last(
    server: ServerProcess, state: Path
) -> None:
    with SandboxClient(server.url) as session:
        assert session.execute("true").exit_code == 0
        wait_until(lambda: list(versions(state).values()) == [(True, 3)], server)
        (old,) = versions(state)
        assert warren(state, "build", "host").returncode == 0
        (new,) = set(versions(state)) - {old}
        assert session.execute(READ).stdout == CONTENT
        wait_until(lambda: versions(state) == {old: (False, 1), new: (True, 2)}, server)  # the pool has been replaced
        assert session.execute(READ).stdout == CONTENT
        with SandboxClient(server.url) as other:
            assert other.execute(READ).stdout == CONTENT
        server.kill()
        assert warren(state, "prune").returncode == 0
        assert set(versions(state)) == {old, new}
        listed = warren(state, "list").stdout.splitlines()
        assert [line.split()[:4] for line in listed[1:]] == [["host", new, "current", "2"], ["host", old, "old", "1"]]
        server.start()
        assert session.execute(READ).stdout == CONTENT  # adopted, with its version
    wait_until(lambda: set(versions(state)) == {new}, server)


def test_an_image_in_use_is_not_removed_and_goes_later_if_that_is_wanted(server: ServerProcess, state: Path) -> None:
    with SandboxClient(server.url) as session:
        assert session.execute("true").exit_code == 0
        refused = warren(state, "remove", "host")
        assert refused.returncode == 125
        assert "sandboxes use the image host" in refused.stderr
        assert "--when-unused" in refused.stderr
        assert warren(state, "remove", "host", "--when-unused").returncode == 0
        wait_until(lambda: list(versions(state).values()) == [(False, 1)], server)  # the pool has given up its own
        assert session.execute(READ).stdout == CONTENT
        with pytest.raises(WarrenError, match="there is no image 'host'"), SandboxClient(server.url):
            pass
    wait_until(lambda: versions(state) == {}, server)
