"""The pools of a worker, one per provider and environment, made with the first claim for it.

The default environment's pool is made at the start and stays filled. A pool whose environment has changed is emptied
and replaced.
"""

import asyncio
import contextvars
from collections.abc import Mapping
from functools import partial
from typing import Final

from warren.interfaces.provider import Provider
from warren.interfaces.worker import PoolStats
from warren.kernel.logs import get_log
from warren.kernel.owned_tasks import OwnedTasks
from warren.model.environment import Environment, PoolSize
from warren.model.errors import ImageBuilding, Unavailable, UnknownEnvironment
from warren.worker.destruction import Destroyer
from warren.worker.holdings import Holdings
from warren.worker.making import SandboxMaker
from warren.worker.options import WorkerOptions
from warren.worker.pool import Pool, PoolRules
from warren.worker.pool_creations import PoolSource
from warren.worker.provider_choice import ProviderChoice, WorkerImages

NO_POOL: Final = PoolSize(0, 0, 0)  # for sandboxes with a graphics processor, which must not wait unused
RETRY_IMAGE_S: Final = 2.0
_LOOK_S: Final = 1.0
_log = get_log(__name__)

PoolKey = tuple[str, str]  # provider and environment


class PoolMaker:
    """Makes pools whose sandboxes come from `maker` and go to `destroyer`. `pools` are all pools of the worker."""

    def __init__(
        self,
        pools: Mapping[PoolKey, Pool],
        holdings: Holdings,
        maker: SandboxMaker,
        destroyer: Destroyer,
        options: WorkerOptions,
    ) -> None:
        self._pools = pools
        self._holdings = holdings
        self._maker = maker
        self._destroyer = destroyer
        self._options = options

    def make(self, provider: Provider, environment: Environment, *, is_usual: bool) -> Pool:
        options = self._options
        source = PoolSource(
            provider=provider.name,
            create=partial(self._maker.make_ahead, provider, environment),
            destroy=self._destroyer.begin,
            version=partial(provider.image_version, environment.image),
            parallel=options.parallel,
            pressure=options.guard.pressure,
            ceiling=partial(self._ceiling, (provider.name, environment.name)),
        )
        size = NO_POOL if environment.gpus else environment.pool or options.default_pool
        is_kept = is_usual and environment.name == options.default_environment
        return Pool(environment, size, source, options.clock, PoolRules(is_kept), options.recorder)

    def _ceiling(self, key: PoolKey) -> int:
        """Returns what the guard allows all pools together, less what the other pools have."""
        others = sum(pool.held for name, pool in self._pools.items() if name != key)
        return self._options.guard.most_ahead(len(self._holdings.live)) - others


class Pools:
    def __init__(
        self,
        pools: dict[PoolKey, Pool],
        choice: ProviderChoice,
        images: WorkerImages,
        maker: PoolMaker,
        tasks: OwnedTasks,
        options: WorkerOptions,
    ) -> None:
        self._pools = pools
        self._choice = choice
        self._images = images
        self._maker = maker
        self._tasks = tasks
        self._options = options
        self._retired: set[Pool] = set()
        self._drained = False

    def start(self) -> None:
        """Begins to fill the default environment's pool. Raises UnknownEnvironment, and InvalidRequest if that
        environment asks for a provider that is not here."""
        environment = self._choice.environments(self._options.default_environment)
        provider = self._choice.provider_for(environment)
        if self._images.may_take_long(provider):
            self._tasks.run(self._start_when_built())
        else:
            self.get(provider, environment)

    async def _start_when_built(self) -> None:
        """Makes the default environment's pool as soon as its image is built."""
        name, said = self._options.default_environment, ""
        while not self._drained:
            try:
                await self._images.prepare(name)
                environment = self._choice.environments(name)
                self.get(self._choice.provider_for(environment), environment)
                return
            except Exception as exc:
                if said != (said := str(exc)):
                    write = _log.info if isinstance(exc, ImageBuilding) else _log.warning
                    write("pool_not_started", pool=name, error=exc)
                if not isinstance(exc, Unavailable):
                    return
                await self._options.clock.sleep(exc.retry_after_s or RETRY_IMAGE_S)

    def get(self, provider: Provider, environment: Environment) -> Pool:
        key = (provider.name, environment.name)
        pool = self._pools.get(key)
        if pool is not None and pool.environment != environment:
            self._retire(pool)
            pool = None
        if pool is None:
            is_usual = self._choice.is_usual(provider.name, environment)
            pool = self._pools[key] = self._maker.make(provider, environment, is_usual=is_usual)
            # In a context of its own: the request that claims first is not the one that all its sandboxes are made for.
            self._tasks.run(pool.run(), context=contextvars.Context())
        return pool

    async def watch(self) -> None:
        """Replaces the pools whose environments have changed, and tells the others when their images have."""
        while True:
            await self._options.clock.sleep(_LOOK_S)
            for key, pool in list(self._pools.items()):
                if self._pools.get(key) is pool:  # else a claim has replaced it while the one before was looked at
                    try:
                        await self._look_at(key, pool)
                    except Exception as exc:
                        _log.info("pool_not_looked_at", pool=pool.environment.name, error=exc)

    async def _look_at(self, key: PoolKey, pool: Pool) -> None:
        try:
            environment = self._choice.environments(pool.environment.name)
        except UnknownEnvironment:
            self._remove(key, pool)  # claims are refused from now on
            return
        if environment == pool.environment:
            await pool.look_at_image()
            return
        self._remove(key, pool)
        # Any other environment gets a new pool with its next claim.
        if environment.name == self._options.default_environment and not self._drained:
            self.get(self._choice.provider_for(environment), environment)

    def _remove(self, key: PoolKey, pool: Pool) -> None:
        del self._pools[key]
        self._retire(pool)
        _log.info("pool_removed", pool=pool.environment.name, provider=pool.provider, reason="environment_changed")

    def _retire(self, pool: Pool) -> None:
        """Empties a pool whose environment was changed, so that nobody gets a sandbox of the old kind."""
        self._retired.add(pool)
        self._tasks.run(pool.drain()).add_done_callback(lambda _: self._retired.discard(pool))

    def stats(self) -> dict[str, PoolStats]:
        return {self._name(pool): pool.stats() for pool in self._pools.values()}

    def _name(self, pool: Pool) -> str:
        name = pool.environment.name
        return name if self._choice.is_usual(pool.provider, pool.environment) else f"{name}@{pool.provider}"

    async def drain(self) -> None:
        self._drained = True
        await asyncio.gather(*(pool.drain() for pool in (*self._pools.values(), *self._retired)))
