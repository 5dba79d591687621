"""Which key a client takes, and what becomes of the keys in its file."""

import json
from pathlib import Path

import pytest

from warren.cli.left_keys import find_left_keys, leave_key
from warren.sdk.discovery import credentials_path, find_key, write_key

URL = "http://localhost:8000"
OTHER = "http://elsewhere:8000"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "warren" / "credentials.json"
    monkeypatch.setenv("WARREN_CREDENTIALS", str(path))
    monkeypatch.delenv("WARREN_API_KEY", raising=False)
    assert credentials_path() == path
    return path


def test_the_variable_comes_first_and_means_no_key_if_it_is_empty(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_key(file, URL, "wk_stored")
    assert find_key(URL) == "wk_stored"
    for value in ("wk_given", ""):
        monkeypatch.setenv("WARREN_API_KEY", value)
        assert find_key(URL) == value


def test_a_key_that_was_left_is_found_by_its_state_directory_and_removed(file: Path, tmp_path: Path) -> None:
    leave_key(tmp_path, file, {URL: "", f"{URL[:-1]}1": ""}, "wk_first")
    write_key(file, OTHER, "wk_other")
    header = file.with_name("header-8000")
    header.write_text("X-API-Key: wk_first\n")
    file.with_name("header-9000").write_text("X-API-Key: wk_other\n")
    assert "wk_first" not in (tmp_path / "left-key.json").read_text()
    assert find_left_keys([tmp_path / "warren"]) == []
    [left] = find_left_keys([tmp_path, tmp_path / "missing"])
    assert (left.path, left.headers) == (file, (header,))
    left.remove()
    assert json.loads(file.read_text()) == {OTHER: "wk_other"}
    assert {path.name for path in file.parent.iterdir()} == {"credentials.json", "credentials.lock", "header-9000"}
    assert find_left_keys([tmp_path]) == []


def test_with_the_last_key_the_file_and_its_folder_go(file: Path, tmp_path: Path) -> None:
    leave_key(tmp_path, file, {URL: ""}, "wk_first")
    for left in find_left_keys([tmp_path]):
        left.remove()
    assert not file.parent.exists()
