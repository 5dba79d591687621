"""The registry: what it brings, and that a mistake in a file is said in one sentence."""

from pathlib import Path

import pytest

from warren.model.errors import InvalidRequest, UnknownEnvironment
from warren.model.spec import Limits
from warren.registry import Registry, packaged_registry


def write(directory: Path, name: str, text: str) -> Registry:
    (directory / "environments").mkdir(exist_ok=True)
    (directory / "environments" / f"{name}.yaml").write_text(text)
    return Registry(packaged_registry(), directory)


def test_base_and_host_come_with_the_package() -> None:
    registry = Registry(packaged_registry())
    assert registry.names == ["base", "host"]
    assert registry.environment("base").image == "base"
    assert registry.environment("host").limits == Limits()


def test_an_unknown_environment_lists_the_known_ones() -> None:
    with pytest.raises(UnknownEnvironment) as caught:
        Registry(packaged_registry()).environment("nope")
    assert str(caught.value) == "there is no environment 'nope' (there are: base, host)"


def test_a_directory_of_the_user_adds_and_replaces(tmp_path: Path) -> None:
    registry = write(tmp_path, "base", "name: base\nimage: mine:1\nlimits: {memory_mb: 128, cpus: 1.5}\nenv: {A: b}\n")
    environment = registry.environment("base")
    assert environment.image == "mine:1"
    assert environment.limits == Limits(memory_mb=128, cpus=1.5)
    assert environment.env == {"A": "b"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "line 1.*not YAML"),
        ("", "keys and values are expected"),
        ("- a", "keys and values are expected"),
        ("name: x", "'image' is missing"),
        ("image: x", "'name' is missing"),
        ("name: y\nimage: x", "the file's name says 'x'"),
        ("name: x\nimage: x\ncolour: red", "there is no key 'colour'"),
        ("name: x\nimage: 3", "image is 3, it must be a text"),
        ("name: x\nimage: ../x", "not an image name"),
        ("name: x\nimage: x\nlimits: 3", "limits is 3"),
        ("name: x\nimage: x\nlimits: {memory: 3}", "there is no limit 'memory'"),
        ("name: x\nimage: x\nlimits: {memory_mb: lots}", "limits.memory_mb is 'lots'"),
        ("name: x\nimage: x\nlimits: {pids: 10.5}", "whole number"),
        ("name: x\nimage: x\nlimits: {memory_mb: 1}", "must be between 64"),
        ("name: x\nimage: x\nenv: {A: 1}", "env.A must be a text"),
        ("name: x\nimage: x\nenv: {'A B': x}", "not a name for an environment variable"),
        ("name: !!python/object/apply:os.getcwd []\nimage: x", "not YAML"),
    ],
)
def test_a_mistake_is_said_with_the_file_and_the_key(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        write(tmp_path, "x", text).environment("x")
    assert caught.value.message.startswith(str(tmp_path / "environments/x.yaml"))
    assert "\n" not in caught.value.message
