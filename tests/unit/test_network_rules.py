"""Networks of sessions: ceilings, presets, what holds when rules cannot be applied, and what is reported."""

import asyncio
from dataclasses import astuple
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from unit.session_world import TENANT, World, world

from warren.access.tenants import Tenant
from warren.app.image_wiring import find_build_network
from warren.config.presets import PresetReader, read_presets
from warren.config.settings import read_settings
from warren.interfaces.audit import Query
from warren.model.access import Caller, Quota
from warren.model.capability import Capability
from warren.model.egress import Ceiling, Preset, Presets
from warren.model.errors import Conflict, Forbidden, InvalidRequest, QuotaExceeded, Unavailable
from warren.model.events import Event, EventKind, NetworkRefusedData
from warren.model.header_rules import HeaderRule
from warren.model.network import NO_NETWORK, EgressBound, EndedConnection, NetworkRules, NetworkUse, Refusal, parse_rule
from warren.model.secrets import SecretBinding
from warren.model.spec import Layer
from warren.sessions.egress import EgressRules
from warren.sessions.network_meter import READ_S
from warren.sessions.new_session import NewSession
from warren.sessions.request_context import RequestContext, set_request_context
from warren.stores.session_json import decode_session, encode_session
from warren.testing.fake_provider import FakeProvider
from warren.testing.fake_sandbox import FakeMachine, FakeSandbox

pytestmark = pytest.mark.anyio

PRESETS = Presets({"python-packages": Preset(("pypi.example:443",), {"PIP_INDEX_URL": "https://pypi.example/simple"})})
WRONG_PRESETS = (
    "moon: {allow: [a]}",
    "git-hosts: {}",
    "git-hosts: {allow: ['*']}",
    "git-hosts: {allow: [a], x: 1}",
    'git-hosts: {allow: [a], env: {A: "https://u:p@host/"}}',
    "git-hosts: {allow: [a], env: {A: 1}}",
    "- a",
)
ONE = NetworkRules(allow=("one.example",))
TWO = NetworkRules(allow=("two.example",))
NETWORKED = frozenset({Capability.TERMINALS, Capability.EGRESS})


@pytest.mark.parametrize(
    ("wide", "narrow", "holds"),
    [
        ("a.example", "a.example", True),
        ("a.example", "a.example:443", True),
        ("a.example:443", "a.example", False),
        ("a.example:443", "a.example:80", False),
        ("*.example", "a.example", True),
        ("*.example", "b.a.example:1", True),
        ("*.example", "*.example", True),
        ("*.example", "*.a.example", True),
        ("*.a.example", "*.example", False),
        ("*.example", "example", False),
        ("a.example", "*.a.example", False),
        ("a.example", "ba.example", False),
        ("*.a.example", "xa.example", False),
        ("10.0.0.0/8", "10.1.2.3:5432", True),
        ("10.1.0.0/16", "10.0.0.0/8", False),
        ("10.0.0.0/8", "a.example", False),
        ("*.example", "10.0.0.1", False),
        ("0.0.0.0/0", "::1", False),
    ],
)
def test_a_rule_contains_what_is_narrower(wide: str, narrow: str, holds: bool) -> None:
    assert parse_rule(wide).contains(parse_rule(narrow)) is holds


@pytest.mark.parametrize(
    ("ceiling", "rules", "allowed"),
    [
        ([], {"internet": True}, True),
        (["internet"], {"internet": True, "allow": ("10.0.0.0/8",)}, True),
        (["none"], {}, True),
        (["none"], {"allow": ("a.example",)}, False),
        (["*.example"], {"internet": True}, False),
        (["*.example"], {"allow": ("a.example", "b.example:1")}, True),
        (["*.example"], {"allow": ("a.example", "a.other")}, False),
        (["python-packages"], {"allow": ("python-packages",)}, True),
        (["python-packages"], {"allow": ("pypi.example:443",)}, True),
        (["python-packages"], {"allow": ("pypi.example",)}, False),
        (["*.example"], {"allow": ("python-packages",)}, True),
        (["a.example"], {"allow": ("python-packages",)}, False),
    ],
)
def test_a_ceiling_bounds_what_rules_may_name(ceiling: list[str], rules: dict[str, Any], allowed: bool) -> None:
    read, asked = Ceiling.read(ceiling), NetworkRules(**rules)
    if allowed:
        read.check(asked, PRESETS, "somebody", "ask")
    else:
        with pytest.raises(Forbidden):
            read.check(asked, PRESETS, "somebody", "ask")


@pytest.mark.parametrize("texts", ["a.example", [1], ["*"], ["internet", "none"], ["a b"], ["a.example"] * 2000])
def test_what_is_no_ceiling_is_refused(texts: Any) -> None:
    with pytest.raises(InvalidRequest):
        Quota.from_mapping({"egress": texts})


def test_a_row_of_an_older_version_has_no_network() -> None:
    row = '{"id":"ses_1","tenant":"t","environment":"base","epoch":"e","created_at":1,"started":1,"used":1}'
    assert decode_session(row).network == NO_NETWORK
    assert "network" not in encode_session(decode_session(row))


# -- presets


def test_presets_come_from_what_the_machine_is_set_up_with_and_never_with_credentials(tmp_path: Path) -> None:
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "etc/pip.conf").write_text(
        "[global]\nindex-url = https://user:secret@pip.example:8443/simple\nextra-index-url =\n  http://more.example/s\n"
        "  file:///opt/wheels\ntrusted-host = more.example\n"
    )
    (tmp_path / "etc/npmrc").write_text("registry = https://_:token@npm.example/registry/\n")
    (tmp_path / "etc/apt/sources.list").write_text("# deb http://not.example x\ndeb [a=b] http://apt.example/d x\n")
    (tmp_path / "etc/apt/sources.list.d/a.sources").write_text("Types: deb\nURIs: https://s.example/d cdrom:[x]\n")
    found = PresetReader(None, {"PATH": "/nowhere"}, root=tmp_path, home=tmp_path).read()
    assert found.known["python-packages"] == Preset(
        ("pip.example:8443", "more.example:80"),
        {
            "PIP_INDEX_URL": "https://pip.example:8443/simple",
            "UV_DEFAULT_INDEX": "https://pip.example:8443/simple",
            "PIP_EXTRA_INDEX_URL": "http://more.example/s",
            "PIP_TRUSTED_HOST": "more.example",
        },
    )
    npm = Preset(("npm.example:443",), {"npm_config_registry": "https://npm.example/registry/"})
    assert found.known["node-packages"] == npm
    assert found.known["debian-packages"].allow == ("apt.example:80", "s.example:443")
    assert set(found.problems) == {"git-hosts"}
    with pytest.raises(InvalidRequest, match="git-hosts cannot be used"):
        found.expanded(("git-hosts",))


def test_the_operators_file_wins_and_a_mistake_in_it_is_said(tmp_path: Path) -> None:
    file = tmp_path / "presets.yaml"
    file.write_text("git-hosts: {allow: [git.example]}\n")
    assert PresetReader(file, {}, root=tmp_path, home=tmp_path).read().known["git-hosts"] == Preset(("git.example",))
    for wrong in WRONG_PRESETS:
        file.write_text(wrong)
        with pytest.raises(InvalidRequest):
            read_presets(file)
        assert PresetReader(file, {}, root=tmp_path, home=tmp_path).read().known == {}


def test_builds_that_may_reach_the_internet_name_the_indexes_as_well(tmp_path: Path) -> None:
    file = tmp_path / "presets.yaml"
    file.write_text("python-packages: {allow: [packages.example]}\n")
    settings = read_settings({"WARREN_IMAGE_NETWORK": "internet", "WARREN_EGRESS_PRESETS": str(file)})
    found = find_build_network(settings)
    assert found.rules.internet
    assert "packages.example" in found.rules.allow  # which may be at a private address


# -- sessions


def machine_of(there: World, sandbox_id: str) -> FakeMachine:
    return there.provider.machines[sandbox_id]


async def test_a_provider_that_cannot_is_named() -> None:
    async with world() as there:
        with pytest.raises(InvalidRequest, match="the provider fake does not have the capability egress"):
            await there.sessions.create(TENANT, NewSession(network=ONE))
        session = (await there.sessions.create(TENANT, NewSession())).session
        with pytest.raises(InvalidRequest, match="egress"):
            await there.sessions.set_network(TENANT, session.id, ONE)


async def test_a_session_whose_network_cannot_be_opened_fails_and_leaves_nothing() -> None:
    async with world(provider=FakeProvider(capabilities=NETWORKED)) as there:

        async def fails(rules: NetworkRules) -> NetworkRules:
            raise Unavailable("not now")

        there.lifecycle.networks.egress.in_force = fails  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="not now"):
            await there.sessions.create(TENANT, NewSession(network=ONE))
        assert there.provider.machines == {}


async def test_rules_that_could_not_be_applied_are_applied_later() -> None:
    async with world(provider=FakeProvider(capabilities=NETWORKED)) as there:
        session = (await there.sessions.create(TENANT, NewSession())).session
        working, failures = there.lifecycle.networks.egress.in_force, 2

        async def fails_at_first(rules: NetworkRules) -> NetworkRules:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise Unavailable("not now")
            return await working(rules)

        there.lifecycle.networks.egress.in_force = fails_at_first  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await there.sessions.set_network(TENANT, session.id, ONE)
        assert (await there.session(session)).network == ONE
        for _ in range(3):
            await there.clock.advance(5.0)
        assert machine_of(there, session.sandbox_id).network == ONE


async def test_a_server_stops_though_a_network_cannot_be_opened() -> None:
    async with world(provider=FakeProvider(capabilities=NETWORKED)) as there:
        session = (await there.sessions.create(TENANT, NewSession())).session

        async def fails(rules: NetworkRules) -> NetworkRules:
            raise Unavailable("never")

        there.lifecycle.networks.egress.in_force = fails  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await there.sessions.set_network(TENANT, session.id, ONE)
        async with asyncio.timeout(5):
            await there.lifecycle.wait_for_tasks()


async def test_a_sandbox_that_was_taken_over_gets_the_rules_of_its_row() -> None:
    provider = FakeProvider(capabilities=NETWORKED)
    async with world(provider=provider) as there:
        session = (await there.sessions.create(TENANT, NewSession(network=ONE))).session
        assert machine_of(there, session.sandbox_id).network == ONE
        again = FakeProvider(provider.machines, capabilities=NETWORKED)
        async with world(provider=again, store=there.store, clock=there.clock) as restarted:
            await restarted.clock.advance(0.1)
            assert machine_of(restarted, session.sandbox_id).network == ONE


async def test_no_network_is_kept_for_the_whole_life() -> None:
    async with world(provider=FakeProvider(capabilities=NETWORKED)) as there:
        required = NewSession(require=frozenset({Layer.NO_NETWORK}))
        session = (await there.sessions.create(TENANT, required)).session
        with pytest.raises(Conflict):
            await there.sessions.set_network(TENANT, session.id, ONE)
        assert machine_of(there, session.sandbox_id).network == NO_NETWORK


async def test_a_server_without_egress_opens_nothing() -> None:
    with pytest.raises(Forbidden, match="no sandbox a network"):
        await EgressRules(enabled=False).check(ONE, Caller())
    await EgressRules(enabled=False).check(NO_NETWORK, Caller())


async def test_what_the_environment_says_is_bounded_by_quotas_alone() -> None:
    egress = EgressRules(Ceiling(("two.example",)))
    await egress.check(ONE, Caller(), environment=ONE)
    with pytest.raises(Forbidden, match="operator"):
        await egress.check(ONE, Caller())
    with pytest.raises(Forbidden, match="quota of this key"):
        await egress.check(ONE, Caller(key_quota=Quota(egress=("none",))), environment=ONE)


# -- reports


def a_refusal(at: float, name: str = "no.example") -> Refusal:
    return Refusal(at, name, "", 443, "no rule allows it", f"{name}:443")


async def test_what_is_new_is_reported_once() -> None:
    async with world(provider=FakeProvider(capabilities=NETWORKED)) as there:
        told: list[Event] = []
        there.tenancy.events.subscribe(told.append, lambda tenant, kind: kind is EventKind.NETWORK_REFUSED)
        session = (await there.sessions.create(TENANT, NewSession(network=ONE))).session
        metering = asyncio.create_task(there.lifecycle.networks.run_meter())
        await asyncio.sleep(0)
        machine = machine_of(there, session.sandbox_id)
        connection = EndedConnection(5.0, "one.example", "", 443, 10, 90)
        machine.network_use = NetworkUse(10, 90, 2, 1, 3, (a_refusal(1.0),), (connection,))
        await there.clock.advance(READ_S)
        await there.clock.advance(READ_S)
        machine.network_use = NetworkUse(10, 100, 2, 1, 4, (a_refusal(1.0), a_refusal(2.0, "b.example")), (connection,))
        await there.clock.advance(READ_S)
        await there.sessions.delete(TENANT, session.id)
        metering.cancel()
        ((_, _, used),) = map(astuple, await there.tenancy.usage.between(TENANT, date(1970, 1, 1), date(2100, 1, 1)))
        assert used[-3:] == (110, 2, 4)
        entries = [one for one in (await there.audit.find(Query(TENANT))).entries if one.action.startswith("network.")]
        names = [entry.detail.get("name", entry.detail.get("count")) for entry in reversed(entries)]
        assert names == ["one.example", "no.example", 2, "b.example"]
        data = [event.data for event in told if isinstance(event.data, NetworkRefusedData)]
        assert data == [NetworkRefusedData("no.example", "", 443, "no rule allows it", "no.example:443", 3)]


async def test_headers_for_the_hosts_of_secrets_change_while_the_rules_open_nothing() -> None:
    async with world(provider=FakeProvider(capabilities=NETWORKED)) as there:
        await there.tenancy.secrets.put(
            TENANT, SecretBinding(name="key", hosts=("api.example",), header="X-Key"), "a value of it"
        )
        session = (await there.sessions.create(TENANT, NewSession(network=NO_NETWORK, secrets=("key",)))).session
        rules = NO_NETWORK.with_headers((HeaderRule("api.example", "X-More", "more"),))
        for each in (rules, NO_NETWORK):
            await there.sessions.set_network(TENANT, session.id, each)
            assert machine_of(there, session.sandbox_id).network == each
        set_request_context(RequestContext(Caller(TENANT, quota=Quota(egress_bytes_per_day=0))))
        with pytest.raises(QuotaExceeded):
            await there.sessions.set_network(TENANT, session.id, rules)
        set_request_context(RequestContext())


async def test_a_quota_that_is_used_up_closes_the_network_until_the_next_day() -> None:
    async with world(provider=FakeProvider(capabilities=NETWORKED)) as there:
        there.clock.set_wall(20_833 * 86400.0 - 40)
        await there.tenancy.tenants.put(Tenant(TENANT, Quota(egress_bytes_per_day=100)))
        key = SecretBinding(name="key", hosts=("api.example",), header="X-Key")
        await there.tenancy.secrets.put(TENANT, key, "first value")
        session = (await there.sessions.create(TENANT, NewSession(network=ONE, secrets=("key",)))).session
        metering = asyncio.create_task(there.lifecycle.networks.run_meter())
        await asyncio.sleep(0)
        machine = machine_of(there, session.sandbox_id)
        machine.network_use = NetworkUse(bytes_sent=60)
        await there.clock.advance(READ_S)
        assert machine.network == ONE
        machine.network_use = NetworkUse(bytes_sent=160)
        await there.clock.advance(READ_S)
        assert machine.network == NO_NETWORK
        await there.tenancy.secrets.put(TENANT, key, "second value")
        assert machine.network == NO_NETWORK, "a new secret has opened it"
        caller = Caller(TENANT, quota=Quota(egress_bytes_per_day=100))
        with pytest.raises(QuotaExceeded):
            await there.tenancy.metering.check_network(caller)
        await there.clock.advance(40 + READ_S)
        assert machine.network == ONE
        metering.cancel()


async def test_a_quota_that_is_used_up_while_rules_are_applied_closes_the_network_until_the_next_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(provider=FakeProvider(capabilities=NETWORKED)) as there:
        there.clock.set_wall(20_833 * 86400.0 - 40)
        await there.tenancy.tenants.put(Tenant(TENANT, Quota(egress_bytes_per_day=100)))
        session = (await there.sessions.create(TENANT, NewSession(network=ONE))).session
        metering = asyncio.create_task(there.lifecycle.networks.run_meter())
        await asyncio.sleep(0)
        machine = machine_of(there, session.sandbox_id)
        set_network, is_applied, goes_on = FakeSandbox.set_network, asyncio.Event(), asyncio.Event()

        async def set_slowly(sandbox: FakeSandbox, rules: NetworkRules, *more: Any) -> None:
            await set_network(sandbox, rules, *more)
            if rules.is_open:
                is_applied.set()
                await goes_on.wait()

        monkeypatch.setattr(FakeSandbox, "set_network", set_slowly)
        applying = asyncio.create_task(there.sessions.set_network(TENANT, session.id, TWO))
        await is_applied.wait()
        machine.network_use = NetworkUse(bytes_sent=160)
        await there.clock.advance(READ_S)
        goes_on.set()
        await applying
        await there.lifecycle.wait_for_tasks()
        assert machine.network == NO_NETWORK
        await there.clock.advance(40 + READ_S)
        assert machine.network == TWO
        metering.cancel()


async def test_a_sandbox_has_the_bounds_of_its_tenant_and_gets_new_ones() -> None:
    async with world(provider=FakeProvider(capabilities=NETWORKED)) as there:
        await there.tenancy.tenants.put(Tenant(TENANT, Quota(egress_connections=5, egress_mbps=8)))
        session = (await there.sessions.create(TENANT, NewSession(network=ONE))).session
        machine, whose = machine_of(there, session.sandbox_id), f"tenant:{TENANT}"
        assert machine.network_bounds == (EgressBound(whose, 5, 8),)
        metering = asyncio.create_task(there.lifecycle.networks.run_meter())
        await asyncio.sleep(0)
        await there.tenancy.tenants.put(Tenant(TENANT, Quota(egress_mbps=2)))
        await there.clock.advance(READ_S)
        assert machine.network_bounds == (EgressBound(whose, None, 2),)
        await there.tenancy.tenants.delete(TENANT)
        await there.clock.advance(READ_S)
        assert (machine.network, machine.network_bounds) == (ONE, (EgressBound(whose),))
        metering.cancel()
