"""The sandboxes that a worker has: which live, which are claimed, and which were lost."""

import asyncio
import weakref
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.worker import Loss
from warren.kernel.owned_tasks import OwnedTasks
from warren.model.errors import IsolationUnavailable, ProtocolError, SandboxLost, SandboxNotFound, SessionPaused
from warren.worker.provider_choice import ProviderChoice

NOT_ADOPTABLE: Final = (SandboxLost, SandboxNotFound, ProtocolError, IsolationUnavailable)


class Holdings:
    """`live` has the ids of all sandboxes that this worker has made or adopted; `makers` says which provider made each.
    `claimed` has the sandboxes of sessions, None for one that is not connected. `frozen` has those of them that were
    frozen here. `lost` says why claimed ones died."""

    def __init__(self, choice: ProviderChoice, tasks: OwnedTasks) -> None:
        self._choice = choice
        self._tasks = tasks
        self.live: set[str] = set()
        self.makers: dict[str, Provider] = {}
        self.claimed: dict[str, Sandbox | None] = {}
        self.frozen: set[str] = set()
        self.lost: dict[str, str] = {}
        self._losses: asyncio.Queue[Loss | None] = asyncio.Queue()
        self._adopting: dict[str, asyncio.Task[Sandbox]] = {}
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def __repr__(self) -> str:
        return f"{len(self.claimed)} claimed, {len(self.live)} live"

    def hold(self, sandbox: Sandbox) -> None:
        """Takes a sandbox for a session."""
        sandbox_id = sandbox.id
        self.live.add(sandbox_id)
        self.claimed[sandbox_id] = sandbox
        sandbox.when_lost(partial(self._lose, sandbox_id))

    async def find(self, sandbox_id: str) -> Sandbox:
        """Returns a claimed sandbox, and connects to it first if necessary. Raises SandboxLost, SandboxNotFound."""
        if (sandbox := self.claimed.get(sandbox_id)) is not None:
            return sandbox
        if sandbox_id in self.lost:
            raise SandboxLost(f"sandbox {sandbox_id} is lost: {self.lost[sandbox_id]}")
        if sandbox_id not in self.claimed:
            raise _not_found(sandbox_id)
        if sandbox_id in self.frozen:  # connecting would thaw it
            raise SessionPaused(f"sandbox {sandbox_id} is frozen", remedy="resume its session")
        return await self._adopt_or_lose(sandbox_id)

    async def _adopt_or_lose(self, sandbox_id: str, paused_s: float | None = None) -> Sandbox:
        try:
            return await self.adopt(sandbox_id, paused_s=paused_s)
        except NOT_ADOPTABLE as exc:
            self._lose(sandbox_id, exc.message)
            raise

    # Both run to their ends although the caller is cancelled, one at a time: an agent told of a pause is thawed.

    async def freeze(self, sandbox_id: str) -> None:
        """Raises SandboxLost, SandboxNotFound, and what the provider raises; then the sandbox runs on."""
        await asyncio.shield(self._tasks.run(self._freeze(sandbox_id)))

    async def _freeze(self, sandbox_id: str) -> None:
        async with self._turns.setdefault(sandbox_id, asyncio.Lock()):
            if (adopting := self._adopting.get(sandbox_id)) is not None:  # which waits for an answer of the sandbox
                await asyncio.wait([adopting])
            await self.maker_of_claimed(sandbox_id).freeze(sandbox_id)
            if sandbox_id in self.claimed:
                self.frozen.add(sandbox_id)

    async def thaw(self, sandbox_id: str, paused_s: float) -> Sandbox:
        """Connects to the sandbox first if necessary. Raises SandboxLost, SandboxNotFound."""
        return await asyncio.shield(self._tasks.run(self._thaw(sandbox_id, paused_s)))

    async def _thaw(self, sandbox_id: str, paused_s: float) -> Sandbox:
        async with self._turns.setdefault(sandbox_id, asyncio.Lock()):
            provider = self.maker_of_claimed(sandbox_id)
            if (sandbox := self.claimed[sandbox_id]) is None:
                sandbox = await self._adopt_or_lose(sandbox_id, paused_s)
            elif sandbox.is_frozen():  # else it was thawed before, and told of that pause
                sandbox.note_pause(paused_s)
                await provider.thaw(sandbox_id)
            self.frozen.discard(sandbox_id)
            return sandbox

    async def adopt(self, sandbox_id: str, *, paused_s: float | None = None) -> Sandbox:
        """Connects to a claimed sandbox, once however many callers wait for it. `paused_s`: how long it stood still."""
        task = self._adopting.get(sandbox_id)
        if task is None:
            task = self._adopting[sandbox_id] = self._tasks.run(self._adopt(sandbox_id, paused_s))
            task.add_done_callback(lambda _: self._adopting.pop(sandbox_id, None))
        return await asyncio.shield(task)

    async def _adopt(self, sandbox_id: str, paused_s: float | None) -> Sandbox:
        sandbox = await self.maker(sandbox_id).adopt(sandbox_id, paused_s=paused_s)
        if sandbox_id not in self.claimed:  # its destruction has begun meanwhile
            await sandbox.close()
            raise _not_found(sandbox_id)
        self.hold(sandbox)
        return sandbox

    def maker(self, sandbox_id: str) -> Provider:
        """Returns the provider that made a sandbox. If no provider lists it, returns the default one, whose errors say
        that there is no such sandbox."""
        return self.makers.get(sandbox_id) or self._choice.default

    def maker_of_claimed(self, sandbox_id: str) -> Provider:
        """Raises SandboxLost or SandboxNotFound for a sandbox that is not claimed any more."""
        if sandbox_id in self.lost:
            raise SandboxLost(f"sandbox {sandbox_id} is lost: {self.lost[sandbox_id]}")
        if sandbox_id not in self.claimed:
            raise _not_found(sandbox_id)
        return self.maker(sandbox_id)

    def _lose(self, sandbox_id: str, why: str) -> None:
        if sandbox_id in self.claimed:
            del self.claimed[sandbox_id]
            self.live.discard(sandbox_id)
            self.frozen.discard(sandbox_id)
            self.lost[sandbox_id] = why
            self._losses.put_nowait(Loss(sandbox_id, why))

    async def losses(self) -> AsyncIterator[Loss]:
        while (loss := await self._losses.get()) is not None:
            yield loss

    async def close(self) -> None:
        """Disconnects from all claimed sandboxes, which run on."""
        handles = [sandbox for sandbox in self.claimed.values() if sandbox is not None]
        self.claimed.clear()
        await asyncio.gather(*(sandbox.close() for sandbox in handles))
        self._losses.put_nowait(None)


def _not_found(sandbox_id: str) -> SandboxNotFound:
    return SandboxNotFound(f"this worker has no sandbox {sandbox_id}")
