"""What this process is doing with its sessions at the moment, which their rows do not say."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from warren.kernel.owned_tasks import OwnedTasks
from warren.model.session import Session
from warren.sessions.metrics import MetricsMeter

SessionTask = asyncio.Task[Session]


class SessionActivity:
    """`starting` and `ending` have the tasks that make and destroy sandboxes, by session id. `owners` says which
    tenant and session have a sandbox, by its id. `unsaved_ends` are the ends that the store could not save yet.
    `frozen` says since when the sandboxes of sessions stand still, and `when_resumed` what is then to be done for those
    that an earlier process has paused, both by session id."""

    def __init__(self, metrics: MetricsMeter) -> None:
        self.tasks = OwnedTasks()
        self.starting: dict[str, SessionTask] = {}
        self.ending: dict[str, SessionTask] = {}
        self.owners: dict[str, tuple[str, str]] = {}
        self.unsaved_ends: dict[str, Session] = {}
        self.frozen: dict[str, float] = {}
        self.when_resumed: dict[str, Callable[[Session], None]] = {}
        self._metrics = metrics

    def __repr__(self) -> str:
        return f"{len(self.owners)} running, {len(self.starting)} creating, {len(self.tasks)} tasks"

    def begin_start(self, session: Session, work: Coroutine[Any, Any, Session]) -> SessionTask:
        task = self.starting[session.id] = self.tasks.run(work, f"starting {session.id}")
        task.add_done_callback(lambda _: self.starting.pop(session.id, None))
        return task

    def begin_end(self, session: Session, work: Coroutine[Any, Any, Session]) -> SessionTask:
        task = self.ending[session.id] = self.tasks.run(work, f"ending {session.id}")
        task.add_done_callback(lambda _: self.ending.pop(session.id, None))
        return task

    def track(self, session: Session) -> None:
        """Remembers which session has the sandbox, after a claim or after a restart."""
        self.owners[session.sandbox_id] = (session.tenant, session.id)
        self._metrics.follow(session)

    def forget(self, tenant: str, session_id: str, sandbox_id: str) -> None:
        self.owners.pop(sandbox_id, None)
        self.frozen.pop(session_id, None)
        self.when_resumed.pop(session_id, None)
        self._metrics.forget(tenant, session_id)

    def is_ending(self, session: Session) -> bool:
        return session.id in self.ending

    def is_unsettled(self, session: Session) -> bool:
        """Whether the row may say that the session runs although it cannot be used: its start still goes on, or it
        failed and the store does not know yet."""
        return session.id in self.starting or session.id in self.unsaved_ends

    def busy(self) -> set[str]:
        """The ids of the sessions that a task is starting or ending: that task destroys what is left of their
        sandboxes."""
        tasks = (*self.starting.items(), *self.ending.items())
        return {session_id for session_id, task in tasks if not task.done()}

    async def wait_until_started(self) -> None:
        while self.starting:
            await asyncio.wait(set(self.starting.values()))
