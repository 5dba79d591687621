"""Which worker a new session goes to: what is known of the workers in, names out. Nothing here waits or acts.

The measure is relative load: sessions held over sandboxes allowed, so that a large worker gets its larger share.
Everything else is worth a bounded part of a *slight* difference in load: FEW sessions (at most FEW_SHARE of the
capacity) and SHARE of the load. A warm sandbox takes one off; sessions of the same tenant add up to one, claims that
wait up to QUEUE, chance up to CHANCE. So these decide among workers that are about equally loaded, and none of them
fills a worker while another is much emptier. A machine that gets short of memory or disk counts as loaded, too.

What is known is as old as the last heartbeat, and other coordinators choose by the same knowledge. So a coordinator
counts what it has sent since then once for itself and once for each of the others, who will have done alike. Else
each of them alone would fill up what looks empty; and a worker that was heard of just now, and shows what all
have sent, would look fuller than one that was not, and shows only what this one has.

In a large cluster only SEEN usable workers are looked at, from a place in the list that chance decides. That is quick
and nearly as even, and no worker that is new and empty gets everything at once; but a warm sandbox may be overlooked.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Final

FEW: Final = 3
FEW_SHARE: Final = 0.05
SHARE: Final = 0.1
QUEUE: Final = 2.0
CHANCE: Final = 0.5
HALF_TENANT: Final = 4  # so many sessions of a tenant weigh half of what any number can
HALF_QUEUE: Final = 8  # so many claims that wait weigh half of what any number can
SHORT: Final = 0.9  # the pressure from which on a machine is avoided
SEEN: Final = 64
COORDINATORS: Final = 2  # when it is not known how many there are: little is wrong with one or three


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker as this coordinator knows it.

    `providers`: the default one first. `capacity`: the most sandboxes it may have. `claimed`: the sessions it holds.
    `by_tenant`: how many of them belong to the tenant that asks, 0 if unknown. `ready`: warm sandboxes of each pool,
    by the names in WorkerStats. `waiting`: claims that queue there. `pressure`: from 0 to 1, where the machine takes
    nothing more. `assigned`: what this coordinator has sent there since the worker was last heard of.
    """

    id: str
    providers: Sequence[str]
    labels: Mapping[str, str]
    capacity: int
    claimed: int
    by_tenant: int
    ready: Mapping[str, int]
    waiting: int
    pressure: float
    draining: bool
    alive: bool
    assigned: int


@dataclass(frozen=True)
class Want:
    """What a session needs. `pooled` is False for one with an image or limits of its own: no pool has that."""

    environment: str
    tenant: str
    provider: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    pooled: bool = True


def ranked(
    want: Want, candidates: Sequence[Candidate], tie: int, most: int = 3, *, coordinators: int = COORDINATORS
) -> list[str]:
    """The best worker first, then whom to ask if that one refuses; empty if there is none.

    `tie` is any number, another one each time and on each coordinator: it decides among workers that are about
    equally good. The same arguments give the same answer. `coordinators` is how many choose at the same time, with
    this one; the more exactly it is known, the more even is the spread.
    """
    chance = random.Random(tie)
    usable = _some_usable(want, candidates, chance, max(SEEN, most))
    scored = ((score(want, worker, coordinators, chance.random()), name) for name, worker in usable.items())
    return [name for _, name in nsmallest(most, scored)]


def _some_usable(
    want: Want, candidates: Sequence[Candidate], chance: random.Random, count: int
) -> dict[str, Candidate]:
    """So many by their ids, or all, from a place in the list that chance decides."""
    start = chance.randrange(len(candidates)) if len(candidates) > count else 0
    around = [*candidates[start:], *candidates[:start]] if start else candidates
    return {worker.id: worker for worker in islice((each for each in around if is_usable(want, each)), count)}


def is_usable(want: Want, worker: Candidate) -> bool:
    return worker.alive and not worker.draining and has_room(worker) and fits(want, worker)


def has_room(worker: Candidate) -> bool:
    return worker.claimed + worker.assigned < worker.capacity and worker.pressure < 1


def fits(want: Want, worker: Candidate) -> bool:
    return _has_provider(want, worker) and want.labels.items() <= worker.labels.items()


def _has_provider(want: Want, worker: Candidate) -> bool:
    return not want.provider or want.provider in worker.providers


def _has_ready(want: Want, worker: Candidate) -> bool:
    """Whether a pool has more than what this coordinator has sent there since."""
    ready = worker.ready.get(f"{want.environment}@{want.provider}", 0)
    if want.provider in ("", *worker.providers[:1]):
        ready = worker.ready.get(want.environment, 0)
    return want.pooled and ready > worker.assigned


def score(want: Want, worker: Candidate, coordinators: int, chance: float) -> float:
    """How loaded a usable worker is, all in all: the least is the best. `chance` from 0 to 1."""
    load = (worker.claimed + worker.assigned * coordinators) / worker.capacity
    slight = min(FEW / worker.capacity, FEW_SHARE) + SHARE * load
    against = (
        worker.by_tenant / (worker.by_tenant + HALF_TENANT)
        + QUEUE * worker.waiting / (worker.waiting + HALF_QUEUE)
        + CHANCE * chance
    )
    if _has_ready(want, worker):
        against -= 1
    return load + slight * against + max(0.0, worker.pressure - SHORT) / (1 - SHORT)


def why_none(want: Want, candidates: Sequence[Candidate]) -> str:
    """A sentence for the caller that says what no worker has; empty if there is one to be had."""
    if not candidates:
        return "the cluster has no worker"
    alive = [worker for worker in candidates if worker.alive]
    if not alive:
        return f"no worker is alive, of {len(candidates)} that are known"
    provided = [worker for worker in alive if _has_provider(want, worker)]
    if not provided:
        names = dict.fromkeys(name for worker in alive for name in worker.providers)
        return f"no worker has the provider {want.provider}, there are: {', '.join(names)}"
    fitting = [worker for worker in provided if fits(want, worker)]
    if not fitting:
        return f"no worker has {_missing_labels(want, provided)}"
    working = [worker for worker in fitting if not worker.draining]
    if not working:
        return "all workers that could take the session are draining"
    return "" if any(map(has_room, working)) else _full(working)


def _missing_labels(want: Want, workers: Sequence[Candidate]) -> str:
    """The label that none of them has, or all that were asked for if it is only together that nobody has them."""
    for name, value in want.labels.items():
        if all(worker.labels.get(name) != value for worker in workers):
            return f"the label {name}={value}"
    return "all of the labels " + ", ".join(f"{name}={value}" for name, value in want.labels.items())


def _full(workers: Sequence[Candidate]) -> str:
    taken = sum(worker.claimed + worker.assigned >= worker.capacity for worker in workers)
    return (
        "all workers that could take the session are full: "
        f"{taken} with as many sandboxes as they may have, {len(workers) - taken} short of memory or disk"
    )
