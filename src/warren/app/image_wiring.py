"""Builds from settings what makes images: `warren image build` and what calls it."""

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from warren.app.wiring import build_egress_policy, build_host_room, build_pull_options
from warren.config.settings import Settings, environment_with
from warren.images.building.settings import BuildNetwork, BuildProgress, BuildProvider, BuildSettings, StepLimits
from warren.model.egress import EVERYTHING, NOTHING
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
_AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")


def build_image_settings(settings: Settings) -> BuildSettings:
    return BuildSettings(
        new_provider=partial(_new_provider, settings),
        find_network=partial(find_build_network, settings),
        limits=StepLimits(_limits(settings), settings.image_build_timeout_s),
        cache_mb=settings.image_cache_mb,
        docker_url=settings.docker_url,
        pull=partial(_pull, settings),
        registry=settings.image_registry,
    )


def _pull(
    settings: Settings, images: "ImageStore", reference: str, name: str, progress: BuildProgress
) -> "ImageVersion":
    from warren.images.registry.pull import pull_image

    return pull_image(images, reference, name, progress, options=build_pull_options(settings), shell_needed=False)


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
        return BuildNetwork(NetworkRules(internet=True), presets.env(tuple(presets.known)), apt_sources, authorities)
    return BuildNetwork(NetworkRules(allow=presets.expanded(known)), presets.env(known), apt_sources, authorities)
