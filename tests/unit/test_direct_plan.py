"""The options of the runtime `direct`, made from the config.json of other runtimes."""

from pathlib import Path

from warren.model.spec import MIB, Limits, SandboxSpec
from warren.sandboxes.host.cgroups import Hierarchies
from warren.sandboxes.providers import direct, oci_bundle
from warren.sandboxes.providers.hardening import masked_paths

SANDBOX = "0123456789abcdef0123456789abcdef"
TOP = frozenset({"keys", "meminfo", "of-tomorrow", "sys"})


def plan(spec: SandboxSpec, *mounts: str, limits_io: bool = False, swap_limit: bool = True) -> list[tuple[str, str]]:
    """The options as pairs; what follows `--` has the name `--`."""
    config = oci_bundle.config_json(
        spec, sandbox_id=oci_bundle.ANY_ID, uid_base=0, swap_limit=swap_limit, top_of_proc=TOP
    )
    hierarchies = Hierarchies({name: Path("/cg") / (name or "unified") for name in mounts})
    text = direct.plan(config, hierarchies, sandbox_id=SANDBOX, digest="ab", limits_io=limits_io)
    assert text.endswith("\0")
    assert oci_bundle.ANY_ID not in text
    words = text[:-1].split("\0")
    end = words.index("--")
    return [*zip(words[:end:2], words[1:end:2], strict=True), ("--", " ".join(words[end + 1 :]))]


def values(pairs: list[tuple[str, str]], option: str) -> list[str]:
    return [value for name, value in pairs if name == option]


def test_every_part_of_the_config_becomes_an_option() -> None:
    pairs = plan(SandboxSpec(), "memory", "cpu", "pids", "devices")
    assert values(pairs, "--mask") == [path for path in masked_paths(TOP) if path != "/sys"]
    assert set(values(pairs, "--capability")) == set("5678")
    assert "proc:proc:/proc:nosuid,noexec,nodev:" in values(pairs, "--mount")
    assert "bind:disk/workspace:/workspace:rw,nosuid,nodev:" in values(pairs, "--mount")
    assert "kernel/msgmni=32" in values(pairs, "--sysctl")
    assert values(pairs, "--").pop().startswith("/.warren/agent --listen-fd 3")


def test_on_v1_only_hierarchies_that_limit_count_or_freeze_are_joined() -> None:
    mounts = ("memory", "cpu", "cpuacct", "pids", "devices", "cpuset", "freezer", "blkio", "name=systemd")
    pairs = plan(SandboxSpec(limits=Limits(memory_mb=64)), *mounts)
    joined = [value.split("/")[2] for value in values(pairs, "--cgroup")]
    assert joined == ["memory", "cpu", "cpuacct", "pids", "devices", "freezer", "name=systemd"]
    hybrid = [value.split("/")[2] for value in values(plan(SandboxSpec(), *mounts, ""), "--cgroup")]
    assert hybrid == [name for name in joined if name != "freezer"]
    assert f"/cg/memory/warren/{SANDBOX}/memory.memsw.limit_in_bytes={64 * MIB}" in values(pairs, "--set")
    devices = [value.split("=", 1)[1] for value in values(pairs, "--set") if "/devices." in value]
    assert (devices[0], "c 136:* rw" in devices, "c 1:3 rw" in devices) == ("a", True, True)
    assert values(pairs, "--into") == values(pairs, "--allow-device") == []
    limited = plan(SandboxSpec(), *mounts, limits_io=True)
    assert f"/cg/blkio/warren/{SANDBOX}" in values(limited, "--cgroup")


def test_on_v2_the_sandbox_is_born_in_its_one_cgroup() -> None:
    pairs = plan(SandboxSpec(limits=Limits(memory_mb=64, cpus=0.5)), "")
    directory = f"/cg/unified/warren/{SANDBOX}"
    assert values(pairs, "--into") == [directory]
    assert values(pairs, "--cgroup") == []
    settings = values(pairs, "--set")
    assert settings[:2] == [f"{directory}/memory.max={64 * MIB}", f"{directory}/cpu.max=50000 100000"]
    assert values(pairs, "--try-set") == [f"{directory}/memory.swap.max=0"]
    assert "/cg/unified/warren/cgroup.subtree_control=+memory" in values(pairs, "--enable")
    assert "c:136:*:rw" in values(pairs, "--allow-device")


def test_another_program_takes_the_agents_place() -> None:
    assert direct.with_command("--id\0x\0--\0/agent\0-v\0", ["/true"]) == "--id\0x\0--\0/true\0"
