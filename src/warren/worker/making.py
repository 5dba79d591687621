"""Makes sandboxes, for pools and for claims that no pool can meet.

All creations share `parallel` slots, first come, first served, and ask the guard before they begin.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.kernel.shielding import run_shielded
from warren.model.code import find_language
from warren.model.environment import Environment
from warren.model.errors import MachineFull, NoCapacity
from warren.model.spec import SandboxSpec
from warren.sandboxes.keepers import start_keeper
from warren.worker.destruction import Destroyer
from warren.worker.holdings import Holdings
from warren.worker.options import LABELS, WorkerOptions
from warren.worker.user_name import UserNames


class SandboxMaker:
    def __init__(self, holdings: Holdings, destroyer: Destroyer, options: WorkerOptions) -> None:
        self._holdings = holdings
        self._destroyer = destroyer
        self._options = options
        self._slots = asyncio.Semaphore(options.parallel)
        self._still = asyncio.Lock()
        self._creating = 0
        self._user_names = UserNames()

    @asynccontextmanager
    async def standstill(self) -> AsyncIterator[None]:
        """Takes every slot, so that no sandbox is half-made within the block."""
        async with AsyncExitStack() as stack:
            # Two that took the slots one by one would wait for each other's.
            await stack.enter_async_context(self._still)
            for _ in range(self._options.parallel):
                await stack.enter_async_context(self._slots)
            yield

    async def make_in_time(
        self, provider: Provider, spec: SandboxSpec, environment: Environment, timeout_s: float
    ) -> Sandbox:
        """Makes a sandbox. Raises NoCapacity if that takes longer than `timeout_s`; nothing is left behind then, nor
        after a cancellation."""
        making = asyncio.ensure_future(self._make_with_user(provider, spec, environment))
        alarm = asyncio.ensure_future(self._options.clock.sleep(timeout_s))
        try:
            await asyncio.wait((making, alarm), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await run_shielded(self._undo(making))
            raise
        finally:
            alarm.cancel()
        if making.done():
            return making.result()
        await run_shielded(self._undo(making))
        raise NoCapacity(
            f"no sandbox of {spec.image} could be made within {timeout_s:g} s, {self._creating} are being made",
            remedy="try again later, or wait longer",
            retry_after_s=1.0,
        )

    async def _undo(self, making: "asyncio.Task[Sandbox]") -> None:
        making.cancel()
        await asyncio.wait([making])
        if not making.cancelled() and making.exception() is None:
            await self._destroyer.undo(making.result().id)

    async def make_ahead(self, provider: Provider, environment: Environment) -> Sandbox:
        """Makes a sandbox for the pool and starts the code contexts of its environment in it. Destroys it if one of
        them cannot be started."""
        sandbox = await self._make_with_user(provider, spec_of(environment), environment)
        try:
            for name in environment.contexts:
                language = find_language(name)
                # Without an idle time: the sandbox may stay in the pool for longer than that.
                await start_keeper(
                    sandbox,
                    language,
                    language.default_context,
                    cwd=environment.home,
                    env=environment.user_env,
                    idle_s=0,
                    image=environment.image,
                )
        except BaseException:
            await run_shielded(self._destroyer.undo(sandbox.id))
            raise
        return sandbox

    async def _make_with_user(self, provider: Provider, spec: SandboxSpec, environment: Environment) -> Sandbox:
        if not environment.user:
            return await self._make(provider, spec, environment)
        # If the image changes while the sandbox is made, nobody knows which version the sandbox has. What is written
        # then must not be remembered for later sandboxes.
        before = await provider.image_version(spec.image)
        sandbox = await self._make(provider, spec, environment)
        try:
            version = await provider.image_version(spec.image)
            image = (provider.name, spec.image, version) if version == before else ()
            await self._user_names.add(sandbox, environment.user, environment.home, image)
        except BaseException:
            await run_shielded(self._destroyer.undo(sandbox.id))
            raise
        return sandbox

    async def _make(self, provider: Provider, spec: SandboxSpec, environment: Environment) -> Sandbox:
        options = self._options
        async with self._slots:
            began = time.perf_counter()
            try:
                # No await between the check and the count, or several creations would take the same last room.
                options.guard.check(len(self._holdings.live), self._creating)
                self._creating += 1
                try:
                    with options.tracing.span("create", environment=environment.name, provider=provider.name):
                        sandbox = await provider.create(spec)
                finally:
                    self._creating -= 1
            except MachineFull as exc:
                options.recorder.machine_full(exc.what)
                raise
            options.recorder.sandbox_made(provider.name, time.perf_counter() - began)
            self._holdings.live.add(sandbox.id)
            self._holdings.makers[sandbox.id] = provider
            return sandbox


def spec_of(environment: Environment) -> SandboxSpec:
    return SandboxSpec(
        environment.image,
        environment.limits,
        environment.env,
        io=environment.io,
        labels=LABELS,
        writable_root=environment.writable_root,
        sudo=environment.sudo,
        gpus=environment.gpus,
    )
