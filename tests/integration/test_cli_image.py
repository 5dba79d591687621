"""`warren image` for programs: each command answers with one JSON document."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def warren(tmp_path: Path) -> Callable[..., Any]:
    state = Path(tempfile.mkdtemp(prefix="warren-test-", dir=tmp_path))

    def run(*arguments: str) -> Any:
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path), "WARREN_STATE_DIR": str(state)}
        argv = [sys.executable, "-m", "warren.cli.main", "image", *arguments, "--json"]
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120)
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
