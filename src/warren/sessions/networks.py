"""Gives the sandboxes of sessions the network rules that their rows say, and keeps trying where that fails.

`lock` is held from the reading of a row to the applying of its rules, so that older rules never come last. A sandbox
whose rules could not be applied reaches nothing.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from warren.interfaces.sandbox import Sandbox
from warren.interfaces.secrets import SecretSource
from warren.kernel.logs import get_log
from warren.kernel.owned_tasks import OwnedTasks
from warren.model.errors import SandboxLost, SandboxNotFound, SessionPaused, WarrenError
from warren.model.network import NO_NETWORK
from warren.model.session import Session
from warren.sessions.basis import SessionBasis
from warren.sessions.egress import EgressRules
from warren.sessions.network_meter import NetworkMeter

RETRY_S: Final = 5.0
REFUSED_RETRY_S: Final = 300.0
"""For rules that were refused: trying again helps only if the operator has changed something."""
_log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class SecretUser:
    """A session whose sandbox has secrets, and which versions of them."""

    session: Session
    sandbox: Sandbox
    versions: Mapping[str, str]

    def differs_from(self, versions: Mapping[str, str]) -> bool:
        return any(self.versions.get(name) != versions.get(name) for name in self.session.secrets)


class SessionNetworks:
    """`secret_users` are the sessions whose sandboxes are here and have secrets, by session id. `outdated` are the ids
    of paused sessions whose rules are to be applied when they are resumed."""

    def __init__(
        self, basis: SessionBasis, tasks: OwnedTasks, egress: EgressRules, meter: NetworkMeter, secrets: SecretSource
    ) -> None:
        self._basis = basis
        self._tasks = tasks
        self.egress = egress
        self.meter = meter
        self._secrets = secrets
        self.secret_users: dict[str, SecretUser] = {}
        self.outdated: set[str] = set()
        self._retrying: set[asyncio.Task[None]] = set()  # until networks are open
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<SessionNetworks: {len(self.secret_users)} with secrets, {len(self._retrying)} being opened>"

    def lock(self, session_id: str) -> asyncio.Lock:
        return self._locks.setdefault(session_id, asyncio.Lock())

    async def apply(self, session: Session, sandbox: Sandbox) -> None:
        """Gives the sandbox the rules of its session's row. If this fails, the sandbox reaches nothing. One that is
        paused reaches nothing either from now on: new rules may need something done in it, so it gets them later."""
        if session.state.is_paused:
            self.outdated.add(session.id)
            self.secret_users.pop(session.id, None)
            return await sandbox.set_network(NO_NETWORK)
        rules = await self.egress.in_force(session.network)
        if not session.opens_network:
            await self.meter.finish(sandbox.id)
            return await sandbox.set_network(rules)
        bounds = await self.meter.bounds_of(session)
        if session.secrets:
            # Read before the secrets: if one changes in between, `SecretRenewal` sees an old version and renews it.
            versions = await self._secrets.versions(session.tenant, session.secrets)
            await sandbox.set_network(rules, await self._secrets.find(session.tenant, session.secrets), bounds)
            self.secret_users[session.id] = SecretUser(session, sandbox, versions)
        else:
            await sandbox.set_network(rules, (), bounds)
        self.meter.follow(session, sandbox, bounds)

    async def apply_changed(self, session: Session) -> None:
        """Applies the rules of a row that has changed, if it has a sandbox. If that fails it is tried again until it
        succeeds, the row has changed, or the sandbox is gone."""
        if not session.state.can_be_lost:
            return
        try:
            await self.apply(session, await self._basis.sandbox_of(session))
        except SessionPaused:
            self.outdated.add(session.id)  # it reaches nothing since the restart
        except WarrenError as exc:
            self.keep_trying(session, after_s=_retry_s(exc))
            raise

    async def apply_resumed(self, session: Session, sandbox: Sandbox) -> None:
        """Applies the rules of a session that is paused no longer if that is due; in the background if it fails."""
        try:
            async with self.lock(session.id):
                if session.id in self.outdated:
                    self.outdated.discard(session.id)
                    session = await self._basis.get(session.tenant, session.id)
                    await self.apply(session, sandbox)
        except (SandboxLost, SandboxNotFound):
            raise
        except WarrenError as exc:
            self.keep_trying(session, after_s=_retry_s(exc))

    def forget(self, session_id: str) -> None:
        self.secret_users.pop(session_id, None)
        self.outdated.discard(session_id)

    def keep_trying(self, session: Session, after_s: float = 0.0) -> None:
        """Applies the rules in a task of its own, also for a sandbox that was taken over after a restart: it reaches
        nothing until then."""
        task = self._tasks.run(self._keep_trying(session, after_s), f"network of {session.id}")
        self._retrying.add(task)
        task.add_done_callback(self._retrying.discard)

    async def _keep_trying(self, session: Session, pause_s: float) -> None:
        while True:
            await self._basis.clock.sleep(pause_s)
            try:
                async with self.lock(session.id):
                    current = await self._basis.store.get(session.tenant, session.id)
                    if current is None or not current.state.can_be_lost or current.network != session.network:
                        return
                    if current.state.is_paused:
                        self.outdated.add(current.id)
                        return
                    return await self.apply(current, await self._basis.sandbox_of(current))
            except (SandboxLost, SandboxNotFound):
                return
            except WarrenError as exc:
                pause_s = _retry_s(exc)
                _log.warning("network_not_opened", session=session.id, error=exc.message, retry_s=pause_s)

    def stop_trying(self) -> None:
        """Stops the retries. Networks that could not be opened stay closed, and are left to the next process."""
        for task in self._retrying:
            task.cancel()

    async def run_meter(self) -> None:
        """Reads what sandboxes do with their networks, for ever."""
        await self.meter.run(reopen=self.keep_trying, close=self._close)

    def _close(self, session: Session, sandbox: Sandbox, opens_at: float) -> None:
        self._tasks.run(self._close_until(session, sandbox, opens_at), f"closing the network of {session.id}")

    async def _close_until(self, session: Session, sandbox: Sandbox, opens_at: float) -> None:
        try:
            async with self.lock(session.id):
                # Rules that were applied meanwhile have opened it. If the meter took it for open although it is closed,
                # nothing would open it again.
                self.meter.note_closed(sandbox.id, opens_at)
                await sandbox.set_network(NO_NETWORK)
        except (SandboxLost, SandboxNotFound):
            return
        except WarrenError as exc:
            _log.warning("network_not_closed", session=session.id, error=exc.message)


def _retry_s(exc: WarrenError) -> float:
    return RETRY_S if exc.retryable else REFUSED_RETRY_S
