"""Checks of Warren's own parts and of what it works with: programs, runtimes, images, the Docker engine, leftovers."""

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from warren.doctor.check import Check, fail, ok, warn
from warren.interfaces.images import ImageVersion
from warren.interfaces.provider import Provider
from warren.model.capability import Capability
from warren.model.errors import WarrenError
from warren.model.spec import Layer, SandboxSpec
from warren.sandboxes.agent.wire import VERSION as WIRE_VERSION
from warren.sandboxes.host import gpus
from warren.sandboxes.host.cgroups import Hierarchies
from warren.sandboxes.host.isolation import UNREADABLE
from warren.sandboxes.host.uids import DIRECTORY as UID_CLAIMS
from warren.sandboxes.providers.docker_engine import DockerEngine
from warren.sandboxes.providers.e2b import E2bProvider
from warren.sandboxes.providers.host_provider import INSTALL_PROGRAMS, HostProvider
from warren.sandboxes.providers.oci import OciProvider
from warren.sandboxes.providers.oci_runtime import RuntimeReport

_LAUNCHER_VERSION = 1

# program, first fixed version of each branch, names of the vulnerability, and why Warren can live with it
_KNOWN_HOLES: tuple[tuple[str, tuple[tuple[int, int, int], ...], str, str], ...] = (
    ("runc", ((1, 1, 12),), "CVE-2024-21626", "Warren gives it no directory of a caller's choice"),
    (
        *("runc", ((1, 2, 8), (1, 3, 3)), "CVE-2024-45310, CVE-2025-31133, CVE-2025-52565, CVE-2025-52881"),
        "only safe with a user namespace in which the host's root is not, which Warren always makes",
    ),
    (
        *("runc", ((1, 3, 6), (1, 4, 3)), "CVE-2026-41579"),
        "Warren's images have a directory of their own as /dev, never a link",
    ),
)
_ARCHIVE_FIXED = (29, 5, 1)
_UPGRADE = "upgrade it when you can (your distribution may have patched it under the same number)"


def check_programs(bin_dir: Path) -> Iterable[Check]:
    yield _check_version("agent", [str(bin_dir / "warren-agent"), "--version"], WIRE_VERSION)
    yield _check_version("launcher", [str(bin_dir / "warren-launch"), "version"], _LAUNCHER_VERSION)


def _check_version(name: str, argv: Sequence[str], wanted: int) -> Check:
    if not os.access(argv[0], os.X_OK):
        return fail(name, f"{argv[0]} is missing", INSTALL_PROGRAMS)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return fail(name, f"{argv[0]} cannot be run: {exc}", INSTALL_PROGRAMS)
    found = done.stdout.strip()
    if found.split()[-1:] == [str(wanted)]:
        return ok(name, f"{found}, {argv[0]}")
    return fail(name, f"{argv[0]} says {found!r}, version {wanted} is needed", INSTALL_PROGRAMS)


async def check_runtimes(provider: OciProvider) -> AsyncIterator[Check]:
    try:
        report = await provider.runtime_report()
    except WarrenError as exc:
        yield fail("runtime", exc.message, exc.remedy)
        return
    for check in judge_runtimes(report):
        yield check
    if provider.disks.why_not_loop:
        yield warn(
            "disk limit", provider.disks.kind, "allow loop devices; until then disks are small and count as memory"
        )
    else:
        yield ok("disk limit", provider.disks.kind)


def judge_runtimes(report: RuntimeReport) -> Iterable[Check]:
    for runtime in report.runtimes:
        name = f"runtime {runtime.name}"
        if runtime.works:
            chosen = f"; chosen: {report.why}" if runtime.name == report.chosen else ""
            yield ok(name, f"{runtime.version} works{chosen}")
            yield from known_holes(runtime.name, runtime.version)
        elif runtime.path:
            yield warn(
                name, f"{runtime.version} does not work: {runtime.why}", "no harm: another one is used, if it works"
            )
        else:
            yield ok(name, runtime.why)
    if not report.chosen:
        yield fail("runtime", report.why, "install crun or runc")


def known_holes(name: str, version: str) -> Iterable[Check]:
    number = parse_version(version)
    for program, fixed, holes, why in _KNOWN_HOLES:
        if program == name and number and not _is_fixed(number, fixed):
            versions = " and ".join(".".join(map(str, each)) for each in fixed)
            yield warn(f"{name} holes", f"{holes} fixed in {versions}: {why}", _UPGRADE)


def _is_fixed(number: tuple[int, ...], fixed: Sequence[tuple[int, ...]]) -> bool:
    """Whether a version has what the first fixed versions of some branches have: all later branches have it too."""
    branch = number[:2]
    return branch > max(each[:2] for each in fixed) or any(branch == each[:2] and number >= each for each in fixed)


def parse_version(text: str) -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part or 0) for part in found.groups()) if found else ()


def check_images(images: Sequence[ImageVersion]) -> Check:
    if not images:
        return warn("images", "none", "warren image build base")
    current = ", ".join(one.name for one in images if one.current)
    unused = [one for one in images if not one.current and not one.sandboxes]
    if unused:
        size = sum(one.size_bytes for one in unused) / 2**20
        return warn(
            "images", f"{current}; {len(unused)} versions that nobody uses, {size:.0f} MiB", "warren image prune"
        )
    return ok("images", current)


def check_registry(problems: Mapping[tuple[str, str], str]) -> Iterable[Check]:
    """`problems` maps the kind and name of each entry to its mistake; the text is empty for a correct entry."""
    right: dict[str, list[str]] = {}
    for (kind, name), problem in problems.items():
        if problem:
            yield fail(f"{kind[:-1]} {name}", problem, "mend the file; `warren registry validate` checks it again")
        else:
            right.setdefault(kind, []).append(name)
    for kind, names in right.items():
        yield ok(kind, ", ".join(names))


async def check_layers(provider: Provider, image: str) -> AsyncIterator[Check]:
    """Makes a real sandbox and yields which layers the kernel reports for it."""
    try:
        sandbox = await provider.create(SandboxSpec(image=image))
    except WarrenError as exc:
        yield fail("a sandbox", exc.message, exc.remedy or "see above")
        return
    try:
        isolation = sandbox.isolation
    finally:
        await provider.destroy(sandbox.id)
    yield ok("a sandbox", f"of image {image}, by {isolation.provider} with {isolation.runtime}")
    for layer in Layer:
        if layer in isolation:
            yield ok(f"layer {layer}", isolation.layers[layer])
        elif layer is Layer.GUEST_KERNEL:
            yield ok(f"layer {layer}", f"no: {isolation.missing.get(layer, '')} (a shared kernel is shared)")
        else:
            yield missing_layer(layer, isolation.missing.get(layer, "unknown here"))


async def check_gpus(provider: HostProvider[Any, Any]) -> list[Check]:
    """Reports the NVIDIA processors, whether sandboxes may use them, and what is missing for that."""
    found = await asyncio.to_thread(gpus.find)
    if not found.gpus:
        return [ok("gpu", "none here")]
    allowed = {gpu.id for gpu in (await provider.gpus.found()).gpus}
    free = provider.gpus.free()
    checks = []
    for gpu in found.gpus:
        uuid = next((f", {name}" for name in sorted(gpu.names) if name.startswith("GPU-")), "")
        use = "not for sandboxes" if gpu.id not in allowed else "free" if gpu.id in free else "a sandbox has it"
        checks.append(ok(f"gpu {gpu.id}", f"{gpu.model or 'NVIDIA'}{uuid}; {use}"))
    if allowed:
        checks.append(ok("gpu driver", f"{found.driver or 'of an unknown version'}, from {found.source}"))
        for why in found.missing:
            sentence, _, remedy = why.partition(": ")
            checks.append(fail("gpu", sentence, remedy or "see docs/gpu.md"))
        checks.append(ok("gpu libraries", f"{len(found.files)} files, {', '.join(file.name for file in found.files)}"))
    return checks


def check_capabilities(provider: Provider) -> Iterable[Check]:
    """Reports what sandboxes can do beyond running commands, and why they cannot be paused, saved or given volumes."""
    yield ok("capabilities", ", ".join(sorted(provider.capabilities)))
    if not isinstance(provider, HostProvider):
        return
    if Capability.PAUSE not in provider.capabilities:
        yield warn("pause", "cgroups have no freezer here", "mount cgroup2, or the freezer of cgroup v1")
    if provider.why_not_saved:
        yield warn("snapshots", f"none here: {provider.why_not_saved}", "allow it, or use another machine")
    if provider.disks.why_not_loop:
        yield warn("volumes", f"none here: {provider.disks.why_not_loop}", "allow loop devices")


async def check_egress(provider: HostProvider[Any, Any]) -> Check:
    """Checks whether sandboxes can be given a network."""
    if provider.egress is None:
        return ok("egress", "no sandbox is given a network: the option egress is off")
    try:
        await provider.egress.try_out()
    except WarrenError as exc:
        remedy = "use Linux 5.9 or later, as root, with BPF allowed; without it no session can have a network"
        return warn("egress", f"sandboxes cannot be given a network: {exc.message}", exc.remedy or remedy)
    return ok("egress", "the kernel takes programs of the type sk_lookup, and warren-egress starts without rights")


def missing_layer(layer: Layer, reason: str) -> Check:
    if reason.startswith(UNREADABLE):
        remedy = "run Warren on the host, or in a container with SYS_PTRACE and SYS_ADMIN and without a seccomp profile"
        return warn(f"layer {layer}", reason, remedy)
    remedy = f"the provider oci has it; `--require {layer}` starts nothing without it"
    return warn(f"layer {layer}", f"missing: {reason}", remedy)


async def check_docker(url: str, *, needed: bool) -> AsyncIterator[Check]:
    """Checks the engine, which is optional unless docker is the provider in use (`needed`)."""
    try:
        engine = DockerEngine(url)
        try:
            info = await engine.info()
        finally:
            await engine.close()
    except WarrenError as exc:
        if needed:
            yield fail("docker", exc.message, exc.remedy or "install docker and start it, or set DOCKER_HOST")
        else:
            yield ok("docker", f"no engine (optional): {exc.message}")
        return
    for check in judge_docker(info):
        yield check


def judge_docker(info: dict[str, object]) -> Iterable[Check]:
    version = str(info.get("ServerVersion", ""))
    yield ok("docker", f"engine {version}")
    if info.get("LiveRestoreEnabled"):
        yield ok("docker live-restore", "on: sandboxes outlive the engine")
    else:
        yield warn(
            "docker live-restore",
            "off",
            '"live-restore": true in /etc/docker/daemon.json; else sandboxes die with the engine',
        )
    options = info.get("SecurityOptions")
    remapped = isinstance(options, list) and any("name=userns" in str(option) for option in options)
    found = (
        "on" if remapped else "off: the agent leaves the host's root by itself, and each sandbox has uids of its own"
    )
    yield ok("docker userns-remap", found)
    if parse_version(version) < _ARCHIVE_FIXED:
        yield ok("docker archive API", "CVE-2026-41567 is in engines before 29.5.1; Warren does not use that API")


async def check_far_side(provider: E2bProvider) -> Check:
    try:
        names = await provider.list_far_ids()
    except WarrenError as exc:
        return fail("e2b", exc.message, exc.remedy or "check WARREN_E2B_API_URL")
    return ok("e2b", f"the far side answers, {len(names)} sandboxes of this state directory are there")


async def check_leftovers(
    provider: HostProvider[Any, Any], state_dir: Path, claims: Path = UID_CLAIMS
) -> AsyncIterator[Check]:
    live: list[str] = []
    dead: list[str] = []
    for sandbox_id in await provider.list_ids():
        record = provider.load_record(sandbox_id)
        (live if record is not None and record.alive() else dead).append(sandbox_id)
    if dead:
        remedy = f"destroy them: the next worker of {state_dir} does; or remove {provider.directory(dead[0])} …"
        yield warn("leftovers", f"{len(dead)} sandboxes that have died, {len(live)} live ones", remedy)
    else:
        yield ok("leftovers", f"no dead sandbox, {len(live)} live ones")
    mounts = Hierarchies.here().mounts.values()
    for check in check_lost_cgroups({mount / "warren" for mount in mounts}, _owned(claims) | {*live, *dead}):
        yield check


def check_lost_cgroups(tops: Set[Path], known: Set[str]) -> Iterator[Check]:
    """Warns of cgroups, in the directories `tops`, of sandboxes that are not known."""
    paths = [path for top in sorted(tops) if top.is_dir() for path in top.iterdir() if path.is_dir()]
    lost = sorted(path for path in paths if path.name not in known)
    if lost:
        yield warn(
            "leftover cgroups",
            f"{len({path.name for path in lost})}, such as {lost[0]}",
            "their sandboxes' directories were removed by hand; kill what cgroup.procs in them lists, then rmdir them",
        )


def _owned(claims: Path) -> set[str]:
    """Returns the ids of sandboxes, of any state directory, whose directory exists."""
    if not claims.is_dir():
        return set()
    owners = [Path(os.readlink(path)) for path in claims.iterdir() if path.is_symlink()]
    return {owner.name for owner in owners if owner.is_dir()}
