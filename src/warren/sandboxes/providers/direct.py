"""The runtime `direct`: Warren's own launcher makes the sandbox, without an OCI runtime.

What a sandbox is to be is said once, in the config.json that runtimes get (oci_bundle.py). Here it becomes the options
that `warren-launch direct` reads from stdin, as words that each end with a NUL. The filter of system calls was compiled
beforehand (scripts/make_filters.py): the launcher gets it as a descriptor, and refuses one that has another hash.
"""

import fcntl
import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

from warren.model.errors import ProviderUnavailable
from warren.sandboxes.host.cgroups import NEEDED, Hierarchies
from warren.sandboxes.host.disks import FREE_FD
from warren.sandboxes.host.freezing import FREEZER
from warren.sandboxes.host.isolation import capability_mask
from warren.sandboxes.providers.oci_bundle import ANY_ID, BUNDLE, PARENT, cgroup_path

NAME: Final = "direct"
FILTER_FD: Final = 5

# Warren limits nothing in the others, and each costs time: the more sandboxes live, the more. A manager of services
# that stops the worker's cgroup finds no sandbox in it, because they leave the named hierarchies too. What freezes a
# sandbox is in the v2 tree, so v1's freezer is joined only where there is no such tree.
_HIERARCHIES: Final = (*NEEDED, "cpuacct", "devices")
_UNIFIED: Final = ""
_FOLDER: Final = Path(__file__).parent / "filters"
_FLAGS: Final = frozenset({"ro", "rw", "nosuid", "nodev", "noexec"})

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CompiledFilter:
    """A compiled filter that stays open for as long as this process lives."""

    fd: int
    digest: str


@cache
def compiled_filter(ptrace: bool) -> CompiledFilter:
    """Raises ProviderUnavailable if there is none for this machine."""
    name = f"{platform.machine()}-ptrace" if ptrace else platform.machine()
    try:
        digest = json.loads((_FOLDER / "digests.json").read_text())["sha256"][name]
        fd = os.open(_FOLDER / f"{name}.bpf", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return CompiledFilter(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FREE_FD), digest)
        finally:
            os.close(fd)
    except (OSError, KeyError, ValueError):
        raise ProviderUnavailable(
            f"there is no compiled filter of system calls for {name}", remedy="use the runtime crun, or install again"
        ) from None


def plan(config: str, hierarchies: Hierarchies, *, sandbox_id: str, digest: str, limits_io: bool) -> str:
    """Returns the words that the launcher reads. `config` is the config.json of a sandbox with the id ANY_ID, so that
    sandboxes of one kind share a plan."""
    mounts = tuple(hierarchies.mounts.items())
    return _plan(config, mounts, digest, limits_io).replace(ANY_ID, sandbox_id)


def with_command(plan: str, argv: Sequence[str]) -> str:
    return f"{plan.partition(f'{chr(0)}--{chr(0)}')[0]}\0{_joined(['--', *argv])}"


@lru_cache(maxsize=8)
def _plan(config: str, mounts: tuple[tuple[str, Path], ...], digest: str, limits_io: bool) -> str:
    values: Json = json.loads(config)
    return _joined(
        [
            *_cgroup_words(values["linux"]["resources"], Hierarchies(dict(mounts)), limits_io),
            *_process_words(values["process"]),
            *("--hostname", values["hostname"], "--filter", str(FILTER_FD), "--filter-sha256", digest),
            *_repeated("--mount", (_mount(mount) for mount in values["mounts"])),
            *_repeated("--sysctl", (f"{_file(name)}={value}" for name, value in values["linux"]["sysctl"].items())),
            *_repeated("--read-only", values["linux"]["readonlyPaths"]),
            *_repeated("--mask", values["linux"]["maskedPaths"]),
            *("--", *values["process"]["args"]),
        ]
    )


def _joined(words: Sequence[str]) -> str:
    if any("\0" in word for word in words):
        raise ValueError("a word of the plan contains a NUL")
    return "".join(f"{word}\0" for word in words)


def _repeated(option: str, values: Iterator[str] | Sequence[str]) -> Iterator[str]:
    for value in values:
        yield from (option, value)


def _process_words(process: Json) -> Iterator[str]:
    yield from ("--oom-score", str(process["oomScoreAdj"]))
    yield from _repeated("--env", process["env"])
    for name in process["capabilities"]["bounding"]:
        yield from ("--capability", str(capability_mask([name]).bit_length() - 1))


def _mount(mount: Json) -> str:
    """KIND:SOURCE:TARGET:FLAGS:OPTIONS; the source of a bind is relative to the bundle."""
    flags = [word for word in mount["options"] if word in _FLAGS]
    others = [word for word in mount["options"] if word not in _FLAGS and word != "bind"]
    source = mount["source"].removeprefix(f"{BUNDLE}/")
    return ":".join((mount["type"], source, mount["destination"], ",".join(flags), ",".join(others)))


def _file(sysctl: str) -> str:
    return sysctl.replace(".", "/")


# -- cgroups


def _cgroup_words(resources: Json, hierarchies: Hierarchies, limits_io: bool) -> Iterator[str]:
    directories = hierarchies.at(cgroup_path(ANY_ID)).directories
    if (unified := directories.get(_UNIFIED)) is not None:
        yield from ("--into", str(unified))
    if hierarchies.version == "v2":
        parent = hierarchies.mounts[_UNIFIED] / PARENT.strip("/")
        # One at a time: the kernel refuses all if it lacks one.
        yield from _repeated("--enable", (f"{parent}/cgroup.subtree_control=+{name}" for name in (*NEEDED, "io")))
        yield from _limits_v2(resources, f"{unified}")
        return
    joined = [
        str(directory)
        for name, directory in directories.items()
        if name in _HIERARCHIES
        or name.startswith("name=")
        or (name == "blkio" and limits_io)
        or (name == FREEZER and unified is None)
    ]
    yield from _repeated("--cgroup", list(dict.fromkeys(joined)))
    yield from _limits_v1(resources, {name: f"{directory}" for name, directory in directories.items()})


def _limits_v1(resources: Json, at: dict[str, str]) -> Iterator[str]:
    memory, cpu = resources["memory"], resources["cpu"]
    settings = [f"{at['memory']}/memory.limit_in_bytes={memory['limit']}"]
    if "swap" in memory:
        settings.append(f"{at['memory']}/memory.memsw.limit_in_bytes={memory['swap']}")
    settings.append(f"{at['cpu']}/cpu.cfs_period_us={cpu['period']}")
    settings.append(f"{at['cpu']}/cpu.cfs_quota_us={cpu['quota']}")
    settings.append(f"{at['pids']}/pids.max={resources['pids']['limit']}")
    if "devices" not in at:
        yield from _device_words(resources)
    else:
        settings.append(f"{at['devices']}/devices.deny=a")
        for rule in _allowed(resources):
            numbers = f"{rule['major']}:{rule.get('minor', '*')}"
            settings.append(f"{at['devices']}/devices.allow={rule['type']} {numbers} {rule['access']}")
    yield from _repeated("--set", settings)


def _limits_v2(resources: Json, at: str) -> Iterator[str]:
    memory, cpu = resources["memory"], resources["cpu"]
    settings = (
        f"{at}/memory.max={memory['limit']}",
        f"{at}/cpu.max={cpu['quota']} {cpu['period']}",
        f"{at}/pids.max={resources['pids']['limit']}",
    )
    yield from _repeated("--set", settings)
    if "swap" in memory:  # a kernel without swap has no such file
        yield from ("--try-set", f"{at}/memory.swap.max={memory['swap'] - memory['limit']}")
    yield from _device_words(resources)


def _device_words(resources: Json) -> Iterator[str]:
    for rule in _allowed(resources):
        numbers = f"{rule['major']}:{rule.get('minor', '*')}"
        yield from ("--allow-device", f"{rule['type']}:{numbers}:{rule['access']}")


def _allowed(resources: Json) -> Iterator[Json]:
    """Yields the rules that allow a device. Raises ValueError unless the first rule refuses all devices."""
    refuse_all, *rules = resources["devices"]
    if refuse_all != {"allow": False, "access": "rwm"} or not all(rule["allow"] for rule in rules):
        raise ValueError("the rules for devices do not begin with refusing all")
    yield from rules
