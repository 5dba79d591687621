"""Facts about a process, judged. What real runtimes can be made to leave out is in machine/test_read_back.py."""

from dataclasses import replace
from typing import Any

import pytest

from warren.model.errors import IsolationUnavailable
from warren.model.spec import MIB, Isolation, Layer
from warren.sandboxes.host import isolation
from warren.sandboxes.host.cgroups import CgroupLimits
from warren.sandboxes.host.isolation import UNREADABLE, Wanted, check, judge
from warren.sandboxes.host.process_facts import (
    NAMESPACES,
    Facts,
    MountTable,
    parse_interfaces,
    parse_mountinfo,
    parse_rlimits,
    parse_routes,
)
from warren.sandboxes.host.seccomp_program import SystemCallFilter

MOUNTS = """\
10 9 0:50 / / ro,nosuid,nodev,relatime - overlay root ro,lowerdir=agent:image
11 10 0:51 / /dev ro,nosuid,noexec - tmpfs dev rw,size=64k,nr_inodes=32,mode=755
12 10 0:60 / /workspace rw,nosuid,nodev,noatime - tmpfs disk rw,size=8192k,nr_inodes=512,mode=755
13 10 0:61 / /proc rw,nosuid,nodev,noexec - proc proc rw
14 13 0:51 /null /proc/keys ro,relatime - tmpfs dev rw,size=64k,nr_inodes=32,mode=755
15 13 0:61 /sys /proc/sys ro,relatime - proc proc rw
"""
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max core file size        1                    1                    bytes
Max open files            1024                 4096                 files
Max address space         unlimited            unlimited            bytes
"""
INTERFACES = """\
Inter-|   Receive                |  Transmit
 face |bytes    packets errs drop|bytes    packets errs drop
    lo:       0       0    0    0        0       0    0    0
 tunl0:       0       0    0    0        0       0    0    0
"""
UIDS = range(100_000, 165_536)


def facts(**changes: Any) -> Facts:
    good = Facts(
        status={
            **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0"),
            **{"Uid": "100000 100000 100000 100000", "Gid": "100000 100000 100000 100000", "Groups": ""},
            **{"NoNewPrivs": "1", "Seccomp": "2"},
        },
        namespaces={kind: f"{kind}:[2]" for kind in NAMESPACES},
        host_namespaces={kind: f"{kind}:[1]" for kind in NAMESPACES},
        mounts=MountTable(parse_mountinfo(MOUNTS)),
        limits=CgroupLimits(memory=64 * MIB, swap=0, cpus=0.5, pids=100, sockets=MIB),
        rlimits=parse_rlimits(LIMITS),
        interfaces=parse_interfaces(INTERFACES),
        routed=parse_routes("Iface\tDestination\n", "00 80 00 00 00 00 lo\n"),
        descriptors=(("/workspace/log", 12),),
        root=(50, 1),
        cwd=(50, 1),
        host_root=(1, 2),
        top_of_proc=frozenset({"keys", "meminfo", "sys"}),
        program="/agent",
        programs=(bytes.fromhex("0600000000000500"),),  # refuses everything
    )
    return replace(good, **changes)


def wanted(**changes: Any) -> Wanted:
    good = Wanted(
        uids=UIDS,
        capabilities=frozenset(),
        memory=64 * MIB,
        sockets_apart=True,
        cpus=0.5,
        pids=100,
        disk=8 * MIB,
        rlimits={"Max core file size": 1, "Max open files": 4096},
        shown_of_proc=frozenset({"meminfo", "sys"}),
        masked=("/proc/keys", "/proc/never-there", "/sys/fs"),
        read_only=("/proc/sys",),
        system_calls=SystemCallFilter([], "x86_64"),
        program="/agent",
    )
    return replace(good, **changes)


def missing(found: Facts, **changes: Any) -> dict[Layer, str]:
    layers = judge(found, wanted(**changes)).missing
    assert layers.pop(Layer.GUEST_KERNEL)
    return layers


def table(*lines: str) -> MountTable:
    return MountTable(parse_mountinfo(MOUNTS + "\n".join(lines)))


def limits_with(line: str) -> str:
    name = line[:25].strip()
    return "\n".join([*(text for text in LIMITS.splitlines() if not text.startswith(name)), line])


def test_good_facts_prove_every_layer() -> None:
    assert missing(facts()) == {}


@pytest.mark.parametrize(
    ("layer", "reason", "changes"),
    [
        (Layer.NO_HOST_FILES, "a descriptor leads to /etc", {"descriptors": (("/etc", 77),)}),
        (Layer.NO_HOST_FILES, "root is the host's", {"root": (1, 2), "cwd": (1, 2)}),
        (Layer.NO_HOST_FILES, "working directory", {"cwd": (1, 9)}),
        (Layer.NO_HOST_FILES, "it runs /usr/bin/crun", {"program": "/usr/bin/crun"}),
        (Layer.LOOPBACK_ONLY, "interface eth0", {"interfaces": frozenset({"lo", "eth0"})}),
        (Layer.LOOPBACK_ONLY, "route goes through tunl0", {"routed": parse_routes("Iface\ntunl0\t0\n", "")}),
        (Layer.RLIMITS, "core pattern", {"core_pipe": True, "rlimits": {"Max core file size": (0, 0)}}),
        (
            *(Layer.RLIMITS, "open files is 9999"),
            {
                "rlimits": parse_rlimits(
                    limits_with("Max open files            4096                 9999                 files")
                )
            },
        ),
        (
            *(Layer.RLIMITS, "core file size is None"),
            {
                "rlimits": parse_rlimits(
                    limits_with("Max core file size        1                    unlimited            bytes")
                )
            },
        ),
        (
            *(Layer.UNIQUE_UID, "uid 100000"),
            {"status": {**facts().status, "Groups": "4 100000"}},
        ),
        (Layer.SYSTEM_CALLS, "no filter is loaded", {"programs": ()}),
        (Layer.SYSTEM_CALLS, "it allows", {"programs": (bytes.fromhex("060000000000ff7f"),)}),
        (Layer.SYSTEM_CALLS, "cannot be followed", {"programs": (bytes.fromhex("0700000000000000"),)}),
        (Layer.SYSTEM_CALLS, UNREADABLE, {"programs": (), "why_no_programs": "no right"}),
        (
            *(Layer.DISK_LIMIT, "/proc/bus can be written without a limit"),
            {"mounts": table("16 13 0:62 / /proc/bus rw,nosuid,nodev - tmpfs tmpfs rw,size=0k")},
        ),
        (
            *(Layer.MASKED_PATHS, "/proc/keys is not masked"),
            {
                "mounts": table(
                    "16 10 0:61 / /proc rw,nosuid,nodev - proc proc rw", "17 16 0:61 /sys /proc/sys ro - proc p r"
                )
            },
        ),
        (
            *(Layer.MASKED_PATHS, "/proc/of-tomorrow is not masked"),
            {"top_of_proc": frozenset({"keys", "meminfo", "of-tomorrow", "sys"})},
        ),
        (
            *(Layer.MASKED_PATHS, "/sys shows the host (sysfs)"),
            {
                "mounts": table(
                    "16 10 0:63 / /sys ro,nosuid,nodev - sysfs sysfs rw", "17 16 0:9 / /sys/fs ro - tmpfs t r"
                )
            },
        ),
        (
            *(Layer.MOUNT_FLAGS, "/etc/hosts lacks nodev and nosuid"),
            {"mounts": table("16 10 0:60 /etc/hosts /etc/hosts ro,relatime - tmpfs disk rw,size=8192k,nr_inodes=512")},
        ),
    ],
)
def test_one_wrong_fact_is_one_missing_layer(layer: Layer, reason: str, changes: dict[str, Any]) -> None:
    found = missing(facts(**changes))
    assert reason in found.pop(layer)
    assert found == {} or layer in (Layer.RLIMITS, Layer.UNIQUE_UID, Layer.LOOPBACK_ONLY)


@pytest.mark.parametrize(
    ("layer", "changes"),
    [
        (Layer.MEMORY_LIMIT, {"memory": 63 * MIB}),
        (Layer.CPU_LIMIT, {"cpus": 0.4}),
        (Layer.PIDS_LIMIT, {"pids": 99}),
        (Layer.DISK_LIMIT, {"disk": 8 * MIB - 1}),
    ],
)
def test_a_limit_that_is_higher_than_asked_for_is_none(layer: Layer, changes: dict[str, Any]) -> None:
    assert set(missing(facts(), **changes)) == {layer}


@pytest.mark.parametrize("size", [None, 65 * MIB])
def test_buffers_of_sockets_need_a_limit_where_they_do_not_count_as_memory(size: int | None) -> None:
    found = facts(limits=replace(facts().limits, sockets=size))
    assert set(missing(found)) == {Layer.SOCKET_LIMIT}
    assert missing(found, sockets_apart=False) == {}


@pytest.mark.parametrize("bounded", [True, False])
def test_the_evidence_says_whether_udp_sockets_are_limited(bounded: bool) -> None:
    found = facts(limits=replace(facts().limits, bounds_datagrams=bounded))
    evidence = judge(found, wanted(sockets_apart=False)).layers[Layer.SOCKET_LIMIT]
    assert ("the number of UDP sockets is limited" in evidence) == bounded


def test_a_mount_that_another_one_hides_does_not_count() -> None:
    hidden = table(
        "16 10 0:7 / /secret rw - ext4 /dev/sda rw", "17 16 0:8 / /secret ro,nosuid,nodev - tmpfs t rw,size=4k"
    )
    assert missing(facts(mounts=hidden)) == {}


WRITABLE_ROOT = """\
10 9 0:50 / / rw,nosuid,nodev - overlay root rw,lowerdir=agent:image,upperdir=disk/root.upper
11 10 0:52 / /.warren ro,nosuid,nodev - overlay root ro,lowerdir=agent/.warren:empty
12 11 0:60 /mark /.warren/disk ro,nosuid,nodev - tmpfs disk rw,size=8192k,nr_inodes=512
13 10 0:61 / /proc rw,nosuid,nodev,noexec - proc proc rw
14 13 0:51 /null /proc/keys ro,relatime - tmpfs dev rw,size=64k,nr_inodes=32,mode=755
15 13 0:61 /sys /proc/sys ro,relatime - proc proc rw
"""


def test_a_writable_root_is_named_and_must_be_on_the_disk() -> None:
    mounts, same = MountTable(parse_mountinfo(WRITABLE_ROOT)), (8 * MIB, 512)
    good = facts(mounts=mounts, rooms={"/": same, "/.warren/disk": same}, descriptors=())
    found = missing(good, writable_root=True)
    assert found == {Layer.READ_ONLY_ROOT: "/ is nodev,nosuid,rw; the sandbox was asked for with a writable root"}
    for rooms in ({"/": (64 * MIB, 512), "/.warren/disk": same}, {"/": same}, {"/.warren/disk": same}, {}):
        assert "/ can be written" in missing(replace(good, rooms=rooms), writable_root=True)[Layer.DISK_LIMIT]
    lax = WRITABLE_ROOT.replace("rw,nosuid,nodev - overlay", "rw,nosuid - overlay")
    assert Layer.MOUNT_FLAGS in missing(replace(good, mounts=MountTable(parse_mountinfo(lax))), writable_root=True)


@pytest.mark.parametrize(("owner", "limited"), [(",resuid=65534", True), (",resuid=0", False), ("", False)])
def test_the_reserve_of_a_disk_below_an_overlay_belongs_to_nobody(owner: str, limited: bool) -> None:
    disk = f"12 11 7:5 /mark /.warren/disk ro,nosuid,nodev - ext4 /dev/loop5 rw{owner}"
    lines = [disk if line.startswith("12 ") else line for line in WRITABLE_ROOT.splitlines()]
    rooms = {"/": (8 * MIB, 512), "/.warren/disk": (8 * MIB, 512)}
    found = missing(facts(mounts=MountTable(parse_mountinfo("\n".join(lines))), rooms=rooms), writable_root=True)
    assert ("/ can be written" in found[Layer.DISK_LIMIT]) is not limited


def test_a_layer_that_cannot_be_read_may_be_promised_but_not_required() -> None:
    shown = Isolation("oci", "crun", {}, {Layer.SYSTEM_CALLS: f"{UNREADABLE}no right"})
    check(shown, required=(), promised={Layer.SYSTEM_CALLS})
    with pytest.raises(IsolationUnavailable, match="no right"):
        check(shown, required={Layer.SYSTEM_CALLS})
    with pytest.raises(IsolationUnavailable, match="unknown to this provider"):
        check(shown, required=(), promised=isolation.PROMISED)
