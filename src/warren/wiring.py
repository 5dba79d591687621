"""Puts the parts together: settings in, objects out. Only here are concrete classes chosen."""

from warren.config import Settings, check_provider
from warren.interfaces.provider import Provider
from warren.model.errors import ProviderUnavailable
from warren.registry import Registry, packaged_registry
from warren.worker.images import ImageStore


def build_registry(settings: Settings) -> Registry:
    return Registry(packaged_registry(), *([settings.registry_dir] if settings.registry_dir else []))


def build_images(settings: Settings) -> ImageStore:
    return ImageStore(settings.state_dir)


def build_provider(settings: Settings, name: str = "") -> Provider:
    """The provider of that name, or the one the settings say."""
    name = name or settings.provider
    check_provider(name)
    if name == "oci":
        from warren.worker.providers.oci import OciProvider

        return OciProvider(
            state_dir=settings.state_dir,
            images=build_images(settings),
            bin_dir=settings.bin_dir,
            runtime=settings.runtime or None,
        )
    if name == "docker":
        from warren.worker.providers.docker import DockerProvider

        return DockerProvider(
            state_dir=settings.state_dir,
            images=build_images(settings),
            bin_dir=settings.bin_dir,
            docker_url=settings.docker_url or None,
        )
    if name == "fake":
        from warren.worker.providers.fake import FakeProvider

        return FakeProvider()
    raise ProviderUnavailable(f"the provider {name!r} is not built yet", remedy="use the provider oci")
