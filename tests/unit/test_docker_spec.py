"""What the docker provider asks of the engine, and how it reads the engine's answers. Nothing is started."""

import io
import json
import os
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest

from warren.kernel.tree_tar import tar_parts
from warren.model.errors import ImageNotFound, InvalidRequest, NoSpace, ProviderUnavailable, SandboxLost, WarrenError
from warren.model.spec import MIB, WRITABLE, Limits, SandboxSpec
from warren.sandboxes.providers.docker_engine import DockerEngine, translate_error
from warren.sandboxes.providers.docker_images import slug
from warren.sandboxes.providers.docker_spec import (
    EngineImage,
    SandboxPaths,
    agent_argv,
    container,
    directories,
    etc_files,
)

BASE = 0x78000000
PLACE = SandboxPaths(Path("/w/disk"), Path("/w/mapped"), Path("/w/run"), Path("/w/pts"))


def config(
    spec: SandboxSpec | None = None, image: EngineImage | None = None, hard_limits: dict[str, int] | None = None
) -> dict[str, Any]:
    return container(
        spec or SandboxSpec(),
        image or EngineImage("sha256:1"),
        PLACE,
        sandbox_id="a" * 32,
        state_id="b" * 16,
        uid_base=BASE,
        hard_limits=hard_limits or {},
        top_of_proc=frozenset({"fs", "diskstats", "stat"}),
        machine="x86_64",
    )


def test_the_agent_leaves_root_and_may_only_start_commands_as_the_sandboxs_user() -> None:
    argv = agent_argv(SandboxSpec(limits=Limits(pids=77)), BASE)
    assert argv[:3] == ["/.warren/agent", "--socket", "/.warren/run/agent.sock"]
    options = dict(zip(argv[1::2], argv[2::2], strict=True))
    assert (options["--become"], options["--user"]) == (str(BASE + 999), str(BASE + 1000))
    assert (options["--uids"], options["--nproc"]) == (f"{BASE + 1000}-{BASE + 1000}", "77")


def test_the_agent_of_an_ephemeral_sandbox_ends_with_its_maker() -> None:
    assert "--ephemeral" in agent_argv(SandboxSpec(ephemeral=True), BASE)
    assert "--ephemeral" not in agent_argv(SandboxSpec(), BASE)


def test_the_hardening_is_asked_for() -> None:
    host = config()["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert set(host["CapAdd"]) == {"KILL", "SETGID", "SETUID", "SETPCAP"}
    assert "no-new-privileges:true" in host["SecurityOpt"]
    seccomp = next(option for option in host["SecurityOpt"] if option.startswith("seccomp="))
    assert json.loads(seccomp.removeprefix("seccomp="))["defaultAction"] == "SCMP_ACT_ERRNO"
    assert (host["NetworkMode"], host["IpcMode"], host["CgroupnsMode"]) == ("none", "private", "private")
    assert host["ReadonlyRootfs"]
    assert {"/sys", "/proc/fs", "/proc/diskstats"} <= set(host["MaskedPaths"])
    assert "/proc/stat" not in host["MaskedPaths"]
    assert host["LogConfig"]["Type"] == "none"


def test_the_limits_are_asked_for() -> None:
    host = config(SandboxSpec(limits=Limits(memory_mb=100, cpus=0.25, pids=10, disk_mb=20, open_files=99)))[
        "HostConfig"
    ]
    assert host["Memory"] == host["MemorySwap"] == 100 * MIB
    assert host["CpuQuota"] / host["CpuPeriod"] == 0.25
    assert host["PidsLimit"] == 10 + 64
    ulimits = {limit["Name"]: limit["Hard"] for limit in host["Ulimits"]}
    assert ulimits == {
        **{"core": 1, "nofile": 99, "memlock": 8 * MIB, "fsize": 20 * MIB},
        **{"sigpending": 16384, "msgqueue": 819200, "nice": 0, "rtprio": 0},
    }


def test_no_ulimit_goes_above_what_this_machine_can_give() -> None:
    ulimits = config(hard_limits={"nofile": 100, "memlock": 65536, "sigpending": 7})["HostConfig"]["Ulimits"]
    assert {limit["Name"]: limit["Soft"] for limit in ulimits} == {
        **{"core": 1, "nofile": 100, "memlock": 65536, "fsize": 1024 * MIB},
        **{"sigpending": 7, "msgqueue": 819200, "nice": 0, "rtprio": 0},
    }


def test_nothing_of_a_request_becomes_a_path_of_the_host() -> None:
    spec = SandboxSpec(env={"A": "/var/run/docker.sock"}, labels={"mount": "/var/run/docker.sock"})
    made = config(spec)
    assert all(mount["Source"].startswith("/w/") for mount in made["HostConfig"]["Mounts"])
    assert "docker.sock" not in json.dumps(made)
    assert "Binds" not in made["HostConfig"]


def test_only_the_disk_the_terminals_and_the_agents_run_directory_can_be_written() -> None:
    writable = {mount["Target"] for mount in config()["HostConfig"]["Mounts"] if not mount["ReadOnly"]}
    assert writable == {*WRITABLE, "/.warren/run", "/dev/pts"}


def test_the_engines_own_ways_in_are_shut() -> None:
    made = config()
    assert made["Healthcheck"] == {"Test": ["NONE"]}
    assert made["Cmd"] == []
    assert made["HostConfig"]["RestartPolicy"] == {"Name": "no"}


def test_volumes_of_the_image_become_directories_of_the_disk() -> None:
    image = EngineImage("sha256:1", ("/srv/data", "/workspace"))
    name, mode = directories(image)["/srv/data"]
    assert (name.startswith("volume-"), mode) == (True, 0o755)
    assert len(directories(image)) == len(WRITABLE) + 1
    assert directories(EngineImage("sha256:2", ("/srv", "/srv/data")))["/srv/data"] == (name, mode)
    targets = {mount["Target"]: mount["Source"] for mount in config(image=image)["HostConfig"]["Mounts"]}
    assert targets["/srv/data"] == f"/w/mapped/{name}"


@pytest.mark.parametrize(
    "path", ["/", "/etc", "/etc/x", "/.warren", "/.warren/run", "/proc/1", "/dev/shm", "x", "/a/../etc"]
)
def test_volumes_over_what_is_ours_are_refused(path: str) -> None:
    with pytest.raises(InvalidRequest, match="volume"):
        directories(EngineImage("sha256:1", (path,)))


def test_no_file_of_the_host_is_shared_between_sandboxes() -> None:
    mounts = [mount for mount in config()["HostConfig"]["Mounts"] if mount["Source"] not in ("/w/run", "/w/pts")]
    for mount in mounts:
        assert mount["Source"].startswith("/w/disk/" if mount["ReadOnly"] else "/w/mapped/")


def test_what_is_no_process_own_cannot_fill_the_memory() -> None:
    sysctls = config(SandboxSpec(limits=Limits(memory_mb=64)))["HostConfig"]["Sysctls"]
    assert int(sysctls["kernel.shmall"]) * os.sysconf("SC_PAGE_SIZE") == 8 * MIB
    assert int(sysctls["kernel.msgmni"]) * int(sysctls["kernel.msgmnb"]) <= MIB


def test_the_user_has_its_name_and_its_own_uid() -> None:
    files = etc_files(BASE)
    assert f"\nsandboxuser:x:{BASE + 1000}:{BASE + 1000}:sandboxuser:/home/sandboxuser:/bin/sh\n" in files["passwd"]
    assert f"\nsandboxuser:x:{BASE + 1000}:\n" in files["group"]
    assert "\ntty:x:5:\n" in files["group"]


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (404, "No such image: x:1", ImageNotFound),
        (404, "No such container: warren-1", SandboxLost),
        (400, 'invalid mount config for type "bind": bind source path does not exist: /w/run', ProviderUnavailable),
        (500, "write /var/lib/docker/x: no space left on device", NoSpace),
        (400, "Minimum memory limit allowed is 6MB", InvalidRequest),
        (500, "OCI runtime create failed", ProviderUnavailable),
    ],
)
def test_an_answer_of_the_engine_becomes_one_of_our_errors(status: int, message: str, kind: type[WarrenError]) -> None:
    error = translate_error("starting a sandbox", status, message)
    assert type(error) is kind
    assert message in str(error)
    assert "starting a sandbox" in str(error)


def test_an_address_that_cannot_be_used_is_refused() -> None:
    for url in ("ssh://me@there", "/var/run/docker.sock", "npipe://x"):
        with pytest.raises(InvalidRequest, match="DOCKER_HOST"):
            DockerEngine(url)


@pytest.mark.parametrize(
    ("name", "expected"), [("base", "base"), ("ubuntu:22.04", "ubuntu-22-04"), ("A/B_c@x", "a-b-c-x"), ("--", "image")]
)
def test_a_repository_has_a_name_docker_takes(name: str, expected: str) -> None:
    assert slug(name) == expected


def test_a_tree_becomes_a_tar_with_links_modes_and_strange_names(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (root / "d/big").write_bytes(os.urandom(3 * MIB + 1))
    (root / "d/big").chmod(0o751)
    os.link(root / "d/big", root / "hard")
    (root / "soft").symlink_to("../../etc/passwd")
    (root / ("n" * 200 + " ä\n")).write_bytes(b"x" * 512)
    (root / "to-dir").symlink_to("d")
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(root / "s"))
    with tarfile.open(fileobj=io.BytesIO(b"".join(tar_parts(root)))) as tar:
        members = {member.name: member for member in tar.getmembers()}
        assert set(members) == {"d", "d/big", "hard", "soft", "n" * 200 + " ä\n", "to-dir"}
        pair = [members["d/big"], members["hard"]]
        assert sorted(member.type for member in pair) == sorted([tarfile.REGTYPE, tarfile.LNKTYPE])
        assert (members["soft"].linkname, members["to-dir"].issym()) == ("../../etc/passwd", True)
        content = tar.extractfile("d/big")
        assert content is not None
        assert content.read() == (root / "d/big").read_bytes()
        assert next(member for member in pair if member.isreg()).mode == 0o751
