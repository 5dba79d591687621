"""What starting, ending, networks and secrets of sessions all work with."""

from collections.abc import Callable
from dataclasses import dataclass

from warren.interfaces.recorder import NO_RECORDER, Recorder
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.store import SessionStore
from warren.interfaces.worker import Worker
from warren.kernel.clock import Clock
from warren.model.access import Scope
from warren.model.errors import Misdirected, SandboxLost, SessionNotFound
from warren.model.session import Session
from warren.sessions.request_context import current_caller


@dataclass(frozen=True, slots=True)
class SessionBasis:
    """`worker` owns the sandboxes of this process; a coordinator has none. With `in_cluster` the store also has
    sessions of other workers, which those workers take care of. `fault` is called with the name of each step of a
    session's life, for tests of what a crash leaves.
    """

    store: SessionStore
    worker: Worker | None
    clock: Clock
    in_cluster: bool = False
    recorder: Recorder = NO_RECORDER
    fault: Callable[[str], None] = lambda step: None

    async def get(self, tenant: str, session_id: str) -> Session:
        """Raises SessionNotFound."""
        session = await self.store.get(tenant, session_id)
        if session is None:
            raise SessionNotFound(f"there is no session {session_id!r}", remedy=_remedy(tenant))
        return session

    @property
    def worker_name(self) -> str:
        return "" if self.worker is None else self.worker.name

    def worker_of(self, session: Session) -> Worker:
        """Raises Misdirected for a session of another worker of the cluster, and SandboxLost for one whose worker is
        gone."""
        worker = self.worker
        if worker is not None and worker.name == session.worker:
            return worker
        if self.in_cluster:
            raise Misdirected(f"session {session.id} is on another worker", worker=session.worker)
        raise SandboxLost(f"the worker {session.worker!r} is not here any more")

    async def sandbox_of(self, session: Session) -> Sandbox:
        """Raises what `worker_of` and `Worker.sandbox` raise."""
        return await self.worker_of(session).sandbox(session.sandbox_id)

    def is_elsewhere(self, session: Session) -> bool:
        return self.in_cluster and (self.worker is None or session.worker != self.worker.name)


def _remedy(tenant: str) -> str:
    """Administrators are told how to reach a session of another tenant, which the lists show to them."""
    caller = current_caller()
    if not caller.key_id or not caller.may(Scope.ADMIN):
        return "create one: POST /api/sessions"
    return (
        f"this key reaches the sessions of the tenant {tenant!r}; for another tenant's: "
        "warren keys create NAME --tenant TENANT --scopes read,sessions --expires 1h"
    )
