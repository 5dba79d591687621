"""How sessions end by themselves. Only use keeps one alive: commands, files, input; not looking."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from e2e.api_client import Api, SessionApi, until
from e2e.hosts import Hosts
from e2e.server_time import ServerTime
from e2e.session_suite import unique

IDLE = 2.0
_MORE_THAN_ONE = 1.1  # uses are written down every few seconds, and a session is looked at so much later
_STEPS = 10
_STEP = IDLE / 4


async def ended(session: SessionApi) -> dict[str, Any]:
    """Looks, many times a second, until the session has ended."""

    async def has_ended() -> dict[str, Any] | None:
        shown = await session.show()
        return shown if shown["state"] == "ended" else None

    found: dict[str, Any] = await until(has_ended)
    return found


async def outlives(session: SessionApi, api: Api, time: ServerTime, use: Callable[[], Awaitable[object]]) -> None:
    """Uses the session for longer than it may be idle; then it runs, and one that nobody used has ended."""
    async with api.session(idle_timeout_s=IDLE * time.unit_s) as unused:
        for _ in range(_STEPS):
            await use()
            await time.passes(_STEP)
        await ended(unused)
        assert (await session.show())["state"] == "running"


@pytest.mark.anyio
class ExpirySuite:
    async def test_an_idle_session_ends_and_says_why(self, api: Api, hosts: Hosts, time: ServerTime) -> None:
        async with api.session(idle_timeout_s=time.unit_s) as session:
            await time.passes(_MORE_THAN_ONE)
            found = await ended(session)
            assert (found["reason"], found["expires_at"]) == ("idle", None)
            assert not hosts.has(session.found["sandbox_id"])
            refused = await session.refused("POST", "/exec", {"command": "true"}, status=410, code="session_ended")
            assert "idle" in refused["detail"]
            await session.refused("POST", "/keep-alive", status=410, code="session_ended")

    async def test_looking_does_not_keep_a_session_alive(self, api: Api, time: ServerTime) -> None:
        async with api.session(idle_timeout_s=IDLE * time.unit_s, thread_id=unique()) as session:
            process = await session.start("sleep 100")
            for _ in range(_STEPS):
                await api.get("/api/sessions", thread_id=session.found["thread_id"])
                with contextlib.suppress(AssertionError):  # it may have ended by now
                    for place in ("/processes", f"/processes/{process}", f"/processes/{process}/output"):
                        await session.get(place)
                await time.passes(_STEP)
            assert (await ended(session))["reason"] == "idle"

    async def test_an_open_stream_without_input_does_not_keep_a_session_alive(self, api: Api, time: ServerTime) -> None:
        async with api.session(idle_timeout_s=time.unit_s) as session:
            process = await session.start("sleep 100")
            async with (
                session.socket(f"/processes/{process}/attach") as socket,
                session.events("GET", f"/processes/{process}/output") as output,
                session.events("GET", "/files/watch") as changes,
            ):
                await socket.expect("started")
                assert (await anext(output)).kind == "started"
                assert (await anext(changes)).kind == "watching"
                await time.passes(_MORE_THAN_ONE)
                assert (await ended(session))["reason"] == "idle"
                last = [event async for event in output][-1]
                assert last.kind == "error" or last.data["reason"] == "sandbox_lost"
                assert [event async for event in changes][-1].kind == "error"
                assert (await socket.next())["type"] in ("error", "result")

    async def test_commands_keep_a_session_alive(self, api: Api, time: ServerTime) -> None:
        async with api.session(idle_timeout_s=IDLE * time.unit_s) as session:
            await outlives(session, api, time, lambda: session.exec("true"))

    async def test_files_keep_a_session_alive(self, api: Api, time: ServerTime) -> None:
        async with api.session(idle_timeout_s=IDLE * time.unit_s) as session:
            await outlives(session, api, time, lambda: session.get("/files"))

    async def test_keep_alive_keeps_a_session_alive(self, api: Api, time: ServerTime) -> None:
        async with api.session(idle_timeout_s=IDLE * time.unit_s) as session:
            await outlives(session, api, time, lambda: session.post("/keep-alive"))

    async def test_naming_its_thread_again_keeps_a_session_alive(self, api: Api, time: ServerTime) -> None:
        thread = unique()
        async with api.session(idle_timeout_s=IDLE * time.unit_s, thread_id=thread) as session:
            await outlives(session, api, time, lambda: api.post("/api/sessions", {"thread_id": thread}))

    async def test_input_of_a_process_keeps_a_session_alive(self, api: Api, time: ServerTime) -> None:
        async with api.session(idle_timeout_s=IDLE * time.unit_s) as session:
            process = await session.start("cat")
            async with session.socket(f"/processes/{process}/attach") as socket:

                async def write() -> None:
                    await socket.raw.send_bytes(b"x\n")
                    await socket.expect("output")  # it has come back, so the server has seen it

                await socket.expect("started")
                await outlives(session, api, time, write)

    async def test_a_running_command_keeps_its_session_alive(self, api: Api, time: ServerTime) -> None:
        async with api.session(idle_timeout_s=time.unit_s) as session:
            async with api.session(idle_timeout_s=time.unit_s) as unused:
                running = asyncio.ensure_future(session.exec("echo > begun; sleep 3; echo done"))
                await until(lambda: self._is_there(session, "begun"))
                await time.passes(_MORE_THAN_ONE)
                await ended(unused)
            assert (await running)["output"] == "done\n"
            assert await session.output("echo still here") == "still here\n"

    async def _is_there(self, session: SessionApi, name: str) -> bool:
        found = await session.get("/files")
        return any(one["name"] == name for one in found["files"])

    async def test_a_command_that_is_followed_keeps_its_session_alive(self, api: Api, time: ServerTime) -> None:
        async with api.session(idle_timeout_s=time.unit_s) as session:
            async with (
                session.events("POST", "/exec", {"command": "sleep 3; echo done"}) as events,
                api.session(idle_timeout_s=time.unit_s) as unused,
            ):
                assert (await anext(events)).kind == "started"
                await time.passes(_MORE_THAN_ONE)
                await ended(unused)
                kinds = [event.kind async for event in events if event.kind != "comment"]
            assert kinds == ["output", "result"]
            assert (await session.show())["state"] == "running"

    async def test_a_session_ends_when_its_lifetime_is_over_however_busy_it_is(
        self, api: Api, hosts: Hosts, time: ServerTime
    ) -> None:
        async with api.session(max_lifetime_s=1.5 * time.unit_s) as session:
            async with session.events("POST", "/exec", {"command": "sleep 100"}) as events:
                assert (await anext(events)).kind == "started"
                await time.passes(1.6)
                found = await ended(session)
            assert found["reason"] == "lifetime"
            assert not hosts.has(session.found["sandbox_id"])

    async def test_keep_alive_does_not_prolong_the_lifetime(self, api: Api, time: ServerTime) -> None:
        async with api.session(max_lifetime_s=2 * time.unit_s) as session:

            async def kept() -> bool:
                await time.passes(0.25)
                async with session.ask("POST", "/keep-alive") as answer:
                    return bool(answer.status != 200)

            await until(kept)
            assert (await ended(session))["reason"] == "lifetime"

    async def test_a_patch_can_prolong_a_session(self, api: Api, time: ServerTime) -> None:
        times = {"idle_timeout_s": 1.5 * time.unit_s, "max_lifetime_s": 2 * time.unit_s}
        async with api.session(**times) as session, api.session(**times) as unchanged:
            longer = {"idle_timeout_s": 600 * time.unit_s, "max_lifetime_s": 700 * time.unit_s}
            await session.call("PATCH", "", longer)
            await time.passes(2.5)
            await ended(unchanged)
            assert await session.output("echo here") == "here\n"

    async def test_a_patch_can_shorten_a_session(self, session: SessionApi, time: ServerTime) -> None:
        await session.call("PATCH", "", {"idle_timeout_s": time.unit_s})
        await time.passes(_MORE_THAN_ONE)
        assert (await ended(session))["reason"] == "idle"

    async def test_an_expired_thread_gets_a_fresh_session_and_is_told(self, api: Api, time: ServerTime) -> None:
        thread = unique()
        async with api.session(idle_timeout_s=time.unit_s, thread_id=thread) as first:
            await first.exec("echo precious > note")
            await time.passes(_MORE_THAN_ONE)
            await ended(first)
            async with api.session(thread_id=thread) as second:
                assert second.found["previous"] == {"session_id": first.id, "reason": "idle", "detail": ""}
                assert (await second.exec("cat note"))["exit_code"] != 0
                again = await api.post("/api/sessions", {"thread_id": thread})
                assert again["previous"]["session_id"] == first.id

    async def test_the_flat_endpoints_tell_an_expired_thread_too(self, api: Api, time: ServerTime) -> None:
        thread = unique()
        body = {"thread_id": thread, "command": "echo hi"}
        async with api.session(idle_timeout_s=time.unit_s, thread_id=thread) as first:
            assert (await api.post("/execute", body))["notice"] is None
            await time.passes(_MORE_THAN_ONE)
            await ended(first)
            found = await api.post("/execute", body)
            assert found["session_id"] != first.id
            assert first.id in found["notice"]
            assert "idle" in found["notice"]
            assert "files are gone" in found["notice"]
            assert (await api.post("/execute", body))["notice"] is None
            await api.post("/cleanup", {"thread_id": thread})
