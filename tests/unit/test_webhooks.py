"""Who may have which webhooks, what is kept of them, and how many are sent at once."""

import json
from itertools import product

import pytest

from warren.governance.webhooks.deliveries import DeliveryQueues, delivery_view, new_message
from warren.governance.webhooks.delivery_worker import MAX_OF_TENANT, MAX_OF_WEBHOOK, MAX_SENDING, DeliverySlots, Wakeup
from warren.governance.webhooks.outbox import Webhooks
from warren.governance.webhooks.registry import (
    MAX_DESCRIPTION,
    MAX_WEBHOOKS,
    WebhookRegistry,
    read_events,
    webhook_view,
)
from warren.governance.webhooks.sender import WebhookSender
from warren.model.addresses import read_networks
from warren.model.errors import InvalidRequest, NotFound, Unavailable
from warren.model.events import EventKind
from warren.stores.encryption import Encryption
from warren.stores.memory import MemoryRecords
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio
URL = "https://hooks.example.com/warren"


@pytest.fixture
def records() -> MemoryRecords:
    return MemoryRecords()


@pytest.fixture
def made(records: MemoryRecords) -> Webhooks:
    return Webhooks(records, ManualClock(), WebhookSender())


def new_hooks(records: MemoryRecords, encryption: Encryption | None = None) -> WebhookRegistry:
    return WebhookRegistry(records, ManualClock(), encryption)


# -- making them


async def test_a_webhook_is_there_after_it_was_made_and_shows_no_secret(made: Webhooks) -> None:
    hook, secret = await made.create("acme", URL, ["session.lost", "session.ended", "session.lost"], "for us")
    assert hook.id.startswith("wh_")
    assert secret.startswith("whsec_")
    assert await made.get("acme", hook.id) == hook
    assert list(await made.list("acme")) == [hook]
    assert webhook_view(hook) == {
        "id": hook.id,
        "url": URL,
        "events": ["session.ended", "session.lost"],
        "description": "for us",
        "created_at": hook.created_at,
        "disabled": None,
    }
    assert secret not in repr(hook)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "example.com",
        "http://127.0.0.1/",
        "http://169.254.169.254/latest",
        "http://[::1]:8000/",
        "http://user:password@example.com/",
        "http://example.com:25/",
        "",
    ],
)
async def test_a_url_that_may_not_be_called_is_refused(made: Webhooks, url: str) -> None:
    with pytest.raises(InvalidRequest):
        await made.create("acme", url, ["*"])
    assert not await made.list("acme")


async def test_an_address_of_a_network_that_is_allowed_is_taken(records: MemoryRecords) -> None:
    made = Webhooks(records, ManualClock(), WebhookSender(read_networks(["10.0.0.0/8"])))
    await made.create("acme", "http://10.1.2.3/", ["*"])
    with pytest.raises(InvalidRequest):
        await made.create("acme", "http://192.168.1.1/", ["*"])


@pytest.mark.parametrize("description", ["x" * (MAX_DESCRIPTION + 1), "two\nlines", "\x1b[31m"])
async def test_a_description_is_short_and_printable(made: Webhooks, description: str) -> None:
    with pytest.raises(InvalidRequest, match="description"):
        await made.create("acme", URL, ["*"], description)


async def test_a_tenant_has_so_many_webhooks(made: Webhooks) -> None:
    for _ in range(MAX_WEBHOOKS):
        hook, _ = await made.create("acme", URL, ["*"])
    with pytest.raises(InvalidRequest, match=f"{MAX_WEBHOOKS} webhooks already"):
        await made.create("acme", URL, ["*"])
    await made.create("other", URL, ["*"])
    await made.delete("acme", hook.id)
    await made.create("acme", URL, ["*"])


@pytest.mark.parametrize(
    ("names", "events"),
    [
        (["*"], ("*",)),
        (["session.lost", "*"], ("*",)),
        (["session.lost", "quota.reached"], ("quota.reached", "session.lost")),
        ([str(kind) for kind in EventKind], tuple(sorted(map(str, EventKind)))),
    ],
)
def test_events_are_read(names: list[str], events: tuple[str, ...]) -> None:
    assert read_events(names) == events


@pytest.mark.parametrize("names", [[], ["session"], ["session.*"], ["ping"], [""], ["SESSION.LOST"]])
def test_events_that_do_not_exist_are_refused(names: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_events(names)
    assert "*" in caught.value.remedy


# -- whose they are


async def test_a_webhook_of_another_tenant_is_answered_like_one_that_does_not_exist(made: Webhooks) -> None:
    hook, _ = await made.create("acme", URL, ["*"])
    missing = f"wh_{'0' * 24}"
    for ask in (made.get, made.delete, made.test, made.deliveries):
        with pytest.raises(NotFound) as theirs:
            await ask("other", hook.id)
        with pytest.raises(NotFound) as nobodys:
            await ask("other", missing)
        assert str(theirs.value).replace(hook.id, missing) == str(nobodys.value)
    assert not await made.list("other")
    assert await made.get("acme", hook.id) == hook


async def test_a_deleted_webhook_is_gone(made: Webhooks) -> None:
    hook, _ = await made.create("acme", URL, ["*"])
    await made.delete("acme", hook.id)
    assert not await made.list("acme")
    with pytest.raises(NotFound):
        await made.delete("acme", hook.id)


# -- what is kept


async def test_a_secret_is_kept_sealed(records: MemoryRecords) -> None:
    encryption = Encryption(bytes(32))
    hooks = new_hooks(records, encryption)
    hook, secret = await hooks.create("acme", URL, ["*"], "")
    kept = await records.get("webhook", hook.id)
    assert kept is not None
    assert secret not in kept.value
    assert secret.removeprefix("whsec_") not in kept.value
    found = await hooks.get("acme", hook.id)
    assert hooks.secrets_of(found) == [secret]
    for other in (new_hooks(records), new_hooks(records, Encryption(b"1" * 32))):
        with pytest.raises(Unavailable):
            other.secrets_of(found)


async def test_the_secret_of_one_webhook_cannot_be_put_into_another(records: MemoryRecords) -> None:
    hooks = new_hooks(records, Encryption(bytes(32)))
    one, _ = await hooks.create("acme", URL, ["*"], "")
    two, _ = await hooks.create("acme", URL, ["*"], "")
    record = await records.get("webhook", two.id)
    assert record is not None
    assert await records.put(record.changed(json.dumps({**json.loads(record.value), "secret": one.secret})))
    with pytest.raises(Unavailable):
        hooks.secrets_of(await hooks.get("acme", two.id))


async def test_without_encryption_a_secret_is_kept_as_it_is(records: MemoryRecords) -> None:
    hook, secret = await new_hooks(records).create("acme", URL, ["*"], "")
    assert new_hooks(records, Encryption(bytes(32))).secrets_of(hook) == [secret]


async def test_a_new_secret_signs_beside_the_old_one_for_a_while(records: MemoryRecords) -> None:
    clock = ManualClock()
    hooks = WebhookRegistry(records, clock, Encryption(bytes(32)))
    hook, old = await hooks.create("acme", URL, ["*"], "")
    changed, new = await hooks.rotate("acme", hook.id, 3600.0)
    found = await hooks.get("acme", hook.id)
    assert found == changed
    assert hooks.secrets_of(found) == [new, old]
    kept = await records.get("webhook", hook.id)
    assert kept is not None
    assert old not in kept.value
    await clock.advance(3601.0)
    assert hooks.secrets_of(found) == [new]
    with pytest.raises(NotFound):
        await hooks.rotate("other", hook.id, 0.0)
    at_once, newest = await hooks.rotate("acme", hook.id, 0.0)
    assert hooks.secrets_of(at_once) == [newest]


async def test_the_sealing_key_is_changed_while_webhooks_go_on(records: MemoryRecords) -> None:
    before, after = b"1" * 32, b"2" * 32
    old = new_hooks(records, Encryption(before))
    hook, secret = await old.create("acme", URL, ["*"], "")
    rotated, _ = await old.create("acme", URL, ["*"], "")
    await old.rotate("acme", rotated.id, 3600.0)
    both = new_hooks(records, Encryption(after, before))
    assert both.secrets_of(await both.get("acme", hook.id)) == [secret]
    await both.renew_encryption()
    only_new = new_hooks(records, Encryption(after))
    assert only_new.secrets_of(await only_new.get("acme", hook.id)) == [secret]
    assert len(only_new.secrets_of(await only_new.get("acme", rotated.id))) == 2


async def test_a_damaged_webhook_harms_no_other_and_can_be_deleted(records: MemoryRecords) -> None:
    hooks = new_hooks(records)
    hook, _ = await hooks.create("acme", URL, ["*"], "")
    sound, _ = await hooks.create("acme", URL, ["*"], "")
    record = await records.get("webhook", hook.id)
    assert record is not None
    assert await records.put(record.changed("{}"))
    with pytest.raises(Unavailable, match="damaged"):
        await hooks.get("acme", hook.id)
    assert list(await hooks.list("acme")) == [sound]
    with pytest.raises(NotFound):
        await hooks.delete("other", hook.id)
    await hooks.delete("acme", hook.id)
    with pytest.raises(NotFound):
        await hooks.get("acme", hook.id)


async def test_deliveries_are_shown_newest_first_and_without_what_is_in_them(records: MemoryRecords) -> None:
    lines = DeliveryQueues(records)
    for number in (2, 1, 3):
        message = new_message(f"evt_{number}", "session.ended", 100.0 + number, "acme", "ses_1", {"hush": 1})
        assert await lines.add("wh_1", "acme", message, 100.0 + number, now=200.0)
        assert not await lines.add("wh_1", "acme", message, 100.0 + number, now=201.0)
    shown = [delivery_view(record) for record in await lines.newest("wh_1", 2)]
    assert [one["message_id"] for one in shown] == ["evt_3", "evt_2"]
    assert "hush" not in repr(shown)
    assert [record.due for record in await lines.first("wh_1", 0.0, 10)] == [200.0] * 3


# -- how many at once


def test_places_are_bounded_for_all_for_a_tenant_and_for_a_webhook() -> None:
    places = DeliverySlots()
    taken = []
    for tenant, hook, _ in product(range(MAX_SENDING), range(MAX_SENDING), range(MAX_SENDING)):
        name = f"t{tenant}", f"t{tenant}-h{hook}"
        if places.has_free(*name):
            places.take(*name)
            taken.append(name)
    assert len(taken) == MAX_SENDING
    assert places.are_full
    assert max(taken.count(name) for name in taken) == MAX_OF_WEBHOOK
    tenants = [tenant for tenant, _ in taken]
    assert max(map(tenants.count, tenants)) == MAX_OF_TENANT
    for name in taken:
        places.give_back(*name)
    assert repr(places) == f"<DeliverySlots: 0 of {MAX_SENDING} taken>"
    assert places.has_free(*taken[0])


async def test_a_bell_that_rang_before_is_not_missed() -> None:
    wakeup = Wakeup(ManualClock())
    wakeup.wake()
    await wakeup.wait(10.0)
