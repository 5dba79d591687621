"""Sessions that are paused: by a caller, or because nobody used them; and who resumes them."""

import asyncio
from typing import Any

import pytest
from e2e.api_client import Api, SessionApi, until
from e2e.expiry_suite import ended
from e2e.hosts import Hosts
from e2e.preview_suite import PORT, start_server
from e2e.server_time import ServerTime
from e2e.session_suite import unique


async def becomes(session: SessionApi, state: str) -> dict[str, Any]:
    async def has() -> dict[str, Any] | None:
        shown = await session.show()
        return shown if shown["state"] == state else None

    found: dict[str, Any] = await until(has)
    return found


@pytest.mark.anyio
class PauseSuite:
    async def test_a_paused_session_is_shown_as_such_and_its_next_use_resumes_it(self, api: Api) -> None:
        async with api.session(thread_id=unique()) as session:
            await session.exec("cd /tmp && echo kept > file")
            paused = await session.post("/pause", {"max_paused_s": 3600})
            assert (paused["state"], paused["max_paused_s"], paused["idle_expires_at"]) == ("paused", 3600, None)
            assert paused["paused_at"] < paused["expires_at"]
            assert await session.post("/pause") == paused
            for place in ("", "/network", "/metrics"):
                await session.get(place)
            assert (await session.call("PATCH", "", {"metadata": {"a": "1"}}))["state"] == "paused"
            found = await asyncio.gather(*(session.exec("cat file") for _ in range(5)))
            assert {one["stdout"] for one in found} == {"kept\n"}
            running = await session.post("/resume")
            assert (running["state"], running["paused_at"]) == ("running", None)

    async def test_get_or_create_of_a_thread_resumes_its_session(self, api: Api) -> None:
        thread = unique()
        async with api.session(thread_id=thread) as session:
            await session.post("/pause")
            same = await api.call("POST", "/api/sessions", {"thread_id": thread})
            assert (same["session_id"], same["state"]) == (session.id, "running")

    async def test_who_asked_for_it_resumes_the_session_alone(self, api: Api) -> None:
        async with api.session(auto_resume=False) as session:
            await session.post("/pause")
            refused = await session.refused("POST", "/exec", {"command": "true"}, status=409, code="session_paused")
            assert refused["remedy"] == f"resume it: warren resume {session.id}"
            assert (await session.post("/resume"))["state"] == "running"
            assert (await session.exec("echo on"))["stdout"] == "on\n"

    async def test_a_stream_stays_open_and_input_on_it_resumes_the_session(self, api: Api) -> None:
        async with api.session() as session:
            process = await session.start("cat")
            async with session.socket(f"/processes/{process}/attach") as socket:
                await socket.expect("started")
                await session.post("/pause")
                await socket.send("stdin", data="word\n")
                assert (await socket.expect("output"))["data"] == "word\n"
                assert (await session.show())["state"] == "running"

    async def test_an_idle_session_is_paused_and_ends_when_it_was_paused_for_too_long(
        self, api: Api, time: ServerTime
    ) -> None:
        wishes = {"idle_timeout_s": time.unit_s, "max_paused_s": 3 * time.unit_s, "on_idle": "pause"}
        async with api.session(**wishes) as session:
            await time.passes(1.2)
            await becomes(session, "paused")
            assert (await session.exec("echo on"))["stdout"] == "on\n"
            await time.passes(1.2)
            await becomes(session, "paused")
            await time.passes(3.2)
            assert (await ended(session))["reason"] == "paused_too_long"

    async def test_a_paused_session_is_deleted_at_once(self, api: Api, hosts: Hosts) -> None:
        async with api.session() as session:
            await session.post("/pause")
            assert (await session.call("DELETE", ""))["reason"] == "deleted"
            assert not hosts.has(session.found["sandbox_id"])

    async def test_a_hibernated_session_has_its_files_when_it_is_used(self, api: Api, hosts: Hosts) -> None:
        thread = unique()
        async with api.session(thread_id=thread) as session:
            await session.exec("echo kept > file")
            sandbox_id = session.found["sandbox_id"]
            asleep = await session.post("/pause", {"to_disk": True})
            assert (asleep["state"], asleep["sandbox_id"], asleep["restored"]) == ("hibernated", None, 0)
            assert asleep["paused_at"] < asleep["expires_at"]
            assert not hosts.has(sandbox_id)
            assert (await session.show())["state"] == "hibernated"
            await session.get("/network")
            found = await asyncio.gather(*(session.exec("cat file") for _ in range(5)))
            assert {one["stdout"] for one in found} == {"kept\n"}
            same = await api.call("POST", "/api/sessions", {"thread_id": thread})
            assert (same["session_id"], same["state"], same["restored"]) == (session.id, "running", 1)
            await session.exec("mkdir artifacts && echo result > artifacts/result.txt")
            await session.post("/pause", {"to_disk": True})
            ended_session = await session.call("DELETE", "")
            assert (ended_session["reason"], ended_session["artifacts"]["saved"]) == ("deleted", 1)
        left = await api.call("GET", "/api/snapshots?hidden=true&limit=1000")
        assert session.id not in [one["session_id"] for one in left["snapshots"]]

    async def test_an_idle_session_is_hibernated_and_comes_back(self, api: Api, time: ServerTime) -> None:
        async with api.session(idle_timeout_s=time.unit_s, on_idle="hibernate") as session:
            await session.exec("echo kept > file")
            for _ in range(2):
                await time.passes(1.2)
                await becomes(session, "hibernated")
                assert (await session.exec("cat file"))["stdout"] == "kept\n"


_COUNT = "i=0; while sleep 0.05; do i=$((i + 1)); echo $i > count; done"


@pytest.mark.anyio
class LinuxPauseSuite(PauseSuite):
    """With sandboxes that really stand still."""

    async def test_everything_stands_still_and_goes_on_where_it_was(self, api: Api) -> None:
        async with api.session(limits={"memory_mb": 256}) as session:
            await session.start(["bash", "-c", _COUNT])
            await session.exec("until [ -s count ]; do sleep 0.05; done; export KEPT=here; cd /tmp")
            await session.post("/pause")
            await asyncio.sleep(1.0)
            before = await session.post("/resume")
            counted = int((await session.exec("cat /workspace/count"))["stdout"])
            await session.exec("sleep 0.5")
            assert int((await session.exec("cat /workspace/count"))["stdout"]) > counted
            assert (await session.exec("echo $KEPT in $PWD"))["stdout"] == "here in /tmp\n"
            assert before["state"] == "running"

    async def test_a_command_that_runs_waits_and_its_time_limit_with_it(self, api: Api) -> None:
        async with api.session() as session:
            running = asyncio.ensure_future(session.exec("echo begun > begun; sleep 2; echo done", timeout_s=4))

            async def has_begun() -> bool:
                return (await session.exec("cat begun"))["stdout"] == "begun\n"

            await until(has_begun)
            await session.post("/pause")
            await asyncio.sleep(5.0)
            assert not running.done()
            await session.post("/resume")
            result = await running
            assert (result["stdout"], result["reason"]) == ("done\n", "exited")
            assert result["duration_ms"] < 4500

    async def test_a_preview_wakes_its_session(self, api: Api) -> None:
        async with api.session() as session:
            await start_server(session)
            for frozen in (True, False):
                if frozen:
                    await session.post("/pause")
                found = await session.get(f"/ports/{PORT}/echo")
                assert found["method"] == "GET"
            assert (await session.show())["state"] == "running"

    async def test_a_link_that_was_revoked_wakes_nothing(self, api: Api) -> None:
        async with api.session() as session:
            link = await session.post("/links", {"port": PORT}, status=201)
            await session.call("DELETE", "/links")
            await session.post("/pause")
            headers = {"X-Warren-Preview-Token": link["token"]}
            await api.refused(
                "GET", f"/api/sessions/{session.id}/ports/{PORT}/", headers=headers, status=403, code="forbidden"
            )
            assert (await session.show())["state"] == "paused"

    async def test_a_terminal_stays_open_and_typing_resumes_the_session(self, api: Api) -> None:
        async with api.session() as session, session.socket("/terminal") as terminal:
            await terminal.expect("started")
            await session.post("/pause")
            await terminal.raw.send_bytes(b"echo $((6 * 7))\n")
            await terminal.said(b"42", besides="size")
            assert (await session.show())["state"] == "running"
