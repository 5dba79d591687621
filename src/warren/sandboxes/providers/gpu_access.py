"""The graphics processors that the operator lets sandboxes have: finds them, leases them, and reads back what is open.

A provider is given one. What a sandbox gets is decided here (`GpuGrant`); how it gets it is the provider's.
"""

import asyncio
import os
import re
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from warren.model.capability import Capability, lacks
from warren.model.errors import IsolationUnavailable, NoCapacity, SandboxLost
from warren.model.spec import SEARCH_PATH, SandboxSpec
from warren.sandboxes.host import gpus
from warren.sandboxes.host.cgroups import SandboxCgroup
from warren.sandboxes.host.device_rules import DeviceRules, read_rules
from warren.sandboxes.host.gpu_leases import DIRECTORY, GpuLeases
from warren.sandboxes.host.gpu_libraries import library_tree, remove_others
from warren.sandboxes.host.gpus import DeviceNode, Found, Gpu, Places

ALL: Final = "all"
INSIDE: Final = "/.warren/gpu"
LIBRARIES: Final = "gpu-libraries"
_GPU_NODE: Final = re.compile(r"nvidia\d+")
# An engine may add these; none of them opens a processor.
_HARMLESS: Final = re.compile(r"nvidia-uvm-tools|nvidia-modeset|nvidia-caps/nvidia-cap\d+")


@dataclass(frozen=True, slots=True)
class GpuGrant:
    """What one sandbox gets. `shut` are the nodes of the processors that it does not get."""

    gpus: tuple[Gpu, ...]
    nodes: tuple[DeviceNode, ...]
    shut: tuple[DeviceNode, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(gpu.id for gpu in self.gpus)

    @property
    def cdi_names(self) -> tuple[str, ...]:
        """The names in CDI files; empty unless all processors have one."""
        names = tuple(gpu.cdi for gpu in self.gpus)
        return names if all(names) else ()


class GpuAccess:
    """`allowed` are the ids of the processors that sandboxes may have, or ALL. Tests give other `places` and another
    `directory` for the leases."""

    def __init__(
        self,
        allowed: Sequence[str],
        *,
        places: Places | None = None,
        directory: Path = DIRECTORY,
    ) -> None:
        self._allowed = tuple(allowed)
        self._places = places or Places()
        self._directory = directory
        self._found: Found | None = None
        self._all: tuple[Gpu, ...] = ()  # also those that are not allowed
        self._finding = asyncio.Lock()
        self.leases = GpuLeases(lambda owner: False, directory)

    def __repr__(self) -> str:
        return f"<GpuAccess to {', '.join(self._allowed) or 'none'}>"

    def judge_owners_by(self, is_over: Callable[[Path], bool]) -> None:
        """`is_over` tells whether the sandbox of a directory has died."""
        self.leases = GpuLeases(is_over, self._directory)

    @property
    def is_usable(self) -> bool:
        """Whether there is a processor that sandboxes may have."""
        return bool(self._allowed) and (gpus.has_nodes(self._places) or bool(self._found and self._found.gpus))

    @property
    def has_cdi(self) -> bool:
        """Whether CDI files name all processors that sandboxes may have."""
        return bool(self._found and self._found.gpus) and all(gpu.cdi for gpu in (self._found or Found()).gpus)

    async def found(self) -> Found:
        """Returns the processors that are here and allowed. Once all was found, it looks again only if a node or a file
        of it is gone."""
        async with self._finding:
            known = self._found
            if known is None or known.missing or not _is_there(known):
                known = self._found = await asyncio.to_thread(self._look)
            return known

    def _look(self) -> Found:
        found = gpus.find(self._places)
        allowed = self._all = found.gpus
        if ALL not in self._allowed:
            allowed = tuple(gpu for gpu in found.gpus if gpu.names & set(self._allowed))
        missing = found.missing
        if found.gpus and not allowed:
            ids = ", ".join(gpu.id for gpu in found.gpus)
            missing = (f"none of those that the option gpus names is here, there are: {ids}", *missing)
        return Found(allowed, found.shared, found.files, found.links, found.driver, found.source, missing)

    async def check(self, wanted: Sequence[str]) -> None:
        """Raises ProviderUnavailable with what is missing here, and NoCapacity if this machine has fewer processors."""
        found = await self.found()
        gpus.require_usable(found)
        if len(wanted) > len(found.gpus):
            raise NoCapacity(
                f"no free GPU: {len(wanted)} asked for, and this machine has {len(found.gpus)} for sandboxes",
                remedy="ask for fewer, or use another machine",
            )

    async def check_spec(self, spec: SandboxSpec, provider: str, can: Collection[Capability]) -> None:
        """Raises the error that keeps a sandbox of this provider, which has the capabilities `can`, from having the
        processors it asks for. Whether others have them now does not matter."""
        if spec.gpus:
            if Capability.GPU not in can:
                raise lacks(provider, Capability.GPU)
            await self.check(spec.gpus)

    def claim_for(self, spec: SandboxSpec, owner: Path) -> SandboxSpec:
        """Leases the processors that the spec asks for, and returns the spec with their ids. Raises NoCapacity."""
        return replace(spec, gpus=self.claim(spec.gpus, owner)) if spec.gpus else spec

    def claim(self, wanted: Sequence[str], owner: Path) -> tuple[str, ...]:
        """Leases processors to the sandbox whose directory is `owner`, and returns their ids. To be called after
        `check`."""
        return tuple(gpu.id for gpu in self.leases.claim((self._found or Found()).gpus, wanted, owner))

    def granted(self, ids: Sequence[str]) -> GpuGrant | None:
        """Returns what a sandbox with these processors was given; None if one is not known here any more."""
        found = self._found or Found()
        known = {gpu.id: gpu for gpu in found.gpus}
        if not ids or any(name not in known for name in ids):
            return None
        taken = tuple(known[name] for name in ids)
        nodes = {node.name: node for gpu in taken for node in gpu.nodes}
        shut = tuple(node for gpu in self._all if gpu not in taken for node in gpu.nodes if node.name not in nodes)
        return GpuGrant(taken, (*nodes.values(), *found.shared), shut)

    def known(self) -> Sequence[str]:
        """The ids of all processors that sandboxes may have; none before the first look."""
        return [gpu.id for gpu in self._found.gpus] if self._found else ()

    def free(self) -> Sequence[str]:
        """The ids of the processors that a sandbox could have now."""
        return self.leases.free(self._found.gpus) if self._found else ()

    def release(self, owner: Path) -> None:
        self.leases.release(owner)

    async def tree(self, state: Path, in_use: Callable[[], bool]) -> Path:
        """Returns the directory of the libraries. When it is new, those of earlier drivers are removed unless one may
        be `in_use`."""
        return await asyncio.to_thread(self._tree, state / LIBRARIES, in_use)

    def _tree(self, folder: Path, in_use: Callable[[], bool]) -> Path:
        tree, is_new = library_tree(self._found or Found(), folder)
        if is_new and not in_use():
            remove_others(folder, tree)
        return tree


def variables(spec: SandboxSpec) -> dict[str, str]:
    """What commands in a sandbox with processors need in their environment to find the libraries."""
    if not spec.gpus:
        return {}
    own = spec.env.get("LD_LIBRARY_PATH", "")
    return {
        "LD_LIBRARY_PATH": f"{own}:{INSIDE}/lib" if own else f"{INSIDE}/lib",
        "PATH": f"{INSIDE}/bin:{spec.env.get('PATH') or SEARCH_PATH}",  # an image's nvidia-smi is of another driver
        "NVIDIA_VISIBLE_DEVICES": ",".join(spec.gpus),
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }


def read_back(pid: int, cgroup: SandboxCgroup, grant: GpuGrant | None, ids: Sequence[str]) -> dict[str, str]:
    """Returns by id what is open to a running sandbox: the nodes in its /dev, and the rules of its cgroup. Raises
    IsolationUnavailable if more is open than it was to have, or less."""
    nodes = {name: numbers for name, numbers in read_nodes(pid).items() if name.startswith("nvidia")}
    rules = read_rules(cgroup)
    shown = ", ".join(f"/dev/{name} {major}:{minor}" for name, (major, minor) in sorted(nodes.items()))
    if grant is not None:
        wanted = {node.name: (node.major, node.minor) for node in grant.nodes}
        check_nodes(nodes, wanted)
        shown += f"; {check_rules(rules, grant)}"
    names = {gpu.id: gpu.model for gpu in grant.gpus} if grant else {}
    return {name: f"{names.get(name) or 'NVIDIA'}: {shown}; {rules.evidence}" for name in ids}


def check_rules(rules: DeviceRules, grant: GpuGrant) -> str:
    """Says whether the rules open what was granted, and no other processor. Raises IsolationUnavailable if they open
    less, or more."""
    granted = {(node.major, node.minor) for node in grant.nodes}
    for node in grant.nodes:
        if rules.allows(node.major, node.minor) is False:
            raise IsolationUnavailable(f"the device rules of the sandbox do not open /dev/{node.name}")
    for node in grant.shut:
        if (node.major, node.minor) not in granted and rules.allows(node.major, node.minor):
            raise IsolationUnavailable(f"the rules of the sandbox open /dev/{node.name}, which it was not to have")
    if rules.allows_all:
        raise IsolationUnavailable("the device rules of the sandbox open every device of the machine")
    known = all(rules.allows(*numbers) for numbers in granted)
    return "the rules open these and no other GPU" if known else "what the rules open cannot be told"


def check_nodes(nodes: Mapping[str, tuple[int, int]], wanted: Mapping[str, tuple[int, int]]) -> None:
    for name, numbers in wanted.items():
        if nodes.get(name) != numbers:
            raise IsolationUnavailable(f"/dev/{name} of the sandbox is {nodes.get(name)}, not {numbers}")
    for name, numbers in nodes.items():
        harmless = _HARMLESS.fullmatch(name) and not _GPU_NODE.fullmatch(name)
        if name not in wanted and not harmless:
            raise IsolationUnavailable(f"the sandbox has /dev/{name} {numbers}, which it was not to have")


def read_nodes(pid: int) -> dict[str, tuple[int, int]]:
    """Returns the character devices in a sandbox's /dev, and in the folders there, with their numbers. Opens nothing
    but directories, and follows no link."""
    try:
        top = os.open(f"/proc/{pid}/root/dev", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        raise SandboxLost(f"the devices of the sandbox cannot be read: {exc.strerror}") from exc
    try:
        found = _devices_in(top, "")
        for name in os.listdir(top):
            if name.startswith("nvidia") and stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
                folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
                try:
                    found |= _devices_in(folder, f"{name}/")
                finally:
                    os.close(folder)
        return found
    finally:
        os.close(top)


def _devices_in(folder: int, prefix: str) -> dict[str, tuple[int, int]]:
    found = dict[str, tuple[int, int]]()
    for name in os.listdir(folder):
        each = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISCHR(each.st_mode):
            found[prefix + name] = os.major(each.st_rdev), os.minor(each.st_rdev)
    return found


def _is_there(found: Found) -> bool:
    nodes = (*found.shared, *(node for gpu in found.gpus for node in gpu.nodes))
    return all(gpus.read_node(node.path, node.name) == node for node in nodes) and all(
        file.exists() for file in found.files
    )
