"""Reads what sandboxes do with their networks, and reports what is new.

`run` reads every sandbox that has a network each READ_S; the lifecycle has the last reading made before it destroys or
closes one. When the report says that nothing is left of the tenant's quota, the sandbox's network is closed, and opened
again when something may be left. When the bounds of connections and rate have changed, the rules are applied again with
the new ones.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from warren.interfaces.recorder import NO_RECORDER, Recorder
from warren.interfaces.sandbox import Sandbox
from warren.kernel.clock import Clock
from warren.kernel.logs import get_log
from warren.model.errors import SandboxLost, SandboxNotFound, WarrenError
from warren.model.network import EgressBound, NetworkUse
from warren.model.session import Session

READ_S: Final = 3.0
_LAST_READING_S: Final = 1.0
_log = get_log(__name__)

Report = Callable[[Session, NetworkUse], Awaitable[float]]
"""Takes what a session has used since the last report. Returns how many seconds it must do without a network, or 0."""
Bounds = tuple[EgressBound, ...]
BoundsOf = Callable[[Session], Awaitable[Bounds]]
Reopen = Callable[[Session], None]
Close = Callable[[Session, Sandbox, float], None]


async def _unreported(session: Session, use: NetworkUse) -> float:
    return 0.0


async def _unbounded(session: Session) -> Bounds:
    return ()


@dataclass(slots=True)
class _MeteredNetwork:
    session: Session
    sandbox: Sandbox
    bounds: Bounds = ()
    last: NetworkUse = field(default_factory=NetworkUse)
    opens_at: float = 0.0
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class NetworkMeter:
    """`bounds_of` returns the bounds of connections and rate that a session shares with others."""

    def __init__(
        self,
        clock: Clock,
        report: Report = _unreported,
        bounds_of: BoundsOf = _unbounded,
        read_s: float = READ_S,
        recorder: Recorder = NO_RECORDER,
    ) -> None:
        self._clock = clock
        self._report = report
        self._recorder = recorder
        self.bounds_of = bounds_of
        self._read_s = read_s
        self._followed: dict[str, _MeteredNetwork] = {}  # by sandbox id

    def __repr__(self) -> str:
        return f"<NetworkMeter: {len(self._followed)} followed>"

    def follow(self, session: Session, sandbox: Sandbox, bounds: Bounds = ()) -> None:
        known = self._followed.setdefault(sandbox.id, _MeteredNetwork(session, sandbox))
        known.session, known.sandbox, known.bounds, known.opens_at = session, sandbox, bounds, 0.0

    def is_closed(self, sandbox_id: str) -> bool:
        """Whether its network is closed until there may be something left of the quota."""
        followed = self._followed.get(sandbox_id)
        return followed is not None and followed.opens_at > 0

    def note_closed(self, sandbox_id: str, opens_at: float) -> None:
        if (followed := self._followed.get(sandbox_id)) is not None:
            followed.opens_at = opens_at

    async def finish(self, sandbox_id: str) -> None:
        """Reads a sandbox a last time, if it has a network, and follows it no longer."""
        followed = self._followed.pop(sandbox_id, None)
        if followed is not None:
            with contextlib.suppress(WarrenError, TimeoutError):
                async with asyncio.timeout(_LAST_READING_S):
                    await self._read(followed)

    async def run(self, reopen: Reopen, close: Close) -> None:
        """`reopen` applies the rules of a session again. `close` closes a network until a time, and calls `note_closed`
        when no rules are being applied. Neither waits."""
        while True:
            await self._clock.sleep(self._read_s)
            bounds: dict[tuple[str, str], Bounds] = {}  # by tenant and key: read once for all their sandboxes
            for sandbox_id, followed in list(self._followed.items()):
                try:
                    await self._look_at(followed, reopen, close)
                    await self._look_at_bounds(followed, bounds, reopen)
                except (SandboxLost, SandboxNotFound):
                    self._followed.pop(sandbox_id, None)
                except Exception as exc:
                    # Quotas of all tenants depend on this loop: it must survive whatever one sandbox raises.
                    _log.warning("network_not_read", session=followed.session.id, error=exc)

    async def _look_at(self, followed: _MeteredNetwork, reopen: Reopen, close: Close) -> None:
        now = self._clock.now()
        if followed.opens_at:
            if now >= followed.opens_at:
                followed.opens_at = 0.0
                reopen(followed.session)
            return
        closed_s = await self._read(followed)
        if closed_s:
            followed.opens_at = now + closed_s
            close(followed.session, followed.sandbox, followed.opens_at)

    async def _look_at_bounds(
        self, followed: _MeteredNetwork, known: dict[tuple[str, str], Bounds], reopen: Reopen
    ) -> None:
        whose = followed.session.tenant, followed.session.key_id
        if whose not in known:
            known[whose] = await self.bounds_of(followed.session)
        if known[whose] != followed.bounds and not followed.opens_at:
            reopen(followed.session)

    async def _read(self, followed: _MeteredNetwork) -> float:
        async with followed.reading:
            use = await followed.sandbox.network_use()
            new, followed.last = _difference(use, followed.last), use
            if new is None:
                return 0.0
            self._recorder.network_used(new)
            return await self._report(followed.session, new)


def _difference(use: NetworkUse, before: NetworkUse) -> NetworkUse | None:
    """Returns what has happened in between, with the refusals and ended connections of that time as far as they are
    kept; None if nothing has. Counts that have become smaller began anew."""
    if use.connections < before.connections or use.refused < before.refused or use.bytes_sent < before.bytes_sent:
        before = NetworkUse()
    ended = _ended(use) - _ended(before)
    seen_until = before.refusals[-1].at if before.refusals else 0.0
    new = replace(
        use,
        bytes_sent=use.bytes_sent - before.bytes_sent,
        bytes_received=use.bytes_received - before.bytes_received,
        connections=use.connections - before.connections,
        refused=use.refused - before.refused,
        refusals=tuple(refusal for refusal in use.refusals if refusal.at > seen_until),
        ended=use.ended[-ended:] if ended > 0 else (),
    )
    is_new = new.bytes_sent or new.bytes_received or new.connections or new.refused or ended
    return new if is_new else None


def _ended(use: NetworkUse) -> int:
    return use.connections - use.open_connections
