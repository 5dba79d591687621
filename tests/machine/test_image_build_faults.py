"""A build of `base` that goes wrong. A stand-in for mmdebstrap goes wrong on purpose, in the real namespaces."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import warm_parent

from warren.images.building.build_locks import LOCKS


def start(tmp_path: Path, script: str) -> "subprocess.Popen[str]":
    program = tmp_path / "bin/mmdebstrap"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nfor target; do :; done\nmkdir -p "$target/bin"\n{script}\n')
    program.chmod(0o755)
    environment = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(sys.path),
        "WARREN_STATE_DIR": str(tmp_path / "state"),
    }
    command = [sys.executable, "-m", "warren.cli.main", "image", "build", "base"]
    return warm_parent.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def left_of(tmp_path: Path) -> list[str]:
    images = tmp_path / "state/images"
    return [*(name for name in os.listdir(images) if name != LOCKS), *os.listdir(images / LOCKS)]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'E: no such suite'; exit 1", "could not build the image: E: no such suite"),
        ("echo 'tar: No space left on device'; exit 1", "the disk is full"),
        ("exit 3", "it ended with code 3"),
        ("exit 0", "is not a root filesystem"),
    ],
)
def test_a_failed_build_is_one_sentence_and_leaves_nothing(tmp_path: Path, script: str, message: str) -> None:
    with start(tmp_path, script) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait() == 125
    assert message in said
    assert "Traceback" not in said
    assert left_of(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_a_build_that_is_stopped_dies_with_all_its_processes(tmp_path: Path, number: int) -> None:
    started = tmp_path / "started"
    with start(tmp_path, f"(setsid sleep 987654 &) ; echo > {started}; sleep 987654") as process:
        wait_for(started.exists)
        process.send_signal(number)
        assert process.wait(20) == (-number if number == signal.SIGKILL else 128 + number)
    wait_for(lambda: not alive("sleep\x00987654"))
    assert (left_of(tmp_path) == []) == (number != signal.SIGKILL)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(command_line: str) -> bool:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_text().startswith(command_line):
                return True
        except OSError:
            continue
    return False
