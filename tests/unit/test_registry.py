"""The registry: what it brings, and that a mistake in a file is said in one sentence."""

import os
import re
import time
from itertools import pairwise
from pathlib import Path

import pytest

from warren.config.registry import Registry, packaged_registry
from warren.model.capability import Capability
from warren.model.environment import PoolSize
from warren.model.errors import InvalidRequest, Unavailable, UnknownEnvironment
from warren.model.metrics import AlertThresholds
from warren.model.spec import Limits

PACKAGED = ["base", "code-interpreter", "e2b", "e2b-code-interpreter", "host", "Node", "polyglot", "Python3"]


def write(directory: Path, name: str, text: str) -> Registry:
    (directory / "environments").mkdir(exist_ok=True)
    (directory / "environments" / f"{name}.yaml").write_text(text)
    return Registry(packaged_registry(), directory)


def bomb() -> str:
    return "\n".join(f"{one}: &{one} [{', '.join(['*' + before] * 8)}]" for before, one in pairwise("abcdefghi"))


def test_environments_come_with_the_package() -> None:
    registry = Registry(packaged_registry())
    assert registry.names == PACKAGED
    assert all(registry.environment(name).description for name in registry.names)
    assert (registry.environment("Python3").image, registry.environment("Node").image) == ("python", "node")
    assert registry.environment("base").image == "base"
    assert registry.environment("host").limits == Limits()


def test_an_unknown_environment_lists_the_known_ones() -> None:
    with pytest.raises(UnknownEnvironment) as caught:
        Registry(packaged_registry()).environment("nope")
    assert str(caught.value) == f"there is no environment 'nope' (there are: {', '.join(PACKAGED)})"


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("python3", "Python3"), ("Python", "Python3"), ("NODE", "Node"), ("nodejs", "Node"), ("bas", "base")],
)
def test_an_environment_spelled_differently_is_suggested(asked: str, meant: str) -> None:
    with pytest.raises(UnknownEnvironment) as caught:
        Registry(packaged_registry()).environment(asked)
    assert caught.value.message == f"there is no environment {asked!r}"
    assert caught.value.remedy == f"did you mean {meant}? there are: {', '.join(PACKAGED)}"


def test_a_registry_without_environments_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnknownEnvironment, match="there are: none"):
        Registry(tmp_path).environment("base")


def test_an_environment_may_say_its_pool_and_its_times(tmp_path: Path) -> None:
    text = "name: x\nimage: x\npool: {size: 3, min: 1, max: 9}\nidle_timeout_s: 10m\nmax_lifetime_s: 90.5\n"
    environment = write(tmp_path, "x", text).environment("x")
    assert environment.pool == PoolSize(size=3, min=1, max=9)
    assert (environment.idle_timeout_s, environment.max_lifetime_s) == (600, 90.5)


def test_an_environment_may_say_what_its_sessions_reach(tmp_path: Path) -> None:
    text = "name: x\nimage: x\nnetwork: {allow: [python-packages, 'api.example.com:443'], deny: []}\n"
    assert write(tmp_path, "x", text).environment("x").network.allow == ("python-packages", "api.example.com:443")
    assert not Registry(packaged_registry()).environment("base").network.is_open


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ("{allow: api.example.com}", "network.allow must be a list of texts"),
        ("{allow: [5]}", "network.allow must be a list of texts"),
        ("{allow: ['*']}", "would allow everything"),
        ("{internet: 1}", "network.internet must be true or false"),
        ("{permit: []}", "network has no key 'permit'"),
    ],
)
def test_a_mistake_in_the_network_is_said(tmp_path: Path, network: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        write(tmp_path, "x", f"name: x\nimage: x\nnetwork: {network}\n").read("x")


def test_an_environment_may_say_how_many_gpus_or_which(tmp_path: Path) -> None:
    (tmp_path / "environments").mkdir()
    for name, value in {"some": "2", "these": '["0", 1]', "wrong": '"all"', "twice": "[0, 0]"}.items():
        (tmp_path / "environments" / f"{name}.yaml").write_text(f"name: {name}\nimage: base\ngpus: {value}\n")
    registry = Registry(tmp_path)
    assert registry.environment("some").gpus == ("any", "any")
    assert registry.environment("these").gpus == ("0", "1")
    for name in ("wrong", "twice"):
        with pytest.raises(InvalidRequest, match="gpus"):
            registry.read(name)


def test_an_environment_may_name_the_secrets_of_its_sessions(tmp_path: Path) -> None:
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "x.yaml").write_text("name: x\nimage: base\nsecrets: [openai, git]\n")
    assert Registry(tmp_path).environment("x").secrets == ("openai", "git")


def test_an_environment_may_say_its_provider_and_what_it_needs_of_it(tmp_path: Path) -> None:
    text = "name: x\nimage: x\nprovider: docker\nneeds: [terminals, gpu]\n"
    environment = write(tmp_path, "x", text).environment("x")
    assert environment.provider == "docker"
    assert environment.needs == {Capability.TERMINALS, Capability.GPU}
    base = Registry(packaged_registry()).environment("base")
    assert (base.provider, base.needs) == ("", frozenset())


def test_an_environment_may_have_a_writable_root_and_allow_root_inside(tmp_path: Path) -> None:
    environment = write(tmp_path, "x", "name: x\nimage: x\nroot: writable\nsudo: true\n").environment("x")
    assert (environment.writable_root, environment.sudo) == (True, True)
    assert environment.needs == {Capability.USER_NAMESPACE}
    environment = write(tmp_path, "y", "name: y\nimage: y\nroot: read-only\nsudo: false\n").environment("y")
    assert (environment.writable_root, environment.sudo, environment.needs) == (False, False, frozenset())
    base = Registry(packaged_registry()).environment("base")
    assert (base.writable_root, base.sudo, base.user, base.home) == (False, False, "", "")
    named = Registry(packaged_registry()).environment("e2b")
    assert (named.writable_root, named.sudo, named.user, named.home) == (True, True, "user", "/home/user")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("root: rw", "root is 'rw' (it is one of read-only, writable)"),
        ("root: true", "root is True, it must be a text"),
        ("sudo: 1", "sudo is 1, it must be true or false"),
        ("sudo: all", "sudo is 'all', it must be true or false"),
        ("user: user", "the key user needs a writable root and sudo"),
        ("root: writable\nsudo: true\nuser: me", "user is 'me', it can be: user"),
    ],
)
def test_a_mistake_about_root_is_said(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        write(tmp_path, "x", f"name: x\nimage: x\n{line}\n").read("x")


def test_an_environment_may_say_when_it_alerts(tmp_path: Path) -> None:
    text = "name: x\nimage: x\nalerts: {memory: 75, disk: off, processes: 0, cpu: 95.5}\n"
    assert write(tmp_path, "x", text).environment("x").alerts == AlertThresholds(75, 0, 0, 95.5)
    assert write(tmp_path, "y", "name: y\nimage: x\nalerts: {cpu: 95}\n").environment("y").alerts.memory == 90


def test_an_environment_that_says_nothing_leaves_pool_and_times_to_the_server() -> None:
    environment = Registry(packaged_registry()).environment("base")
    assert (environment.pool, environment.idle_timeout_s, environment.max_lifetime_s) == (None, None, None)


@pytest.mark.parametrize(
    ("pool", "size"),
    [
        ("{size: 150}", PoolSize(size=150, min=2, max=150)),
        ("{size: 1}", PoolSize(size=1, min=1, max=100)),
        ("{size: 0, max: 0}", PoolSize(size=0, min=0, max=0)),
        ("{min: 3}", PoolSize(size=5, min=3, max=100)),
        ("{}", PoolSize()),
    ],
)
def test_what_a_pool_does_not_say_follows_its_size(pool: str, size: PoolSize, tmp_path: Path) -> None:
    assert write(tmp_path, "x", f"name: x\nimage: x\npool: {pool}").environment("x").pool == size


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
        ("name: x\nimage: x\npool: 3", "pool is 3, it must be keys and values"),
        ("name: x\nimage: x\nalerts: 90", "alerts is 90, it must be keys and values"),
        ("name: x\nimage: x\nalerts: {memmory: 90}", "there is no key alerts.memmory"),
        ("name: x\nimage: x\nalerts: {memory: much}", "alerts.memory is 'much'"),
        ("name: x\nimage: x\nalerts: {disk: 101}", "alerts.disk is 101"),
        ("name: x\nimage: x\nalerts: {cpu: true}", "alerts.cpu is True"),
        ("name: x\nimage: x\npool: {sice: 3}", "there is no key pool.sice"),
        ("name: x\nimage: x\npool: {size: few}", "pool.size is 'few', it must be a whole number"),
        ("name: x\nimage: x\npool: {size: true}", "pool.size is True"),
        ("name: x\nimage: x\npool: {size: 1.5}", "pool.size is 1.5"),
        ("name: x\nimage: x\npool: {size: -1}", "the pool has min -1, size -1"),
        ("name: x\nimage: x\npool: {size: 9, max: 3}", "the pool has min 2, size 9, max 3"),
        ("name: x\nimage: x\nidle_timeout_s: soon", "idle_timeout_s is 'soon', it must be a number of seconds, or"),
        ("name: x\nimage: x\nidle_timeout_s: 0", "idle_timeout_s is 0, it must be between 1"),
        ("name: x\nimage: x\nmax_lifetime_s: yes", "max_lifetime_s is True, it must be a number"),
        ("name: x\nimage: x\nmax_lifetime_s: .nan", "max_lifetime_s is nan"),
        ("name: x\nimage: x\nprovider: [oci]", "provider is .*, it must be a text"),
        ("name: x\nimage: x\nneeds: gpu", "needs is 'gpu', it must be a list"),
        ("name: x\nimage: x\nneeds: [cake]", "there is no capability 'cake'"),
        ("name: x\nimage: x\nsecrets: [{a: b}]", "secrets are names"),
        ("name: x\nimage: x\nsecrets: [Upper]", "the name of a secret"),
        ("name: x\nimage: x\nneeds: [{gpu: 1}]", "there is no capability"),
        ("name: !!python/object/apply:os.getcwd []\nimage: x", "not YAML"),
    ],
)
def test_a_mistake_is_said_with_the_file_and_the_key(text: str, message: str, tmp_path: Path) -> None:
    registry = write(tmp_path, "x", text)
    with pytest.raises(InvalidRequest, match=message) as caught:
        registry.read("x")
    assert caught.value.message.startswith(str(tmp_path / "environments/x.yaml"))
    assert "\n" not in caught.value.message
    assert {name: problem for name, problem in registry.problems().items() if problem} == {"x": str(caught.value)}
    with pytest.raises(Unavailable, match="'x' cannot be used") as caught_by_tenant:
        registry.environment("x")
    assert str(tmp_path) not in str(caught_by_tenant.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nimage: x\nlimit: {}", "line 3: there is no key 'limit' (did you mean limits? "),
        (
            "name: x\nimage: x\nlimits:\n  pids: 9\n  memory: 3",
            "line 5: there is no limit 'memory' (did you mean memory_mb? ",
        ),
        ("name: x\nimage: x\nenv:\n  A: b\n  B: 1", "line 5: env.B must be a text"),
        ("name: x\nimage: x\n\nnetwork:\n  permit: []", "line 4: network has no key 'permit'"),
        ("name: x\nimage: x\nneeds:\n- terminals\n- gpus", "line 5: there is no capability 'gpus' (did you mean gpu? "),
        ("name: x\nimage: x\nenv: {A: b}\nimage: y", "line 4: the key 'image' comes twice, first in line 2"),
        ("name: x\nimage: x\nenv:\n  A: b\n  A: c", "line 5: the key 'A' comes twice, first in line 4"),
        ("name: x\nimage: x\nidle_timeout_s: 0", "line 3: idle_timeout_s is 0"),
        ('name: x\nimage: x\nenv: {A: "a\\0b"}', "line 3: "),
        ("name: x\nimage: \0x", "not YAML"),
        ("a: &a [x, x, x, x, x, x, x, x]\n" + bomb(), "more than 20000 values"),
        ("name: &x [*x]", "more than 32 deep"),
        ("[" * 500, ""),
        ("name: " + "[" * 40 + "]" * 40, "more than 32 deep"),
        ("name: x\nimage: x\ndescription: " + "d" * 300_000, "is longer than 256 KiB"),
        ("name: x\nimage: x\nenv: {1: 2, [a]: b}", "not YAML"),
        ("name: x\nimage: x\nidle_timeout_s: 2026-02-31", "not YAML"),
        ("name: x\nimage: x\n---\nname: y", "not YAML"),
        ("name: !!python/name:os.system x", "not YAML"),
        ("name: !!binary AAAA\nimage: x", "it must be a text"),
    ],
)
def test_hostile_and_mistaken_files_are_refused_with_their_line(text: str, message: str, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(InvalidRequest) as caught:
        write(tmp_path, "x", text).read("x")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert time.monotonic() - started < 2


def test_two_files_of_one_name_are_a_mistake(tmp_path: Path) -> None:
    registry = write(tmp_path, "x", "name: x\nimage: one")
    assert registry.environment("x").image == "one"
    (tmp_path / "environments/x.yml").write_text("name: x\nimage: two")
    assert registry.environment("x").image == "one"
    assert "x.yml is there as well" in registry.problems()["x"]
    (tmp_path / "environments/x.yaml").unlink()
    assert registry.environment("x").image == "two"


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "environments").mkdir()
    os.mkfifo(tmp_path / "environments/x.yaml")
    (tmp_path / "environments/y.yaml").mkdir()
    registry = Registry(tmp_path)
    assert [problem.rpartition("/")[2] for problem in registry.problems().values()] == [
        "x.yaml is not a file",
        "y.yaml cannot be read: Is a directory",
    ]


def changes(registry: Registry) -> list[tuple[str, bool, bool, bool]]:
    return [(one.name, bool(one.problem), one.removed, one.kept) for one in registry.changes()]


def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    registry = write(tmp_path, "x", "name: x\nimage: one")
    assert [name for name, *_ in changes(registry)] == [*PACKAGED, "x"]
    assert changes(registry) == []
    assert registry.environment("x").image == "one"
    write(tmp_path, "x", "name: x\nimage: two!")
    assert registry.environment("x").image == "one"  # a mistake does not take an environment away
    assert changes(registry) == [("x", True, False, True)]
    write(tmp_path, "x", "name: x\nimage: three")
    assert registry.environment("x").image == "three"
    write(tmp_path, "y", "name: y")
    write(tmp_path, "Node", "name: Node\nimage: mine")
    assert changes(registry) == [
        ("Node", False, False, False),
        ("x", False, False, False),
        ("y", True, False, False),
    ]
    assert registry.environment("Node").image == "mine"
    (tmp_path / "environments/x.yaml").unlink()
    (tmp_path / "environments/Node.yaml").unlink()
    with pytest.raises(UnknownEnvironment):
        registry.environment("x")
    assert registry.environment("Node").image == "node"
    assert sorted(changes(registry)) == [("Node", False, False, False), ("x", False, True, False)]


def test_the_environment_that_the_documents_show_is_right(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/images.md").read_text()
    (shown,) = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    environment = write(tmp_path, "data", shown).read("data")
    assert (environment.image, environment.limits.memory_mb) == ("base", 2048)
    page = (Path(__file__).parents[2] / "docs/root.md").read_text()
    (shown,) = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    environment = write(tmp_path, "workshop", shown).read("workshop")
    assert environment.writable_root
    assert environment.sudo
    page = (Path(__file__).parents[2] / "docs/figures.md").read_text()
    (shown,) = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    assert write(tmp_path, "tables", shown).read("tables").alerts == AlertThresholds(80, 95, 0, 95)


def test_output_of_python_comes_at_once_in_our_environments() -> None:
    registry = Registry(packaged_registry())
    assert {registry.environment(name).env.get("PYTHONUNBUFFERED") for name in registry.names} == {"1"}
