"""How the last room of the host's disk is shared out, and which sizes the disks of sandboxes have."""

import os
import struct
import subprocess
from pathlib import Path

import pytest

from warren.model.errors import MachineFull
from warren.model.spec import MIB
from warren.sandboxes.host.disk_room import DiskUse, Promises, disk_mount, find_disk, pause_s, plan_disks, share
from warren.sandboxes.host.disks import mke2fs_argv, standard_size_mb

GIB = 1024 * MIB

# In the superblock of ext4: compatible features, one that a kernel needs to write, and what to do at an error.
EXT_ATTR, DIR_INDEX, SPARSE_SUPER2, METADATA_CSUM, ERRORS_REMOUNT_READ_ONLY = 0x8, 0x20, 0x200, 0x400, 2


def disk(allocated_mb: int, *, unwritten_mb: int = 0, limit_mb: int = 1024) -> DiskUse:
    free = (limit_mb - allocated_mb) * MIB
    return DiskUse(limit_mb * MIB, (allocated_mb - unwritten_mb) * MIB, free, free, allocated_mb * MIB)


def test_all_disks_grow_up_to_the_same_level() -> None:
    uses = {"hog": disk(900), "middle": disk(300), "little": disk(0), "small": disk(0, limit_mb=20)}
    growth = {name: size // MIB for name, size in share(520 * MIB, uses).items()}
    assert growth == {"hog": 0, "middle": 100, "little": 400, "small": 20}
    assert share(0, uses) == dict.fromkeys(uses, 0)
    assert sum(share(10**15, uses).values()) == sum(use.growth for use in uses.values())
    assert share(5, {}) == {}


def test_nobody_is_restricted_while_there_is_room_and_nobody_ended_who_has_written() -> None:
    uses = {"a": disk(900), "b": disk(100)}
    assert plan_disks(3 * GIB, GIB, uses).growth == {}
    assert plan_disks(2 * GIB - 1, GIB, uses).growth != {}
    assert plan_disks(GIB // 4, GIB, uses).end == ()


def test_what_is_allocated_and_not_written_counts_as_taken_and_ends_whom_it_does_not_fit() -> None:
    uses = {"a": disk(900, unwritten_mb=900), "b": disk(700, unwritten_mb=600), "c": disk(10, unwritten_mb=10)}
    assert plan_disks(3 * GIB, GIB, uses).growth != {}
    assert plan_disks(2 * GIB, GIB, uses).end == ()
    assert plan_disks(GIB - 1, GIB, uses).end == ("a", "b")
    assert plan_disks(GIB - 1, GIB, {"b": uses["b"], "c": uses["c"]}).end == ("b",)
    assert plan_disks(GIB - 1, GIB, uses, coming=2 * GIB).end == ()
    more = {**uses, "d": uses["a"]}
    assert plan_disks(2 * GIB, GIB, more).end == ()
    assert plan_disks(2 * GIB, GIB, more, falling=1).end == ("a",)


def test_it_looks_more_often_the_less_there_is() -> None:
    assert [pause_s(free * GIB, GIB) for free in (100, 5, 4, 3, 0)] == [5.0, 1.0, 0.5, 0.1, 0.1]


def test_it_looks_less_often_when_those_who_are_restricted_can_do_no_harm() -> None:
    growing, full = {"a": disk(0)}, {str(number): disk(900, unwritten_mb=900) for number in range(100)}
    assert plan_disks(3 * GIB, GIB, growing).pause_s(3 * GIB, GIB) == 0.1
    assert plan_disks(40 * GIB, GIB, growing).pause_s(40 * GIB, GIB) == 1.0
    plan = plan_disks(40 * GIB, GIB, full)  # for all that is allocated, 49 GiB are missing
    assert plan.growth
    assert plan.pause_s(40 * GIB, GIB) == 1.0
    assert plan.pause_s(40 * GIB, GIB, took_s=0.2) == 8.0
    assert plan.pause_s(40 * GIB, GIB, took_s=2.0) == 18.5  # in that time others could write 37 GiB
    assert plan.pause_s(3 * GIB, GIB, took_s=2.0) == 0.1
    few = {name: full[name] for name in list(full)[:40]}  # they leave 3.8 GiB, and nobody is restricted
    plan = plan_disks(40 * GIB, GIB, few)
    assert not plan.growth
    assert plan.pause_s(40 * GIB, GIB, took_s=2.0) < 2.0


def test_promises_of_all_processes_count() -> None:
    promises = Promises(2)
    promises.add("a", 150, room_mb=100)
    with pytest.raises(MachineFull, match="200 MiB may be promised"):
        promises.add("b", 60, room_mb=100)
    promises.replace_all({"of another": 10})
    assert promises.total_mb == 160  # the one being made counts too
    promises.keep("a")
    promises.replace_all({})
    promises.add("b", 200, room_mb=100)
    promises.remove("b")
    assert repr(promises) == "<Promises of 0 MiB to 0 sandboxes>"


def test_standard_sizes_are_few_and_hardly_larger() -> None:
    sizes = {standard_size_mb(size) for size in range(16, 1024 * 1024 + 1, 7)}
    assert len(sizes) < 70
    assert {16, 1024, 1280, 1536, 1792, 2048} <= sizes
    for size in (1, 16, 17, 1000, 1024, 1025, 5000, 1024 * 1024):
        standard = standard_size_mb(size)
        assert size <= standard <= max(16, size * 1.26)
        assert standard_size_mb(standard) == standard


def test_only_a_loop_device_at_the_workspace_is_watched() -> None:
    line = "90 80 7:{} /workspace /workspace rw,nosuid - {} /dev/loop3 rw\n"
    assert find_disk(line.format(3, "ext4")) == ("/workspace", 7 * 256 + 3)
    mark = "91 80 7:5 /mark /.warren/disk ro,nosuid - ext4 /dev/loop5 rw\n"
    assert find_disk(mark + "92 80 0:78 / /workspace rw - overlay root rw\n") == ("/.warren/disk", 7 * 256 + 5)
    assert find_disk("90 80 0:77 / /workspace rw - tmpfs disk rw\n") is None
    assert find_disk("90 80 0:77 / /tmp rw - tmpfs disk rw\n") is None
    assert disk_mount("90 80 0:77 / /workspace rw - tmpfs disk rw\n") == ("/workspace", 77)
    with pytest.raises(FileNotFoundError):
        disk_mount("90 80 0:77 / /tmp rw - tmpfs disk rw\n")


@pytest.mark.parametrize(("size_mb", "block_bytes"), [(16, 1024), (1024, 4096)])
def test_nothing_of_a_disk_comes_from_the_hosts_settings(size_mb: int, block_bytes: int, tmp_path: Path) -> None:
    settings = tmp_path / "mke2fs.conf"
    settings.write_text(
        "[defaults]\nbase_features = has_journal,sparse_super\nerrors = continue\nblocksize = 2048\n"
        "[fs_types]\next2 = {\n features = has_journal,metadata_csum\n}\n"
    )
    image = tmp_path / "image"
    with image.open("xb") as file:
        file.truncate(size_mb << 20)
    environ = {**os.environ, "MKE2FS_CONFIG": str(settings)}
    subprocess.run([*mke2fs_argv(size_mb), str(image)], env=environ, check=True)
    with image.open("rb") as file:
        superblock = file.read(2048)[1024:]
    compatible, _, to_write = struct.unpack_from("<III", superblock, 0x5C)
    assert compatible == EXT_ATTR | DIR_INDEX | SPARSE_SUPER2
    assert not to_write & METADATA_CSUM
    assert 1024 << struct.unpack_from("<I", superblock, 0x18)[0] == block_bytes
    assert struct.unpack_from("<H", superblock, 0x3C)[0] == ERRORS_REMOUNT_READ_ONLY
