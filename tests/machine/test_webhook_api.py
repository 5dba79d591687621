"""/api/webhooks, over the routes themselves: whose request it is says a header."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from machine.webhook_receiver import PUBLIC, receiving
from machine.webhook_world import FAILS, TAKES, an_event, ids, until_states, wait_until
from starlette.types import ASGIApp, Receive, Scope, Send
from unit.session_world import World, environment, world

from warren.access.identity import AnonymousIdentity
from warren.config.environments import RegistryEnvironments
from warren.config.registry import Registry
from warren.governance.tenancy import Tenancy
from warren.governance.webhooks.outbox import Webhooks
from warren.governance.webhooks.sender import WebhookSender
from warren.http.api import webhooks as routes
from warren.http.context import Context
from warren.http.problems import register
from warren.http.request import request_in
from warren.images.store.store import ImageStore
from warren.model.access import USUAL_SCOPES, Caller
from warren.model.access import Scope as AccessScope
from warren.model.addresses import read_networks

pytestmark = pytest.mark.anyio
PLACE = "/api/webhooks"
BODY = {"url": "https://hooks.example.com/", "events": ["session.lost"], "description": "for us"}


def with_caller(app: ASGIApp) -> ASGIApp:
    """Stands where the door stands."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        scopes = USUAL_SCOPES if headers["scope"] == "sessions" else frozenset({AccessScope(headers["scope"])})
        request_in(scope).caller = Caller(headers["tenant"], "key_1", scopes)
        await app(scope, receive, send)

    return called


def client(served: World, tenancy: Tenancy, tenant: str, scope: str = "sessions") -> httpx2.AsyncClient:
    app = FastAPI()
    register(app)
    app.include_router(routes.router)
    app.state.context = Context(
        sessions=served.sessions,
        tenancy=tenancy,
        identity=AnonymousIdentity(tenancy.tenants),
        provider="fake",
        environments=RegistryEnvironments(Registry(), lambda found: found),
        default_environment="base",
        images=ImageStore(Path("/nonexistent")),
        worker_id="local",
        version="1",
    )
    transport = httpx2.ASGITransport(with_caller(app))
    return httpx2.AsyncClient(transport=transport, base_url="http://warren", headers={"tenant": tenant, "scope": scope})


@asynccontextmanager
async def running_office(served: World, *, sends: bool = True) -> AsyncIterator[Tenancy]:
    sender = WebhookSender(read_networks([f"{PUBLIC}/32"]))
    made = Webhooks(served.store.records, served.clock, sender)
    tenancy = Tenancy(served.store.records, served.clock, environment, webhooks=made if sends else None)
    tenancy.start()
    try:
        yield tenancy
    finally:
        await tenancy.close()


async def created(api: httpx2.AsyncClient, **values: object) -> dict[str, Any]:
    answer = await api.post(PLACE, json={**BODY, **values})
    assert answer.status_code == 201, answer.text
    view: dict[str, Any] = answer.json()
    return view


async def test_a_webhook_is_made_shown_listed_and_deleted() -> None:
    async with world() as served, running_office(served) as tenancy, client(served, tenancy, "acme") as api:
        made = await created(api)
        assert made.pop("secret").startswith("whsec_")
        assert made == {
            **BODY,
            "id": made["id"],
            "created_at": "2027-01-15T08:00:00.000Z",
            "disabled": None,
        }
        assert (await api.get(f"{PLACE}/{made['id']}")).json() == made
        assert (await api.get(PLACE)).json() == {"webhooks": [made]}
        assert (await api.get(f"{PLACE}/{made['id']}/deliveries")).json() == {"deliveries": []}
        assert (await api.delete(f"{PLACE}/{made['id']}")).status_code == 204
        assert (await api.get(f"{PLACE}/{made['id']}")).status_code == 404
        assert (await api.get(PLACE)).json() == {"webhooks": []}


async def test_without_events_all_are_wanted() -> None:
    async with world() as served, running_office(served) as tenancy, client(served, tenancy, "acme") as api:
        answer = await api.post(PLACE, json={"url": BODY["url"]})
        assert answer.json()["events"] == ["*"]


@pytest.mark.parametrize(
    "change",
    [
        {"url": "http://127.0.0.1:8000/"},
        {"url": "nonsense"},
        {"url": 5},
        {"events": []},
        {"events": ["nothing"]},
        {"events": "*"},
        {"description": "a\nb"},
        {"secret": "whsec_mine"},
    ],
    ids=str,
)
async def test_what_cannot_be_is_refused(change: dict[str, object]) -> None:
    async with world() as served, running_office(served) as tenancy, client(served, tenancy, "acme") as api:
        answer = await api.post(PLACE, json={**BODY, **change})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
        assert (await api.get(PLACE)).json() == {"webhooks": []}


@pytest.mark.parametrize(("method", "rest"), [("GET", ""), ("DELETE", ""), ("POST", "/test"), ("GET", "/deliveries")])
async def test_another_tenants_webhook_is_not_found(method: str, rest: str) -> None:
    async with (
        world() as served,
        running_office(served) as tenancy,
        client(served, tenancy, "acme") as api,
        client(served, tenancy, "other") as other,
    ):
        mine, missing = (await created(api))["id"], f"wh_{'0' * 24}"
        theirs = await other.request(method, f"{PLACE}/{mine}{rest}")
        nobodys = await other.request(method, f"{PLACE}/{missing}{rest}")
        assert theirs.status_code == nobodys.status_code == 404
        assert theirs.text.replace(mine, missing) == nobodys.text
        assert (await api.get(f"{PLACE}/{mine}")).status_code == 200


@pytest.mark.parametrize(
    ("method", "rest"),
    [("GET", ""), ("POST", ""), ("GET", "/x"), ("DELETE", "/x"), ("POST", "/x/test"), ("GET", "/x/deliveries")],
)
@pytest.mark.parametrize("scope", ["read", "exec", "files"])
async def test_webhooks_need_the_scope_of_sessions(method: str, rest: str, scope: str) -> None:
    async with world() as served, running_office(served) as tenancy, client(served, tenancy, "acme", scope) as api:
        answer = await api.request(method, f"{PLACE}{rest}", json=BODY if method == "POST" else None)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


async def test_a_server_that_sends_none_says_so() -> None:
    async with (
        world() as served,
        running_office(served, sends=False) as tenancy,
        client(served, tenancy, "acme") as api,
    ):
        answer = await api.get(PLACE)
        assert answer.status_code == 404
        assert answer.json()["remedy"]


async def test_what_the_office_hears_of_is_sent_and_failures_are_shown() -> None:
    async with (
        world() as served,
        receiving(TAKES) as good,
        receiving(FAILS) as bad,
        running_office(served) as tenancy,
        client(served, tenancy, "acme") as api,
    ):
        hooks = [await created(api, url=each.url(), events=["*"]) for each in (good, bad)]
        tenancy.events.publish(event := an_event())
        assert tenancy.webhooks is not None
        await wait_until(lambda: ids(good) == [event.id])
        await until_states(tenancy.webhooks, hooks[1]["id"], ("waiting", 1))
        (shown,) = (await api.get(f"{PLACE}/{hooks[1]['id']}/deliveries")).json()["deliveries"]
        assert (shown["state"], shown["attempts"], shown["status"]) == ("waiting", 1, 500)
        assert shown["message_id"] == event.id
        assert shown["attempted_at"] == "2027-01-15T08:00:00.000Z"
        assert shown["next_attempt_at"] > shown["attempted_at"]
        pinged = [(await api.post(f"{PLACE}/{hook['id']}/test")).json() for hook in hooks]
        assert pinged == [
            {"delivered": True, "status": 200, "error": ""},
            {"delivered": False, "status": 500, "error": "it answered 500: oh no"},
        ]
