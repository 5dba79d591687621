"""Processes in the background: started, listed, read by offset, followed, fed, ended, attached to again."""

import asyncio
import base64
from typing import Any

import pytest
from e2e.api_client import COMMENT, Event, SessionApi


async def read(session: SessionApi, process: str, **params: Any) -> tuple[str, dict[str, Any]]:
    found = await session.get(f"/processes/{process}/output", **params)
    return "".join(chunk["data"] for chunk in found["chunks"]), found


async def read_all(session: SessionApi, process: str, **params: Any) -> str:
    """All it says until it has ended, page by page."""
    said, offset = "", 0
    while True:
        text, found = await read(session, process, offset=offset, wait_s=5, **params)
        if not found["running"] and found["next_offset"] == offset:
            return said
        said, offset = said + text, found["next_offset"]


async def finished(session: SessionApi, process: str) -> dict[str, Any]:
    result: dict[str, Any] = await session.get(f"/processes/{process}/wait", timeout_s=60)
    return result


@pytest.mark.anyio
class ProcessSuite:
    async def test_a_process_is_started_listed_and_shown(self, session: SessionApi) -> None:
        found = await session.post("/processes", {"command": "echo hi; sleep 100"}, status=201)
        assert (found["running"], found["terminal"], found["exit_code"]) == (True, False, None)
        assert found["command"] == "echo hi; sleep 100"
        assert found["user"] == "sandboxuser"
        listed = (await session.get("/processes"))["processes"]
        assert [one["process_id"] for one in listed] == [found["process_id"]]
        assert (await session.get(f"/processes/{found['process_id']}"))["running"] is True

    async def test_a_process_outlives_the_request_and_its_end_is_kept(self, session: SessionApi) -> None:
        process = await session.start("sleep 0.5; echo out; echo err >&2; exit 3")
        result = await finished(session, process)
        assert (result["exit_code"], result["stdout"], result["stderr"]) == (3, "out\n", "err\n")
        shown = await session.get(f"/processes/{process}")
        assert (shown["running"], shown["exit_code"], shown["reason"]) == (False, 3, "exited")
        assert await finished(session, process) == result

    async def test_waiting_for_one_that_runs_on_answers_in_time(self, session: SessionApi) -> None:
        process = await session.start("sleep 100")
        found = await session.get(f"/processes/{process}/wait", timeout_s=0.3, status=202)
        assert (found["process_id"], found["running"]) == (process, True)

    async def test_a_name_of_ones_own_is_taken_once(self, session: SessionApi) -> None:
        assert await session.start("sleep 100", process_id="server.1") == "server.1"
        body = {"command": "true", "process_id": "server.1"}
        refused = await session.refused("POST", "/processes", body, status=409, code="conflict")
        assert "server.1" in refused["detail"]
        for bad in ("a b", "x" * 65, "é", "a/b"):
            body = {"command": "true", "process_id": bad}
            await session.refused("POST", "/processes", body, status=422, code="invalid_request")
        await session.call("DELETE", "/processes/server.1", status=204)
        assert await session.start("true", process_id="server.1") == "server.1"

    async def test_one_of_many_who_start_the_same_name_succeeds(self, session: SessionApi) -> None:
        async def start() -> int:
            body = {"command": "echo run >> count; sleep 100", "process_id": "only"}
            async with session.ask("POST", "/processes", body) as answer:
                return int(answer.status)

        assert sorted(await asyncio.gather(*(start() for _ in range(10)))) == [201] + [409] * 9
        assert await session.output("cat count") == "run\n"

    async def test_output_is_read_by_offset(self, session: SessionApi) -> None:
        process = await session.start("echo one; echo two; echo three")
        await finished(session, process)
        text, found = await read(session, process)
        assert (text, found["next_offset"], found["running"]) == ("one\ntwo\nthree\n", 14, False)
        assert (await read(session, process, offset=4))[0] == "two\nthree\n"
        text, found = await read(session, process, offset=2, limit=4)
        assert (text, found["next_offset"]) == ("e\ntw", 6)
        assert (await read(session, process, offset=14))[1] == {"chunks": [], "next_offset": 14, "running": False}
        assert (await read(session, process, offset=1000))[0] == ""

    async def test_output_read_in_pages_is_all_of_it(self, session: SessionApi) -> None:
        process = await session.start("echo begin; head -c 300000 /dev/zero; sleep 0.3; echo end")
        text = await read_all(session, process, limit=70_000)
        assert (len(text), text[:6], text[-4:]) == (300_010, "begin\n", "end\n")

    async def test_waiting_for_output_gives_it_when_it_comes(self, session: SessionApi) -> None:
        process = await session.start("cat")
        waiting = asyncio.ensure_future(read(session, process, wait_s=60))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await session.post(f"/processes/{process}/stdin", {"data": "word\n"}, status=204)
        text, found = await asyncio.wait_for(waiting, 30)
        assert (text, found["running"]) == ("word\n", True)

    async def test_waiting_for_output_that_does_not_come_ends_in_time(self, session: SessionApi) -> None:
        process = await session.start("sleep 100")
        assert (await read(session, process, wait_s=0.3))[1] == {"chunks": [], "next_offset": 0, "running": True}

    async def test_waiting_for_output_ends_with_the_process(self, session: SessionApi) -> None:
        process = await session.start("cat")
        waiting = asyncio.ensure_future(read(session, process, wait_s=60))
        await asyncio.sleep(0.3)
        await session.post(f"/processes/{process}/stdin", {"close": True}, status=204)
        assert (await asyncio.wait_for(waiting, 30))[1]["chunks"] == []

    async def test_output_can_be_followed_and_taken_up_again(self, session: SessionApi) -> None:
        process = await session.start("cat")
        for word in ("one\n", "two\n"):
            await session.post(f"/processes/{process}/stdin", {"data": word}, status=204)
        place = f"/processes/{process}/output"
        async with session.events("GET", place) as events:
            assert (await anext(events)).kind == "started"
            seen = await some(events, "one\n")
        await session.post(f"/processes/{process}/stdin", {"data": "three\n", "close": True}, status=204)
        async with session.events("GET", place, headers={"Last-Event-ID": seen[-1].id}) as events:
            rest = [event async for event in events if event.kind != COMMENT]
        said = "".join(event.data["data"] for event in (*seen, *rest) if event.kind == "output")
        assert said == "one\ntwo\nthree\n"
        assert rest[-1].kind == "result"
        assert rest[-1].data["exit_code"] == 0

    async def test_bytes_come_as_base64_if_they_are_to(self, session: SessionApi) -> None:
        process = await session.start(r"printf 'a\xff\x00b'")
        await finished(session, process)
        text, _ = await read(session, process, encoding="base64")
        assert base64.b64decode(text) == b"a\xff\0b"
        place = f"/processes/{process}/output"
        await session.refused("GET", place, status=422, code="invalid_request", encoding="morse")

    async def test_input_is_given_and_ended(self, session: SessionApi) -> None:
        process = await session.start("cat")
        place = f"/processes/{process}/stdin"
        await session.post(place, {"data": "é"}, status=204)
        await session.post(place, {"data_base64": base64.b64encode(b"\n").decode(), "close": True}, status=204)
        assert (await finished(session, process))["stdout"] == "é\n"

    async def test_a_signal_reaches_a_process(self, session: SessionApi) -> None:
        for name in ("TERM", "sigterm", 15):
            process = await session.start(["sleep", "100"])
            await session.post(f"/processes/{process}/signal", {"signal": name}, status=204)
            result = await finished(session, process)
            assert (result["reason"], result["signal"]) == ("signal", 15)
        for bad in ("LUCK", 0, 65):
            place = f"/processes/{process}/signal"
            await session.refused("POST", place, {"signal": bad}, status=422, code="invalid_request")

    async def test_a_kill_answers_when_all_of_it_is_gone(self, session: SessionApi) -> None:
        process = await session.start("sleep 100 & sleep 100")
        result = await session.post(f"/processes/{process}/kill", {"grace_s": 0.5})
        assert (result["reason"], result["survivors"]) == ("cancelled", 0)
        assert result["killed"] >= 1
        again = await session.post(f"/processes/{process}/kill")
        assert again["reason"] == "cancelled"

    async def test_everything_in_a_sandbox_can_be_ended_at_once(self, session: SessionApi) -> None:
        process = await session.start("sleep 100 & sleep 100")
        assert (await session.post("/kill-all"))["killed"] >= 1
        assert (await finished(session, process))["reason"] == "cancelled"
        assert (await session.post("/kill-all"))["killed"] == 0

    async def test_a_time_out_of_a_process_ends_it(self, session: SessionApi) -> None:
        process = await session.start("sleep 100", timeout_s=0.5)
        assert (await finished(session, process))["reason"] == "timeout"

    async def test_a_deleted_process_is_ended_and_forgotten(self, session: SessionApi) -> None:
        for line in ("sleep 100", "true"):
            process = await session.start(line)
            await session.call("DELETE", f"/processes/{process}", status=204)
            await session.refused("GET", f"/processes/{process}", status=404, code="process_not_found")
        assert (await session.get("/processes"))["processes"] == []

    @pytest.mark.parametrize(
        ("method", "place", "body"),
        [
            ("GET", "", None),
            ("DELETE", "", None),
            ("GET", "/output", None),
            ("GET", "/wait", None),
            ("POST", "/stdin", {"data": "x"}),
            ("POST", "/signal", {"signal": "TERM"}),
            ("POST", "/kill", None),
            ("POST", "/resize", {"rows": 1, "columns": 1}),
        ],
    )
    async def test_a_process_that_is_not_there_is_not_found(
        self, session: SessionApi, method: str, place: str, body: dict[str, Any] | None
    ) -> None:
        await session.refused(method, f"/processes/nothing{place}", body, status=404, code="process_not_found")

    async def test_a_process_can_be_attached_to_and_left(self, session: SessionApi) -> None:
        process = await session.start("cat")
        place = f"/processes/{process}/attach"
        async with session.socket(place) as socket:
            assert (await socket.expect("started"))["process_id"] == process
            await socket.send("stdin", data="one\n")
            assert (await socket.expect("output"))["data"] == "one\n"
        await session.post(f"/processes/{process}/stdin", {"data": "two\n"}, status=204)
        async with session.socket(place, offset=4) as socket:
            assert (await socket.expect("started"))["offset"] == 4
            assert (await socket.expect("output"))["data"] == "two\n"
            await socket.send("close_stdin")
            before, result = await socket.end()
            assert (before, result["exit_code"]) == ([], 0)
            assert await socket.closed() == 1000

    async def test_many_may_be_attached_at_once(self, session: SessionApi) -> None:
        process = await session.start("cat")
        place = f"/processes/{process}/attach"
        async with session.socket(place) as first, session.socket(place) as second:
            for socket in (first, second):
                await socket.expect("started")
            await first.send("stdin", data="word\n")
            assert [(await socket.expect("output"))["data"] for socket in (first, second)] == ["word\n"] * 2
            await second.send("close_stdin")
            assert [(await socket.end())[1]["exit_code"] for socket in (first, second)] == [0, 0]

    async def test_attaching_to_one_that_has_ended_replays_it(self, session: SessionApi) -> None:
        process = await session.start("echo out; exit 3")
        await finished(session, process)
        async with session.socket(f"/processes/{process}/attach") as socket:
            await socket.expect("started")
            before, result = await socket.end()
            assert [one["data"] for one in before] == ["out\n"]
            assert result["exit_code"] == 3

    async def test_attaching_to_what_is_not_there_is_told(self, session: SessionApi) -> None:
        async with session.socket("/processes/nothing/attach") as socket:
            assert (await socket.expect("error"))["code"] == "process_not_found"
            assert await socket.closed() == 4404


@pytest.mark.anyio
class LinuxProcessSuite:
    """What needs real processes to be seen."""

    async def test_what_was_not_kept_is_a_gap_between_offsets(self, session: SessionApi) -> None:
        process = await session.start("seq 1000000", keep_bytes=1000)
        await finished(session, process)
        found = await session.get(f"/processes/{process}/output")
        assert found["next_offset"] == 6_888_896
        ends = [chunk["offset"] + len(chunk["data"]) for chunk in found["chunks"]]
        begins = [chunk["offset"] for chunk in found["chunks"]]
        assert sum(begin > end for end, begin in zip(ends, begins[1:], strict=False)) == 1

    async def test_a_character_on_the_edge_of_a_page_is_not_lost(self, session: SessionApi) -> None:
        process = await session.start(["printf", "aé" * 1000])
        await finished(session, process)
        assert await read_all(session, process, limit=100) == "aé" * 1000
        assert await read_all(session, process, limit=101) == "aé" * 1000
        assert (await read(session, process, offset=1, limit=1))[0] == "\ufffd"

    async def test_a_character_on_the_edge_of_a_stream_is_not_lost(self, session: SessionApi) -> None:
        process = await session.start(r"printf 'a\xc3'; read x; printf '\xa9b'")
        place = f"/processes/{process}/output"
        async with session.events("GET", place) as events:
            [seen] = await some(events, "a")
        await session.post(f"/processes/{process}/stdin", {"data": "\n"}, status=204)
        async with session.events("GET", place, headers={"Last-Event-ID": seen.id}) as events:
            rest = [event.data["data"] async for event in events if event.kind == "output"]
        assert "".join(rest) == "éb"

    async def test_a_stubborn_process_is_killed_after_its_grace(self, session: SessionApi) -> None:
        process = await session.start("trap '' TERM; echo ready; while :; do sleep 1; done")
        assert (await read(session, process, wait_s=30))[0] == "ready\n"
        result = await session.post(f"/processes/{process}/kill", {"grace_s": 0.3})
        assert (result["reason"], result["survivors"]) == ("cancelled", 0)

    async def test_a_process_with_a_terminal_can_be_resized(self, session: SessionApi) -> None:
        line = "stty size; read x; stty size"
        process = await session.start(line, terminal={"rows": 10, "columns": 20})
        assert (await session.get(f"/processes/{process}"))["terminal"] is True
        assert (await read(session, process, wait_s=30))[0] == "10 20\r\n"
        await session.post(f"/processes/{process}/resize", {"rows": 33, "columns": 44}, status=204)
        await session.post(f"/processes/{process}/stdin", {"data": "\n"}, status=204)
        assert (await finished(session, process))["stdout"].endswith("33 44\r\n")

    async def test_a_process_without_a_terminal_cannot_be_resized(self, session: SessionApi) -> None:
        process = await session.start("sleep 100")
        body = {"rows": 10, "columns": 10}
        await session.refused("POST", f"/processes/{process}/resize", body, status=422, code="invalid_request")


async def some(events: Any, until_said: str) -> list[Event]:
    """Output events until they have said this."""
    seen: list[Event] = []
    while until_said not in "".join(event.data["data"] for event in seen):
        event = await anext(events)
        if event.kind == "output":
            seen.append(event)
    return seen
