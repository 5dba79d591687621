"""The JSON files of the orchestrator (packages/compat): whole or not there, bounded, and nowhere else."""

import json
import threading
from pathlib import Path

import pytest
from orchestrator.e2b_manager import _exit_code
from orchestrator.state_manager import JsonFiles, StateManager

from warren import Execution, ExecutionError


@pytest.fixture
def state(tmp_path: Path) -> StateManager:
    return StateManager(tmp_path / "storage")


def test_a_session_is_one_file_that_others_can_read(state: StateManager, tmp_path: Path) -> None:
    assert (state.load("ses_1"), state.names(), state.delete("ses_1")) == (None, [], False)
    state.save("ses_1", {"state": "running", "name": "ž"})
    path = tmp_path / "storage" / "sessions" / "ses_1.json"
    assert json.loads(path.read_text()) == state.load("ses_1") == {"state": "running", "name": "ž"}
    assert path.stat().st_mode & 0o077 == 0
    assert (state.names(), state.delete("ses_1"), state.names()) == (["ses_1"], True, [])


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "..", ".", "a/b", "a\0b", "ünï", "a b", "%2e", ".lock", ".new-"]
)
def test_no_name_leads_out_of_the_directory(state: StateManager, name: str) -> None:
    state.save(name, {"a": 1})
    assert state.path_of(name).parent == state.directory
    assert (state.load(name), state.names()) == ({"a": 1}, [name])


@pytest.mark.parametrize("name", ["", "x" * 201, "ü" * 40])
def test_a_name_that_no_file_can_have_is_refused(state: StateManager, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a file"):
        state.save(name, {})


def test_what_cannot_be_written_leaves_the_old_file(state: StateManager) -> None:
    state.save("ses_1", {"a": 1})
    with pytest.raises(TypeError):
        state.save("ses_1", {"a": object()})
    assert state.load("ses_1") == {"a": 1}
    assert {path.name for path in state.directory.iterdir()} == {"ses_1.json", ".lock"}


def test_changes_at_the_same_time_are_all_kept(state: StateManager) -> None:
    def count() -> None:
        for _ in range(25):
            state.change("ses_1", lambda known: {"count": known.get("count", 0) + 1})

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state.load("ses_1") == {"count": 100}


def test_the_oldest_make_room(tmp_path: Path) -> None:
    files = JsonFiles(tmp_path, most=3)
    for number in range(5):
        files.save(f"ses_{number}", {})
    assert files.names() == ["ses_4", "ses_3", "ses_2"]


@pytest.mark.parametrize(("value", "code"), [("3", 3), ("9" * 5000, 1), ("٣" * 3, 1), ("-1", 1), ("", 1)])
def test_code_of_a_stranger_says_any_status(value: str, code: int) -> None:
    error = ExecutionError("ExitCode", value, "")
    assert _exit_code(Execution(error=error, language="bash")) == code
