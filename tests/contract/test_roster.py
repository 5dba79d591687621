"""The roster in Redis, and the one of unit tests, keep the contract; and what only Redis can do wrong."""

import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from contract.roster_contract import ME, AnyRoster, RosterContract, RosterWorld, a_report
from redis_server import PATIENCE_S, LossyWire, RedisServer, lossy_wire, running_redis
from unit.fake_roster import FakeRoster

from warren.cluster.roster import LEASE_S, LeaseStatus, Report, Roster
from warren.model.errors import Unavailable
from warren.stores import redis_roster_scripts as scripts
from warren.stores.redis_link import RedisLink, connect
from warren.stores.redis_lua import LuaScript
from warren.stores.redis_scripts import VERSION
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


class InRedis:
    def __init__(self, server: RedisServer, link: RedisLink, tag: str) -> None:
        self.roster: AnyRoster = Roster(link)
        self._server = server
        self._tag = tag
        server.ask("SET", tag, VERSION)

    @property
    def settled(self) -> bool:
        return bool(self._server.ask("EXISTS", self._tag))

    def run_out(self, worker_id: str) -> None:
        name = f"{self._tag}:worker:{len(worker_id.encode())}:{worker_id}"
        self._server.ask("HSET", name, "until", "1.000000")

    def lose_data(self) -> None:
        self._server.ask("FLUSHALL")

    def restart(self) -> None:
        self._server.ask("CONFIG", "SET", "save", "")
        self._server.ask("SAVE")
        self._server.kill()
        self._server.start()

    def pass_time_since_emptied(self) -> None:
        assert self._server.ask("GET", f"{self._tag}:settling")
        self._server.ask("SET", f"{self._tag}:settling", "1.000000")

    def silence(self, coordinator_id: str) -> None:
        _, _, address = self._server.ask("HGET", f"{self._tag}:coordinators", coordinator_id).partition(b" ")
        self._server.ask("HSET", f"{self._tag}:coordinators", coordinator_id, b"1.000000 " + address)


class OnAClock:
    def __init__(self) -> None:
        self.roster: AnyRoster = FakeRoster(ManualClock())

    @property
    def _fake(self) -> FakeRoster:
        assert isinstance(self.roster, FakeRoster)
        return self.roster

    @property
    def settled(self) -> bool:
        return self._fake.settled

    def run_out(self, worker_id: str) -> None:
        self._fake.entries[worker_id] = replace(self._fake.entries[worker_id], until=1.0)

    def lose_data(self) -> None:
        self._fake.lose_data()

    def restart(self) -> None:
        self._fake.run_id += "'"

    def pass_time_since_emptied(self) -> None:
        assert self._fake.empty_since < float("inf")
        self._fake.empty_since = 1.0

    def silence(self, coordinator_id: str) -> None:
        seen_at = self._fake.seen_at
        self._fake.seen_at = {peer: 1.0 if peer.id == coordinator_id else at for peer, at in seen_at.items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("roster")) as server:
        yield server


@pytest.fixture
async def link(server: RedisServer) -> AsyncIterator[RedisLink]:
    server.ask("FLUSHALL")
    link = connect(server.url, timeout_s=PATIENCE_S)
    yield link
    await link.close()


class TestRosterInRedis(RosterContract):
    @pytest.fixture
    def world(self, server: RedisServer, link: RedisLink) -> RosterWorld:
        return InRedis(server, link, "{warren}")


class TestFakeRoster(RosterContract):
    @pytest.fixture
    def world(self) -> RosterWorld:
        return OnAClock()


class TestScriptsTriedTwice:
    """The answer of the first try got lost with its connection."""

    @pytest.fixture
    async def lossy(self, server: RedisServer) -> AsyncIterator[tuple[Roster, LossyWire]]:
        server.ask("FLUSHALL")
        server.ask("SET", "{warren}", VERSION)
        for script in vars(scripts).values():
            if isinstance(script, LuaScript):
                assert server.ask("SCRIPT", "LOAD", script.text) == script.sha.encode()
        async with lossy_wire(server) as (wire, url):
            link = connect(url, timeout_s=PATIENCE_S)
            roster = Roster(link)
            await roster.watch(ME)
            yield roster, wire
            assert wire.lost_all
            await link.close()

    async def test_entering_counts_once(self, lossy: tuple[Roster, LossyWire]) -> None:
        roster, wire = lossy
        for epoch in (1, 2, 3):
            wire.lose()
            assert await roster.register(a_report(), epoch - 1) == epoch
        assert (await roster.beat(a_report(), 3)).status is LeaseStatus.OK

    async def test_all_else_is_the_same_the_second_time(
        self, lossy: tuple[Roster, LossyWire], server: RedisServer
    ) -> None:
        roster, wire = lossy
        await roster.register(a_report(), 0)
        wire.lose()
        assert (await roster.beat(a_report(claimed=1), 1)).coordinators == (ME,)
        wire.lose()
        assert (await roster.renew("w", 1)).status is LeaseStatus.OK
        wire.lose()
        await roster.set_draining("w", True)
        wire.lose()
        await roster.leave(a_report(claimed=2), 1)
        wire.lose()
        snapshot = await roster.watch(ME)
        assert [(one.report.claimed, one.draining) for one in snapshot.workers] == [(2, True)]
        wire.lose()
        await roster.withdraw(ME)
        assert (await roster.beat(a_report(), 1)).coordinators == ()

    async def test_a_worker_that_was_removed_is_gone(
        self, lossy: tuple[Roster, LossyWire], server: RedisServer
    ) -> None:
        """The second try finds nothing, and says that it was done."""
        roster, wire = lossy
        await roster.register(a_report(), 0)
        server.ask("HSET", "{warren}:worker:1:w", "until", "1.000000")
        wire.lose()
        await roster.remove("w")
        assert (await roster.watch(ME)).workers == ()


class TestWhatIsInRedis:
    async def test_a_name_in_the_list_without_a_worker_is_dropped(self, server: RedisServer, link: RedisLink) -> None:
        server.ask("SADD", "{warren}:workers", "ghost")
        assert (await Roster(link).watch(ME)).workers == ()
        assert not server.ask("SMEMBERS", "{warren}:workers")

    async def test_a_worker_that_knows_more_than_we_do_can_be_read(self, server: RedisServer, link: RedisLink) -> None:
        text = a_report().to_json()[:-1] + ',"moon":"full","protocol":2}'
        roster = Roster(link)
        await roster.register(a_report(), 0)
        server.ask("HSET", "{warren}:worker:1:w", "report", text)
        [member] = (await roster.watch(ME)).workers
        assert (member.report, member.compatible) == (a_report(protocol=2), False)
        assert Report.from_json('{"id":"w","address":"a","home":"h"}') == Report("w", "a", "h")

    async def test_the_lease_is_counted_by_redis(self, server: RedisServer, link: RedisLink) -> None:
        await Roster(link).register(a_report(), 0)
        until = float(server.ask("HGET", "{warren}:worker:1:w", "until"))
        seconds, micros = server.ask("TIME")
        assert 0 < until - (int(seconds) + int(micros) / 1e6) <= LEASE_S

    async def test_namespaces_do_not_see_each_other(self, server: RedisServer, link: RedisLink) -> None:
        other = connect(server.url, timeout_s=PATIENCE_S, namespace=secrets.token_hex(4))
        await Roster(link).register(a_report(), 0)
        assert await Roster(other).register(a_report(home="elsewhere"), 0) == 1
        assert len((await Roster(link).watch(ME)).workers) == 1
        await other.close()

    async def test_a_redis_that_is_away_is_unavailable_for_every_call(self, tmp_path: Path) -> None:
        with running_redis(tmp_path / "redis") as server:
            link = connect(server.url)
            roster = Roster(link)
            await roster.register(a_report(), 0)
            server.kill()
            for call in (
                roster.register(a_report(), 1),
                roster.beat(a_report(), 1),
                roster.renew("w", 1),
                roster.leave(a_report(), 1),
                roster.watch(ME),
                roster.withdraw(ME),
                roster.set_draining("w", True),
                roster.mark_as_leaving("w", for_good=True),
                roster.remove("w"),
            ):
                with pytest.raises(Unavailable, match=r"Redis at 127\.0\.0\.1"):
                    await call
            await link.close()
