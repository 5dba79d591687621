"""config.json, checked against the hardening list."""

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import warren
from warren.model.spec import MIB, WRITABLE, Limits, SandboxSpec
from warren.sandboxes.providers.hardening import agent_capabilities
from warren.sandboxes.providers.oci_bundle import (
    BUNDLE,
    PIDS_RESERVE,
    config,
    config_json,
    disk_directories,
    shm_bytes,
)

BASE = 0x78010000
TOP = frozenset({"keys", "meminfo", "of-tomorrow", "sys"})


def made(spec: SandboxSpec | None = None, *, swap_limit: bool = True) -> dict[str, Any]:
    return config(
        spec or SandboxSpec(),
        sandbox_id="ab" * 16,
        uid_base=BASE,
        swap_limit=swap_limit,
        machine="aarch64",
        top_of_proc=TOP,
    )


def test_the_agent_is_the_first_process_with_its_own_few_rights() -> None:
    process = made(SandboxSpec(limits=Limits(pids=99)))["process"]
    assert process["args"] == ["/.warren/agent", "--listen-fd", "3", "--uids", "1-65534", "--nproc", "99"]
    assert process["noNewPrivileges"] is True
    assert process["user"] == {"uid": 0, "gid": 0}
    assert set(process["capabilities"]["bounding"]) == {"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP"}
    assert process["capabilities"]["inheritable"] == process["capabilities"]["ambient"] == []
    assert "rlimits" not in process


def test_where_commands_may_be_root_the_agent_has_another_uid_and_what_it_gives_them() -> None:
    process = made(SandboxSpec(sudo=True))["process"]
    assert process["args"][-3:] == ["--allow-root", "--become", "65535"]
    assert process["noNewPrivileges"] is True
    assert set(process["capabilities"]["bounding"]) == set(agent_capabilities(sudo=True))
    assert process["capabilities"]["inheritable"] == process["capabilities"]["ambient"] == []


def test_nothing_of_the_callers_is_in_the_file() -> None:
    text = str(made(SandboxSpec(env={"TOKEN": "s3cret"}, labels={"owner": "somebody"})))
    assert "s3cret" not in text
    assert "somebody" not in text


def test_every_namespace_is_new_and_the_users_is_the_prepared_one() -> None:
    namespaces = {item["type"]: item.get("path") for item in made()["linux"]["namespaces"]}
    assert namespaces == {
        **dict.fromkeys(("pid", "ipc", "uts", "mount", "cgroup", "network")),
        "user": f"{BUNDLE}/userns",
    }
    assert made()["linux"]["uidMappings"] == [{"containerID": 0, "hostID": BASE, "size": 65536}]


def test_only_the_bundle_is_mounted_from_the_host() -> None:
    for mount in made()["mounts"]:
        if mount["type"] == "bind":
            assert mount["source"].startswith(f"{BUNDLE}/")
        assert "nosuid" in mount["options"]


def test_the_root_is_read_only_and_the_writable_places_are_on_the_disk() -> None:
    assert made()["root"] == {"path": "rootfs", "readonly": True}
    binds = {mount["destination"]: mount for mount in made()["mounts"] if "/disk/" in mount["source"]}
    assert set(binds) == set(WRITABLE)
    assert all({"nodev", "nosuid", "rw"} <= set(mount["options"]) for mount in binds.values())


def test_the_directories_of_the_disk_have_plain_and_different_names() -> None:
    names = [name for name, _ in disk_directories().values()]
    assert len(set(names)) == len(WRITABLE)
    assert not any("/" in name or name.startswith(".") for name in names)


def test_neither_sysfs_nor_cgroups_are_inside() -> None:
    assert not {mount["type"] for mount in made()["mounts"]} & {"sysfs", "cgroup", "cgroup2", "mqueue"}


def test_every_tmpfs_has_a_size_and_a_number_of_inodes() -> None:
    for mount in made()["mounts"]:
        if mount["type"] == "tmpfs":
            assert any(option.startswith("size=") for option in mount["options"])
            assert any(option.startswith("nr_inodes=") for option in mount["options"])


@pytest.mark.parametrize(("memory_mb", "expected_mib"), [(64, 8), (256, 32), (512, 64), (4096, 64)])
def test_shared_memory_is_a_small_part_of_memory(memory_mb: int, expected_mib: int) -> None:
    assert shm_bytes(Limits(memory_mb=memory_mb)) == expected_mib * MIB


@pytest.mark.parametrize(
    ("swap_limit", "memory"), [(True, {"limit": 512 * MIB, "swap": 512 * MIB}), (False, {"limit": 512 * MIB})]
)
def test_memory_and_swap_together_are_the_memory(swap_limit: bool, memory: dict[str, int]) -> None:
    assert made(swap_limit=swap_limit)["linux"]["resources"]["memory"] == memory


def test_cpu_and_processes_are_limited() -> None:
    resources = made(SandboxSpec(limits=Limits(cpus=1.5, pids=100)))["linux"]["resources"]
    assert resources["cpu"] == {"quota": 150_000, "period": 100_000}
    assert resources["pids"] == {"limit": 100 + PIDS_RESERVE}


def test_all_devices_are_denied_but_the_usual_few() -> None:
    first, *allowed = made()["linux"]["resources"]["devices"]
    assert first == {"allow": False, "access": "rwm"}
    assert {(rule["major"], rule.get("minor")) for rule in allowed} == {
        *((1, 3), (1, 5), (1, 7), (1, 8), (1, 9)),
        *((5, 0), (5, 2), (136, None)),
    }
    assert not any("m" in rule["access"] for rule in allowed)


def test_tracing_is_allowed_on_request_only() -> None:
    def names(spec: SandboxSpec) -> list[str]:
        return list(made(spec)["linux"]["seccomp"]["syscalls"][0]["names"])

    assert "ptrace" not in names(SandboxSpec())
    assert "ptrace" in names(SandboxSpec(ptrace=True))


@pytest.mark.parametrize("program", [b"", b"compiled"])
def test_the_text_says_the_same(program: bytes) -> None:
    for spec in (SandboxSpec(), SandboxSpec(limits=Limits(pids=99), ptrace=True, ephemeral=True, sudo=True)):
        values: dict[str, Any] = {
            "sandbox_id": "cd" * 16,
            "uid_base": BASE,
            "swap_limit": True,
            "top_of_proc": TOP,
            "program": program,
        }
        assert json.loads(config_json(spec, **values)) == config(spec, **values)


def test_the_agent_limits_locked_memory_where_the_runtime_must_be_able_to_raise_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {"sandbox_id": "a" * 32, "uid_base": 1, "swap_limit": True, "top_of_proc": TOP}
    assert "--memlock" not in config(SandboxSpec(), **options)["process"]["args"]
    args = config(SandboxSpec(), **options, memlock=4096)["process"]["args"]
    assert args[args.index("--memlock") + 1] == "4096"
    agent = [str(Path(warren.__file__).parent / "bin" / "warren-agent"), *args[args.index("--memlock") :][:2]]
    with subprocess.Popen([*agent, "--socket", str(tmp_path / "agent.sock")]) as process:
        try:
            while not (tmp_path / "agent.sock").exists() and process.poll() is None:
                time.sleep(0.01)
            limits = Path(f"/proc/{process.pid}/limits").read_text()
        finally:
            process.kill()
    assert re.search(r"Max locked memory +4096 +4096 ", limits)
