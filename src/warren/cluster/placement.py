"""Chooses the worker for a new session. Pure: what is known of the workers goes in, worker ids come out. `Fleet` calls
it.

The measure is relative load: sessions held over sandboxes allowed, so that a large worker gets its larger share. Every
other criterion is worth a bounded part of a *slight* difference in load, which is SLIGHT_SESSIONS sessions (at most
SLIGHT_CAPACITY of the capacity) plus SLIGHT_LOAD of the load. A warm sandbox subtracts one slight difference; sessions
of the same tenant add up to one, waiting claims up to QUEUE_WEIGHT, chance up to CHANCE_WEIGHT. So these criteria
decide among workers with about the same load, and none of them fills a worker while another is much emptier. A machine
that runs short of memory or disk counts as loaded, too.

A worker that has the session's image comes before all that lack it and would have to get it first, however full it is.

What is known is as old as the last heartbeat, and other coordinators choose by the same knowledge. So a coordinator
counts the sessions it has sent since then once for itself and once for each other coordinator, which will have done
the same. Otherwise each of them alone would fill a worker that looks empty; and a worker with a fresh report, which
shows what all coordinators have sent, would look fuller than one with an older report.

In a large cluster only MAX_COMPARED usable workers are compared, from a random place in the list on. That is fast and
nearly as even, and a new and empty worker does not get every session at once; but a warm sandbox may be overlooked.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Final

SLIGHT_SESSIONS: Final = 3
SLIGHT_CAPACITY: Final = 0.05
SLIGHT_LOAD: Final = 0.1
QUEUE_WEIGHT: Final = 2.0
CHANCE_WEIGHT: Final = 0.5
TENANT_HALF: Final = 4  # this many sessions of a tenant weigh half of what any number can
QUEUE_HALF: Final = 8  # this many waiting claims weigh half of what any number can
HIGH_PRESSURE: Final = 0.9  # a machine with more pressure is avoided
MAX_COMPARED: Final = 64
_NO_GPU: Final = "no worker has a GPU for sandboxes"
DEFAULT_COORDINATORS: Final = 2  # when their number is unknown: little goes wrong with one or three


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker as this coordinator knows it.

    `providers`: the default one first. `capacity`: the most sandboxes it may have. `claimed`: the sessions it holds.
    `by_tenant`: how many of them belong to the requesting tenant, 0 if unknown. `ready`: warm sandboxes of each pool,
    by the names in WorkerStats. `waiting`: claims that queue there. `pressure`: from 0 to 1, where the machine takes no
    more sandboxes. `assigned`: the sessions that this coordinator has sent there since the worker's last report.
    `images`: the names of the images it has. `capabilities`: what each provider can do; nothing of one about which the
    worker does not say it. `gpus`: how many graphics processors its sandboxes may have; `gpus_free`: the ids of those
    that none has.
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
    images: Collection[str] = ()
    capabilities: Mapping[str, Collection[str]] = field(default_factory=dict)
    gpus: int = 0
    gpus_free: Sequence[str] = ()


@dataclass(frozen=True)
class Requirements:
    """What a new session needs. `pooled` is False for one with an image or limits of its own, which no pool has.
    `needs` are capabilities of the provider, which is the worker's default one if none is named. `gpus`: ids of
    graphics processors, or `any` for each. `image` is empty where it is not known."""

    environment: str
    tenant: str
    provider: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    pooled: bool = True
    needs: frozenset[str] = frozenset()
    gpus: Sequence[str] = ()
    image: str = ""


def rank_workers(
    required: Requirements,
    candidates: Sequence[Candidate],
    seed: int,
    limit: int = 3,
    *,
    coordinators: int = DEFAULT_COORDINATORS,
) -> list[str]:
    """The best worker first, then those to try if it refuses; empty if no worker is usable.

    `seed` decides among workers that are about equally good; it should differ each time and on each coordinator. The
    same arguments give the same result. `coordinators` is how many coordinators choose at the same time, this one
    included; the more exact it is, the more even is the spread.
    """
    chance = random.Random(seed)
    usable = _sample_usable(required, candidates, chance, max(MAX_COMPARED, limit))
    scored = (
        (not has_image(required, worker), score(required, worker, coordinators, chance.random()), name)
        for name, worker in usable.items()
    )
    return [name for _, _, name in nsmallest(limit, scored)]


def _sample_usable(
    required: Requirements, candidates: Sequence[Candidate], chance: random.Random, count: int
) -> dict[str, Candidate]:
    """At most `count` usable workers by their ids, from a random place in the list on; those with the image first."""
    start = chance.randrange(len(candidates)) if len(candidates) > count else 0
    rotated = [*candidates[start:], *candidates[:start]] if start else candidates
    usable = [worker for worker in rotated if is_usable(required, worker)]
    if len(usable) > count:
        usable.sort(key=lambda worker: not has_image(required, worker))  # the order is kept otherwise
    return {worker.id: worker for worker in islice(usable, count)}


def is_usable(required: Requirements, worker: Candidate) -> bool:
    return (
        worker.alive
        and not worker.draining
        and has_room(worker)
        and fits(required, worker)
        and has_gpus_free(required, worker)
    )


def has_image(required: Requirements, worker: Candidate) -> bool:
    return not required.image or required.image in worker.images


def has_room(worker: Candidate) -> bool:
    return worker.claimed + worker.assigned < worker.capacity and worker.pressure < 1


def fits(required: Requirements, worker: Candidate) -> bool:
    return (
        _has_provider(required, worker)
        and not _lacking(required, worker)
        and required.labels.items() <= worker.labels.items()
        and len(required.gpus) <= worker.gpus
    )


def has_gpus_free(required: Requirements, worker: Candidate) -> bool:
    """By its last report: it refuses at once if they are gone by now. Only the worker knows all names of one, so a name
    is taken for that of a free one; if it is not, the worker says so."""
    return len(required.gpus) <= len(worker.gpus_free)


def _has_provider(required: Requirements, worker: Candidate) -> bool:
    return not required.provider or required.provider in worker.providers


def _chosen(required: Requirements, worker: Candidate) -> str:
    return required.provider or worker.providers[0]


def _lacking(required: Requirements, worker: Candidate) -> list[str]:
    """What the provider that the session would have on the worker cannot do."""
    has = worker.capabilities.get(_chosen(required, worker))
    return [] if has is None or not required.needs else sorted(required.needs.difference(has))


def _has_ready(required: Requirements, worker: Candidate) -> bool:
    """Whether a pool has more sandboxes than this coordinator has sent sessions there since the report."""
    ready = worker.ready.get(f"{required.environment}@{required.provider}", 0)
    if required.provider in ("", *worker.providers[:1]):
        ready = worker.ready.get(required.environment, 0)
    return required.pooled and ready > worker.assigned


def score(required: Requirements, worker: Candidate, coordinators: int, chance: float) -> float:
    """How loaded a usable worker is, all in all; the lowest is the best. `chance` is from 0 to 1."""
    load = (worker.claimed + worker.assigned * coordinators) / worker.capacity
    slight = min(SLIGHT_SESSIONS / worker.capacity, SLIGHT_CAPACITY) + SLIGHT_LOAD * load
    penalty = (
        worker.by_tenant / (worker.by_tenant + TENANT_HALF)
        + QUEUE_WEIGHT * worker.waiting / (worker.waiting + QUEUE_HALF)
        + CHANCE_WEIGHT * chance
    )
    if _has_ready(required, worker):
        penalty -= 1
    return load + slight * penalty + max(0.0, worker.pressure - HIGH_PRESSURE) / (1 - HIGH_PRESSURE)


def explain_no_worker(required: Requirements, candidates: Sequence[Candidate]) -> str:
    """A sentence for the caller that says why no worker is usable; empty if one is."""
    if not candidates:
        return "the cluster has no worker"
    alive = [worker for worker in candidates if worker.alive]
    if not alive:
        return f"no worker is alive, of {len(candidates)} that are known"
    with_provider = [worker for worker in alive if _has_provider(required, worker)]
    if not with_provider:
        names = dict.fromkeys(name for worker in alive for name in worker.providers)
        return f"no worker has the provider {required.provider}, there are: {', '.join(names)}"
    able = [worker for worker in with_provider if not _lacking(required, worker)]
    if not able:
        return f"no worker that is alive has the capability {', '.join(sorted(required.needs))}"
    if len(required.gpus) > max(worker.gpus for worker in able):
        return f"no worker has {len(required.gpus)} GPUs for sandboxes" if len(required.gpus) > 1 else _NO_GPU
    fitting = [worker for worker in able if fits(required, worker)]
    if not fitting:
        return f"no worker has {_missing_labels(required, able)}"
    open_to_sessions = [worker for worker in fitting if not worker.draining]
    if not open_to_sessions:
        return "all workers that could take the session are draining"
    if not any(has_gpus_free(required, worker) for worker in open_to_sessions):
        most = max(len(worker.gpus_free) for worker in open_to_sessions)
        return f"no free GPU: {len(required.gpus)} asked for, and no worker has more than {most} free"
    return "" if any(map(has_room, open_to_sessions)) else _explain_full(open_to_sessions)


def missing_capability(required: Requirements, candidates: Sequence[Candidate]) -> tuple[str, str, list[str]] | None:
    """If no worker has what is needed, not even a dead one: a provider that has not, what it lacks, and the providers
    of other names that have it."""
    with_provider = [worker for worker in candidates if _has_provider(required, worker)]
    if not with_provider or not all(_lacking(required, worker) for worker in with_provider):
        return None
    first = with_provider[0]
    able = (name for worker in candidates for name, has in worker.capabilities.items() if required.needs.issubset(has))
    return _chosen(required, first), _lacking(required, first)[0], list(dict.fromkeys(able))


def _missing_labels(required: Requirements, workers: Sequence[Candidate]) -> str:
    """A label that no worker has, or all of them if no worker has them together."""
    for name, value in required.labels.items():
        if all(worker.labels.get(name) != value for worker in workers):
            return f"the label {name}={value}"
    return "all of the labels " + ", ".join(f"{name}={value}" for name, value in required.labels.items())


def _explain_full(workers: Sequence[Candidate]) -> str:
    at_capacity = sum(worker.claimed + worker.assigned >= worker.capacity for worker in workers)
    return (
        "all workers that could take the session are full: "
        f"{at_capacity} with as many sandboxes as they may have, {len(workers) - at_capacity} short of memory or disk"
    )
