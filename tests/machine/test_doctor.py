"""`warren doctor` as a user sees it, on this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import warm_parent

from warren.model.spec import Layer

Doctor = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def doctor(state_dir: Path) -> Doctor:
    def run(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": ":".join(sys.path),
            "WARREN_STATE_DIR": str(state_dir),
            **variables,
        }
        argv = [sys.executable, "-m", "warren.cli.main", "doctor", *arguments]
        return warm_parent.run(argv, capture_output=True, text=True, env=environment, timeout=120, check=False)

    return run


def test_this_machine_is_fit(doctor: Doctor) -> None:
    done = doctor()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout


def test_the_report_for_programs_has_every_layer(doctor: Doctor) -> None:
    done = doctor("--json")
    assert done.returncode == 0, done.stdout + done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert {f"layer {layer}" for layer in Layer} <= set(checks)
    assert {"kernel", "cgroups", "agent", "launcher", "runtime runc", "images", "docker", "leftovers"} <= set(checks)
    assert all(check["remedy"] for check in checks.values() if check["level"] != "ok")


def test_a_missing_program_fails_with_its_remedy(doctor: Doctor, tmp_path: Path) -> None:
    done = doctor(WARREN_BIN_DIR=str(tmp_path))
    assert done.returncode == 1
    assert "FAIL  agent" in done.stdout
    assert "make build" in done.stdout
    assert "Traceback" not in done.stderr


def test_an_engine_that_is_needed_and_not_there_fails(doctor: Doctor, tmp_path: Path) -> None:
    done = doctor("--provider", "docker", DOCKER_HOST=f"unix://{tmp_path}/no.sock")
    assert done.returncode == 1
    assert "FAIL  docker" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_state_directory_without_images_is_told_how_to_get_one(doctor: Doctor, tmp_path: Path) -> None:
    done = doctor(WARREN_STATE_DIR=str(tmp_path / "state"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warren image build base" in done.stdout
