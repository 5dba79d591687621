"""Runs all checks; later ones build on earlier ones."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from warren.doctor.check import Check, Level, warn
from warren.doctor.machine import check_machine
from warren.doctor.parts import (
    check_capabilities,
    check_docker,
    check_egress,
    check_far_side,
    check_gpus,
    check_images,
    check_layers,
    check_leftovers,
    check_programs,
    check_registry,
    check_runtimes,
)
from warren.images.store.store import ImageStore
from warren.interfaces.provider import Provider
from warren.sandboxes.providers.e2b import E2bProvider
from warren.sandboxes.providers.host_provider import HostProvider
from warren.sandboxes.providers.oci import OciProvider


async def checkup(
    provider: Provider,
    images: ImageStore,
    registry: Mapping[tuple[str, str], str],
    *,
    state_dir: Path,
    bin_dir: Path,
    docker_url: str,
) -> AsyncIterator[Check]:
    """Yields each check as it is done. Checks the layers of isolation only if no check of the machine has failed.

    `registry` maps the kind and name of each entry to the mistake in its file, or to an empty text.
    """
    failed = False
    for check in (*check_machine(state_dir), *check_programs(bin_dir)):
        failed |= check.level is Level.FAIL
        yield check
    if isinstance(provider, OciProvider):
        async for check in check_runtimes(provider):
            failed |= check.level is Level.FAIL
            yield check
    async for check in check_docker(docker_url, needed=provider.name == "docker"):
        failed |= check.level is Level.FAIL
        yield check
    if isinstance(provider, E2bProvider):
        check = await check_far_side(provider)
        failed |= check.level is Level.FAIL
        yield check
    try:
        versions = images.list()
        found = [one for one in versions if one.current]
        yield check_images(versions)
        for check in check_registry(registry):
            yield check
        if isinstance(provider, HostProvider):
            async for check in check_leftovers(provider, state_dir):
                yield check
            yield await check_egress(provider)
            for check in await check_gpus(provider):
                yield check
    except PermissionError as exc:
        yield warn("images, leftovers", f"no permission for {exc.filename}", "run `sudo warren doctor`")
        return
    if found and not failed and provider.local_images:
        async for check in check_layers(provider, found[0].name):
            yield check
    for check in check_capabilities(provider):
        yield check
