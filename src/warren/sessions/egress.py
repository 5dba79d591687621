"""Decides whether a session may have the network rules it asks for, and turns them into those its sandbox gets."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from warren.kernel.fair_thread import fair_thread
from warren.model.access import Caller
from warren.model.egress import NO_CEILING, NO_PRESETS, Ceiling, Presets
from warren.model.errors import Forbidden
from warren.model.network import NO_NETWORK, PRESETS, NetworkRules

_FEW_PAIRS: Final = 2000
FindPresets = Callable[[], Awaitable[Presets]]


async def _no_presets() -> Presets:
    return NO_PRESETS


class EgressRules:
    """`enabled`: sessions may have a network at all. `find_presets` returns what presets stand for on this machine; it
    is called only if one is named."""

    def __init__(
        self, ceiling: Ceiling = NO_CEILING, find_presets: FindPresets = _no_presets, *, enabled: bool = True
    ) -> None:
        self._enabled = enabled
        self._ceiling = ceiling
        self._find_presets = find_presets

    async def check(self, rules: NetworkRules, caller: Caller, environment: NetworkRules = NO_NETWORK) -> Presets:
        """Returns the presets that the rules name. Raises Forbidden if the rules open more than this caller may; those
        of the session's environment, which the operator wrote, are bounded by the caller's quota alone."""
        if not rules.is_open:
            return NO_PRESETS
        if not self._enabled:
            raise Forbidden(
                "this server gives no sandbox a network", remedy="ask the operator, who can set the option egress"
            )
        ceilings = (
            []
            if rules.with_headers(environment.headers) == environment
            else [("the operator of this server", self._ceiling)]
        )
        ceilings += [
            (f"the quota of this {whose.partition(':')[0]}", Ceiling(quota.egress))
            for whose, quota in caller.quota_levels
        ]
        texts = (*rules.allow, *(text for _, ceiling in ceilings for text in ceiling.texts))
        presets = await self._presets_for(texts)
        presets.expanded(rules.allow)
        for whose, ceiling in ceilings:
            check = partial(ceiling.check, rules, presets, whose, "ask for less, or ask the operator for more")
            if len(ceiling.texts) * len(rules.allow) > _FEW_PAIRS:
                await fair_thread().run(caller.tenant, check)
            else:
                check()
        return presets

    async def in_force(self, rules: NetworkRules) -> NetworkRules:
        """The rules with those of their presets in place of the names."""
        if not rules.presets:
            return rules
        presets = await self._find_presets()
        return NetworkRules.stored({**rules.as_mapping(), "allow": presets.expanded(rules.allow)}, rules.headers)

    async def _presets_for(self, texts: tuple[str, ...]) -> Presets:
        return await self._find_presets() if any(text in PRESETS for text in texts) else NO_PRESETS
