"""How sessions end by themselves. Only use keeps one alive: commands, files, input; not looking."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from e2e.api_client import Api, SessionApi, until
from e2e.hosts import Hosts
from e2e.session_suite import unique

IDLE_S = 2.0
_BUSY_S = 5.0


async def ended(session: SessionApi) -> dict[str, Any]:
    """Looks, many times a second, until the session has ended."""

    async def has_ended() -> dict[str, Any] | None:
        shown = await session.show()
        return shown if shown["state"] == "ended" else None

    found: dict[str, Any] = await until(has_ended)
    return found


async def stays(session: SessionApi, use: Callable[[], Awaitable[object]]) -> None:
    """Uses the session all the time, for longer than it may be idle; then it must be there."""
    deadline = time.monotonic() + _BUSY_S
    while time.monotonic() < deadline:
        await use()
        await asyncio.sleep(0.2)
    assert (await session.show())["state"] == "running"


@pytest.mark.anyio
class ExpirySuite:
    async def test_an_idle_session_ends_and_says_why(self, api: Api, hosts: Hosts) -> None:
        async with api.session(idle_timeout_s=1) as session:
            found = await ended(session)
            assert (found["reason"], found["expires_at"]) == ("idle", None)
            assert not hosts.has(session.found["sandbox_id"])
            refused = await session.refused("POST", "/exec", {"command": "true"}, status=410, code="session_ended")
            assert "idle" in refused["detail"]
            await session.refused("POST", "/keep-alive", status=410, code="session_ended")

    async def test_looking_does_not_keep_a_session_alive(self, api: Api) -> None:
        async with api.session(idle_timeout_s=1, thread_id=unique()) as session:
            process = await session.start("sleep 100")

            async def look() -> None:
                while True:
                    await api.get("/api/sessions", thread_id=session.found["thread_id"])
                    for place in ("/processes", f"/processes/{process}", f"/processes/{process}/output"):
                        await session.get(place)

            looking = asyncio.ensure_future(look())
            assert (await ended(session))["reason"] == "idle"
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def test_an_open_stream_without_input_does_not_keep_a_session_alive(self, api: Api) -> None:
        async with api.session(idle_timeout_s=1) as session:
            process = await session.start("sleep 100")
            async with (
                session.socket(f"/processes/{process}/attach") as socket,
                session.events("GET", f"/processes/{process}/output") as output,
                session.events("GET", "/files/watch") as changes,
            ):
                await socket.expect("started")
                assert (await anext(output)).kind == "started"
                assert (await anext(changes)).kind == "watching"
                assert (await ended(session))["reason"] == "idle"
                last = [event async for event in output][-1]
                assert last.kind == "error" or last.data["reason"] == "sandbox_lost"
                assert [event async for event in changes][-1].kind == "error"
                assert (await socket.next())["type"] in ("error", "result")

    async def test_commands_keep_a_session_alive(self, api: Api) -> None:
        async with api.session(idle_timeout_s=IDLE_S) as session:
            await stays(session, lambda: session.exec("true"))

    async def test_files_keep_a_session_alive(self, api: Api) -> None:
        async with api.session(idle_timeout_s=IDLE_S) as session:
            await stays(session, lambda: session.get("/files"))

    async def test_keep_alive_keeps_a_session_alive(self, api: Api) -> None:
        async with api.session(idle_timeout_s=IDLE_S) as session:
            await stays(session, lambda: session.post("/keep-alive"))

    async def test_naming_its_thread_again_keeps_a_session_alive(self, api: Api) -> None:
        thread = unique()
        async with api.session(idle_timeout_s=IDLE_S, thread_id=thread) as session:
            await stays(session, lambda: api.post("/api/sessions", {"thread_id": thread}))

    async def test_input_of_a_process_keeps_a_session_alive(self, api: Api) -> None:
        async with api.session(idle_timeout_s=IDLE_S) as session:
            process = await session.start("cat")
            async with session.socket(f"/processes/{process}/attach") as socket:
                await stays(session, lambda: socket.raw.send_bytes(b"x\n"))

    async def test_a_running_command_keeps_its_session_alive(self, api: Api) -> None:
        async with api.session(idle_timeout_s=1) as session:
            result = await session.exec(f"sleep {_BUSY_S}; echo done")
            assert result["output"] == "done\n"
            assert await session.output("echo still here") == "still here\n"

    async def test_a_command_that_is_followed_keeps_its_session_alive(self, api: Api) -> None:
        async with api.session(idle_timeout_s=1) as session:
            async with session.events("POST", "/exec", {"command": f"sleep {_BUSY_S}; echo done"}) as events:
                kinds = [event.kind async for event in events if event.kind != "comment"]
            assert kinds == ["started", "output", "result"]
            assert (await session.show())["state"] == "running"

    async def test_a_session_ends_when_its_lifetime_is_over_however_busy_it_is(self, api: Api, hosts: Hosts) -> None:
        async with api.session(max_lifetime_s=1.5) as session:
            with contextlib.suppress(AssertionError):
                await session.exec("sleep 100")
            found = await ended(session)
            assert found["reason"] == "lifetime"
            assert not hosts.has(session.found["sandbox_id"])

    async def test_keep_alive_does_not_prolong_the_lifetime(self, api: Api) -> None:
        async with api.session(max_lifetime_s=2) as session:

            async def kept() -> bool:
                async with session.ask("POST", "/keep-alive") as answer:
                    return bool(answer.status != 200)

            await until(kept)
            assert (await ended(session))["reason"] == "lifetime"

    async def test_a_patch_can_prolong_a_session(self, api: Api) -> None:
        async with api.session(idle_timeout_s=1.5, max_lifetime_s=3) as session:
            await session.call("PATCH", "", {"idle_timeout_s": 600, "max_lifetime_s": 700})
            await asyncio.sleep(5)
            assert await session.output("echo here") == "here\n"

    async def test_a_patch_can_shorten_a_session(self, session: SessionApi) -> None:
        await session.call("PATCH", "", {"idle_timeout_s": 1})
        assert (await ended(session))["reason"] == "idle"

    async def test_an_expired_thread_gets_a_fresh_session_and_is_told(self, api: Api) -> None:
        thread = unique()
        async with api.session(idle_timeout_s=1, thread_id=thread) as first:
            await first.exec("echo precious > note")
            await ended(first)
            async with api.session(thread_id=thread) as second:
                assert second.found["previous"] == {"session_id": first.id, "reason": "idle", "detail": ""}
                assert (await second.exec("cat note"))["exit_code"] != 0
                again = await api.post("/api/sessions", {"thread_id": thread})
                assert again["previous"]["session_id"] == first.id

    async def test_the_flat_endpoints_tell_an_expired_thread_too(self, api: Api) -> None:
        thread = unique()
        body = {"thread_id": thread, "command": "echo hi"}
        async with api.session(idle_timeout_s=1, thread_id=thread) as first:
            assert (await api.post("/execute", body))["notice"] is None
            await ended(first)
            found = await api.post("/execute", body)
            assert found["session_id"] != first.id
            assert first.id in found["notice"]
            assert "idle" in found["notice"]
            assert "files are gone" in found["notice"]
            assert (await api.post("/execute", body))["notice"] is None
            await api.post("/cleanup", {"thread_id": thread})
