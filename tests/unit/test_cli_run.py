"""What `warren run` and `warren support` do before and beside the sandbox."""

from pathlib import Path

import pytest
from registry_server import empty_registry

from warren.cli import run, support
from warren.config.settings import read_settings
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import ImageNotFound


@pytest.mark.parametrize(
    ("providers", "own", "asked", "is_wanted"),
    [
        ("oci", "", "", True),
        ("fake,oci", "oci", "", True),
        ("oci,fake", "fake", "", False),
        ("oci,fake", "fake", "oci", True),
        ("oci,fake", "", "fake", False),
    ],
)
def test_an_image_is_built_for_the_provider_that_will_use_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], providers: str, own: str, asked: str, is_wanted: bool
) -> None:
    """The base of the image is nowhere, so the build fails; `fake` builds none, and refuses the image itself."""
    (tmp_path / "environments").mkdir()
    file = tmp_path / "environments" / "mine.yaml"
    file.write_text("name: mine\nimage: {from: missing, env: {A: b}}\n" + (f"provider: {own}\n" if own else ""))

    async def work(sandbox: Sandbox) -> int:
        raise AssertionError("there is a sandbox")

    variables = {"WARREN_STATE_DIR": str(tmp_path), "WARREN_REGISTRY_DIR": str(tmp_path), "WARREN_PROVIDER": providers}
    with empty_registry() as registry:
        settings = read_settings({**variables, "WARREN_IMAGE_MIRRORS": f"docker.io={registry.host}"}, uid=0)
        with pytest.raises(ImageNotFound, match="library/missing" if is_wanted else "the fake has no image"):
            run._run_in_fresh_sandbox(settings, run.RunOptions("mine", "", asked), work)
    assert ("building the image environment/mine" in capsys.readouterr().err) == is_wanted


def test_a_sandbox_of_its_own_is_like_one_of_a_server_with_the_same_settings(tmp_path: Path) -> None:
    async def work(sandbox: Sandbox) -> int:
        raise AssertionError("there is a sandbox")

    given = {"CONTAINER_IMAGE": "missing:22.04", "MEMORY_LIMIT": "300m", "WARREN_STATE_DIR": str(tmp_path)}
    with empty_registry() as registry:
        settings = read_settings({**given, "WARREN_IMAGE_MIRRORS": f"docker.io={registry.host}"}, uid=0)
        with pytest.raises(ImageNotFound, match=r"missing:22\.04"):
            run._run_in_fresh_sandbox(settings, run.RunOptions("base", "", ""), work)
    spec = run.build_spec(settings, run.RunOptions("base", "", ""))
    assert (spec.image, spec.limits.memory_mb) == ("missing:22.04", 300)
    spec = run.build_spec(settings, run.RunOptions("base", "mine", "", memory=200))
    assert (spec.image, spec.limits.memory_mb) == ("mine", 200)
    assert run.build_spec(settings, run.RunOptions("Python3", "", "")).image != "missing:22.04"


def test_a_journal_that_does_not_answer_in_time_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "journalctl"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(support, "_JOURNAL_S", 0.1)
    found = support._logs(read_settings({"WARREN_STATE_DIR": str(tmp_path)}, uid=0))
    assert found["logs/journal"].startswith(b"cannot be read: ")
