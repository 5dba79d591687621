"""Graphics processors: how requests name them, how they are found, leased, described to the kernel and read back."""

import json
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from warren.model.errors import InvalidRequest, IsolationUnavailable, NoCapacity, ProviderUnavailable
from warren.model.gpus import ANY, gpus_value, parse_gpus, read_gpus
from warren.model.spec import SandboxSpec
from warren.sandboxes.host.device_rules import DeviceRules, list_allows, programs_allow, run_program
from warren.sandboxes.host.gpu_leases import GpuLeases
from warren.sandboxes.host.gpu_libraries import library_tree, read_soname
from warren.sandboxes.host.gpus import DeviceNode, Found, Gpu, Places, find, has_nodes, require_usable
from warren.sandboxes.providers.docker_spec import device_request
from warren.sandboxes.providers.gpu_access import ALL, GpuAccess, GpuGrant, check_nodes, check_rules, variables
from warren.sandboxes.providers.oci_bundle import config, config_json

UUID = "GPU-5c3a1b2e-0000-1111-2222-333344445555"


# -- what a request says


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(0, ()), (2, (ANY, ANY)), (["0"], ("0",)), ([1, UUID], ("1", UUID)), ([], ()), (["0:1"], ("0:1",))],
)
def test_a_request_says_how_many_or_which(value: Any, wanted: tuple[str, ...]) -> None:
    assert read_gpus(value) == wanted


@pytest.mark.parametrize("value", [True, -1, 17, 1.5, "1", None, {"0": 1}, ["../0"], [""], ["0", "0"], [["0"]], [-1]])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        read_gpus(value)


def test_the_command_line_says_the_same() -> None:
    assert parse_gpus("2") == (ANY, ANY)
    assert parse_gpus("id:0,1") == ("0", "1")
    assert (gpus_value(""), gpus_value("2"), gpus_value("id:0")) == (None, 2, ["0"])
    for text in ("x", "-1", "1.0", "id:", "²"):
        with pytest.raises(InvalidRequest):
            parse_gpus(text)


# -- finding


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A machine with two, whose nodes have numbers of ordinary devices."""
    dev, lib, driver = tmp_path / "dev", tmp_path / "lib", tmp_path / "driver"
    for folder in (dev, lib, driver / "gpus" / "0000:01:00.0"):
        folder.mkdir(parents=True)
    for name, minor in {"nvidia0": 3, "nvidia1": 5, "nvidiactl": 7, "nvidia-uvm": 8, "nvidia-uvm-tools": 9}.items():
        os.mknod(dev / name, stat.S_IFCHR | 0o600, os.makedev(1, minor))
    (lib / "libcuda.so.570.1").write_bytes(elf("libcuda.so.1"))
    (lib / "libcuda.so.1").symlink_to("libcuda.so.570.1")
    (lib / "libnvidia-nvvm.so.570.1").write_bytes(elf("libnvidia-nvvm.so.4"))
    (lib / "libnvidia-glcore.so.570.1").write_bytes(b"for screens")
    (driver / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23\n")
    (driver / "gpus" / "0000:01:00.0" / "information").write_text(
        f"Model: \t\t NVIDIA H200\nGPU UUID: \t {UUID}\nDevice Minor: \t 0\n"
    )
    return Places((tmp_path / "cdi",), dev, driver, (lib,), (tmp_path / "bin",), ldconfig=False)


def elf(soname: str) -> bytes:
    """A library of which only the name can be read."""
    strings = b"\0" + soname.encode() + b"\0"
    dynamic = struct.pack("<QQQQQQ", 5, 0x1000 + 176 + 48, 14, 1, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x1000, 0x1000, 0x1000, 0x1000, 0x1000)
    where = struct.pack("<IIQQQQQQ", 2, 6, 176, 0x1000 + 176, 0, len(dynamic), len(dynamic), 8)
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    return head + load + where + dynamic + strings


def test_nodes_and_libraries_are_found_without_a_cdi_file(places: Places) -> None:
    found = find(places)
    assert [(gpu.id, gpu.model, UUID in gpu.names) for gpu in found.gpus] == [
        ("0", "NVIDIA H200", True),
        ("1", "", False),
    ]
    assert {str(node) for node in found.shared} == {"/dev/nvidiactl 1:7", "/dev/nvidia-uvm 1:8"}
    assert [file.name for file in found.files] == ["libcuda.so.570.1", "libnvidia-nvvm.so.570.1"]
    assert (found.driver, found.missing) == ("570.86.15", ())


def cdi(places: Places) -> dict[str, Any]:
    def device(name: str, *nodes: str) -> dict[str, Any]:
        return {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/{node}"} for node in nodes]}}

    library = str(places.libraries[0] / "libcuda.so.570.1")
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            device("0", "nvidia0", "dri/card0"),
            device(UUID, "nvidia0"),
            device("1", "nvidia1"),
            device("all", "nvidia0", "nvidia1"),
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}, {"path": "/dev/nvidia-uvm-tools"}],
            "mounts": [
                {"hostPath": library, "containerPath": "/usr/lib64/libcuda.so.570.1"},
                {"hostPath": "/etc/shadow", "containerPath": "/etc/shadow"},
            ],
            "hooks": [
                {
                    "hookName": "createContainer",
                    "path": "/bin/false",
                    "args": ["nvidia-cdi-hook", "create-symlinks", "--link", "libcuda.so.570.1::/usr/lib64/libcuda.so"],
                },
                {"hookName": "createContainer", "path": "/bin/false", "args": ["nvidia-cdi-hook", "update-ldcache"]},
            ],
        },
    }


@pytest.mark.parametrize(("name", "write"), [("nvidia.yaml", yaml.safe_dump), ("nvidia.json", json.dumps)])
def test_a_cdi_file_says_more(places: Places, name: str, write: Callable[[Any], str]) -> None:
    places.cdi[0].mkdir()
    (places.cdi[0] / name).write_text(write(cdi(places)))
    found = find(places)
    assert [(gpu.id, gpu.cdi) for gpu in found.gpus] == [("0", "nvidia.com/gpu=0"), ("1", "nvidia.com/gpu=1")]
    assert {UUID, "0"} <= found.gpus[0].names
    assert [str(node) for node in found.gpus[0].nodes] == ["/dev/nvidia0 1:3"]
    assert {node.name for node in found.shared} == {"nvidiactl", "nvidia-uvm"}
    assert [file.name for file in found.files] == ["libcuda.so.570.1"]
    assert found.links == (("libcuda.so", "libcuda.so.570.1"),)
    assert found.missing == ()


@pytest.mark.parametrize("text", ["kind: nvidia.com/gpu\ndevices: 7\n", "{", "kind: nvidia.com/gpu\ndevices: [1]\n"])
def test_a_broken_cdi_file_is_named_and_gives_nothing(places: Places, text: str) -> None:
    places.cdi[0].mkdir()
    (places.cdi[0] / "broken.yaml").write_text(text)
    (places.cdi[0] / "other.yaml").write_text("kind: example.com/net\ndevices: []\n")
    assert "broken.yaml cannot be read" in find(places).missing[0]


@pytest.mark.parametrize(
    ("gone", "sentence"),
    [
        (("nvidia0", "nvidia1"), "there is no NVIDIA GPU here"),
        (("nvidiactl",), "there is no /dev/nvidiactl"),
        (("nvidia-uvm",), "nvidia-modprobe -u -c=0"),
    ],
)
def test_what_is_missing_is_said(places: Places, gone: tuple[str, ...], sentence: str) -> None:
    for name in gone:
        (places.dev / name).unlink()
    with pytest.raises(ProviderUnavailable, match=sentence):
        require_usable(find(places))
    assert has_nodes(places) is ("nvidia0" not in gone)


def test_without_the_drivers_library_none_can_be_used(places: Places) -> None:
    for file in places.libraries[0].glob("libcuda*"):
        file.unlink()
    with pytest.raises(ProviderUnavailable, match=r"libcuda\.so\.1 is nowhere"):
        require_usable(find(places))


def test_a_regular_file_is_no_device(places: Places) -> None:
    (places.dev / "nvidia1").unlink()
    (places.dev / "nvidia1").write_text("")
    assert [gpu.id for gpu in find(places).gpus] == ["0"]


# -- libraries


def test_the_tree_has_the_names_that_programs_ask_for(places: Places, tmp_path: Path) -> None:
    tree, is_new = library_tree(find(places), tmp_path / "trees")
    assert is_new
    assert sorted(path.name for path in (tree / "lib").iterdir()) == [
        *("libcuda.so", "libcuda.so.1", "libcuda.so.570.1", "libnvidia-nvvm.so.4", "libnvidia-nvvm.so.570.1"),
    ]
    assert (tree / "lib" / "libcuda.so.1").read_bytes() == elf("libcuda.so.1")
    assert library_tree(find(places), tmp_path / "trees") == (tree, False)
    (places.libraries[0] / "libcuda.so.570.1").write_bytes(elf("libcuda.so.1") + b"another")
    assert library_tree(find(places), tmp_path / "trees")[0] != tree


def test_the_name_of_a_real_library_is_read(tmp_path: Path) -> None:
    libc = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so" in line)
    assert read_soname(Path(libc)) == "libc.so.6"
    (tmp_path / "text").write_text("not ELF")
    assert read_soname(tmp_path / "text") == ""


# -- leases


def a_gpu(number: int) -> Gpu:
    return Gpu(
        str(number),
        frozenset({str(number), f"GPU-{number}"}),
        (DeviceNode(Path("/x"), f"nvidia{number}", 195, number),),
    )


GPUS = [a_gpu(0), a_gpu(1)]


@pytest.fixture
def owners(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in "abc"]
    for owner in found:
        owner.mkdir()
    return found


def test_one_belongs_to_one_sandbox_at_a_time(tmp_path: Path, owners: list[Path]) -> None:
    leases, others = (GpuLeases(lambda owner: False, tmp_path / "leases") for _ in range(2))  # of two processes
    assert [gpu.id for gpu in leases.claim(GPUS, [ANY], owners[0])] == ["0"]
    assert [gpu.id for gpu in others.claim(GPUS, ["GPU-1"], owners[1])] == ["1"]
    with pytest.raises(NoCapacity, match="no free GPU: 1 asked for, 0 of 2 are free"):
        others.claim(GPUS, [ANY], owners[2])
    with pytest.raises(NoCapacity, match="no free GPU: the GPU 0 belongs to another sandbox"):
        others.claim(GPUS, ["0"], owners[2])
    leases.release(owners[0])
    assert others.free(GPUS) == ["0"]
    others.release(owners[0])
    assert [gpu.id for gpu in others.claim(GPUS, [ANY], owners[2])] == ["0"]


def test_all_that_are_wanted_or_none(tmp_path: Path, owners: list[Path]) -> None:
    leases = GpuLeases(lambda owner: False, tmp_path / "leases")
    leases.claim(GPUS, ["1"], owners[0])
    with pytest.raises(NoCapacity):
        leases.claim(GPUS, [ANY, ANY], owners[1])
    assert leases.free(GPUS) == ["0"]
    with pytest.raises(InvalidRequest, match="there are: 0, 1"):
        leases.claim(GPUS, ["7"], owners[1])
    with pytest.raises(InvalidRequest, match="twice"):
        leases.claim(GPUS, ["0", "GPU-0"], owners[1])
    assert leases.free(GPUS) == ["0"]


def test_the_lease_of_a_dead_sandbox_is_taken_over(tmp_path: Path, owners: list[Path]) -> None:
    dead = set[Path]()
    leases = GpuLeases(dead.__contains__, tmp_path / "leases")
    leases.claim(GPUS, [ANY, ANY], owners[0])
    assert leases.free(GPUS) == []
    dead.add(owners[0])
    assert leases.free(GPUS) == ["0", "1"]
    leases.claim(GPUS, ["0"], owners[1])
    leases.release(owners[0])  # what the dead one had is another's now
    assert (leases.owner("0"), leases.owner("1")) == (owners[1], None)
    owners[1].rmdir()
    assert leases.free(GPUS) == ["0", "1"]


# -- what the operator allows


@pytest.mark.anyio
async def test_only_what_the_operator_names_is_for_sandboxes(places: Places, tmp_path: Path) -> None:
    assert not GpuAccess((), places=places).is_usable
    one = GpuAccess((UUID,), places=places, directory=tmp_path / "leases")
    assert [gpu.id for gpu in (await one.found()).gpus] == ["0"]
    with pytest.raises(NoCapacity, match="this machine has 1 for sandboxes"):
        await one.check((ANY, ANY))
    with pytest.raises(ProviderUnavailable, match="none of those that the option gpus names is here, there are: 0, 1"):
        await GpuAccess(("7",), places=places).check((ANY,))
    everything = GpuAccess((ALL,), places=places, directory=tmp_path / "leases")
    assert [gpu.id for gpu in (await everything.found()).gpus] == ["0", "1"]


@pytest.mark.anyio
async def test_a_node_that_goes_away_is_missed_at_the_next_look(places: Places) -> None:
    access = GpuAccess((ALL,), places=places)
    await access.check((ANY,))
    (places.dev / "nvidia-uvm").unlink()
    with pytest.raises(ProviderUnavailable, match="nvidia-uvm"):
        await access.check((ANY,))


def test_commands_find_the_libraries() -> None:
    found = variables(SandboxSpec(gpus=("0", "2"), env={"LD_LIBRARY_PATH": "/mine"}))
    assert found["LD_LIBRARY_PATH"] == "/mine:/.warren/gpu/lib"
    assert found["PATH"].startswith("/.warren/gpu/bin:/")
    assert found["NVIDIA_VISIBLE_DEVICES"] == "0,2"
    assert variables(SandboxSpec()) == {}


# -- what runtimes and engines are asked for


def test_the_bundle_has_a_rule_for_each_node_and_nothing_else_changes() -> None:
    options: dict[str, Any] = {"sandbox_id": "a" * 32, "uid_base": 1, "swap_limit": True, "top_of_proc": frozenset()}
    plain, with_gpu = config(SandboxSpec(), **options), config(SandboxSpec(), **options, devices=((195, 0), (511, 3)))
    rules = with_gpu["linux"]["resources"].pop("devices")
    usual = plain["linux"]["resources"].pop("devices")
    added = [rule for rule in rules if rule not in usual]
    assert added == [
        {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"},
        {"allow": True, "type": "c", "major": 511, "minor": 3, "access": "rw"},
    ]
    assert plain == with_gpu
    assert config_json(SandboxSpec(), **options) != config_json(SandboxSpec(), **options, devices=((195, 0),))


def test_an_engine_is_asked_by_cdi_or_by_number() -> None:
    assert device_request(["0"], ["nvidia.com/gpu=0"]) == {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0"]}
    assert device_request(["0"], []) == {
        "Driver": "nvidia",
        "DeviceIDs": ["0"],
        "Capabilities": [["gpu", "compute", "utility"]],
    }


# -- reading back


def test_more_nodes_than_granted_are_refused_and_fewer_too() -> None:
    wanted = {"nvidia0": (195, 0), "nvidiactl": (195, 255)}
    check_nodes(wanted, wanted)
    check_nodes(wanted | {"nvidia-uvm-tools": (511, 1)}, wanted)
    for nodes, sentence in (
        (wanted | {"nvidia1": (195, 1)}, "has /dev/nvidia1"),
        (wanted | {"nvidia0": (195, 1)}, "/dev/nvidia0 of the sandbox is"),
        ({"nvidia0": (195, 0)}, "/dev/nvidiactl of the sandbox is None"),
    ):
        with pytest.raises(IsolationUnavailable, match=sentence):
            check_nodes(nodes, wanted)


def test_rules_that_open_less_or_another_one_are_refused() -> None:
    grant = GpuGrant((a_gpu(0),), a_gpu(0).nodes, a_gpu(1).nodes)
    assert check_rules(DeviceRules("", lambda *at: at == (195, 0)), grant) == "the rules open these and no other GPU"
    assert check_rules(DeviceRules("", lambda *at: None), grant) == "what the rules open cannot be told"
    for open_ones, sentence in (
        ([], "do not open /dev/nvidia0"),
        ([(195, 0), (195, 1)], "open /dev/nvidia1, which it was not to have"),
    ):
        with pytest.raises(IsolationUnavailable, match=sentence):
            check_rules(DeviceRules("", lambda *at, found=open_ones: at in found), grant)
    with pytest.raises(IsolationUnavailable, match="open every device"):
        check_rules(DeviceRules("", lambda *at: True), GpuGrant((a_gpu(0),), a_gpu(0).nodes))


def test_only_cdi_names_of_all_are_used() -> None:
    named = Gpu("0", frozenset({"0"}), (), cdi="nvidia.com/gpu=0")
    assert GpuGrant((named,), ()).cdi_names == ("nvidia.com/gpu=0",)
    assert GpuGrant((named, a_gpu(1)), ()).cdi_names == ()


def test_the_list_of_cgroup_v1_is_understood() -> None:
    text = "c 1:3 rw\nc 195:0 rw\nc 136:* rw\nb 8:0 rwm\nc 10:1 r\n"
    assert list_allows(text, 195, 0)
    assert list_allows(text, 136, 77)
    assert not any(list_allows(text, *numbers) for numbers in ((195, 1), (8, 0), (10, 1)))
    assert list_allows("a *:* rwm\n", 8, 0)


def step(code: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, source << 4 | target, offset, value)


# As runtimes write it: type, access and numbers into registers; rule for rule, the last one refuses.
DEVICE_PROGRAM = b"".join(
    (
        step(0x61, 2, 1, 0),
        step(0x54, 2, value=0xFFFF),
        step(0x61, 3, 1, 0),
        step(0x74, 3, value=16),
        step(0x61, 4, 1, 4),
        step(0x61, 5, 1, 8),
        step(0x55, 2, offset=4, value=2),
        step(0x55, 4, offset=3, value=195),
        step(0x55, 5, offset=2, value=0),
        step(0xB7, 0, value=1),
        step(0x95),
        step(0xB7, 0, value=0),
        step(0x95),
    )
)


def test_the_program_of_cgroup_v2_is_followed() -> None:
    assert run_program(DEVICE_PROGRAM, 195, 0)
    assert not run_program(DEVICE_PROGRAM, 195, 1)
    assert not run_program(DEVICE_PROGRAM, 8, 0)
    assert programs_allow([DEVICE_PROGRAM, step(0xB7, 0, value=0) + step(0x95)], 195, 0) is False
    assert programs_allow([step(0x85, value=1) + step(0x95)], 195, 0) is None  # it calls the kernel
    assert programs_allow([step(0x05, offset=-1)], 195, 0) is None  # it never ends


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    nowhere = Places(
        (tmp_path / "cdi",), tmp_path / "dev", tmp_path / "driver", (tmp_path,), (tmp_path,), ldconfig=False
    )
    assert find(nowhere) == Found(source="the nodes of /dev", missing=find(nowhere).missing)
    assert not has_nodes(nowhere)
