"""What the parts of a server report for the metrics, as it happens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry
from unit.session_world import TENANT, World, world

from warren.governance.metrics.recorder import PrometheusRecorder
from warren.model.capability import Capability
from warren.model.environment import PoolSize
from warren.model.errors import MachineFull, NoCapacity, ProviderUnavailable
from warren.model.network import NetworkRules, NetworkUse
from warren.model.operations import Command
from warren.model.policy import Policy
from warren.model.session import Session
from warren.model.spec import SandboxSpec
from warren.sessions.new_session import NewSession
from warren.testing.fake_provider import FakeProvider
from warren.worker.guard import Reserve
from warren.worker.options import LABELS

pytestmark = pytest.mark.anyio


class Recorded:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.recorder = PrometheusRecorder(self._registry, lambda name: True)

    def __call__(self, name: str, **labels: str) -> float:
        return self._registry.get_sample_value(name, labels) or 0.0

    def creates(self, source: str, outcome: str) -> float:
        return self("warren_session_creates_total", environment="base", source=source, outcome=outcome)


@asynccontextmanager
async def recorded_world(**parts: object) -> AsyncIterator[tuple[World, Recorded]]:
    recorded = Recorded()
    async with world(recorder=recorded.recorder, **parts) as w:
        yield w, recorded


async def created(w: World, wanted: NewSession | None = None) -> Session:
    return (await w.sessions.create(TENANT, wanted or NewSession())).session


async def test_where_sandboxes_come_from_and_how_long_they_are_waited_for() -> None:
    async with recorded_world(pool=PoolSize(1, 1, 1)) as (w, recorded):
        while not w.worker.stats().pools["base"].ready:
            await asyncio.sleep(0)
        await asyncio.gather(created(w), created(w))
        session = await created(w, NewSession(image="python"))
        assert (recorded.creates("pool", "created"), recorded.creates("cold", "created")) == (1, 2)
        assert recorded("warren_claim_seconds_count") == 3
        assert recorded("warren_create_seconds_count", provider="fake") >= 3
        assert recorded("warren_pool_hits_total", environment="base") == 1
        assert recorded("warren_pool_misses_total", environment="base") == 1
        assert recorded("warren_queue_wait_seconds_count") == 1
        await w.sessions.delete(TENANT, session.id)
        assert recorded("warren_destroy_seconds_count") == 1


async def test_why_a_session_was_not_created() -> None:
    async with recorded_world(provider=FakeProvider(delay_s=0.02)) as (w, recorded):
        w.worker.no_claims = NoCapacity("nothing is free")
        with pytest.raises(NoCapacity):
            await created(w)
        w.worker.no_claims = ProviderUnavailable("the engine is away")
        with pytest.raises(ProviderUnavailable):
            await created(w)
        w.worker.no_claims = None
        task = asyncio.ensure_future(created(w))
        await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.wait([task])
        await w.lifecycle.wait_for_tasks()
        outcomes = ("no_capacity", "failed", "cancelled", "created")
        assert [recorded.creates("none", outcome) for outcome in outcomes] == [1, 1, 1, 0]
        w.worker.guard.reserve = Reserve(0, 0, max_sandboxes=0)
        with pytest.raises(MachineFull):
            await created(w, NewSession(image="python"))
        assert recorded("warren_guard_refusals_total", what="sandboxes") == 1
        assert recorded.creates("none", "no_capacity") == 2


async def test_how_commands_end() -> None:
    policy = Policy.from_mapping({"deny": ["curl"]})
    async with recorded_world(policy=policy) as (w, recorded):
        session = await created(w)
        async with w.sessions.using(TENANT, session.id) as (_, sandbox):
            await sandbox.exec(Command(shell="echo hello"))
            await sandbox.exec(Command(shell="curl example.com"))
            process = await sandbox.start(Command(shell="echo hello"))
            await process.ended()
            while recorded("warren_exec_seconds_count") < 3:
                await asyncio.sleep(0)
        reasons = {
            reason: recorded("warren_execs_total", environment="base", reason=reason)
            for reason in ("exited", "refused")
        }
        assert reasons == {"exited": 2, "refused": 1}
        assert recorded("warren_exec_overhead_seconds_count") == 1  # nobody waited for the others


async def test_losses_and_networks() -> None:
    provider = FakeProvider(capabilities=frozenset({Capability.TERMINALS, Capability.EGRESS}))
    async with recorded_world(provider=provider) as (w, recorded):
        session = await created(w, NewSession(network=NetworkRules(internet=True)))
        provider.machines[session.sandbox_id].network_use = NetworkUse(
            bytes_sent=5, bytes_received=7, connections=2, refused=1
        )
        await w.lifecycle.networks.meter.finish(session.sandbox_id)
        assert recorded("warren_egress_connections_total", verdict="allowed") == 2
        assert recorded("warren_egress_connections_total", verdict="refused") == 1
        assert recorded("warren_egress_bytes_total", direction="sent") == 5
        assert recorded("warren_egress_bytes_total", direction="received") == 7
        await w.lifecycle.losses.mark_lost(session, "its agent does not answer")
        assert recorded("warren_sandbox_lost_total", why="agent") == 1


async def test_a_sandbox_that_nobody_knows_is_a_leak_after_three_looks_and_is_left_alone() -> None:
    async with recorded_world() as (w, _):
        session = await created(w)
        stray = await w.provider.create(SandboxSpec(labels=LABELS))
        others = await w.provider.create(SandboxSpec())  # made by somebody else: it has other labels
        leaks = []
        for _ in range(4):
            await w.clock.advance(60)
            leaks.append(w.worker.stats().leaks)
        assert leaks == [0, 0, 1, 1]
        assert {session.sandbox_id, stray.id, others.id} <= set(w.provider.machines)
        await w.provider.destroy(stray.id)
        await w.clock.advance(60)
        assert w.worker.stats().leaks == 0
