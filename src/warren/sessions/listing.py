"""What there is: pages of sessions, figures of sessions and workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from warren.interfaces.store import Page
from warren.interfaces.worker import WorkerStats
from warren.model.errors import InvalidRequest
from warren.model.session import MAX_METADATA, Session
from warren.sessions.manager import Sessions


async def listed(sessions: Sessions, tenant: str, page: Page) -> tuple[Sequence[Session], str | None]:
    """The sessions of a page, newest first, and after which one the next page begins."""
    found = list(await sessions.list(tenant, replace(page, limit=page.limit + 1)))
    more = found[page.limit - 1].id if len(found) > page.limit else None
    return found[: page.limit], more


def read_pairs(metadata: Sequence[str]) -> dict[str, str]:
    """`name=value` each."""
    if len(metadata) > MAX_METADATA:
        raise InvalidRequest(f"{len(metadata)} metadata were asked for, no session has more than {MAX_METADATA}")
    pairs = {}
    for text in metadata:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidRequest(f"metadata is {text!r}", remedy="write name=value")
        pairs[name] = value
    return pairs


@dataclass(frozen=True, slots=True)
class Figures:
    """How many sessions are in which state, and the figures of each worker."""

    sessions: Mapping[str, int]
    workers: Mapping[str, WorkerStats]


async def figures(sessions: Sessions) -> Figures:
    counts = await sessions.store.count()
    workers = {worker.name: worker.stats() for worker in sessions.lifecycle.workers.values()}
    return Figures({str(state): count for state, count in counts.items()}, workers)
