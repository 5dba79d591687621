"""Chooses the worker for a new session. Pure: facts about the workers go in, worker ids come out. `Fleet` calls it.

The measure is relative load: sessions held over sandboxes allowed, so that a large worker gets its larger share. Every
other criterion is worth a bounded part of a *slight* difference in load, which is SLIGHT_SESSIONS sessions (at most
SLIGHT_CAPACITY of the capacity) plus SLIGHT_LOAD of the load. A warm sandbox subtracts one slight difference; sessions
of the same tenant add up to one, waiting claims up to QUEUE_WEIGHT, chance up to CHANCE_WEIGHT. So these criteria
decide among workers with about the same load, and none of them fills a worker while another is much emptier. A machine
that runs short of memory or disk counts as loaded, too.

A worker that has the session's image, however full, comes before all workers that would have to copy the image first.

The figures of a worker are as old as its last heartbeat, and other coordinators choose by the same figures. So a
coordinator counts the sessions it has sent since then once for itself and once for each other coordinator, which will
have done the same. Otherwise each of them alone would fill a worker that looks empty; and a worker with a fresh report,
which shows what all coordinators have sent, would look fuller than one with an older report.

In a large cluster only MAX_COMPARED usable workers are compared, from a random place in the list on. That is fast and
nearly as even, and a new and empty worker does not get every session at once; but a warm sandbox may be overlooked.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Final

from warren.model.image_reference import is_image_reference
from warren.model.tenant_images import pulled_image

SLIGHT_SESSIONS: Final = 3
SLIGHT_CAPACITY: Final = 0.05
SLIGHT_LOAD: Final = 0.1
QUEUE_WEIGHT: Final = 2.0
CHANCE_WEIGHT: Final = 0.5
TENANT_HALF: Final = 4  # with this many sessions of the tenant the penalty is half of its maximum
QUEUE_HALF: Final = 8  # with this many waiting claims the penalty is half of its maximum
HIGH_PRESSURE: Final = 0.9  # a machine with more pressure is avoided
MAX_COMPARED: Final = 16
_NO_GPU: Final = "no worker has a GPU for sandboxes"
DEFAULT_COORDINATORS: Final = 2  # when their number is unknown: nearly right for one and three, too


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker as this coordinator knows it.

    `providers`: the default one first. `capacity`: the most sandboxes it may have. `claimed`: the sessions it holds.
    `by_tenant`: how many of them belong to the requesting tenant, 0 if unknown. `ready`: warm sandboxes of each pool,
    by the names in WorkerStats. `waiting`: claims that queue there. `pressure`: from 0 to 1; at 1 the machine takes no
    more sandboxes. `assigned`: the sessions that this coordinator has sent there since the worker's last report.
    `images`: the names of the images it has. `capabilities`: what each provider can do, if the worker reports it.
    `gpus`: the number of graphics processors for sandboxes. `gpus_free`: the ids of those that no sandbox has.
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
    """What a new session needs. `pooled`: False if it has an image or limits of its own, because no pool has such
    sandboxes. `needs`: capabilities of the provider, which is the worker's default if none is named. `gpus`: ids of
    graphics processors, or `any` for each. `image`: empty if unknown. `worker`: the only one that may
    have it, if any, and `why` that is so."""

    environment: str
    tenant: str
    provider: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    pooled: bool = True
    needs: frozenset[str] = frozenset()
    gpus: Sequence[str] = ()
    image: str = ""
    worker: str = ""
    why: str = ""


def rank_workers(
    required: Requirements,
    candidates: Sequence[Candidate],
    seed: int,
    limit: int = 3,
    *,
    coordinators: int = DEFAULT_COORDINATORS,
) -> list[str]:
    """Returns the best worker first, then those to try if it refuses; empty if no worker is usable.

    `seed` decides among workers that are about equally good; it should differ each time and on each coordinator. The
    same arguments give the same result. `coordinators` is how many coordinators choose at the same time, including this
    one; the more exact it is, the more even is the spread.
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
    """Returns at most `count` usable workers by their ids, from a random place in the list on; those with the image
    first."""
    start = chance.randrange(len(candidates)) if len(candidates) > count else 0
    having, others = dict[str, Candidate](), dict[str, Candidate]()
    for at in range(len(candidates)):
        worker = candidates[at + start - len(candidates)]
        if not is_usable(required, worker):
            continue
        some = having if has_image(required, worker) else others
        if len(some) < count:
            some[worker.id] = worker
        if len(having) == count:
            break
    return dict(islice((having | others).items(), count))


def is_usable(required: Requirements, worker: Candidate) -> bool:
    return (
        worker.alive
        and not worker.draining
        and has_room(worker)
        and fits(required, worker)
        and has_gpus_free(required, worker)
    )


def has_image(required: Requirements, worker: Candidate) -> bool:
    """Returns whether the worker has the image, be it one that was pulled for the tenant alone."""
    if not required.image or required.image in worker.images:
        return True
    return is_image_reference(required.image) and pulled_image(required.tenant, required.image) in worker.images


def has_room(worker: Candidate) -> bool:
    return worker.claimed + worker.assigned < worker.capacity and worker.pressure < 1


def fits(required: Requirements, worker: Candidate) -> bool:
    return (
        required.worker in ("", worker.id)
        and _has_provider(required, worker)
        and not _lacking(required, worker)
        and required.worker in ("", worker.id)
        and required.labels.items() <= worker.labels.items()
        and len(required.gpus) <= worker.gpus
    )


def has_gpus_free(required: Requirements, worker: Candidate) -> bool:
    """Judges by the worker's last report; the worker refuses at once if they are gone by now. A processor has several
    names that only its worker knows, so every name is taken for that of a free one."""
    return len(required.gpus) <= len(worker.gpus_free)


def _has_provider(required: Requirements, worker: Candidate) -> bool:
    return not required.provider or required.provider in worker.providers


def _chosen_provider(required: Requirements, worker: Candidate) -> str:
    return required.provider or worker.providers[0]


def _lacking(required: Requirements, worker: Candidate) -> list[str]:
    """Returns the needed capabilities that the session's provider on the worker does not have."""
    has = worker.capabilities.get(_chosen_provider(required, worker))
    return [] if has is None or not required.needs else sorted(required.needs.difference(has))


def _has_ready(required: Requirements, worker: Candidate) -> bool:
    """Returns whether a pool has more sandboxes than this coordinator has sent sessions there since the report."""
    ready = worker.ready.get(f"{required.environment}@{required.provider}", 0)
    if required.provider in ("", *worker.providers[:1]):
        ready = worker.ready.get(required.environment, 0)
    return required.pooled and ready > worker.assigned


def score(required: Requirements, worker: Candidate, coordinators: int, chance: float) -> float:
    """Returns how loaded a usable worker is, all things considered; the lowest is the best. `chance` is from 0 to 1."""
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
    """Returns a sentence that tells the caller why no worker is usable; empty if one is."""
    if not candidates:
        return "the cluster has no worker"
    alive = [worker for worker in candidates if worker.alive]
    if not alive:
        return f"no worker is alive, of {len(candidates)} that are known"
    if required.worker and not (alive := [worker for worker in alive if worker.id == required.worker]):
        return f"the worker {required.worker!r}, {required.why}, is not alive"
    with_provider = [worker for worker in alive if _has_provider(required, worker)]
    if not with_provider:
        names = dict.fromkeys(name for worker in alive for name in worker.providers)
        return f"no worker has the provider {required.provider}, there are: {', '.join(names)}"
    if required.worker and not any(worker.id == required.worker for worker in with_provider):
        return f"the worker {required.worker}, which has the session's volumes, is not there"
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
    """If no worker, not even a dead one, has what is needed, returns a provider, what it lacks, and the names of
    providers that have it. Otherwise returns None."""
    with_provider = [worker for worker in candidates if _has_provider(required, worker)]
    if not with_provider or not all(_lacking(required, worker) for worker in with_provider):
        return None
    first = with_provider[0]
    able = (name for worker in candidates for name, has in worker.capabilities.items() if required.needs.issubset(has))
    return _chosen_provider(required, first), _lacking(required, first)[0], list(dict.fromkeys(able))


def _missing_labels(required: Requirements, workers: Sequence[Candidate]) -> str:
    """Names a label that no worker has, or all labels if no worker has them together."""
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
