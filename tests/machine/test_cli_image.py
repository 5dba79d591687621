"""`warren image` for programs: each command answers with one JSON document."""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm_parent
from registry_server import empty_registry


@pytest.fixture
def refusal(tmp_path: Path) -> Callable[..., str]:
    """What a command that fails says, in a machine without images."""

    def run(*arguments: str, **variables: str) -> str:
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path), "WARREN_STATE_DIR": str(tmp_path)}
        argv = [sys.executable, "-m", "warren.cli.main", *arguments]
        done = warm_parent.run(
            argv, env={**environ, **variables}, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 125, done.stdout + done.stderr
        return done.stderr

    return run


@pytest.fixture
def warren(tmp_path: Path) -> Callable[..., Any]:
    state = Path(tempfile.mkdtemp(prefix="warren-test-", dir=tmp_path))

    def run(*arguments: str) -> Any:
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path), "WARREN_STATE_DIR": str(state)}
        argv = [sys.executable, "-m", "warren.cli.main", "image", *arguments, "--json"]
        done = warm_parent.run(argv, env=environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_an_image_is_imported_listed_and_removed(warren: Callable[..., Any], tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("in the image")
    made = warren("import", str(tree), "--no-shell")
    assert made["name"] == "tree"
    assert warren("list") == [made]
    assert warren("remove", "tree") == {"removed": "tree", "version": made["version"], "pending": False}
    assert warren("list") == []


def test_an_image_that_is_there_is_not_built_and_shown_all_the_same(warren: Callable[..., Any]) -> None:
    made = warren("build", "host")
    assert made["name"] == "host"
    assert warren("build", "host", "--if-missing") == made


def test_who_has_not_said_where_their_files_are_hears_of_it(refusal: Callable[..., str], tmp_path: Path) -> None:
    for command in (["environments", "build", "plots"], ["run", "--environment", "plots", "--", "true"]):
        assert "registry_dir, which is not set (WARREN_REGISTRY_DIR)" in refusal(*command)
        assert f"read from {tmp_path}/environments" in refusal(*command, WARREN_REGISTRY_DIR=str(tmp_path))


def test_a_file_that_is_not_there_is_not_only_looked_for_in_an_engine(refusal: Callable[..., str]) -> None:
    nowhere = {"DOCKER_HOST": "unix:///nowhere"}
    assert "there is no file or directory rootfs, and the Docker engine" in refusal(
        "image", "import", "rootfs", **nowhere
    )
    assert "there is no file" not in refusal("image", "import", "docker:rootfs", **nowhere)


def test_a_directory_alone_is_a_context(refusal: Callable[..., str], tmp_path: Path) -> None:
    assert f"there is no file Dockerfile in {tmp_path}" in refusal("image", "build", ".", "--if-missing")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "Own").write_text("FROM scratch\n")
    assert "there is below/Own: give -f below/Own" in refusal("image", "build", "own", "below", "-f", "Own")
    (tmp_path / "Dockerfile").write_text("FROM scratch AS build\nFROM scratch\nCOPY --from=biuld /a /b\n")
    with empty_registry() as registry:
        said = refusal("image", "build", "./", WARREN_IMAGE_MIRRORS=f"docker.io={registry.host}")
    assert f"Dockerfile:3: the registry {registry.host} has no manifests/latest of library/biuld" in said
    assert "did you mean build?" in said
    assert "'Bad Name' is not an image name" in refusal("image", "build", "Bad Name", ".")
