"""Whether sandboxes of the default environment can be made."""

import asyncio
from typing import Final

from warren.kernel.owned_tasks import OwnedTasks
from warren.model.errors import ImageBuilding, ProviderUnavailable, WarrenError
from warren.worker.making import spec_of
from warren.worker.options import WorkerOptions
from warren.worker.pools import Pools
from warren.worker.provider_choice import ProviderChoice, WorkerImages

_FRESH_S: Final = 2.0
_ANSWER_S: Final = 5.0


class Readiness:
    def __init__(
        self,
        choice: ProviderChoice,
        images: WorkerImages,
        pools: Pools,
        tasks: OwnedTasks,
        options: WorkerOptions,
    ) -> None:
        self._choice = choice
        self._images = images
        self._pools = pools
        self._tasks = tasks
        self._options = options
        self._looking: asyncio.Task[Exception | None] | None = None
        self._looked_at = 0.0

    async def check(self) -> None:
        """Raises ProviderUnavailable with the reason if no sandbox can be made, and ImageBuilding while the image is
        being made. Looks at most once in a few seconds, however many callers ask."""
        clock = self._options.clock
        is_old = self._looked_at + _FRESH_S <= clock.now()
        if self._looking is None or (self._looking.done() and is_old):
            self._looking, self._looked_at = self._tasks.run(self._find_obstacle()), clock.now()
        # The first look may have to copy an image into an engine, which takes minutes.
        await asyncio.wait([self._looking], timeout=_ANSWER_S)
        if not self._looking.done():
            raise ProviderUnavailable(
                "no sandbox can be made yet: image and runtime are being prepared", retry_after_s=_FRESH_S
            )
        obstacle = self._looking.result()
        if isinstance(obstacle, ImageBuilding):
            raise ImageBuilding(
                f"no sandbox can be made: {obstacle.message}",
                remedy=obstacle.remedy,
                retry_after_s=_FRESH_S,
                step=obstacle.step,
                fraction=obstacle.fraction,
                about=obstacle.about,
                remaining_s=obstacle.remaining_s,
            )
        if obstacle is not None:
            remedy = obstacle.remedy if isinstance(obstacle, WarrenError) else ""
            reason = obstacle.message if isinstance(obstacle, WarrenError) else str(obstacle)
            raise ProviderUnavailable(f"no sandbox can be made: {reason}", remedy=remedy, retry_after_s=_FRESH_S)

    async def _find_obstacle(self) -> Exception | None:
        try:
            environment = self._choice.environments(self._options.default_environment)
            provider = self._choice.provider_for(environment)
            await self._images.prepare(self._options.default_environment)
            await provider.check(spec_of(environment))
            return self._pools.get(provider, environment).lasting_failure
        except WarrenError as exc:
            return exc
