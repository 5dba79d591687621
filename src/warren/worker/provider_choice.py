"""Chooses the provider of a sandbox, and sees to it that the provider has the image."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from warren.images.building.on_demand import ImageBuilds
from warren.interfaces.provider import Provider
from warren.model.capability import Capability, Providers, choose_provider
from warren.model.environment import Environment
from warren.model.errors import InvalidRequest
from warren.model.image import Recipe


class ProviderChoice:
    """The first provider is the default. `environments` finds an environment by name, or raises UnknownEnvironment."""

    def __init__(self, providers: Sequence[Provider], environments: Callable[[str], Environment]) -> None:
        self.providers = {provider.name: provider for provider in providers}
        self.environments = environments
        self.default = next(iter(self.providers.values()))

    @property
    def capabilities(self) -> Providers:
        """Asked for each time: a provider may find out later what its machine cannot do."""
        return {name: provider.capabilities for name, provider in self.providers.items()}

    def provider_for(self, environment: Environment, name: str = "") -> Provider:
        """Raises InvalidRequest for a provider that is not here or lacks what the environment needs."""
        return self.providers[choose_provider(self.capabilities, name or environment.provider, environment.needs)]

    def find(self, name: str = "") -> Provider:
        """Returns the named provider, or the default one. Raises InvalidRequest for one that is not here."""
        return self.providers[choose_provider(self.capabilities, name)]

    @property
    def with_volumes(self) -> Provider:
        """The first provider that has volumes, else the default one, which then refuses."""
        found = (provider for provider in self.providers.values() if Capability.VOLUMES in provider.capabilities)
        return next(found, self.default)

    def is_usual(self, provider: str, environment: Environment) -> bool:
        """Whether claims that name no provider get this one."""
        return provider == (environment.provider or self.default.name)

    async def list_ids(self, labels: dict[str, str]) -> dict[str, Provider]:
        """The sandboxes of all providers that have these labels, each with its provider."""
        listed = [(provider, await provider.list_ids(labels)) for provider in self.providers.values()]
        return {sandbox_id: provider for provider, sandbox_ids in listed for sandbox_id in sandbox_ids}

    def list_gpus(self) -> tuple[set[str], set[str]]:
        """The graphics processors that sandboxes may have, and those of them that are free."""
        known, free = set[str](), set[str]()
        for provider in self.providers.values():
            for found, ids in zip((known, free), provider.list_gpus(), strict=True):
                found.update(ids)
        return known, free


class WorkerImages:
    """The images of environments and of sessions: those that are missing are built, fetched or pulled on demand."""

    def __init__(self, choice: ProviderChoice, builds: ImageBuilds | None) -> None:
        self._choice = choice
        self.builds = builds

    def may_take_long(self, provider: Provider) -> bool:
        """Whether an image may have to be made before a sandbox can be."""
        return self.builds is not None and provider.local_images

    async def prepare(self, environment: str, image: str = "", provider: str = "", tenant: str = "") -> str:
        """Sees to it that the provider has the image, and returns the name by which it has it; "" for the
        environment's own. Raises ImageBuilding while it is being made, ImageBuildFailed if that failed a moment ago,
        and ImageNotFound for an image that the tenant may not have pulled."""
        if self.builds is None:
            return image
        found = self._choice.environments(environment)
        maker = self._choice.provider_for(found, provider)
        if maker.local_images:
            if image and image != found.image:
                image = await self._own_name(image, tenant, maker)
            name, recipe, find_version = self._image_of(found, image, maker)
            await self.builds.prepare(name, recipe, find_version)
            await maker.load_image(name)
        return image

    async def _own_name(self, image: str, tenant: str, provider: Provider) -> str:
        """Returns the name of an image that a tenant has named: the same if there is one or a recipe for it, else that
        under which it is pulled for the tenant."""
        assert self.builds is not None
        has_recipe = self.builds.recipe(image, None) is not None
        if has_recipe or await self.builds.find(image, partial(provider.image_version, image)):
            return image
        return self.builds.pulls.image_for(tenant, image) or image

    async def state(self, environment: Environment) -> str | None:
        """Returns the state of an environment's image. Returns None where it is not known: the environment may need a
        provider that this worker does not have."""
        if self.builds is None:
            return None
        try:
            provider = self._choice.provider_for(environment)
        except InvalidRequest:
            return None
        if not provider.local_images:
            return None
        return await self.builds.state(*self._image_of(environment, "", provider))

    def _image_of(
        self, environment: Environment, image: str, provider: Provider
    ) -> tuple[str, Recipe | None, Callable[[], Awaitable[str]]]:
        name = image or environment.image
        recipe = environment.recipe if name == environment.image else None
        return name, recipe, partial(provider.image_version, name)

    async def close(self) -> None:
        if self.builds is not None:
            await self.builds.close()
