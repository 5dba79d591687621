"""Takes over what an earlier worker of this state directory has left.

Every sandbox that a worker makes carries a label. After a crash a new worker finds by it what the old one left,
whatever that one's name was, and leaves alone what others made in the same state directory.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.kernel.owned_tasks import OwnedTasks
from warren.worker.destruction import Destroyer
from warren.worker.holdings import NOT_ADOPTABLE, Holdings
from warren.worker.making import SandboxMaker
from warren.worker.options import LABELS
from warren.worker.provider_choice import ProviderChoice

_AT_ONCE: Final = 16
# Twice, because a provider may be out of reach at first, or others may be making sandboxes all the time.
_SWEEPS_S: Final = (0.0, 65.0)
_log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    adopt: frozenset[str]
    destroy: frozenset[str]


def plan_recovery(known: Collection[str], mine: Collection[str], in_use: Collection[str]) -> RecoveryPlan:
    """`known`: sandboxes of sessions. `mine`: all that workers made here. `in_use`: those that this worker itself has
    made or adopted, or is destroying.

    A known sandbox is adopted even if it is not listed: the provider says what became of it.
    """
    return RecoveryPlan(frozenset(known) - frozenset(in_use), frozenset(mine) - frozenset(known) - frozenset(in_use))


class Recovery:
    def __init__(
        self,
        choice: ProviderChoice,
        holdings: Holdings,
        destroyer: Destroyer,
        maker: SandboxMaker,
        tasks: OwnedTasks,
        clock: Clock,
    ) -> None:
        self._choice = choice
        self._holdings = holdings
        self._destroyer = destroyer
        self._maker = maker
        self._tasks = tasks
        self._clock = clock

    async def recover(self, known: Collection[str], frozen: Collection[str] = ()) -> dict[str, str]:
        """Connects to the sandboxes in `known` and destroys every other one that a worker made. Returns, by id, why
        some of `known` cannot be taken over. Freezes those in `frozen` instead of connecting to them."""
        makers = self._holdings.makers
        async with self._maker.standstill():  # else one that is half-made now would be mistaken for an orphan
            mine = await self._choice.list_ids(LABELS)
        makers |= mine
        if unlabelled := set(known) - mine.keys():  # a sandbox that has lost its record has lost its labels
            listed = await self._choice.list_ids({})
            makers |= {sandbox_id: listed[sandbox_id] for sandbox_id in unlabelled & listed.keys()}
        plan = plan_recovery(known, mine, {*self._holdings.live, *self._destroyer.running})
        for sandbox_id in plan.destroy:
            self._destroyer.begin(sandbox_id)
        self._tasks.run(self._sweep())
        return await self._adopt_all(plan.adopt, frozen)

    async def _adopt_all(self, sandbox_ids: Collection[str], frozen: Collection[str]) -> dict[str, str]:
        at_once, reasons = asyncio.Semaphore(_AT_ONCE), dict[str, str]()

        async def take_over(sandbox_id: str) -> None:
            async with at_once:
                try:
                    if sandbox_id in frozen:
                        self._holdings.frozen.add(sandbox_id)  # also if that fails now: nobody is to use it
                        await self._holdings.maker(sandbox_id).freeze(sandbox_id)
                    else:
                        await self._holdings.adopt(sandbox_id)
                except NOT_ADOPTABLE as exc:
                    reasons[sandbox_id] = exc.message
                except Exception as exc:
                    _log.warning("sandbox_not_reachable_yet", sandbox=sandbox_id, error=exc)

        # Before they are connected: `adopt` drops a sandbox that is not claimed, as one that was destroyed meanwhile.
        self._holdings.claimed.update(dict.fromkeys(sandbox_ids))
        await asyncio.gather(*(take_over(sandbox_id) for sandbox_id in sandbox_ids))
        for sandbox_id, why in reasons.items():
            self._holdings.claimed.pop(sandbox_id, None)
            self._holdings.frozen.discard(sandbox_id)
            self._holdings.lost[sandbox_id] = why
        return reasons

    async def _sweep(self) -> None:
        """Has the providers clear away what was never finished: at once, and a minute later."""
        for pause_s in _SWEEPS_S:
            await self._clock.sleep(pause_s)
            for provider in self._choice.providers.values():
                try:
                    await provider.sweep()
                except Exception as exc:
                    _log.warning("sweep_failed", provider=provider.name, error=exc)
