"""What operators do with the command line: the service, a bundle for support, the end of it all."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.hosts import Hosts
from machine.remote_cli import RemoteCli
from server_process import ServerProcess, clean_environ, running_server
from this_run import new_state_dir

from warren.access.keys import Keys
from warren.app.wiring import DATABASE
from warren.kernel.clock import SystemClock
from warren.sandboxes.host.cgroups import Hierarchies
from warren.sandboxes.host.record import SandboxRecord
from warren.stores.sqlite import SqliteStore


@pytest.fixture
def server(image_cache: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(new_state_dir(image_cache), "--pool-size", "1", WARREN_API_KEY="a-key-of-the-operator")
    server.start()
    yield server
    server.stop()
    subprocess.run(["rm", "-rf", str(server.state_dir)], check=True)


def cli_of(server: ServerProcess) -> RemoteCli:
    key = server.environ["WARREN_API_KEY"]
    return RemoteCli(server.url, WARREN_STATE_DIR=str(server.state_dir), WARREN_API_KEY=key)


def test_a_support_bundle_has_everything_but_secrets(server: ServerProcess, tmp_path: Path) -> None:
    cli = cli_of(server)
    cli.say("exec", "--thread", "t", "--", "true")
    with (server.state_dir / "server.log").open("a") as log:
        log.write("a line with wk_first_" + "0" * 64 + "\n")
    done = cli.run("support-bundle", "bundle.tar.gz", cwd=str(tmp_path))
    assert done.returncode == 0, done
    path = tmp_path / "bundle.tar.gz"
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        parts = {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]
    found = {name: json.loads(text) for name, text in parts.items() if name.endswith(".json")}
    assert {each["name"] for each in found["warren-support/doctor.json"]} >= {"root", "images"}
    assert found["warren-support/config.json"]["options"]["api_key"]["value"] == "(set)"
    assert found["warren-support/server.json"]["stats"]["sessions"]["running"] == 1
    assert any(name.startswith("warren-support/logs/") for name in parts)
    everything = b"".join(parts.values())
    assert b"a line with (key)" in everything
    assert b"a-key-of-the-operator" not in everything
    assert b"exists already" in cli.run("support-bundle", str(path)).stderr
    cli.say("kill", "--thread", "t")


def test_a_server_whose_port_is_taken_makes_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = RemoteCli("").run("serve", "--port", str(port), "--state-dir", str(state), "--provider", "fake")
    assert (done.returncode, f"port {port} is taken" in done.stderr.decode()) == (125, True), done
    assert not state.exists()


def test_purging_ends_server_and_sandboxes_and_leaves_nothing(server: ServerProcess) -> None:
    cli = cli_of(server)
    session = cli.document("create")
    host = Hosts(server.state_dir)
    assert host.has(session["sandbox_id"])
    refused = cli.run("uninstall", "--purge")
    assert (refused.returncode, b"--yes" in refused.stderr) == (2, True)
    assert server.alive
    said = refused.stdout.decode()
    assert f"the state directory {server.state_dir}" in said
    assert "sandboxes of the provider oci" in said
    assert f"process {server.pid}" in said
    done = cli.run("uninstall", "--purge", "--yes")
    assert (done.returncode, done.stderr) == (0, b""), done
    steps = [line for line in done.stdout.decode().splitlines() if not line.startswith(" ")]
    assert any(re.fullmatch(r"ending sandbox 1 of [0-9]+ of the provider oci: .*", step) for step in steps)
    assert f"removing {server.state_dir}/images" in steps
    assert not server.alive
    assert not server.state_dir.exists()
    tops = {mount / "warren" / session["sandbox_id"] for mount in Hierarchies.here().mounts.values()}
    assert not [path for path in tops if path.exists()]
    assert cli.say("uninstall", "--purge") == "There is nothing to remove.\n"
    assert cli.say("uninstall") == "There is no service to remove; --purge removes the rest.\n"


def test_purging_ends_the_sandboxes_that_a_cluster_here_has_left(image_cache: Path) -> None:
    state = new_state_dir(image_cache)
    worker = ServerProcess(state / "cluster" / "worker-1", "--pool-size", "0", WARREN_API_KEY="a-key-of-the-operator")
    worker.state_dir.mkdir(parents=True)
    (worker.state_dir / "images").symlink_to(state / "images")
    (state / "cluster" / "worker-1.log").write_text("as `warren cluster up` leaves it\n")
    worker.start()
    try:
        sandbox = cli_of(worker).document("create")["sandbox_id"]
    finally:
        worker.stop()
    record = SandboxRecord.load(worker.state_dir / "sandboxes" / sandbox)
    assert record is not None
    assert record.alive()
    done = RemoteCli("", WARREN_STATE_DIR=str(state)).run("uninstall", "--purge", "--yes")
    assert (done.returncode, done.stderr) == (0, b""), done
    assert b"1 sandboxes of the provider oci" in done.stdout
    assert not record.alive()
    assert not state.exists()


@pytest.fixture
def home() -> Iterator[Path]:
    """The home directory of a user whose id is 4242."""
    with tempfile.TemporaryDirectory(prefix="warren-test-") as path:
        os.chown(path, 4242, 4242)
        yield Path(path)


def test_purging_takes_the_keys_that_the_server_left_and_no_other(home: Path, tmp_path: Path) -> None:
    """Also those that quickstart.sh copied for the user who called sudo."""
    noted, theirs = tmp_path / "credentials.json", home / ".config" / "warren"
    noted.write_text('{"http://elsewhere:8000": "wk_other"}')
    state = new_state_dir()
    with running_server(state, provider="fake", WARREN_AUTH="true", WARREN_CREDENTIALS=str(noted)) as server:
        [key] = set(json.loads(noted.read_text()).values()) - {"wk_other"}
    theirs.mkdir(parents=True)
    (theirs / "credentials.json").write_text(json.dumps({server.url: key}))
    (theirs / "header-8000").write_text(f"X-API-Key: {key}\n")
    for path in (home / ".config", theirs, *theirs.iterdir()):
        os.chown(path, 4242, 4242)
    (state / "cluster-secret").write_text("as the coordinator of a cluster on this machine leaves it")
    (tmp_path / "passwd").write_text(f"root:x:0:0::{tmp_path}:/bin/sh\ncaller:x:4242:4242::{home}:/bin/sh\n")
    lines = 'mount --bind "$1" /etc/passwd; shift; exec "$@"'
    argv = RemoteCli.argv("uninstall", "--purge", "--yes")
    environ = {**clean_environ(), "HOME": str(tmp_path), "WARREN_STATE_DIR": str(state), "SUDO_UID": "4242"}
    command = ["unshare", "--mount", "sh", "-ec", lines, "sh", str(tmp_path / "passwd"), *argv]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done
    for file in (noted, theirs / "credentials.json"):
        assert f"the key of this server in {file}" in done.stdout
    assert "This stays: coordinators, which you stop yourself, and in their Redis the keys, sessions" in done.stdout
    assert json.loads(noted.read_text()) == {"http://elsewhere:8000": "wk_other"}
    assert not theirs.exists()
    assert not state.exists()


def test_the_unit_keeps_sandboxes_alive_and_a_machine_without_systemd_is_told() -> None:
    cli = RemoteCli("http://localhost:1")
    unit = cli.say("service", "install", "--print")
    lines = unit.splitlines()
    assert f"ExecStart={sys.executable} -m warren.cli.main serve" in lines
    assert {"KillMode=process", "Restart=on-failure", "EnvironmentFile=-/etc/warren/service.env"} <= set(lines)
    assert int(next(line for line in lines if line.startswith("TimeoutStopSec")).split("=")[1]) > 30
    if not Path("/run/systemd/system").is_dir():
        done = cli.run("service", "install")
        assert (done.returncode, b"systemd does not run" in done.stderr) == (125, True)
        assert not Path("/etc/systemd/system/warren.service").exists()


async def _stored_key(state: Path) -> str:
    store = await SqliteStore.open(state / DATABASE)
    try:
        return (await Keys(store.records, SystemClock()).create("ci", "acme"))[1]
    finally:
        await store.close()


def test_the_service_takes_the_settings_of_the_shell_and_is_gone_again(tmp_path: Path) -> None:
    """In a mount namespace with an /etc and a /run of its own, and a `systemctl` that only notes what it is asked."""
    notes = tmp_path / "asked"
    (tmp_path / "systemctl").write_text(f'#!/bin/sh\necho "$*" >> {notes}\n')
    (tmp_path / "systemctl").chmod(0o755)
    state = tmp_path / "state"
    state.mkdir()
    tenants = asyncio.run(_stored_key(state))
    lines = (
        "mount -t tmpfs none /run; mkdir -p /run/systemd/system; mount -t tmpfs none /mnt; mkdir /mnt/up /mnt/work; "
        "mount -t overlay none -o lowerdir=/etc,upperdir=/mnt/up,workdir=/mnt/work /etc; "
        'WARREN_API_KEY=$KEY "$@" service install || ls /etc/warren || true; '
        '"$@" service install; cat /etc/warren/service.env; stat -c %a /etc/warren/service.env; '
        '"$@" service uninstall; ls /etc/systemd/system/warren.service /etc/warren/service.env || true'
    )
    command = ["unshare", "--mount", "sh", "-ec", lines, "sh", sys.executable, "-m", "warren.cli.main"]
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": ":".join(sys.path), "WARREN_PORT": "8123"}
    environ |= {"WARREN_STATE_DIR": str(state), "KEY": tenants}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done
    assert f'WARREN_PORT="8123"\nWARREN_STATE_DIR="{state}"\n600\n' in done.stdout
    assert "whoever has that would become an administrator" in done.stderr
    assert done.stderr.count("No such file or directory") == 3
    # `restart`, not `start`: a service that runs already takes the new settings too
    enable, disable = ["enable warren", "restart warren"], "disable --now warren"
    assert notes.read_text().splitlines() == ["daemon-reload", *enable, disable, "daemon-reload"]
