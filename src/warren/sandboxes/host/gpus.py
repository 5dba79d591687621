"""Finds the NVIDIA graphics processors of this machine, what a sandbox needs to use one, and what is missing for it.

A sandbox gets three device nodes: that of the processor, nvidiactl, and nvidia-uvm, without which CUDA does not start;
an instance of a divided processor (MIG) needs nvidia-caps too. And it gets the driver's libraries, which belong to the
kernel module and so cannot come from an image. Both are described by CDI files, which the vendor's toolkit writes.
Without one the nodes are those of /dev, and the libraries those that the dynamic linker knows. CDI files also name
hooks, programs of the vendor that would run as root while a sandbox is made: Warren runs none, and makes the links that
they would make.
"""

import json
import os
import platform
import re
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from warren.model.errors import ProviderUnavailable
from warren.sandboxes.host.processes import ENVIRONMENT

CONTROL, UVM = "nvidiactl", "nvidia-uvm"
_KIND: Final = "nvidia.com/gpu"
_GPU_NODE: Final = re.compile(r"nvidia(\d+)")
_MIG_NODE: Final = re.compile(r"nvidia-caps/nvidia-cap\d+")
_LIBRARY: Final = re.compile(
    r"(libcuda|libnvidia-ml|libnvidia-ptxjitcompiler|libnvidia-nvvm\d*|libnvidia-gpucomp|libnvidia-tileiras)\.so(\.|$)"
)
_PROGRAMS: Final = ("nvidia-smi",)
_MACHINES: Final = {"x86_64": "x86-64", "aarch64": "AArch64"}
_LARGEST_FILE: Final = 4 * 1024 * 1024
_NO_UVM: Final = "there is no /dev/nvidia-uvm: `nvidia-modprobe -u -c=0` loads the module and makes it"


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look; tests use other places."""

    cdi: tuple[Path, ...] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    dev: Path = Path("/dev")
    driver: Path = Path("/proc/driver/nvidia")
    libraries: tuple[Path, ...] = (
        Path("/usr/local/nvidia/lib64"),
        Path("/usr/lib/x86_64-linux-gnu"),
        Path("/usr/lib/aarch64-linux-gnu"),
        Path("/usr/lib64"),
    )
    programs: tuple[Path, ...] = (Path("/usr/local/nvidia/bin"), Path("/usr/bin"))
    ldconfig: bool = True


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A character device: its path here, its name below /dev in a sandbox, and its numbers."""

    path: Path
    name: str
    major: int
    minor: int

    def __str__(self) -> str:
        return f"/dev/{self.name} {self.major}:{self.minor}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """`id` is the number of its device node, or the name that a CDI file gives to an instance of a divided GPU. `names`
    are all its names, with its UUID. `cdi` is its name for an engine that reads CDI files, or ""."""

    id: str
    names: frozenset[str]
    nodes: tuple[DeviceNode, ...]
    model: str = ""
    cdi: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What was found. `shared` are the nodes that every sandbox with a GPU needs. `files` are the libraries and
    programs, `links` other names of theirs (link name, file name). `missing` says why no sandbox can have a GPU."""

    gpus: tuple[Gpu, ...] = ()
    shared: tuple[DeviceNode, ...] = ()
    files: tuple[Path, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    driver: str = ""
    source: str = ""
    missing: tuple[str, ...] = ()


@dataclass(slots=True)
class _Draft:
    gpus: dict[str, Gpu] = field(default_factory=dict)
    shared: dict[str, DeviceNode] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)


def find(places: Places | None = None) -> Found:
    """Finds the GPUs. Takes some milliseconds and runs a program, so call it in a thread."""
    places, draft = places or Places(), _Draft()
    for path in _cdi_files(places):
        _read_cdi(path, places, draft)
    if not draft.gpus:
        _look_at_nodes(places, draft)
    for name in (CONTROL, UVM):
        if name not in draft.shared and (node := read_node(places.dev / name, name)):
            draft.shared[name] = node
    if not any(_is_library(name, "libcuda") for name in draft.files):
        for file in _host_files(places):
            draft.files.setdefault(file.name, file)
    return Found(
        gpus=tuple(sorted(draft.gpus.values(), key=lambda gpu: (len(gpu.id), gpu.id))),
        shared=tuple(draft.shared[name] for name in sorted(draft.shared)),
        files=tuple(draft.files[name] for name in sorted(draft.files)),
        links=tuple(sorted((name, to) for name, to in draft.links.items() if to in draft.files)),
        driver=_driver_version(places),
        source=", ".join(draft.sources) or "the nodes of /dev",
        missing=(*draft.mistakes, *_missing(draft)),
    )


def has_nodes(places: Places | None = None) -> bool:
    """Returns whether there is any GPU; costs little."""
    places = places or Places()
    try:
        return any(_GPU_NODE.fullmatch(name) for name in os.listdir(places.dev))
    except OSError:
        return False


def read_node(path: Path, name: str) -> DeviceNode | None:
    """Returns the node; None if it is not a character device."""
    try:
        found = path.stat()
    except OSError:
        return None
    if not stat.S_ISCHR(found.st_mode):
        return None
    return DeviceNode(path, name, os.major(found.st_rdev), os.minor(found.st_rdev))


def _missing(draft: _Draft) -> Iterator[str]:
    if not draft.gpus:
        yield "there is no NVIDIA GPU here: no /dev/nvidia0, and no CDI file that names one"
        return
    if CONTROL not in draft.shared:
        yield "there is no /dev/nvidiactl: `nvidia-modprobe` loads the module and makes it"
    if UVM not in draft.shared:
        yield _NO_UVM
    if not any(_is_library(name, "libcuda") for name in draft.files):
        yield "libcuda.so.1 is nowhere to be found: install the driver's libraries, or run `nvidia-ctk cdi generate`"


def _is_library(name: str, stem: str) -> bool:
    return name.startswith(f"{stem}.so")


# -- CDI files


def _cdi_files(places: Places) -> Iterator[Path]:
    for folder in places.cdi:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        yield from (folder / name for name in names if name.endswith((".yaml", ".yml", ".json")))


def _read_cdi(path: Path, places: Places, draft: _Draft) -> None:
    try:
        values = _parse(path)
        if not isinstance(values, dict) or values.get("kind") != _KIND:
            return
        edits = _mapping(values.get("containerEdits"))
        for device in _list(values.get("devices")):
            _add_device(_mapping(device), places, draft)
        for name, node in _nodes(edits, places):
            if name in (CONTROL, UVM):
                draft.shared[name] = node
        _add_files(edits, draft)
        draft.sources.append(str(path))
    except (OSError, ValueError, TypeError, AttributeError) as exc:
        draft.mistakes.append(f"the CDI file {path} cannot be read: {str(exc).splitlines()[0][:200]}")


def _parse(path: Path) -> Any:
    if path.stat().st_size > _LARGEST_FILE:
        raise ValueError("it is too large")
    text = path.read_text()
    if path.suffix == ".json":
        return json.loads(text)
    import yaml  # slow to import, and needed only for GPUs

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise ValueError(str(exc)) from exc


def _add_device(device: Mapping[str, Any], places: Places, draft: _Draft) -> None:
    """Adds a device, or another name of one: CDI files list a device by number, by UUID and as part of `all`."""
    name, edits = str(device["name"]), _mapping(device.get("containerEdits"))
    wanted = {name: node for name, node in _nodes(edits, places) if _GPU_NODE.fullmatch(name)}
    instance = {name: node for name, node in _nodes(edits, places) if _MIG_NODE.fullmatch(name)}
    if len(wanted) != 1:
        return
    ((node_name, node),) = wanted.items()
    nodes = (node, *(instance[each] for each in sorted(instance)))
    number = node_name.removeprefix("nvidia")
    gpu_id = next((known.id for known in draft.gpus.values() if known.nodes == nodes), name if instance else number)
    known = draft.gpus.get(gpu_id)
    names, model = _facts(places, number) if not instance else (frozenset[str](), "")
    draft.gpus[gpu_id] = Gpu(
        gpu_id,
        frozenset({gpu_id, name}) | names | (known.names if known else frozenset()),
        nodes,
        model,
        known.cdi if known else f"{_KIND}={name}",
    )


def _nodes(edits: Mapping[str, Any], places: Places) -> Iterator[tuple[str, DeviceNode]]:
    for each in _list(edits.get("deviceNodes")):
        path = str(each["path"])
        if path.startswith("/dev/"):
            name = path.removeprefix("/dev/")
            host = Path(str(each.get("hostPath") or path))
            here = places.dev / host.relative_to("/dev") if host.is_relative_to("/dev") else host
            if node := read_node(here, name):
                yield name, node


def _add_files(edits: Mapping[str, Any], draft: _Draft) -> None:
    for each in _list(edits.get("mounts")):
        inside, host = Path(str(each["containerPath"])), Path(str(each["hostPath"]))
        if _LIBRARY.match(inside.name) or inside.name in _PROGRAMS:
            draft.files[inside.name] = Path(os.path.realpath(host))
    for hook in _list(edits.get("hooks")):
        words = [str(word) for word in _list(hook.get("args"))]
        for option, value in pairwise(words):
            target, _, link = value.partition("::")
            if "create-symlinks" in words and option == "--link" and link:
                draft.links[Path(link).name] = Path(target).name


def _mapping(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError(f"{str(value)[:80]!r} should have keys and values")
    return value


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:80]!r} should be a list")
    return value


# -- without CDI files


def _look_at_nodes(places: Places, draft: _Draft) -> None:
    try:
        names = sorted(os.listdir(places.dev))
    except OSError:
        return
    for name in names:
        match = _GPU_NODE.fullmatch(name)
        if match and (node := read_node(places.dev / name, name)):
            names_of, model = _facts(places, match[1])
            draft.gpus[match[1]] = Gpu(match[1], frozenset({match[1]}) | names_of, (node,), model)


def _host_files(places: Places) -> Iterable[Path]:
    found = dict[str, Path]()
    for path in (*_linker_cache(places), *_in_folders(places)):
        real = Path(os.path.realpath(path))
        if real.is_file() and _LIBRARY.match(real.name):
            found.setdefault(real.name, real)
    for folder in places.programs:
        for name in _PROGRAMS:
            real = Path(os.path.realpath(folder / name))
            if real.is_file():
                found.setdefault(name, real)
    return found.values()


def _linker_cache(places: Places) -> Iterator[Path]:
    if not places.ldconfig:
        return
    try:
        argv = ["ldconfig", "-p"]
        done = subprocess.run(argv, env=ENVIRONMENT, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return
    machine = _MACHINES.get(platform.machine(), platform.machine())
    for line in done.stdout.splitlines():
        name, _, rest = line.strip().partition(" ")
        kind, _, path = rest.partition(" => ")
        if machine in kind and path and _LIBRARY.match(name):
            yield Path(path)


def _in_folders(places: Places) -> Iterator[Path]:
    for folder in places.libraries:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        yield from (folder / name for name in names if _LIBRARY.match(name))


# -- the driver


def _driver_version(places: Places) -> str:
    try:
        match = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", (places.driver / "version").read_text())
    except OSError:
        return ""
    return match[1] if match else ""


def _facts(places: Places, number: str) -> tuple[frozenset[str], str]:
    """Returns the other names and the model of the GPU whose device node has this number."""
    try:
        folders = sorted(os.listdir(places.driver / "gpus"))
    except OSError:
        return frozenset(), ""
    for folder in folders:
        try:
            text = (places.driver / "gpus" / folder / "information").read_text()
        except OSError:
            continue
        values = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
        if values.get("Device Minor") == number:
            uuid = values.get("GPU UUID", "")
            return frozenset({uuid} if re.fullmatch(r"GPU-[0-9a-f-]+", uuid) else ()), values.get("Model", "")
    return frozenset(), ""


def require_usable(found: Found) -> None:
    """Raises ProviderUnavailable if something is missing, and says what."""
    if found.missing:
        raise ProviderUnavailable(f"no sandbox can have a GPU: {found.missing[0]}", remedy="`warren doctor` shows more")
