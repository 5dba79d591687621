"""What is kept of a secret, who can read it, and what a session is given of it."""

import json

import pytest

from warren.governance.secrets import Secrets, secret_view
from warren.interfaces.records import Record
from warren.model.errors import InvalidRequest, NotFound
from warren.model.secrets import MAX_SECRETS, BoundSecret, broker_variables, check_together, new_binding
from warren.stores.encryption import Encryption
from warren.stores.memory import MemoryRecords
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio
VALUE = "sk-live-0123456789"
KEY, OTHER_KEY = b"1" * 32, b"2" * 32


def new_secrets(records: MemoryRecords, *keys: bytes, clock: ManualClock | None = None) -> Secrets:
    return Secrets(records, clock or ManualClock(), Encryption(*(keys or (KEY,))))


async def test_the_value_is_sealed_and_given_to_sessions_of_its_tenant_alone() -> None:
    records = MemoryRecords()
    secrets = new_secrets(records)
    binding = new_binding("openai", ["api.example.com"], kind="openai")
    made, is_new = await secrets.put("acme", binding, VALUE)
    assert is_new
    kept = await records.get("secret", "acme/openai")
    assert kept is not None
    assert VALUE not in kept.value
    assert VALUE not in repr((made, secret_view(made), await secrets.list("acme"), secrets))
    (found,) = await secrets.find("acme", ["openai", "nobody"])
    assert (found.value, found.carried) == (VALUE, f"Bearer {VALUE}")
    assert VALUE not in repr(found)
    assert not await secrets.find("other", ["openai"])
    with pytest.raises(NotFound):
        await secrets.delete("other", "openai")


@pytest.mark.parametrize(
    "change", [{"hosts": ["evil.example"]}, {"header": "X-Echoed"}, {"format": "{}"}, {"name": "other"}], ids=repr
)
async def test_who_can_write_to_the_database_cannot_bind_a_secret_to_something_else(change: dict[str, object]) -> None:
    records = MemoryRecords()
    secrets = new_secrets(records)
    await secrets.put("acme", new_binding("openai", ["api.example.com"], kind="openai"), VALUE)
    kept = await records.get("secret", "acme/openai")
    assert kept is not None
    values = json.loads(kept.value)
    values["binding"].update(change)
    await records.put(kept.changed(json.dumps(values)))
    await records.put(Record("secret", "evil/openai", kept.value, group="evil"))
    assert not await secrets.find("acme", ["openai"])


async def test_versions_tell_of_every_change() -> None:
    clock = ManualClock()
    secrets = new_secrets(MemoryRecords(), clock=clock)
    told: list[tuple[str, str]] = []

    async def note(tenant: str, name: str) -> None:
        told.append((tenant, name))

    secrets.when_changed(note)
    binding, seen = new_binding("a", ["x.example"], header="X-Key"), set()
    for _ in range(2):
        await secrets.put("acme", binding, VALUE)
        seen.add((await secrets.versions("acme", ["a"]))["a"])
    await secrets.delete("acme", "a")
    assert await secrets.versions("acme", ["a"]) == {}
    await clock.advance(1.0)
    await secrets.put("acme", binding, VALUE)
    seen.add((await secrets.versions("acme", ["a"]))["a"])
    assert len(seen) == 3
    assert told == [("acme", "a")] * 4


async def test_an_expired_secret_is_not_found() -> None:
    clock = ManualClock()
    secrets = new_secrets(MemoryRecords(), clock=clock)
    until = clock.wall() + 10
    await secrets.put("acme", new_binding("a", ["x.example"], header="X-Key", expires_at=until), VALUE)
    assert await secrets.find("acme", ["a"])
    await clock.advance(11.0)
    assert not await secrets.find("acme", ["a"])
    with pytest.raises(InvalidRequest, match="expired"):
        await secrets.put("acme", new_binding("b", ["x.example"], header="X-Key", expires_at=until), VALUE)


async def test_the_sealing_key_is_changed_while_secrets_go_on() -> None:
    records = MemoryRecords()
    await new_secrets(records, KEY).put("acme", new_binding("a", ["x.example"], header="X-Key"), VALUE)
    both = new_secrets(records, OTHER_KEY, KEY)
    assert await both.find("acme", ["a"])
    assert not await new_secrets(records, OTHER_KEY).find("acme", ["a"])
    await both.renew_encryption()
    (found,) = await new_secrets(records, OTHER_KEY).find("acme", ["a"])
    assert found.value == VALUE


async def test_a_tenant_has_so_many_secrets() -> None:
    secrets = new_secrets(MemoryRecords())
    for number in range(MAX_SECRETS):
        await secrets.put("acme", new_binding(f"s{number}", ["x.example"], header="X-Key"), VALUE)
    with pytest.raises(InvalidRequest, match=f"{MAX_SECRETS} secrets"):
        await secrets.put("acme", new_binding("more", ["x.example"], header="X-Key"), VALUE)
    await secrets.put("acme", new_binding("s0", ["y.example"], header="X-Key"), VALUE)
    await secrets.put("other", new_binding("more", ["x.example"], header="X-Key"), VALUE)


def test_variables_lead_to_the_broker_and_hold_no_value() -> None:
    kinds = ("openai", "anthropic", "pip", "npm", "git")
    secrets = [
        BoundSecret(**{name: getattr(bound, name) for name in bound.__dataclass_fields__}, value=VALUE)
        for bound in (new_binding(kind, [f"{kind}.example"], kind=kind) for kind in kinds)
    ]
    check_together(secrets)
    found = broker_variables(secrets)
    assert found["OPENAI_BASE_URL"] == "http://openai.broker.internal/v1"
    assert found["ANTHROPIC_BASE_URL"] == "http://anthropic.broker.internal"
    assert found["PIP_INDEX_URL"] == "http://pip.broker.internal/simple/"
    assert found["npm_config_registry"] == "http://npm.broker.internal/"
    assert found["GIT_CONFIG_COUNT"] == "3"
    assert VALUE not in str(found)
    assert broker_variables([]) == {}
