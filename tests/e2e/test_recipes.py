"""The recipes of the documents that need hosts outside, as they stand there: with hosts of the test's own behind the
names, and presets that point to them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from certificates import make_certificates
from e2e.conftest import NewState
from machine.test_documents import ROOT, fenced
from network_servers import Servers
from network_world import ADDRESSES, API_KEY, NetworkWorld, PlacedServer

HOSTS: Final = ("git.example.com", "packages.example.com", "models.example.com", "api.openai.com")
RECIPES: Final = [
    (name, text)
    for name in ("network", "secrets", "previews")
    for kind, text in fenced(ROOT / "docs" / f"{name}.md")
    if kind == "bash"
]
_PRESETS: Final = """
python-packages:
  allow: ["packages.example.com:80"]
  env: {PIP_INDEX_URL: "http://packages.example.com/simple", PIP_TRUSTED_HOST: packages.example.com}
"""
# Programs inside do not know the test's authority and host keys; packages of this machine are there already.
_ENVIRONMENT: Final = """
name: base
image: host
env:
  GIT_SSL_NO_VERIFY: "1"
  GIT_SSH_COMMAND: "ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
  PIP_IGNORE_INSTALLED: "1"
"""
_SAID: Final = {
    "pip install --user requests": "Successfully installed requests-1.0",
    "by-ssh": "",
    "models.example.com": "hello from models.example.com",
    "OPENAI_BASE_URL": "hello from api.openai.com",
    "git@git.example.com:team/project.git\n": "",
    "our-package": "Successfully installed our-package-1.0",
    "forward": "Directory listing",
}
"""What is said at the end of the recipe that has these words."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NetworkWorld, Servers, Path]]:
    folder = tmp_path_factory.mktemp("recipes")
    made = make_certificates(folder, *HOSTS)
    with NetworkWorld(folder) as world, Servers(folder, made) as servers:
        world.names |= dict.fromkeys(HOSTS, ADDRESSES[:1])
        servers.serve_web(world.listen(ADDRESSES[0], 443), tls=True)
        servers.serve_web(world.listen(ADDRESSES[0], 80), tls=False)
        servers.serve_ssh(world.listen(ADDRESSES[0], 22))
        yield world, servers, made.ca


@pytest.fixture(scope="module")
def server(
    servers: tuple[NetworkWorld, Servers, Path], new_state: NewState, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PlacedServer]:
    world, _, authority = servers
    registry = tmp_path_factory.mktemp("registry")
    (registry / "environments").mkdir()
    (registry / "environments" / "base.yaml").write_text(_ENVIRONMENT)
    (registry / "presets.yaml").write_text(_PRESETS)
    server = PlacedServer(
        *(world, new_state(), "--on-stop", "destroy", "--pool-size", "0", "--registry-dir", str(registry)),
        WARREN_EGRESS_PRESETS=str(registry / "presets.yaml"),
        WARREN_EGRESS_CA_FILE=str(authority),
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


def test_the_recipes_that_people_look_for_are_there() -> None:
    assert len(RECIPES) == len(_SAID)
    assert all(any(words in text for _, text in RECIPES) for words in _SAID)


def recipe(at: int, page: str, text: str) -> object:
    """`make test` has the first of each page."""
    is_first = page not in (other for other, _ in RECIPES[:at])
    return pytest.param(page, text, id=f"{page}-{at}", marks=[] if is_first else [pytest.mark.extended])


@pytest.mark.parametrize(("page", "text"), [recipe(at, *each) for at, each in enumerate(RECIPES)])
def test_a_recipe_works(
    page: str, text: str, server: PlacedServer, servers: tuple[NetworkWorld, Servers, Path], tmp_path: Path
) -> None:
    world, web, _ = servers
    (tmp_path / "key.txt").write_text("sk-of-the-recipe")
    end = 'for job in $(jobs -p); do kill "$job"; done; warren kill "$session"'
    outcome = subprocess.run(
        [*world.inner.within, "bash", "-euxo", "pipefail", "-c", f"{text}\n{end}"],
        cwd=tmp_path,
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(sys.path),
            "WARREN_URL": server.url,
            "WARREN_API_KEY": API_KEY,
            "TOKEN": "token-of-the-recipe",
            "USER": "user",
            "PASSWORD": "password-of-the-recipe",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert outcome.returncode == 0, f"{outcome.stderr[-3000:]}\n{outcome.stdout[-1000:]}"
    said = next(said for words, said in _SAID.items() if words in text)
    assert said in outcome.stdout
    if page == "secrets":
        assert "-of-the-recipe" not in outcome.stdout
        assert all("Authorization" in headers for *_, headers in web.seen[-1:])
