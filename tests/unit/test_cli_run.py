"""What `warren run` and `warren support` do before and beside the sandbox."""

from pathlib import Path

import pytest

from warren.cli import run, support
from warren.config.settings import read_settings
from warren.interfaces.sandbox import Sandbox
from warren.model.operations import Command


@pytest.mark.parametrize(("own", "asked"), [("fake", ""), ("", "fake"), ("fake", "fake")])
def test_no_image_is_built_for_a_provider_that_needs_none(tmp_path: Path, own: str, asked: str) -> None:
    """The default provider would build the image; that of the environment, or of the command line, runs without one."""
    (tmp_path / "environments").mkdir()
    file = tmp_path / "environments" / "mine.yaml"
    file.write_text("name: mine\nimage: base\n" + (f"provider: {own}\n" if own else ""))

    async def work(sandbox: Sandbox) -> int:
        return (await sandbox.exec(Command(argv=("true",)))).exit_code

    variables = {"WARREN_STATE_DIR": str(tmp_path), "WARREN_REGISTRY_DIR": str(tmp_path), "WARREN_PROVIDER": "oci,fake"}
    settings = read_settings(variables, uid=0)
    assert run._run_in_fresh_sandbox(settings, run.RunOptions("mine", "", asked), work) == 0
    assert not (tmp_path / "images").exists()


def test_a_journal_that_does_not_answer_in_time_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "journalctl"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(support, "_JOURNAL_S", 0.1)
    found = support._logs(read_settings({"WARREN_STATE_DIR": str(tmp_path)}, uid=0))
    assert found["logs/journal"].startswith(b"cannot be read: ")
