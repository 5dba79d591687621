"""/api/events and the operator's list of sessions: one server, and a coordinator with its worker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from e2e.alone_or_cluster import KINDS, Place, running
from e2e.api_client import COMMENT, Api, Event, of
from e2e.conftest import NewState

pytestmark = pytest.mark.anyio

_KEY = "wk_" + "operator" * 6


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, new_state: NewState) -> Iterator[Place]:
    settings = {"WARREN_AUTH": "true", "WARREN_API_KEY": _KEY, "WARREN_STREAM_KEEPALIVE_S": "0.2"}
    with running(request.param, new_state, WARREN_MIN_FREE_MEMORY_MB="1", **settings) as place:
        yield place


@pytest.fixture
async def admin(place: Place) -> AsyncIterator[Api]:
    async with Api(place.server.url, {"X-API-Key": _KEY}) as api:
        yield api


class Following:
    """A stream of events; `ready` is its first one."""

    def __init__(self, events: AsyncIterator[Event], ready: Event) -> None:
        self._events = events
        self.ready = ready

    async def next(self) -> Event:
        async with asyncio.timeout(30):
            async for event in self._events:
                if event.kind != COMMENT:
                    return event
        raise AssertionError("the stream has ended")


@contextlib.asynccontextmanager
async def following(api: Api, last: str = "", **asked: Any) -> AsyncIterator[Following]:
    headers = {"Last-Event-ID": last} if last else {}
    async with api.events("GET", "/api/events", headers=headers, **asked) as events:
        ready = await anext(events)
        assert ready.kind == "ready"
        yield Following(events, ready)


async def test_the_life_of_a_session_is_told_to_its_tenant_and_to_the_operator(admin: Api) -> None:
    async with of(admin, "acme") as acme, of(admin, "other") as other, contextlib.AsyncExitStack() as stack:
        mine, everyone = [await stack.enter_async_context(following(api, **asked)) for api, asked in (
            (acme, {}), (admin, {"of": "*", "kinds": "session.created,session.ended"}),
        )]  # fmt: skip
        async with other.session() as hidden, acme.session(thread_id="events") as session:
            created = await mine.next()
            await session.call("PATCH", "", {"idle_timeout_s": 600, "metadata": {"a": "b"}})
            changed = await mine.next()
        ended = await mine.next()
        assert [created.kind, changed.kind, ended.kind] == ["session.created", "session.changed", "session.ended"]
        assert changed.data["data"]["changed"] == ["idle_timeout_s", "metadata"]
        assert {created.data["session_id"], ended.data["session_id"]} == {session.id}
        assert created.data["data"]["thread_id"] == "events"
        assert created.data["tenant"] == "acme"
        seen = {(event.kind, event.data["session_id"]) for event in [await everyone.next() for _ in range(4)]}
        assert seen == {(kind, one) for kind in ("session.created", "session.ended") for one in (hidden.id, session.id)}
        async with following(acme, changed.id) as again:
            assert again.ready.data == {"resumed": True}
            assert await again.next() == ended
        async with following(acme, "0123456789abcdef-1", session_id=session.id) as lost:
            assert lost.ready.data == {"resumed": False}
            assert (await lost.next()).kind == "gap"


async def test_a_tenant_cannot_follow_another_or_all(admin: Api) -> None:
    async with of(admin, "acme") as acme, of(admin, "acme", "audit", "read") as auditor, of(admin, "a", "exec") as none:
        for whose in ("*", "other"):
            await acme.refused("GET", "/api/events", status=403, code="forbidden", of=whose)
            await acme.refused("GET", "/api/sessions", status=403, code="forbidden", of=whose)
        await auditor.refused("GET", "/api/sessions", status=403, code="forbidden", of="*")
        async with following(auditor, of="other"):
            pass
        await none.refused("GET", "/api/events", status=403, code="forbidden")
        await acme.refused("GET", "/api/events", status=422, code="invalid_request", kinds="command.finished")
        await admin.refused("GET", "/api/events", status=422, code="invalid_request", of="a b")


async def test_a_revoked_key_loses_its_stream(admin: Api) -> None:
    async with of(admin, "leaver") as api, following(api) as stream:
        key_id = (await api.get("/api/whoami"))["key_id"]
        await admin.call("DELETE", f"/api/admin/keys/{key_id}", status=204)
        last = await stream.next()
        assert (last.kind, last.data["status"], last.data["code"]) == ("error", 401, "unauthorized")
        with pytest.raises(AssertionError, match="the stream has ended"):  # whole
            await stream.next()


async def test_the_operator_lists_all_sessions_and_searches_them(admin: Api) -> None:
    async with (
        of(admin, "one") as one,
        of(admin, "two") as two,
        one.session(thread_id="Report-7", metadata={"user": "Ann"}) as first,
        two.session(thread_id="other") as second,
    ):
        shown = {row["session_id"]: row["tenant"] for row in (await admin.get("/api/sessions", of="*"))["sessions"]}
        assert shown.items() >= {first.id: "one", second.id: "two"}.items()
        page = await admin.get("/api/sessions", of="*", limit=1)
        rest = await admin.get("/api/sessions", of="*", limit=1, after=page["next"])
        assert [row["session_id"] for row in (*page["sessions"], *rest["sessions"])] == [second.id, first.id]
        assert [row["session_id"] for row in (await admin.get("/api/sessions", of="two"))["sessions"]] == [second.id]
        worker, provider = first.found["worker"], first.found["provider"]
        for asked in ({"search": "report"}, {"search": "ANN"}, {"search": first.id[-8:]}):
            found = (await one.get("/api/sessions", worker=worker, provider=provider, **asked))["sessions"]
            assert [row["session_id"] for row in found] == [first.id]
        for nothing in ({"search": "other"}, {"worker": "none"}, {"provider": "none"}):
            assert (await one.get("/api/sessions", **nothing))["sessions"] == []
        await admin.refused("GET", "/api/sessions", status=422, code="invalid_request", of="*", state="ended")
    ended = (await admin.get("/api/sessions", of="one", state="ended"))["sessions"]
    assert [row["session_id"] for row in ended] == [first.id]
