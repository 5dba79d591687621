"""Builds from settings what makes images: `warren image build` and what calls it."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from warren.app.wiring import build_egress_policy, build_host_room, build_pull_options, build_pull_rules
from warren.config.settings import Settings, environment_with
from warren.images.building.settings import BuildNetwork, BuildProgress, BuildProvider, BuildSettings, StepLimits
from warren.images.trees.own_images import Progress
from warren.model.egress import EVERYTHING, NOTHING
from warren.model.errors import ImageNotFound, MachineFull
from warren.model.network import NO_NETWORK, PRESETS, NetworkRules
from warren.model.spec import MIB, Limits
from warren.sandboxes.host.machine_size import memory_total_mb, most_processes, usable_cores

if TYPE_CHECKING:
    from warren.images.store.store import ImageStore
    from warren.interfaces.images import Images, ImageVersion

_MEMORY_MB = 2048
_DISK_MB = 10240
_PIDS = 1024
_OPEN_FILES = 8192
_FREE_FILES = 20  # one in so many of the files that a disk can have stays free
_AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")


def build_image_settings(settings: Settings, *, for_tenant: bool = False) -> BuildSettings:
    """`for_tenant`: a tenant has started the build, which then pulls no more than a server does by itself."""
    return BuildSettings(
        new_provider=partial(_new_provider, settings),
        find_network=partial(find_build_network, settings),
        limits=StepLimits(_limits(settings), settings.image_build_timeout_s),
        cache_mb=settings.image_cache_mb,
        docker_url=settings.docker_url,
        pull=partial(_pull_for_template if for_tenant else _pull, settings),
        registry=settings.image_registry,
    )


def pull_own_image(settings: Settings, images: "ImageStore", name: str, progress: Progress) -> "ImageVersion":
    """Pulls an image that the operator has named. `name` is its reference and its name here."""
    from warren.images.registry.pull import pull_image

    return pull_image(images, name, name, progress, options=build_pull_options(settings))


def build_room_check(settings: Settings) -> Callable[[], None]:
    """Returns what raises MachineFull when too little of the disk is free, or too few files can still be made there."""
    from warren.worker.guard import default_disk_reserve, read_disk, read_room

    reserve = settings.min_free_disk_mb or default_disk_reserve(read_room(settings.state_dir))

    def check() -> None:
        disk = read_disk(settings.state_dir)
        free_mb = disk.f_bavail * disk.f_frsize // MIB
        if free_mb < reserve:
            raise _full(free_mb, reserve)
        files = disk.f_files // _FREE_FILES  # some file systems have no such number, and say 0
        if disk.f_favail < files:
            raise MachineFull(f"the server's disk has room for {disk.f_favail} more files, {files} must stay free")

    return check


def _full(free_mb: int, reserve: int) -> MachineFull:
    return MachineFull(f"the server's disk has {free_mb} MiB free, {reserve} MiB must stay free")


def pull_tenant_image(settings: Settings, images: "ImageStore", image: str, progress: Progress) -> "ImageVersion":
    """Pulls an image for a tenant; see images/registry/tenant_pulls.py. Raises MachineFull if the disk has no room."""
    from warren.images.registry.tenant_pulls import pull_for_tenant
    from warren.images.transfer.import_tree import ImageTooLarge
    from warren.worker.guard import default_disk_reserve, read_room

    room = read_room(settings.state_dir)
    reserve = settings.min_free_disk_mb or default_disk_reserve(room)
    check_room = build_room_check(settings)  # again and again, because others pull at the same time
    check_room()
    options = build_pull_options(settings)
    most = (room.disk_free - reserve) * MIB // 2  # its layers and its files are there at the same time
    try:
        return pull_for_tenant(
            *(images, image, progress),
            options=replace(
                options, caps=replace(options.caps, size=min(options.caps.size, most), check_room=check_room)
            ),
            rules=build_pull_rules(settings),
            max_bytes=settings.image_pull_mb * MIB,
        )
    except ImageTooLarge as exc:
        if most >= settings.image_pull_mb * MIB:
            raise
        raise _full(room.disk_free, reserve) from exc


def _pull(
    settings: Settings, images: "ImageStore", reference: str, name: str, progress: BuildProgress
) -> "ImageVersion":
    from warren.images.registry.pull import pull_image

    return pull_image(images, reference, name, progress, options=build_pull_options(settings), shell_needed=False)


def _pull_for_template(
    settings: Settings, images: "ImageStore", reference: str, name: str, progress: BuildProgress
) -> "ImageVersion":
    """Pulls what a template is built on and the operator has named, where servers pull. Raises ImageNotFound for what
    the docker provider has in its engine: sandboxes of all tenants would use what was pulled under that name."""
    if not build_pull_rules(settings).pulls_own(reference):
        raise ImageNotFound(
            f"there is no image {name!r} on this server, which does not pull it",
            remedy="the operator pulls it with `warren image pull`, or sets image_pull",
        )
    if "docker" in settings.providers and asyncio.run(_find_in_engine(settings, name)):
        raise ImageNotFound(
            f"the image {name!r} is only in the Docker engine, and templates are built on images of Warren's",
            remedy="the operator adds it with `warren image import`",
        )
    return _pull(settings, images, reference, name, progress)


async def _find_in_engine(settings: Settings, name: str) -> bool:
    from warren.sandboxes.providers.docker_engine import DockerEngine

    engine = DockerEngine(settings.docker_url)
    try:
        return await engine.image(name) is not None
    finally:
        await engine.close()


def _limits(settings: Settings) -> Limits:
    place = settings.state_dir.absolute()
    while not place.exists():
        place = place.parent
    free_mb = shutil.disk_usage(place).free // MIB
    return Limits(
        memory_mb=settings.image_build_memory_mb or max(64, min(_MEMORY_MB, memory_total_mb() // 2)),
        cpus=settings.image_build_cpus or usable_cores(),
        disk_mb=settings.image_build_disk_mb or max(16, min(_DISK_MB, free_mb * 4 // 5)),
        pids=min(_PIDS, most_processes() // 4),
        open_files=_OPEN_FILES,
    )


def _new_provider(settings: Settings, state_dir: Path, images: "Images") -> BuildProvider:
    from warren.sandboxes.network.egress import Egress
    from warren.sandboxes.providers.oci import OciProvider

    return OciProvider(
        state_dir=state_dir,
        images=images,
        bin_dir=settings.bin_dir,
        runtime=settings.runtime or None,
        keep_changes=True,
        room=build_host_room(settings),
        egress=Egress(build_egress_policy(settings)) if settings.egress else None,
    )


def read_authorities() -> str:
    """Returns the authorities that this machine trusts, in PEM; empty if they are not where Debian or Red Hat have
    them."""
    for file in (environment_with({}).get("SSL_CERT_FILE", ""), *_AUTHORITIES):
        try:
            if file:
                return Path(file).read_text("ascii", errors="ignore")
        except OSError:
            continue
    return ""


def find_build_network(settings: Settings) -> BuildNetwork:
    """Returns what steps of builds may reach. A preset that this machine does not know is left out."""
    from warren.config.apt_sources import read_apt_sources
    from warren.config.presets import PresetReader

    texts = settings.image_network
    if not settings.egress or texts in ((), (NOTHING,)):
        return BuildNetwork(NO_NETWORK)
    apt_sources, authorities = read_apt_sources(), read_authorities()
    presets = PresetReader(settings.egress_presets, environment_with({})).read()
    known = [text for text in texts if text not in PRESETS or text in presets.known]
    if texts == (EVERYTHING,):
        every = tuple(presets.known)  # named as well, because `internet` opens no index at a private address
        rules = NetworkRules(internet=True, allow=presets.expanded(every))
        return BuildNetwork(rules, presets.env(every), apt_sources, authorities)
    return BuildNetwork(NetworkRules(allow=presets.expanded(known)), presets.env(known), apt_sources, authorities)
