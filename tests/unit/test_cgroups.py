"""Cgroups as the kernel prints them, on the three kinds of hosts."""

from pathlib import Path

import pytest

from warren.sandboxes.host.cgroups import (
    CgroupLimits,
    CgroupUse,
    SandboxCgroup,
    parse_flat,
    parse_limit,
    parse_membership,
    parse_mounts,
    parse_quota,
)

V1 = """\
29 1 254:0 / / rw,relatime - ext4 /dev/vda rw
33 25 0:30 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
34 33 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
37 33 0:34 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 33 0:38 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
42 33 0:39 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/lib/x,name=systemd
"""
HYBRID = V1 + "43 33 0:40 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
V2 = "30 25 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("mountinfo", "version", "hybrid"),
    [(V1, "v1", None), (HYBRID, "hybrid", Path("/sys/fs/cgroup/unified")), (V2, "v2", None), ("", "none", None)],
)
def test_the_kind_of_host_is_told_from_its_mounts(mountinfo: str, version: str, hybrid: Path | None) -> None:
    hierarchies = parse_mounts(mountinfo)
    assert (hierarchies.version, hierarchies.hybrid) == (version, hybrid)


def test_every_controller_is_found_where_it_is_mounted() -> None:
    mounts = parse_mounts(HYBRID).mounts
    assert mounts["cpu"] == mounts["cpuacct"] == Path("/sys/fs/cgroup/cpu,cpuacct")
    assert mounts["name=systemd"] == Path("/sys/fs/cgroup/systemd")
    assert set(mounts) == {"cpu", "cpuacct", "memory", "pids", "name=systemd", ""}


def test_a_sandbox_has_one_directory_per_hierarchy() -> None:
    cgroup = parse_mounts(V1).at("/warren/abc")
    assert cgroup.directories["memory"] == "/sys/fs/cgroup/memory/warren/abc"
    assert not cgroup.unified
    assert parse_mounts(V2).at("/warren/abc").directories == {"": "/sys/fs/cgroup/warren/abc"}


@pytest.mark.parametrize("path", ["", "/", "warren", "/warren/"])
def test_the_cgroup_of_everybody_is_never_taken_for_a_sandboxs(path: str) -> None:
    with pytest.raises(ValueError, match="not the cgroup of one sandbox"):
        parse_mounts(V1).at(path)


def test_membership_has_the_v2_tree_under_the_empty_name() -> None:
    text = "4:memory:/warren/abc\n1:cpu,cpuacct:/warren/abc\n2:name=systemd:/\n0::/user.slice/a:b\n"
    assert parse_membership(text) == {
        **{"memory": "/warren/abc", "cpu": "/warren/abc", "cpuacct": "/warren/abc"},
        **{"name=systemd": "/", "": "/user.slice/a:b"},
    }


def test_a_cgroup_shared_with_the_host_is_not_the_sandboxs() -> None:
    """This very process is in cgroups that hold no sandbox's name: none of them may be touched."""
    import os

    assert parse_mounts(Path("/proc/self/mountinfo").read_text()).of(os.getpid(), "f" * 32).directories == {}
    assert parse_mounts(Path("/proc/self/mountinfo").read_text()).of(os.getpid(), "").directories == {}


@pytest.mark.parametrize(
    ("text", "limit"),
    [("536870912\n", 536870912), ("max\n", None), ("9223372036854771712\n", None), ("", None), ("-1", None), ("0", 0)],
)
def test_limits(text: str, limit: int | None) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize(
    ("text", "cpus"), [("50000 100000\n", 0.5), ("max 100000\n", None), ("-1 100000", None), ("", None), (" ", None)]
)
def test_quotas(text: str, cpus: float | None) -> None:
    assert parse_quota(text) == cpus


def test_flat_files() -> None:
    assert parse_flat("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n\nodd line here\n")["oom_kill"] == 3


def written(directory: Path, files: dict[str, str]) -> Path:
    directory.mkdir()
    for name, text in files.items():
        (directory / name).write_text(text)
    return directory


def test_limits_and_kills_are_read_from_v2(tmp_path: Path) -> None:
    files = {"memory.max": "67108864\n", "memory.swap.max": "0\n", "cpu.max": "150000 100000\n", "pids.max": "320\n"}
    directory = written(tmp_path / "s", {**files, "memory.events": "low 0\noom 2\noom_kill 5\noom_group_kill 0\n"})
    cgroup = SandboxCgroup({"": directory}, unified=True)
    assert cgroup.limits() == CgroupLimits(memory=67108864, swap=0, cpus=1.5, pids=320)
    assert cgroup.oom_kills() == 5


def test_limits_and_kills_are_read_from_v1(tmp_path: Path) -> None:
    memory = {
        "memory.limit_in_bytes": "100\n",
        "memory.memsw.limit_in_bytes": "100\n",
        "memory.oom_control": "oom_kill 1\n",
    }
    cgroup = SandboxCgroup(
        {
            "memory": written(tmp_path / "memory", memory),
            "cpu": written(tmp_path / "cpu", {"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}),
            "pids": written(tmp_path / "pids", {"pids.max": "max\n"}),
        }
    )
    assert cgroup.limits() == CgroupLimits(memory=100, swap=0, cpus=0.5, pids=None)
    assert cgroup.oom_kills() == 1


def test_a_cgroup_that_is_gone_has_no_limits_and_no_kills(tmp_path: Path) -> None:
    cgroup = SandboxCgroup({"memory": tmp_path / "gone"})
    assert cgroup.limits() == CgroupLimits()
    assert cgroup.oom_kills() == 0
    assert cgroup.pids() == frozenset()


V1_STAT = """\
cache 81920
rss 4096
inactive_file 40960
active_file 40960
hierarchical_memory_limit 67108864
total_cache 1003520
total_rss 3000000
total_shmem 204800
total_inactive_anon 0
total_active_anon 3204800
total_inactive_file 700000
total_active_file 300000
total_unevictable 0
"""
V2_STAT = "anon 3000000\nfile 1204800\nshmem 204800\ninactive_file 700000\nactive_file 300000\nslab 5\n"


def test_what_is_used_is_read_from_v1_with_what_is_below(tmp_path: Path) -> None:
    memory = {"memory.usage_in_bytes": "4500000\n", "memory.stat": V1_STAT}
    directories = {
        "memory": written(tmp_path / "memory", memory),
        "cpuacct": written(tmp_path / "cpuacct", {"cpuacct.usage": "2500000000\n"}),
        "pids": written(tmp_path / "pids", {"pids.current": "7\n"}),
    }
    assert SandboxCgroup(directories).use() == CgroupUse(2.5, 3_500_000, 1_000_000, 7)


def test_what_is_used_is_read_from_v2(tmp_path: Path) -> None:
    files = {"memory.current": "4500000\n", "memory.stat": V2_STAT, "pids.current": "7\n"}
    cpu = "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\nnr_periods 3\n"
    cgroup = SandboxCgroup({"": written(tmp_path / "s", {**files, "cpu.stat": cpu})}, unified=True)
    assert cgroup.use() == CgroupUse(2.5, 3_500_000, 1_000_000, 7)
    (tmp_path / "s" / "memory.current").write_text("900000\n")
    assert cgroup.use() == CgroupUse(2.5, 0, 900_000, 7), "the cache was counted before it was given back"


def test_a_cgroup_that_is_gone_uses_nothing_that_could_be_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SandboxCgroup({"": tmp_path / "gone"}, unified=True).use()
