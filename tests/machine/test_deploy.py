"""Dockerfiles, Compose and Redis of deploy/: checked by the programs that read such files, and by running them.

The image of sandboxes is really built, and a sandbox made of it, by the Docker engine of the tests. The other two
images need a package index, which tests do without: of them it is checked that everything they name is there.
"""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
import redis
import yaml
from cluster_nginx import CONF, UPSTREAM
from deploy_files import DEPLOY, ROOT, SECRET, Document, pod, settings_from
from docker_engine import DockerEngine
from redis_server import PATIENCE_S
from server_process import free_port

import warren
from warren.cli.main import cli
from warren.config.settings import read_settings
from warren.images.store.store import ImageStore
from warren.model.operations import Command
from warren.model.spec import SandboxSpec
from warren.sandboxes.providers.docker import DockerProvider

IMAGES = ("coordinator", "worker", "sandbox")
COORDINATORS, WORKERS = ("coordinator-1", "coordinator-2"), ("worker-1", "worker-2", "worker-3")
SECRETS = dict.fromkeys(("REDIS_PASSWORD", "WARREN_CLUSTER_SECRET", "WARREN_SECRETS_KEY"), SECRET)
SECRETS["WARREN_API_KEY"] = "correct-horse-battery-staple"

Instruction = tuple[str, str]


# -- Dockerfiles


def instructions(name: str) -> list[Instruction]:
    """Of a Dockerfile: what stands first on each line, and the rest; lines that go on are joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / f"Dockerfile.{name}").read_text(), flags=re.M)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in lines if line.strip()]


def last(name: str, kind: str) -> str:
    return [rest for found, rest in instructions(name) if found == kind][-1]


def sent_to_the_engine(path: Path) -> bool:
    """By .dockerignore, which keeps everything out but what it names."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    wanted = [ROOT / line[1:] for line in lines if line.startswith("!")]
    return any(path.is_relative_to(each) for each in wanted)


@pytest.mark.parametrize("name", IMAGES)
def test_what_a_dockerfile_copies_is_there(name: str) -> None:
    stages: set[str] = set()
    for kind, rest in instructions(name):
        words = rest.split()
        if kind == "FROM":
            assert words[0] == "$BASE"
            stages.update(words[2:])
        if kind == "COPY" and words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in stages
        elif kind == "COPY":
            for source in words[:-1]:
                assert (ROOT / source).exists(), source
                assert sent_to_the_engine(ROOT / source), source


@pytest.mark.parametrize("name", IMAGES)
def test_a_dockerfile_has_a_base_of_one_version_and_leaves_no_package_lists(name: str) -> None:
    assert re.fullmatch(r"BASE=[a-z]+:[0-9]+-slim", instructions(name)[0][1])
    for kind, rest in instructions(name):
        if kind == "RUN" and "apt-get install" in rest:
            assert "install -y --no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists/*" in rest


@pytest.mark.parametrize(
    ("name", "user", "command"),
    [("coordinator", "10001:10001", "warren"), ("worker", "0:0", "start-worker"), ("sandbox", "1000:1000", "")],
)
def test_an_image_says_who_it_runs_as_and_what(name: str, user: str, command: str) -> None:
    assert last(name, "USER") == user
    if command:
        assert last(name, "ENTRYPOINT") == f'["{command}"]'
        assert last(name, "HEALTHCHECK").endswith('CMD ["warren-ready"]')
        assert command == "warren" or os.access(DEPLOY / command, os.X_OK)
        assert os.access(DEPLOY / "warren-ready", os.X_OK)


def test_what_the_images_start_are_commands_of_warren() -> None:
    script = (DEPLOY / "start-worker").read_text()
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    roles = re.findall(r"^ *role=(\w+)$", script, flags=re.M)
    started = {*json.loads(last("coordinator", "CMD")), *re.findall(r"^ +warren (\w+)", script, flags=re.M), *roles}
    assert started == {"coordinator", "image", "worker", "serve"}
    assert started <= set(cli.list_commands(click.Context(cli)))


@pytest.mark.anyio
async def test_a_sandbox_stands_on_the_image_for_sandboxes(
    docker_engine: DockerEngine, image_store: ImageStore, state_dir: Path
) -> None:
    docker_engine.import_rootfs(image_store.rootfs("base").path, "warren-tests/base:1")
    arguments = ("--build-arg", "BASE=warren-tests/base:1", "--build-arg", "PACKAGES=", "--network", "none")
    file = DEPLOY / "Dockerfile.sandbox"
    built = docker_engine.docker("build", *arguments, "-f", str(file), "-t", "warren-sandbox:1", str(ROOT), check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    provider = DockerProvider(state_dir, image_store, Path(warren.__file__).parent / "bin", docker_engine.url)
    try:
        box = await provider.create(SandboxSpec(image="warren-sandbox:1"))
        try:
            result = await box.exec(Command(shell="echo $PWD $(python3 -c 'print(6 * 7)'); touch f && ls"))
            assert (result.exit_code, result.output) == (0, "/workspace 42\nf\n")
        finally:
            await provider.destroy(box.id)
    finally:
        await provider.close()


# -- the health check


@contextmanager
def answering(status: int) -> Iterator[tuple[int, list[str]]]:
    """A server that gives this status; its port, and what it was asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, asked
        finally:
            server.shutdown()
            thread.join()


def is_ready(port: int, *arguments: str) -> bool:
    environ = {"WARREN_PORT": str(port), "http_proxy": "http://127.0.0.1:9"}
    argv = [sys.executable, "-I", str(DEPLOY / "warren-ready"), *arguments]
    outcome = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60)
    assert (outcome.returncode == 0) is not bool(outcome.stderr)
    return outcome.returncode == 0


def test_the_health_check_believes_only_200() -> None:
    with answering(200) as (port, asked):
        assert is_ready(port)
        assert is_ready(port, "/health")
    assert asked == ["/ready", "/health"]
    with answering(503) as (port, _):
        assert not is_ready(port)
    assert not is_ready(free_port())


# -- Compose


def compose() -> Document:
    found: Document = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    return found


def filled(values: Any, given: dict[str, str]) -> dict[str, str]:
    """An environment of compose.yml, with what `given` says in place of the variables."""

    def value(match: re.Match[str]) -> str:
        return given.get(match[1]) or (match[2] or "").removeprefix(":-")

    return {name: re.sub(r"\$\{(\w+)(:[-?][^}]*)?\}", value, text) for name, text in values.items()}


def checked_by_compose(path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    argv = ["docker-compose", "-f", str(path), "config", "-q"]
    given = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environ}
    return subprocess.run(argv, env=given, cwd="/", capture_output=True, text=True, timeout=120)


@pytest.fixture
def compose_copy(tmp_path: Path) -> Path:
    """Where no .env of this checkout is found."""
    copy = tmp_path / "compose.yml"
    copy.write_text((DEPLOY / "compose.yml").read_text())
    return copy


def test_compose_takes_the_file(compose_copy: Path) -> None:
    outcome = checked_by_compose(compose_copy, **SECRETS)
    assert outcome.returncode == 0, outcome.stderr


def test_compose_would_refuse_a_mistake_in_the_file(compose_copy: Path) -> None:
    compose_copy.write_text(compose_copy.read_text().replace("stop_grace_period", "stop_grace", 1))
    assert "stop_grace" in checked_by_compose(compose_copy, **SECRETS).stderr


@pytest.mark.parametrize("missing", SECRETS)
def test_compose_refuses_to_start_without_a_secret(compose_copy: Path, missing: str) -> None:
    outcome = checked_by_compose(compose_copy, **{**SECRETS, missing: ""})
    assert outcome.returncode != 0
    assert "set it in deploy/.env" in outcome.stderr


def test_the_example_has_every_variable_and_no_secret() -> None:
    lines = re.findall(r"^(\w+)=(.*)$", (DEPLOY / ".env.example").read_text(), flags=re.M)
    assert {name for name, _ in lines} == set(re.findall(r"(?<!\$)\$\{(\w+)", (DEPLOY / "compose.yml").read_text()))
    assert {name for name, value in lines if not value} == set(SECRETS)
    assert "/deploy/.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_file_for_one_server_fits_the_image_and_the_options() -> None:
    path = DEPLOY / "server.yml"
    assert checked_by_compose(path).returncode == 0
    server = yaml.safe_load(path.read_text())["services"]["server"]
    settings = read_settings(filled(server["environment"], {}), uid=0, config_file=Path("/dev/null"))
    assert settings.warnings == ()
    assert (server["command"], settings.port) == (["serve"], 8000)
    assert int(server["stop_grace_period"].removesuffix("s")) > settings.stop_grace_s
    shared = compose()["services"]["worker-1"]
    assert [server[name] for name in ("privileged", "pid", "volumes")] == [
        shared[name] for name in ("privileged", "pid", "volumes")
    ]


@pytest.mark.parametrize("name", [*COORDINATORS, *WORKERS])
def test_warren_knows_every_option_that_compose_sets(name: str) -> None:
    settings = settings_from(filled(compose()["services"][name]["environment"], SECRETS))
    kind, port = ("coordinator", 8000) if name in COORDINATORS else ("worker", 5000)
    assert last(kind, "ENV").split()[-1] == f"WARREN_PORT={port}"
    assert (settings.redis_host, settings.advertise) == ("redis", f"{name}:{port}")
    if name in WORKERS:
        assert (settings.worker_id, settings.state_dir) == (name, Path("/var/lib/warren") / name)
    grace = compose()["services"][name]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > settings.stop_grace_s


def test_every_service_is_watched_and_started_again() -> None:
    for name, service in compose()["services"].items():
        assert service["restart"] == "unless-stopped", name
        assert {"healthcheck", "stop_grace_period"} <= set(service), name
        assert re.search(r":v?[0-9]", service["image"]), name


def test_nginx_and_the_coordinators_know_each_other() -> None:
    services = compose()["services"]
    assert tuple(UPSTREAM.findall(CONF.read_text())) == COORDINATORS
    (source, _, _) = services["nginx"]["volumes"][0].split(":")
    assert (DEPLOY / source).samefile(CONF)
    for name in COORDINATORS:
        believed = services[name]["environment"]["WARREN_TRUSTED_PROXIES"]
        assert believed == services["nginx"]["networks"]["front"]["ipv4_address"]
    assert "front" not in {*services["redis"]["networks"], *services["worker-1"]["networks"]}
    assert [name for name, service in services.items() if "ports" in service] == ["nginx", "grafana"]


# -- Redis, as both files start it


def compose_redis() -> list[str]:
    return [word.replace("$$", "$") for word in compose()["services"]["redis"]["command"]]


def kubernetes_redis() -> list[str]:
    found: list[str] = pod("StatefulSet")["containers"][0]["command"]
    return found


def until_it_listens(port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)


@pytest.mark.parametrize("command", [compose_redis, kubernetes_redis])
def test_redis_keeps_what_it_is_told_and_asks_for_the_password(
    command: Callable[[], list[str]], tmp_path: Path
) -> None:
    port = free_port()
    moved = [word.replace("/run/secret", str(tmp_path)).replace("/data", str(tmp_path)) for word in command()]
    moved[-1] = moved[-1].rstrip() + f" --port {port} --bind 127.0.0.1"
    environ = {"PATH": os.environ["PATH"], "REDIS_PASSWORD": SECRETS["REDIS_PASSWORD"], "REDIS_MAXMEMORY": "64mb"}
    argv = ["setpriv", "--pdeathsig", "KILL", *moved]
    process = subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        until_it_listens(port)
        with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        with redis.Redis(port=port, password=SECRETS["REDIS_PASSWORD"], decode_responses=True) as known:
            assert known.config_get("appendonly", "appendfsync", "maxmemory", "maxmemory-policy") == {
                "appendonly": "yes",
                "appendfsync": "everysec",
                "maxmemory": str(64 << 20),
                "maxmemory-policy": "noeviction",
            }
        assert SECRETS["REDIS_PASSWORD"] not in Path(f"/proc/{process.pid}/cmdline").read_text()
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
    without = subprocess.run(moved, env={**environ, "REDIS_PASSWORD": ""}, capture_output=True, timeout=60)
    assert without.returncode != 0


# -- all of it


def test_the_tags_of_the_images_are_the_version_of_the_package() -> None:
    found = re.findall(r"warren-(?:coordinator|worker|sandbox):([\w.]+)", "".join(every_text()))
    assert set(found) == {warren.__version__}


def every_text() -> Iterator[str]:
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.name != ".env":
            yield path.read_text()
