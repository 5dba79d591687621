"""`warren bench` on this machine: it finds every figure, and leaves nothing behind, also when it is interrupted."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import this_run
import warm_parent
from docker_engine import DockerEngine
from server_process import clean_environ

pytestmark = pytest.mark.extended

_ARGV = [sys.executable, "-m", "warren.cli.main", "bench", "--quick"]
_OURS = 10


def environ(directory: Path, **more: str) -> dict[str, str]:
    return {**clean_environ(), "WARREN_STATE_DIR": str(directory / "state"), **more}


@pytest.fixture
def directory() -> Iterator[Path]:
    made = this_run.new_state_dir()
    (made / "state").mkdir()
    yield made
    shutil.rmtree(made)


def all_images(engine: DockerEngine) -> list[str]:
    return sorted(engine.docker("images", "--all", "--quiet").stdout.split())  # those of one second have no order


def servers(directory: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{directory}/warren-bench-" in path.read_text():
                found.append(int(path.parent.name))
    return found


def test_it_measures_warren_and_its_rivals(directory: Path, docker_engine: DockerEngine) -> None:
    images = all_images(docker_engine)
    done = warm_parent.run(
        [*_ARGV, "--json"], env=environ(directory, DOCKER_HOST=docker_engine.url), capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["machine"]["kernel"].startswith("Linux ")
    found = {(figure["of"], figure["what"]): figure for figure in report["figures"]}
    assert all(figure["value"] > 0 for figure in found.values()), found
    assert {figure["unit"] for figure in found.values()} <= {"ms", "/s", "MiB"}
    left_out = [why for why in report["missing"] if not why.startswith("memory ")]  # others share this machine's memory
    assert len([of for of, _ in found if of == "warren"]) + len(report["missing"]) - len(left_out) == _OURS + 1
    assert {of for of, _ in found} == {"warren", "docker run", "docker exec", "bubblewrap"}
    assert left_out == []
    assert os.listdir(directory) == ["state"]
    assert servers(directory) == []
    assert all_images(docker_engine) == images
    assert docker_engine.docker("ps", "--all", "--quiet").stdout == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_one_leaves_nothing(directory: Path, number: int) -> None:
    with warm_parent.Popen(_ARGV, env=environ(directory), stdout=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        assert any("create without a pool" in line for line in bench.stdout)
        bench.send_signal(number)
        assert bench.wait(60) == 128 + number
    assert os.listdir(directory) == ["state"]
    assert servers(directory) == []


def test_the_server_ends_with_a_bench_that_is_killed(directory: Path) -> None:
    with warm_parent.Popen(_ARGV, env=environ(directory), stdout=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        assert any("create without a pool" in line for line in bench.stdout)
        assert servers(directory)
        bench.kill()
    deadline = time.monotonic() + 60
    while servers(directory) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert servers(directory) == []
