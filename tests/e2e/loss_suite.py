"""Sandboxes that die: it is told, with the reason, and nobody gets a fresh one without having asked for it."""

import asyncio
import time
from typing import Any

import pytest
from e2e.api_client import Api, SessionApi, until
from e2e.hosts import Hosts
from e2e.session_suite import listed, unique

_SOON_S = 2.0


async def lost(session: SessionApi) -> dict[str, Any]:
    async def is_lost() -> dict[str, Any] | None:
        shown = await session.show()
        return shown if shown["state"] == "lost" else None

    found: dict[str, Any] = await until(is_lost)
    return found


@pytest.mark.anyio
class LossSuite:
    async def test_a_lost_sandbox_is_told_soon_with_the_reason(self, api: Api, hosts: Hosts) -> None:
        async with api.session() as session:
            hosts.lose(session.found["sandbox_id"])
            began = time.monotonic()
            async with session.ask("POST", "/exec", {"command": "true"}) as answer:
                found = await answer.json(content_type=None)
            assert time.monotonic() - began < _SOON_S
            # A command that was sent before the loss was known has a result.
            assert "sandbox_lost" in (found.get("code"), found.get("reason"))
            await lost(session)
            refused = await session.refused("POST", "/exec", {"command": "true"}, status=410, code="sandbox_lost")
            assert "is lost: its first process has ended" in refused["detail"]
            assert "new session" in refused["remedy"]
            for method, place in (("GET", "/files"), ("GET", "/processes"), ("POST", "/keep-alive")):
                await session.refused(method, place, status=410, code="sandbox_lost")

    async def test_a_loss_is_seen_without_anybody_using_the_session(self, api: Api, hosts: Hosts) -> None:
        async with api.session(thread_id=unique()) as session:
            hosts.lose(session.found["sandbox_id"])
            found = await lost(session)
            assert (found["reason"], found["isolation"]) == ("lost", None)
            assert found["detail"]
            assert await listed(api, thread_id=session.found["thread_id"], state="lost") == [session.id]
            assert await listed(api, thread_id=session.found["thread_id"], state="running") == []
            await until(lambda: cleared(hosts, session))

    async def test_a_running_command_ends_with_the_loss(self, api: Api, hosts: Hosts) -> None:
        async with api.session() as session:
            running = asyncio.ensure_future(session.exec("sleep 100"))
            await asyncio.sleep(0.5)
            hosts.lose(session.found["sandbox_id"])
            result = await asyncio.wait_for(running, 30)
            assert (result["reason"], result["exit_code"]) == ("sandbox_lost", -1)
            assert "lost" in result["output"]

    async def test_streams_end_with_the_loss(self, api: Api, hosts: Hosts) -> None:
        async with api.session() as session:
            process = await session.start("sleep 100")
            async with (
                session.events("POST", "/exec", {"command": "sleep 100"}) as events,
                session.events("GET", "/files/watch") as changes,
                session.socket(f"/processes/{process}/attach") as socket,
                session.socket("/terminal") as terminal,
            ):
                await socket.expect("started")
                await terminal.expect("started")
                assert (await anext(events)).kind == "started"
                assert (await anext(changes)).kind == "watching"
                hosts.lose(session.found["sandbox_id"])
                for stream in (events, changes):
                    last = [event async for event in stream][-1]
                    assert (last.kind, last.data["code"]) == ("error", "sandbox_lost")
                for one in (socket, terminal):
                    assert (await one.expect("error"))["code"] == "sandbox_lost"
                    assert await one.closed() == 4410

    async def test_a_thread_keeps_its_lost_session_unless_it_asks_for_a_fresh_one(self, api: Api, hosts: Hosts) -> None:
        thread = unique()
        async with api.session(thread_id=thread) as first:
            hosts.lose(first.found["sandbox_id"])
            await lost(first)
            for _ in range(2):
                await api.refused("POST", "/api/sessions", {"thread_id": thread}, status=410, code="sandbox_lost")
            async with api.session(thread_id=thread, replace_lost=True) as second:
                assert second.id != first.id
                assert second.found["previous"]["session_id"] == first.id
                assert second.found["previous"]["reason"] == "lost"
                assert second.found["previous"]["detail"]
                assert (await first.show())["state"] == "ended"
                again = await api.post("/api/sessions", {"thread_id": thread, "replace_lost": True})
                assert again["session_id"] == second.id

    async def test_many_who_ask_for_a_fresh_one_get_the_same(self, api: Api, hosts: Hosts) -> None:
        thread = unique()
        async with api.session(thread_id=thread) as first:
            hosts.lose(first.found["sandbox_id"])
            await lost(first)
            body = {"thread_id": thread, "command": "echo hi", "replace_lost": True}
            found = await asyncio.gather(*(api.post("/execute", body) for _ in range(20)))
            assert len({one["session_id"] for one in found}) == 1
            assert sum(one["notice"] is not None for one in found) == 1
            assert first.id not in {one["session_id"] for one in found}
            await api.post("/cleanup", {"thread_id": thread})

    async def test_the_flat_endpoints_tell_a_loss(self, api: Api, hosts: Hosts) -> None:
        thread = unique()
        body = {"thread_id": thread, "command": "echo hi"}
        async with api.session(thread_id=thread) as first:
            hosts.lose(first.found["sandbox_id"])
            await lost(first)
            refused = await api.refused("POST", "/execute", body, status=410, code="sandbox_lost")
            assert "replace_lost" in refused["remedy"]
            by_id = {"session_id": first.id, "command": "true", "replace_lost": True}
            await api.refused("POST", "/execute", by_id, status=410, code="sandbox_lost")
            found = await api.post("/execute", {**body, "replace_lost": True})
            assert "was lost" in found["notice"]
            assert "files are gone" in found["notice"]
            await api.post("/cleanup", {"thread_id": thread})

    async def test_a_lost_session_can_be_deleted_and_ends_when_its_time_is_over(self, api: Api, hosts: Hosts) -> None:
        async with api.session() as first, api.session(idle_timeout_s=1) as second:
            hosts.lose(first.found["sandbox_id"])
            hosts.lose(second.found["sandbox_id"])
            await lost(first)
            assert (await first.call("DELETE", ""))["state"] == "ended"

            async def over() -> bool:
                return bool((await second.show())["state"] == "ended")

            await until(over)
            assert (await second.show())["reason"] == "lost"
            assert not hosts.has(first.found["sandbox_id"])
            assert not hosts.has(second.found["sandbox_id"])


async def cleared(hosts: Hosts, session: SessionApi) -> bool:
    return not hosts.has(session.found["sandbox_id"])
