"""Paused sessions: what stands still, who wakes them, what quotas say, and what a crash or a restart leaves."""

import asyncio
from typing import Any

import pytest
from unit.session_world import TENANT, FullStore, World, world

from warren.access.tenants import Tenant
from warren.interfaces.store import NO_CAPS, Caps, Page
from warren.model.access import Quota
from warren.model.capability import Capability
from warren.model.errors import (
    InvalidRequest,
    ProviderUnavailable,
    QuotaExceeded,
    SandboxLost,
    SessionEnded,
    SessionPaused,
    Unavailable,
)
from warren.model.network import NetworkRules
from warren.model.operations import Command
from warren.model.secrets import SecretBinding
from warren.model.session import EndReason, OnIdle, Session, SessionState
from warren.sessions.new_session import Defaults, NewSession
from warren.testing.fake_provider import FakeProvider
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

S = SessionState
ABLE = frozenset({Capability.TERMINALS, Capability.PAUSE, Capability.EGRESS})


class ColdProvider(FakeProvider):
    """A provider that can pause, unless it is told to fail. `deeds` are its freezes and thaws in order."""

    def __init__(self, **values: Any) -> None:
        super().__init__(capabilities=ABLE, **values)
        self.broken: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.deeds: list[str] = []

    async def freeze(self, sandbox_id: str) -> None:
        self.deeds.append("freeze")
        if self.broken is not None:
            raise self.broken
        await super().freeze(sandbox_id)

    async def thaw(self, sandbox_id: str) -> None:
        self.deeds.append("thaw")
        await self.gate.wait()
        if self.broken is not None:
            raise self.broken
        await super().thaw(sandbox_id)


class Crash(BaseException):
    """The server is gone at this point."""


def cold_world(**parts: Any) -> Any:
    return world(**{"provider": ColdProvider(), **parts})


async def created(w: World, **wishes: Any) -> Session:
    return (await w.sessions.create(TENANT, NewSession(**wishes))).session


def is_frozen(w: World, session: Session) -> bool:
    return w.provider.machines[session.sandbox_id].frozen


async def run(w: World, session: Session) -> Session:
    async with w.sessions.using(TENANT, session.id) as (used, sandbox):
        await sandbox.exec(Command(shell="true"))
        return used


async def test_a_paused_session_stands_still_and_its_next_use_resumes_it() -> None:
    async with cold_world() as w:
        row = await created(w, thread_id="conv", idle_timeout_s=100, max_lifetime_s=200)
        paused = await w.sessions.pause(TENANT, row.id, {})
        assert (paused.state, is_frozen(w, row)) == (S.PAUSED, True)
        assert await w.sessions.pause(TENANT, row.id, {}) == paused
        await w.clock.advance(5000)
        await w.reaper.tick()
        assert await w.session(row) == paused
        used = await run(w, row)
        assert (used.state, used.paused_s, used.used, is_frozen(w, row)) == (S.RUNNING, 5000.0, w.clock.now(), False)
        assert w.provider.machines[row.sandbox_id].paused_s == 5000.0
        await w.clock.advance(199)
        await run(w, row)
        await w.reaper.tick()
        assert (await w.session(row)).state is S.RUNNING
        await w.clock.advance(1)
        await w.reaper.tick()
        assert (await w.session(row)).reason is EndReason.LIFETIME


async def test_however_many_use_it_at_once_a_session_is_resumed_once() -> None:
    async with cold_world() as w:
        row = await created(w, thread_id="conv")
        await w.sessions.pause(TENANT, row.id, {})
        left = asyncio.ensure_future(run(w, row))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(*(run(w, row) for _ in range(20)), created(w, thread_id="conv"))
        assert w.provider.deeds == ["freeze", "thaw"]
        assert (await w.sessions.resume(TENANT, row.id)).state is S.RUNNING
        assert w.provider.deeds == ["freeze", "thaw"]


async def test_a_use_that_comes_while_a_session_is_thawed_waits_until_it_is_and_has_its_network() -> None:
    async with cold_world() as w:
        row = await created(w, network=NetworkRules(allow=("example.com",)))
        await w.sessions.pause(TENANT, row.id, {})
        await w.sessions.set_network(TENANT, row.id, NetworkRules(allow=("example.org",)))
        w.provider.gate.clear()
        first = asyncio.ensure_future(run(w, row))
        while (await w.session(row)).state is not S.RUNNING:
            await asyncio.sleep(0)
        second = asyncio.ensure_future(w.sessions.uses.usable(TENANT, row.id))
        done, _ = await asyncio.wait([first, second], timeout=0.05)
        assert not done
        w.provider.gate.set()
        await asyncio.gather(first, second)
        assert w.provider.machines[row.sandbox_id].network.allow == ("example.org",)
        assert w.provider.deeds == ["freeze", "thaw"]


async def test_looking_at_a_paused_session_and_changing_it_do_not_resume_it() -> None:
    async with cold_world() as w:
        row = await created(w, network=NetworkRules(allow=("example.com",)))
        await w.sessions.pause(TENANT, row.id, {})
        await w.store.list(TENANT, Page())
        await w.sessions.patch(TENANT, row.id, metadata={"a": "1"}, max_lifetime_s=77)
        await w.lifecycle.metrics.read_all()
        changed = await w.sessions.set_network(TENANT, row.id, NetworkRules(allow=("example.org",)))
        machine = w.provider.machines[row.sandbox_id]
        assert (changed.state, changed.metadata, machine.network.allow) == (S.PAUSED, {"a": "1"}, ())
        await run(w, row)
        assert machine.network.allow == ("example.org",)


async def test_only_who_may_resumes_a_session_that_is_to_stay_paused() -> None:
    async with cold_world() as w:
        row = await created(w, thread_id="conv", auto_resume=False)
        await w.sessions.pause(TENANT, row.id, {"max_paused_s": 50.0})
        with pytest.raises(SessionPaused) as caught:
            await run(w, row)
        assert (caught.value.code, caught.value.http_status) == ("session_paused", 409)
        assert caught.value.remedy == f"resume it: warren resume {row.id}"
        assert (await created(w, thread_id="conv")).state is S.PAUSED
        await w.sessions.uses.record(TENANT, row.id)
        assert (await w.sessions.pause(TENANT, row.id, {"auto_resume": True})).max_paused_s == 50.0
        assert (await run(w, row)).state is S.RUNNING


async def test_what_is_under_way_waits_and_is_no_use_of_a_paused_session() -> None:
    async with cold_world() as w:
        row = await created(w, idle_timeout_s=100)
        async with w.sessions.using(TENANT, row.id):
            paused = await w.sessions.pause(TENANT, row.id, {"max_paused_s": 300.0})
            await w.clock.advance(200)
            await w.reaper.tick()
            assert await w.session(row) == paused
            await w.clock.advance(100)
            await w.reaper.tick()
            await w.lifecycle.wait_for_tasks()
            assert (await w.session(row)).reason is EndReason.PAUSED_TOO_LONG
        with pytest.raises(SessionEnded, match="it was paused for too long"):
            await run(w, row)
        assert not w.provider.machines


async def test_a_stream_that_is_used_resumes_its_session() -> None:
    async with cold_world() as w:
        row = await created(w)
        async with w.sessions.using(TENANT, row.id, counts=False):
            await w.sessions.pause(TENANT, row.id, {})
            await w.sessions.uses.record(TENANT, row.id)
            assert (await w.session(row)).state is S.RUNNING


@pytest.mark.parametrize("wish", ["session", "server"])
async def test_an_idle_session_is_paused_if_it_is_so_set(wish: str) -> None:
    asked = {"on_idle": OnIdle.PAUSE, "max_paused_s": 500.0} if wish == "session" else {}
    defaults = Defaults(on_idle=OnIdle.PAUSE, max_paused_s=500.0) if wish == "server" else Defaults()
    async with cold_world(defaults=defaults) as w:
        told: list[str] = []
        w.tenancy.events.subscribe(lambda event: told.append(str(event.kind)))
        row = await created(w, idle_timeout_s=100, max_lifetime_s=150, **asked)
        await w.clock.advance(106)
        await w.reaper.tick()
        await w.lifecycle.wait_for_tasks()
        assert ((await w.session(row)).state, is_frozen(w, row)) == (S.PAUSED, True)
        await w.clock.advance(499)
        await w.reaper.tick()
        assert (await run(w, row)).state is S.RUNNING
        await w.clock.advance(45)  # what was left of its lifetime
        await w.reaper.tick()
        await w.lifecycle.wait_for_tasks()
        assert (await w.session(row)).reason is EndReason.LIFETIME
        assert told[1:3] == ["session.paused", "session.resumed"]


async def test_a_session_that_is_paused_at_its_timeout_begins_its_life_anew_each_time() -> None:
    async with cold_world() as w:
        wish = {"on_timeout": OnIdle.PAUSE, "renewal_s": 50.0, "max_lifetime_s": 20.0, "idle_timeout_s": 1000.0}
        row = await created(w, **wish)
        for lives_s in (20, 50, 50):
            async with w.sessions.using(TENANT, row.id):  # its use does not prolong it
                await w.clock.advance(lives_s - 1)
                await w.reaper.tick()
                assert (await w.session(row)).state is S.RUNNING
                await w.clock.advance(1)
                await w.reaper.tick()
                await w.lifecycle.wait_for_tasks()
                assert ((await w.session(row)).state, is_frozen(w, row)) == (S.PAUSED, True)
            await w.clock.advance(5000)
            await w.reaper.tick()
            assert (await run(w, row)).state is S.RUNNING
        await w.clock.advance(30)
        await w.sessions.pause(TENANT, row.id, {})
        await w.sessions.patch(TENANT, row.id, max_lifetime_s=10)
        await w.clock.advance(100)
        assert (await w.sessions.resume(TENANT, row.id)).deadline == w.clock.now() + 10


@pytest.mark.parametrize("over", [EndReason.IDLE, EndReason.LIFETIME])
@pytest.mark.parametrize("why", ["quota", "capability", "failure"])
async def test_an_expired_session_that_cannot_be_paused_ends_and_says_why(why: str, over: EndReason) -> None:
    async with cold_world() as w:
        wish: dict[str, Any] = {"idle_timeout_s": 100, "on_idle": OnIdle.PAUSE}
        if over is EndReason.LIFETIME:
            wish = {"max_lifetime_s": 100, "on_timeout": OnIdle.PAUSE, "renewal_s": 100.0}
        row = await created(w, **wish)
        if why == "quota":
            await w.tenancy.tenants.put(Tenant(TENANT, Quota(paused_sessions=0)))
        elif why == "capability":
            w.provider.capabilities = frozenset()
        else:
            w.provider.broken = ProviderUnavailable("the cgroup is gone")
        await w.clock.advance(106)
        await w.reaper.tick()
        await w.lifecycle.wait_for_tasks()
        ended = await w.session(row)
        words = {
            "quota": "may hold 0 paused sessions",
            "capability": "capability pause",
            "failure": "the cgroup is gone",
        }
        assert (ended.state, ended.reason) == (S.ENDED, over)
        assert ended.detail.startswith("it could not be paused: ")
        assert words[why] in ended.detail
        assert not w.provider.machines


async def test_quotas_bound_paused_sessions_and_those_that_are_resumed() -> None:
    async with cold_world() as w:
        rows = [await created(w) for _ in range(3)]
        await w.tenancy.tenants.put(Tenant(TENANT, Quota(paused_sessions=2, sessions=2)))
        made = await asyncio.gather(*(w.sessions.pause(TENANT, row.id, {}) for row in rows), return_exceptions=True)
        assert sorted(type(one).__name__ for one in made) == ["QuotaExceeded", "Session", "Session"]
        assert sum(is_frozen(w, row) for row in rows) == 2
        paused = [one for one in made if isinstance(one, Session)]
        made = await asyncio.gather(*(run(w, row) for row in paused), return_exceptions=True)
        assert sorted(type(one).__name__ for one in made) == ["QuotaExceeded", "Session"]
        (refused,) = [row for row, one in zip(paused, made, strict=True) if isinstance(one, QuotaExceeded)]
        assert ((await w.session(refused)).state, is_frozen(w, refused)) == (S.PAUSED, True)


async def test_what_a_provider_cannot_do_is_refused() -> None:
    async with world() as w:
        with pytest.raises(InvalidRequest, match="does not have the capability pause"):
            await created(w, on_idle=OnIdle.PAUSE)
        row = await created(w)
        with pytest.raises(InvalidRequest, match="does not have the capability pause"):
            await w.sessions.pause(TENANT, row.id, {})
        assert (await run(w, row)).state is S.RUNNING
    async with world(defaults=Defaults(on_idle=OnIdle.PAUSE)) as w:
        assert (await created(w)).on_idle is OnIdle.END
    async with cold_world(defaults=Defaults(on_idle=OnIdle.HIBERNATE)) as w:
        assert (await created(w)).on_idle is OnIdle.PAUSE


async def test_a_sandbox_that_cannot_be_frozen_or_thawed_stays_as_it_was() -> None:
    async with cold_world() as w:
        row = await created(w)
        w.provider.broken = ProviderUnavailable("the engine is away")
        with pytest.raises(ProviderUnavailable):
            await w.sessions.pause(TENANT, row.id, {})
        assert (await w.session(row)).state is S.RUNNING
        w.provider.broken = None
        paused = await w.sessions.pause(TENANT, row.id, {})
        await w.clock.advance(10)
        w.provider.broken = ProviderUnavailable("the engine is away")
        with pytest.raises(ProviderUnavailable):
            await run(w, row)
        again = await w.session(row)
        assert (again.state, again.paused_at, is_frozen(w, row)) == (S.PAUSED, paused.paused_at, True)
        w.provider.broken = None
        assert (await run(w, row)).paused_s == 10.0


async def test_a_paused_session_whose_sandbox_has_died_is_lost_and_says_so_for_a_while() -> None:
    async with cold_world() as w:
        row = await created(w, idle_timeout_s=100)
        await w.sessions.pause(TENANT, row.id, {})
        await w.clock.advance(1000)
        w.provider.lose(row.sandbox_id, "out of memory")
        with pytest.raises(SandboxLost, match="out of memory"):
            await run(w, row)
        await w.clock.advance(50)
        await w.reaper.tick()
        assert (await w.session(row)).state is S.LOST


async def test_a_paused_session_can_be_deleted_and_stays_when_the_server_stops() -> None:
    async with cold_world() as w:
        row, other = await created(w), await created(w)
        await w.sessions.pause(TENANT, row.id, {})
        await w.sessions.pause(TENANT, other.id, {})
        assert (await w.sessions.delete(TENANT, row.id)).state is S.ENDED
        assert list(w.provider.machines) == [other.sandbox_id]
        await w.sessions.stop(0.1, destroy=False)
        assert is_frozen(w, other)


async def test_a_restarted_server_keeps_sessions_paused_and_opens_their_networks_when_they_go_on() -> None:
    async with cold_world() as w:
        row = await created(w, network=NetworkRules(allow=("example.com",)), max_paused_s=5000.0)
        paused = await w.sessions.pause(TENANT, row.id, {})
    w.provider.machines[row.sandbox_id].frozen = False  # a kill in between left it so
    async with world(clock=w.clock, provider=w.provider, store=w.store) as n:
        machine = w.provider.machines[row.sandbox_id]
        machine.network = NetworkRules()
        assert machine.frozen
        assert (await n.session(row)).paused_at == paused.paused_at
        await n.clock.advance(100)
        await n.lifecycle.metrics.read_all()
        for _ in range(10):
            await n.reaper.tick()
        await n.sessions.set_network(TENANT, row.id, NetworkRules(allow=("example.org",)))
        assert (machine.frozen, machine.network) == (True, NetworkRules())
        await run(n, row)
        assert (machine.frozen, machine.paused_s, machine.network.allow) == (False, 100.0, ("example.org",))


async def test_a_paused_session_is_lost_with_the_machine_that_was_restarted() -> None:
    async with cold_world() as w:
        row = await created(w)
        await w.sessions.pause(TENANT, row.id, {})
    async with world(clock=ManualClock(5.0, epoch="boot-2"), provider=w.provider, store=w.store) as n:
        lost = await n.session(row)
        assert (lost.state, lost.detail) == (S.LOST, "the machine was restarted")
        await n.reaper.tick()
        assert (await n.session(row)).state is S.LOST


async def paused_and_resumed(w: World, row: Session) -> None:
    await w.sessions.pause(TENANT, row.id, {})
    await w.sessions.resume(TENANT, row.id)


@pytest.mark.parametrize(
    ("step", "state"), [("pausing", S.PAUSED), ("paused", S.PAUSED), ("resuming", S.RUNNING), ("resumed", S.RUNNING)]
)
async def test_a_crash_at_any_step_loses_nothing(step: str, state: SessionState) -> None:
    def fault(at: str) -> None:
        if at == step:
            raise Crash

    async with cold_world(fault=fault) as w:
        row = await created(w)
        async with w.sessions.using(TENANT, row.id) as (_, sandbox):
            await sandbox.write("f", b"kept")
        with pytest.raises(Crash):
            await paused_and_resumed(w, row)
        assert (await w.session(row)).state is state
    async with world(clock=w.clock, provider=w.provider, store=w.store) as n:
        assert ((await n.session(row)).state, is_frozen(n, row)) == (state, state is S.PAUSED)
        async with n.sessions.using(TENANT, row.id) as (_, sandbox):
            assert b"".join([part async for part in sandbox.read("f")]) == b"kept"
        assert not is_frozen(n, row)


async def test_a_secret_that_is_revoked_is_taken_from_a_paused_session_at_once() -> None:
    async with cold_world() as w:
        binding = SecretBinding(name="key", hosts=("api.example",), header="X-Key")
        await w.tenancy.secrets.put(TENANT, binding, "first value")
        row = await created(w, secrets=("key",), network=NetworkRules(allow=("example.com",)))
        machine = w.provider.machines[row.sandbox_id]
        await w.sessions.pause(TENANT, row.id, {})
        assert machine.network.allow == ("example.com",)
        await w.tenancy.secrets.delete(TENANT, "key")
        assert (machine.frozen, machine.network) == (True, NetworkRules())
        await run(w, row)
        assert machine.network.allow == ("example.com",)


class UnheardStore(FullStore):
    """It makes the next change, and cannot say so."""

    unheard = False

    async def swap(self, session: Session, caps: Caps = NO_CAPS) -> bool:
        done = await super().swap(session, caps)
        if self.unheard:
            self.unheard = False
            raise Unavailable("the answer was lost")
        return done


async def test_a_pause_and_its_end_that_the_store_could_not_confirm_are_made_true() -> None:
    store = UnheardStore()
    async with cold_world(store=store) as w:
        row = await created(w)
        for change, frozen in (
            (w.sessions.pause(TENANT, row.id, {}), True),
            (w.sessions.resume(TENANT, row.id), False),
        ):
            store.unheard = True
            with pytest.raises(Unavailable):
                await change
            assert is_frozen(w, row) is not frozen
            await w.clock.advance(10)
            await w.lifecycle.pausing.settle(await w.session(row))
            assert is_frozen(w, row) is frozen
        assert w.provider.machines[row.sandbox_id].paused_s == 10.0
