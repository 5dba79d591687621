"""Owns the sandboxes of one host: interfaces/worker.py over one or more providers.

A pool per provider and environment makes sandboxes ahead, in tasks of its own (pools.py); a claim with an image or
limits of its own gets a sandbox made for it (making.py). Claimed sandboxes are in `Holdings`, and leave it by
`Destroyer`. After a restart `Recovery` takes over. All tasks belong to the worker; `close` ends them. A lock ensures
that a state directory has one worker at a time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from enum import StrEnum

from warren.images.building.on_demand import ImageBuilds
from warren.interfaces.disks import SavedDisk, SavedDisks
from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.volumes import VolumeImages
from warren.interfaces.worker import Claim, Claimed, Loss, WorkerStats
from warren.kernel.owned_tasks import OwnedTasks
from warren.kernel.shielding import run_shielded
from warren.model.capability import Providers
from warren.model.environment import Environment
from warren.model.errors import Stopping, Unavailable
from warren.model.volume import VolumeMount
from warren.worker.destruction import Destroyer
from warren.worker.holdings import Holdings
from warren.worker.making import SandboxMaker, spec_of
from warren.worker.options import WorkerOptions
from warren.worker.pool import Pool
from warren.worker.pools import PoolKey, PoolMaker, Pools
from warren.worker.provider_choice import ProviderChoice, WorkerImages
from warren.worker.readiness import Readiness
from warren.worker.recovery import Recovery


class WorkerState(StrEnum):
    NEW = "not started"
    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


class LocalWorker:
    """Call `start` before the first claim. The first provider is the default. The caller owns the providers, and closes
    them after the worker. `environments` finds an environment by name, or raises UnknownEnvironment.
    """

    def __init__(
        self,
        name: str,
        providers: Sequence[Provider],
        environments: Callable[[str], Environment],
        options: WorkerOptions,
    ) -> None:
        self.name = name
        self.guard = options.guard
        self._options = options
        self._tasks = OwnedTasks()
        self._choice = ProviderChoice(providers, environments)
        self._images = WorkerImages(self._choice, options.builds)
        self._holdings = Holdings(self._choice, self._tasks)
        pools: dict[PoolKey, Pool] = {}
        self._destroyer = Destroyer(self._choice, self._holdings, self._tasks, pools, options)
        self._maker = SandboxMaker(self._holdings, self._destroyer, options)
        pool_maker = PoolMaker(pools, self._holdings, self._maker, self._destroyer, options)
        self._pools = Pools(pools, self._choice, self._images, pool_maker, self._tasks, options)
        self._recovery = Recovery(
            self._choice, self._holdings, self._destroyer, self._maker, self._tasks, options.clock
        )
        self._readiness = Readiness(self._choice, self._images, self._pools, self._tasks, options)
        self._state = WorkerState.NEW

    def __repr__(self) -> str:
        return f"<LocalWorker {self.name} {self._state}: {self._holdings!r}>"

    @property
    def providers(self) -> Providers:
        return self._choice.capabilities

    @property
    def builds(self) -> ImageBuilds | None:
        return self._images.builds

    async def start(self) -> None:
        """Begins to fill the default environment's pool; raises UnknownEnvironment, and InvalidRequest if that
        environment asks for a provider that is not here."""
        if self._state is WorkerState.NEW:
            self._pools.start()
            self._state = WorkerState.OPEN
            self._tasks.run(self._destroyer.retry())
            self._tasks.run(self._pools.watch())
            self._tasks.run(self._destroyer.look_for_leaks())

    # -- claiming

    async def prepare(self, environment: str, image: str = "", provider: str = "", tenant: str = "") -> str:
        if self._images.builds is None:
            return image
        return await self._images.prepare(environment, image, provider, tenant)

    async def image_state(self, environment: Environment) -> str | None:
        return await self._images.state(environment)

    async def check(self) -> None:
        self._check_open()
        await self._readiness.check()

    async def claim(self, claim: Claim) -> Claimed:
        if self._state is not WorkerState.OPEN:
            self._check_open()
        environment = self._choice.environments(claim.environment)
        provider = self._choice.provider_for(environment, claim.provider)
        gpus = environment.gpus if claim.gpus is None else claim.gpus
        if claim.disk or claim.image or gpus or environment.gpus or claim.limits not in (None, environment.limits):
            return await self._claim_cold(claim, provider, environment)
        pool = self._pools.get(provider, environment)
        try:
            claimed = await pool.claim(claim.timeout_s, claim.tenant)
        except Stopping:
            self._check_open()
            return await self.claim(claim)  # only this pool has stopped: its environment was changed
        if claim.require and not all(layer in claimed.sandbox.isolation for layer in claim.require):
            pool.give_back(claimed.sandbox)
            return await self._claim_cold(claim, provider, environment)
        return await self._hand_out(claimed, "claimed-from-pool")

    async def _claim_cold(self, claim: Claim, provider: Provider, environment: Environment) -> Claimed:
        spec = spec_of(environment)
        limits, gpus = claim.limits or spec.limits, spec.gpus if claim.gpus is None else claim.gpus
        spec = replace(
            spec, image=claim.image or spec.image, limits=limits, require=claim.require, gpus=gpus, disk=claim.disk
        )
        sandbox = await self._maker.make_in_time(provider, spec, environment, claim.timeout_s)
        return await self._hand_out(Claimed(sandbox, pooled=False, provider=provider.name), "cold-created")

    async def _hand_out(self, claimed: Claimed, step: str) -> Claimed:
        try:
            self._options.fault(step)
            # A task cancelled since its last await drops what it returns: be cancelled here instead.
            await asyncio.sleep(0)
        except BaseException:
            await run_shielded(self._destroyer.undo(claimed.sandbox.id))
            raise
        self._holdings.hold(claimed.sandbox)
        return claimed

    # -- claimed sandboxes

    async def sandbox(self, sandbox_id: str) -> Sandbox:
        if (sandbox := self._holdings.claimed.get(sandbox_id)) is not None:
            return sandbox
        return await self._holdings.find(sandbox_id)

    async def freeze(self, sandbox_id: str) -> None:
        await self._holdings.freeze(sandbox_id)

    async def thaw(self, sandbox_id: str, paused_s: float) -> Sandbox:
        return await self._holdings.thaw(sandbox_id, paused_s)

    async def save_disk(self, sandbox_id: str, name: str, *, hashed: bool = True) -> SavedDisk:
        return await self._holdings.maker_of_claimed(sandbox_id).save_disk(sandbox_id, name, hashed=hashed)

    def saved_disks(self, provider: str = "") -> SavedDisks:
        return self._choice.find(provider).saved_disks

    async def attach(self, sandbox_id: str, mount: VolumeMount) -> None:
        await self._holdings.maker_of_claimed(sandbox_id).attach(sandbox_id, mount)

    async def detach(self, sandbox_id: str, volume_id: str) -> None:
        await self._holdings.maker_of_claimed(sandbox_id).detach(sandbox_id, volume_id)

    @property
    def volume_images(self) -> VolumeImages:
        return self._choice.with_volumes.volume_images

    def losses(self) -> AsyncIterator[Loss]:
        return self._holdings.losses()

    async def destroy(self, sandbox_id: str) -> None:
        await self._destroyer.destroy(sandbox_id)

    # -- before and after

    async def recover(self, known: Collection[str], frozen: Collection[str] = ()) -> dict[str, str]:
        return await self._recovery.recover(known, frozen)

    def stats(self) -> WorkerStats:
        known, free = self._choice.list_gpus()
        live, destroyer = len(self._holdings.live), self._destroyer
        return WorkerStats(
            sandboxes=live,
            claimed=len(self._holdings.claimed),
            destroying=len(destroyer.unfinished | destroyer.running.keys()),
            leaks=destroyer.leaks,
            pools=self._pools.stats(),
            guard=self.guard.stats(live),
            gpus=len(known),
            gpus_free=tuple(sorted(free)),
        )

    async def drain(self) -> None:
        if self._state is not WorkerState.CLOSED:
            self._state = WorkerState.DRAINING
        await self._pools.drain()
        await self._destroyer.drain()

    async def close(self) -> None:
        await self.drain()
        self._state = WorkerState.CLOSED
        await self._tasks.cancel()
        await self._images.close()
        await self._holdings.close()

    def _check_open(self) -> None:
        if self._state is WorkerState.NEW:
            raise Unavailable(f"the worker {self.name} is not started", retry_after_s=1.0)
        if self._state is not WorkerState.OPEN:
            raise Stopping(f"the worker {self.name} is {self._state} and takes no claims", retry_after_s=5.0)
