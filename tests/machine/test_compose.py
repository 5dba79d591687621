"""deploy/compose.yml, built and started whole by docker-compose in an engine of the tests.

The engine has its own network namespace, in which clients run too. Workers share the machine's process ids, cgroups and
/run/warren, as compose.yml says. Only the image `base`, for which their first start needs a network, is there before.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import compose_images
import pytest
import this_run
import yaml
from deploy_files import DEPLOY, SECRET
from docker_engine import DockerEngine
from leftovers import SandboxIds, wait_for_leftovers

from warren.images.store.store import ImageStore

pytestmark = [pytest.mark.extended, pytest.mark.serial, pytest.mark.timeout(1200)]

COMPOSE = DEPLOY / "compose.yml"
COORDINATORS, WORKERS = ("coordinator-1", "coordinator-2"), ("worker-1", "worker-2", "worker-3")
SERVICES = ("redis", *COORDINATORS, *WORKERS, "nginx")
SECRETS = dict.fromkeys(("REDIS_PASSWORD", "WARREN_CLUSTER_SECRET", "WARREN_SECRETS_KEY"), SECRET)
KEY = {"WARREN_API_KEY": "correct-horse-battery-staple"}
THREADS = [f"conv-{number}" for number in range(6)]
# Root of some virtual machines lacks this capability, and runc refuses a container that is to have it.
RUNC = """\
#!/bin/sh
before=
for each; do
    case $before in
        --bundle) sed -i 's/"CAP_SYS_RESOURCE",//g' "$each/config.json" ;;
        --process) sed -i 's/"CAP_SYS_RESOURCE",//g' "$each" ;;
    esac
    before=$each
done
exec runc "$@"
"""


class Project:
    def __init__(self, engine: DockerEngine) -> None:
        self.engine, self.name = engine, f"{this_run.name()}-compose"
        self.state = engine.root / f"data/volumes/{self.name}_state/_data"
        self._in_network = ("nsenter", f"--net=/proc/{engine.pid}/ns/net", "--")

    def set_up(self, images: ImageStore) -> None:
        self._run(*self._in_network, "ip", "link", "set", "lo", "up")
        self.engine.docker("volume", "create", f"{self.name}_state")
        version = images.rootfs("base").path.parent
        first, *others = (str(self.state / worker) for worker in WORKERS)
        Path(first, "images/.versions").mkdir(parents=True)
        Path(first, "images/base").symlink_to(f".versions/{version.name}")
        self._run("cp", "--archive", str(version), f"{first}/images/.versions/")
        for other in others:
            self._run("cp", "--archive", "--link", first, other)

    def compose(self, *arguments: str, **environ: str) -> None:
        example = str(DEPLOY / ".env.example")  # this checkout may have a .env
        command = ("docker-compose", "--env-file", example, "--project-name", self.name, "--file", str(COMPOSE))
        self._run(*command, *arguments, DOCKER_HOST=self.engine.url, WARREN_LISTEN="127.0.0.1:8000", **environ)

    def warren(self, *arguments: str) -> str:
        """Asks nginx, as a client."""
        command = (*self._in_network, sys.executable, "-m", "warren.cli.main", *arguments)
        return self._run(*command, WARREN_URL="http://localhost:8000", WARREN_CREDENTIALS="/nonexistent")

    def _run(self, *command: str, **environ: str) -> str:
        given = {**os.environ, **SECRETS, **KEY, **environ}
        done = subprocess.run(command, env=given, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=900)
        assert done.returncode == 0, f"{command}: {(done.stdout + done.stderr)[-5000:]}"
        return done.stdout

    def container(self, service: str) -> str:
        return f"{self.name}_{service}_1"

    def until_healthy(self, *services: str) -> None:
        """Waits until these are healthy, by the health checks of compose.yml."""
        names = [self.container(service) for service in services]
        self.until(lambda: set(self.of_containers("{{.State.Health.Status}}", names)) == {"healthy"}, "healthy")

    def of_containers(self, form: str, names: Sequence[str]) -> list[str]:
        return self.engine.docker("inspect", "--format", form, *names, check=False).stdout.split()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + this_run.patience(90)
        while not holds():
            if time.monotonic() > deadline:
                logs = [
                    self.engine.docker("logs", "--tail", "9", self.container(each), check=False) for each in SERVICES
                ]
                ps = self.engine.docker("ps", "--all").stdout
                raise AssertionError(f"not {what}: {ps}" + "\n".join(log.stdout + log.stderr for log in logs))
            time.sleep(0.5)

    def end(self) -> None:
        """Removes everything as docs/cluster.md says."""
        self.compose("up", "--detach", WARREN_ON_STOP="destroy")
        self.until_healthy(*SERVICES)
        self.compose("down", "--volumes")


@pytest.fixture(scope="module")
def project(image_cache: Path, image_store: ImageStore) -> Iterator[Project]:
    engine = DockerEngine(runtimes={"here": {"path": f"{this_run.directory()}/runc"}}, **{"default-runtime": "here"})
    runtime = this_run.directory() / "runc"
    runtime.write_text(RUNC)
    runtime.chmod(0o755)
    try:
        engine.start()
        compose_images.prepare(engine, image_cache / "compose", yaml.safe_load(COMPOSE.read_text())["services"])
        project = Project(engine)
        project.set_up(image_store)
        ids = SandboxIds(project.state)
        ids.start()
        try:
            project.compose("up", "--detach", "--build")
            yield project
        finally:
            try:
                project.end()
            finally:
                seen = ids.stop()
        assert seen
        assert left_of(project, seen) == []
    finally:
        engine.close()
        runtime.unlink()


def left_of(project: Project, sandbox_ids: frozenset[str]) -> list[str]:
    found = wait_for_leftovers(project.name, sandbox_ids)
    for kind in (("ps", "--all"), ("volume", "ls")):
        found += project.engine.docker(*kind, "--quiet").stdout.split()
    claims = (str(link.readlink()) for link in Path("/run/warren/uids").glob("[0-9]*"))
    found += [claim for claim in claims if Path(claim).name in sandbox_ids]
    # By then a disk's path begins in the volume, which is gone.
    disks = (file.read_text() for file in Path("/sys/block").glob("loop*/loop/backing_file"))
    return found + [disk for disk in disks if re.match(r"(/var/lib/warren)?/worker-[123]/disks/", disk)]


def test_everything_becomes_healthy_and_sessions_spread_over_the_workers(project: Project) -> None:
    project.until_healthy(*SERVICES)
    for thread in THREADS:
        command = ("exec", "--thread", thread, "--", "sh", "-c", "echo $((6 * 7)); echo kept > file")
        assert project.warren(*command) == "42\n"
    workers = Counter(re.findall(r"worker-\d", project.warren("ps")))
    assert workers.total() == len(THREADS)
    assert set(workers) == set(WORKERS)


def test_callers_go_on_while_a_coordinator_is_dead(project: Project) -> None:
    project.engine.docker("kill", project.container("coordinator-1"))
    for _ in range(4):
        assert project.warren("exec", "--thread", THREADS[0], "--", "cat", "file") == "kept\n"
    assert project.warren("exec", "--thread", "new", "--", "echo", "here") == "here\n"
    project.compose("start", "coordinator-1")
    project.until_healthy("coordinator-1")


def test_a_worker_that_is_stopped_in_order_and_started_again_has_its_sessions(project: Project) -> None:
    name = project.container("worker-2")
    project.compose("stop", "worker-2")
    assert project.of_containers("{{.State.ExitCode}}", [name]) == ["0"]
    states = {
        worker["id"]: worker["state"] for worker in json.loads(project.warren("cluster", "status", "--json"))["workers"]
    }
    assert states == {"worker-1": "ready", "worker-2": "stopping", "worker-3": "ready"}
    project.compose("start", "worker-2")
    project.until_healthy("worker-2")
    for thread in THREADS:
        assert project.warren("exec", "--thread", thread, "--", "cat", "file") == "kept\n"
