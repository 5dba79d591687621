"""What `warren run` and `warren support` do before and beside the sandbox."""

from pathlib import Path

import pytest

from warren.cli import run, support
from warren.config.settings import Settings, read_settings
from warren.interfaces.sandbox import Sandbox


@pytest.mark.parametrize(
    ("default", "own", "asked", "is_wanted"),
    [
        ("oci", "", "", True),
        ("fake", "oci", "", True),
        ("oci", "fake", "", False),
        ("oci", "fake", "oci", True),
        ("oci", "", "fake", False),
    ],
)
def test_an_image_is_built_for_the_provider_that_will_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: str, own: str, asked: str, is_wanted: bool
) -> None:
    (tmp_path / "environments").mkdir()
    file = tmp_path / "environments" / "mine.yaml"
    file.write_text("name: mine\nimage: base\n" + (f"provider: {own}\n" if own else ""))
    wanted: list[str] = []
    used: list[str] = []

    async def with_sandbox(settings: Settings, provider: str, *_: object) -> int:
        used.append(provider)
        return 0

    monkeypatch.setattr(run, "_ensure_image", lambda settings, image: wanted.append(image))
    monkeypatch.setattr(run, "_with_sandbox", with_sandbox)

    async def work(sandbox: Sandbox) -> int:
        return 0

    variables = {"WARREN_STATE_DIR": str(tmp_path), "WARREN_REGISTRY_DIR": str(tmp_path), "WARREN_PROVIDER": default}
    settings = read_settings(variables, uid=0)
    assert run._run_in_fresh_sandbox(settings, run.RunOptions("mine", "", asked), work) == 0
    assert (wanted, used) == (["base"] if is_wanted else [], [asked or own or default])


def test_a_journal_that_does_not_answer_in_time_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "journalctl"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(support, "_JOURNAL_S", 0.1)
    found = support._logs(read_settings({"WARREN_STATE_DIR": str(tmp_path)}, uid=0))
    assert found["logs/journal"].startswith(b"cannot be read: ")
