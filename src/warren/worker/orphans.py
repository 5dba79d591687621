"""What a worker takes over from the one before it, and what it clears away: sets in, plan out."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recovery:
    adopt: frozenset[str]
    destroy: frozenset[str]


def plan_recovery(known: Collection[str], mine: Collection[str], in_use: Collection[str]) -> Recovery:
    """`known`: those that sessions have. `mine`: those this worker has ever made. `in_use`: those of this life.

    One that is known is adopted also if it is not found: the provider says what became of it.
    """
    return Recovery(frozenset(known) - frozenset(in_use), frozenset(mine) - frozenset(known) - frozenset(in_use))
