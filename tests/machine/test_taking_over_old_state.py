"""A server, and a cluster, go on with what the servers of main be6c65be left behind: nothing that they kept is lost.

Their provider kept the sandboxes in memory. So sessions that ran are lost here, and the rest of them is there.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.api_client import Api, until
from machine.webhook_receiver import receiving, saying
from machine.webhook_world import posts
from marks import first_of
from old_state import ALONE, CLUSTER, WEBHOOK_ADDRESS, WEBHOOK_PORT, OldState, unpacked
from webhook_page import is_genuine

pytestmark = pytest.mark.anyio

VERSION = Path(__file__).parents[1] / "data" / "state-be6c65be"
ACME, READER, BETA, REVOKED, ADMIN = "acme", "reader", "beta", "revoked", "admin"
ENDED = {"deleted": "deleted", "idle": "idle", "old": "lifetime", "replaced": "lost"}
# They are other for a session that was taken over.
CHANGING = {"state", "detail", "reason", "expires_at", "idle_expires_at", "worker", "url", "artifacts"}


class Taken:
    """The state, and the servers that have taken it over."""

    def __init__(self, state: OldState, url: str) -> None:
        self.kind, self.before, self.url = state.kind, state.before, url

    @contextlib.asynccontextmanager
    async def as_caller(self, name: str) -> AsyncIterator[Api]:
        async with Api(self.url, {"Authorization": f"Bearer {self.before['keys'][name]}"}) as api:
            yield api

    async def ask(self, who: str, path: str) -> Any:
        async with self.as_caller(who) as api:
            return await api.get(path)

    async def both(self, who: str, part: str) -> AsyncIterator[tuple[Any, Any]]:
        """What this caller was answered before and is answered now, for every path that begins so."""
        paths = [path for path in self.before["answers"][who] if path.startswith(part)]
        assert paths
        for path in paths:
            yield self.before["answers"][who][path], await self.ask(who, path)

    def id_of(self, label: str) -> str:
        return str(self.before["sessions"][label])

    async def session(self, label: str, who: str = ACME) -> dict[str, Any]:
        found: dict[str, Any] = await self.ask(who, f"/api/sessions/{self.id_of(label)}")
        return found

    async def until_all_are(self, state: str, labels: set[str], who: str = ACME) -> None:
        async def all_are() -> bool:
            async for _, now in self.both(who, "/api/sessions?"):
                found = {one["metadata"]["label"] for one in now["sessions"] if one["state"] == state}
            return labels <= found

        await until(all_are)


@pytest.fixture(scope="module", params=first_of([ALONE, CLUSTER]))
def taken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taken]:
    state = unpacked(request.param, VERSION, tmp_path_factory.mktemp("s"))
    with state.running() as url:
        if state.kind == CLUSTER:
            asyncio.run(_remove_worker(url, state.before["keys"][ADMIN], "worker-3"))
        yield Taken(state, url)


async def _remove_worker(url: str, key: str, worker: str) -> None:
    """What an operator does about a worker that stays away: the only coordinator that it knew is gone too. Whether it
    is still listed depends on how long ago the state was made."""
    async with Api(url, {"Authorization": f"Bearer {key}"}) as api:

        async def is_gone() -> bool:
            await asyncio.sleep(0.5)
            async with api.ask("DELETE", f"/api/cluster/workers/{worker}") as answer:
                return answer.status in (204, 404)

        await until(is_gone)


async def test_sessions_are_listed_with_what_they_had(taken: Taken) -> None:
    for who in (ACME, BETA):
        async for before, now in taken.both(who, "/api/sessions?"):
            for old, new in zip(before["sessions"], now["sessions"], strict=True):
                assert _lasting({name: new[name] for name in old}) == _lasting(old)
    assert (await taken.session("limited"))["env_names"] == sorted(taken.before["env"])


def _lasting(session: dict[str, Any]) -> dict[str, Any]:
    changing = CHANGING if session["metadata"]["label"] not in ENDED else {"url"}
    return {name: value for name, value in session.items() if name not in changing}


async def test_ended_sessions_stay_ended(taken: Taken) -> None:
    for label, reason in ENDED.items():
        found = await taken.session(label)
        assert (found["state"], found["reason"]) == ("ended", reason)


async def test_sessions_whose_sandboxes_are_gone_are_lost(taken: Taken) -> None:
    ran = {"lost", "thread", "limited", "once", "replacing", *(["away"] if taken.kind == CLUSTER else [])}
    await taken.until_all_are("lost", ran)
    await taken.until_all_are("lost", {"beta"}, BETA)


async def test_what_was_half_done_is_finished(taken: Taken) -> None:
    """A session that was being made is undone; one that was being ended has ended."""
    await taken.until_all_are("ended", {"creating", "stopping"})


async def test_threads_find_their_sessions(taken: Taken) -> None:
    async with taken.as_caller(ACME) as api:
        for thread, label in {"thread-running": "thread", "thread-lost": "lost", "thread-once": "once"}.items():
            [found] = (await api.get("/api/sessions", thread_id=thread))["sessions"]
            assert found["session_id"] == taken.id_of(label)
        replacing = await taken.session("replacing")
        assert replacing["previous"]["session_id"] == taken.id_of("replaced")
        [found] = (await taken.ask(BETA, "/api/sessions?thread_id=thread-running"))["sessions"]
        assert found["session_id"] == taken.id_of("beta")


async def test_a_thread_whose_session_has_ended_or_was_lost_gets_a_new_one(taken: Taken) -> None:
    await taken.until_all_are("lost", {"lost"})
    async with taken.as_caller(ACME) as api:
        for thread, label in {"thread-ended": "deleted", "thread-lost": "lost"}.items():
            async with api.session(thread_id=thread, replace_lost=True) as session:
                assert session.found["previous"]["session_id"] == taken.id_of(label)
                assert await session.output("echo it works") == "it works\n"


async def test_idempotency_keys_give_their_old_answers(taken: Taken) -> None:
    created, executed = taken.before["replays"]
    async with taken.as_caller(ACME) as api:
        for old in (created, executed):
            headers = {"Idempotency-Key": old["key"]}
            again = await api.call("POST", old["path"], old["body"], headers=headers, status=old["status"])
            if old is executed:
                assert again == old["answer"]
            assert again.get("session_id") == old["answer"].get("session_id")
            await api.refused(
                "POST",
                old["path"],
                {**old["body"], "env": {"A": "b"}},
                headers=headers,
                status=422,
                code="idempotency_key_reused",
            )


async def test_keys_let_the_same_callers_in(taken: Taken) -> None:
    for who in (ADMIN, ACME, READER, BETA):
        async for before, now in taken.both(who, "/api/whoami"):
            assert now == before
    async for before, now in taken.both(ADMIN, "/api/admin/keys"):
        for key in (*before["keys"], *now["keys"]):
            del key["used_at"]
        for key in now["keys"]:
            assert key.pop("old_until") is None  # the version before had no such field
        assert now == before
    async with taken.as_caller(REVOKED) as api:
        await api.refused("GET", "/api/whoami", status=401, code="unauthorized")
    async with taken.as_caller(READER) as api:
        await api.refused("POST", "/api/sessions", {}, status=403, code="forbidden")


async def test_quotas_and_policies_of_tenants_hold(taken: Taken) -> None:
    async for before, now in taken.both(ADMIN, "/api/admin/tenants"):
        for old, new in zip(before["tenants"], now["tenants"], strict=True):
            assert {name: new[name] for name in old} == old
    async with taken.as_caller(ACME) as api, api.session() as session:
        assert (await session.exec("curl example.com"))["reason"] == "refused"
        wanted = {"limits": {"memory_mb": 4096}}
        await api.refused("POST", "/api/sessions", wanted, status=403, code="forbidden")
    async with taken.as_caller(BETA) as api, contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(api.session())
        await api.refused("POST", "/api/sessions", {}, status=429, code="quota_exceeded")


async def test_usage_goes_on_from_where_it_was(taken: Taken) -> None:
    async for before, now in taken.both(ADMIN, "/api/admin/usage"):
        rows = {(row.pop("day"), row.pop("tenant")): row for row in now["usage"]}
        for old in before["usage"]:
            row = rows[old.pop("day"), old.pop("tenant")]
            assert all(row[name] >= figure for name, figure in old.items())


async def test_every_audit_entry_is_found(taken: Taken) -> None:
    async for before, now in taken.both(ADMIN, "/api/admin/audit"):
        for one in now["deeds"]:
            one.pop("hash", None)  # entries had none
        assert [one for one in before["deeds"] if one not in now["deeds"]] == []


async def test_webhooks_and_waiting_deliveries_are_there(taken: Taken) -> None:
    async for before, now in taken.both(ACME, "/api/webhooks"):
        if "webhooks" in before:
            assert now == before
        waiting = {one["id"]: one for one in now.get("deliveries", ())}
        for old in before.get("deliveries", ()):
            assert waiting[old["id"]]["message_id"] == old["message_id"]
            assert waiting[old["id"]]["attempts"] >= old["attempts"]


@pytest.mark.parametrize("kind", first_of([ALONE, CLUSTER]))
async def test_waiting_deliveries_are_delivered_with_their_signatures(kind: str, tmp_path: Path) -> None:
    state = unpacked(kind, VERSION, tmp_path)
    [path] = [path for path, answer in state.before["answers"][ACME].items() if answer.get("deliveries")]
    waiting = {one["message_id"] for one in state.before["answers"][ACME][path]["deliveries"]}
    secret = state.before["webhook_secrets"][path.split("/")[3]]
    async with receiving(saying(b""), WEBHOOK_ADDRESS, WEBHOOK_PORT) as receiver:

        async def all_came() -> bool:
            return waiting <= {post.id for post in posts(receiver)}

        with state.running():
            await until(all_came)
        for post in posts(receiver):
            if post.id in waiting:  # the servers of the other tests send to this address too
                assert is_genuine(secret, post.headers, post.body, float(post.headers["webhook-timestamp"]))


async def test_workers_of_the_cluster_are_known(taken: Taken) -> None:
    if taken.kind == ALONE:
        async with taken.as_caller(ADMIN) as api:
            await api.refused("GET", "/api/cluster", status=404, code="not_found")
        return
    workers = {one["id"]: one for one in (await taken.ask(ADMIN, "/api/cluster"))["workers"]}
    states = {name: worker["state"] for name, worker in workers.items()}
    assert (states["worker-1"], states["worker-2"]) == ("ready", "draining")
    assert "worker-3" not in states
