"""Logs of sessions: commands, background commands, streams and cells, read while the session runs and after its end."""

import asyncio
from typing import Any

import pytest
from e2e.api_client import COMMENT, Api, SessionApi, until

MIB = 1024 * 1024
UNKNOWN = "ses_" + "0" * 32


async def log_of(api: Api, session_id: str, **query: Any) -> list[dict[str, Any]]:
    """All entries, page by page."""
    found: list[dict[str, Any]] = []
    page = await api.get(f"/api/sessions/{session_id}/logs", **query)
    found += page["entries"]
    while page["more"]:
        page = await api.get(f"/api/sessions/{session_id}/logs", **{**query, "after": page["next"]})
        found += page["entries"]
    return found


def text_of(entries: list[dict[str, Any]], stream: str, command_id: str = "") -> str:
    return "".join(
        one["text"]
        for one in entries
        if one["kind"] == "output" and one["stream"] == stream and command_id in ("", one["command_id"])
    )


async def ended(api: Api, session_id: str, command_id: str) -> list[dict[str, Any]]:
    """The entries of a command, once it has ended."""

    async def has_ended() -> list[dict[str, Any]]:
        found = [one for one in await log_of(api, session_id) if one.get("command_id") == command_id]
        return found if found and found[-1]["kind"] != "output" and "exit_code" in found[-1] else []

    found: list[dict[str, Any]] = await until(has_ended)
    return found


@pytest.mark.anyio
class LogSuite:
    async def test_a_command_is_logged_with_what_it_wrote_and_how_it_ended(self, api: Api) -> None:
        async with api.session(logs="output") as session:
            assert session.found["logs"] == "output"
            await session.exec("echo out; echo err >&2; exit 3", cwd="/tmp")
            begun, *outputs, end = await log_of(api, session.id)
            command = "echo out; echo err >&2; exit 3"
            assert (begun["kind"], begun["event"], begun["command"], begun["cwd"]) == (
                "command",
                "started",
                command,
                "/tmp",
            )
            assert (begun["background"], begun["command_id"]) == (False, end["command_id"])
            assert (text_of(outputs, "stdout"), text_of(outputs, "stderr")) == ("out\n", "err\n")
            assert (end["event"], end["exit_code"], end["reason"], end["bytes_total"]) == ("ended", 3, "exited", 8)
            assert [one["id"] for one in (begun, *outputs, end)] == list(range(1, 3 + len(outputs)))
        page = await api.get(f"/api/sessions/{session.id}/logs", kinds="command", limit=1)
        assert (page["level"], page["more"], page["ended"], len(page["entries"])) == ("output", True, True, 1)
        assert page["entries"] == [begun]
        assert await log_of(api, session.id, after=begun["id"], kinds="command") == [end]
        [last] = (await api.get(f"/api/sessions/{session.id}/logs", last=1))["entries"]
        assert last == end

    async def test_without_output_only_what_ran_is_kept(self, api: Api) -> None:
        async with api.session(logs="commands", env={"TOKEN": "s3cr3t-value"}) as session:
            await session.exec("echo $TOKEN s3cr3t-value")
            begun, end = await log_of(api, session.id)
            assert (begun["command"], end["bytes_total"]) == ("echo $TOKEN [redacted]", 26)

    async def test_values_of_variables_are_not_in_the_output(self, api: Api) -> None:
        async with api.session(logs="output", env={"TOKEN": "s3cr3t-value"}) as session:
            await session.exec("echo s3cr3t-value and more-secret", env={"OTHER": "more-secret"})
            process = await session.start("printf s3cr3t; sleep 1; echo -value")
            entries = await ended(api, session.id, process)
            assert text_of(entries, "stdout") == "[redacted]\n"
            assert text_of(await log_of(api, session.id), "stdout") == "[redacted] and [redacted]\n[redacted]\n"

    async def test_a_command_in_the_background_is_logged_while_it_runs(self, api: Api) -> None:
        async with api.session(logs="output") as session:
            process = await session.start("echo begun; cat; echo over; exit 4")

            async def has_begun() -> bool:
                return text_of(await log_of(api, session.id), "stdout") == "begun\n"

            await until(has_begun)
            await session.post(f"/processes/{process}/stdin", {"data": "typed\n", "close": True}, status=204)
            begun, *outputs, end = await ended(api, session.id, process)
            assert (begun["background"], begun["command_id"], end["process_id"]) == (True, process, process)
            assert (text_of(outputs, "stdout"), end["exit_code"]) == ("begun\ntyped\nover\n", 4)
            assert outputs[-1]["until"] == len("begun\ntyped\nover\n")

    async def test_a_streamed_command_is_logged(self, api: Api) -> None:
        async with api.session(logs="output") as session:
            async with session.events("POST", "/exec", {"command": "echo one; echo two >&2"}) as events:
                kinds = [event.kind async for event in events]
            assert kinds[-1] == "result"
            [begun] = [one for one in await log_of(api, session.id) if one.get("event") == "started"]
            entries = await ended(api, session.id, begun["command_id"])
            assert (text_of(entries, "stdout"), text_of(entries, "stderr")) == ("one\n", "two\n")
            assert entries[-1]["exit_code"] == 0

    async def test_following_gives_what_is_there_and_what_comes_until_the_end(self, api: Api) -> None:
        async with api.session(logs="output") as session:
            await session.exec("echo first")
            place = f"/api/sessions/{session.id}/logs"
            seen: list[dict[str, Any]] = []
            async with api.events("GET", place) as events:
                async for event in events:
                    if event.kind == COMMENT:
                        continue
                    if event.kind == "end":
                        break
                    assert event.id == str(event.data["id"])
                    seen.append(event.data)
                    if event.data.get("event") == "ended":
                        if text_of(seen, "stdout") == "first\n":
                            await session.exec("echo second")
                        else:
                            await api.call("DELETE", f"/api/sessions/{session.id}")
            assert text_of(seen, "stdout") == "first\nsecond\n"
            last = {"Last-Event-ID": str(seen[1]["id"])}
            async with api.events("GET", place, headers=last) as events:
                rest = [event.data async for event in events if event.kind == "entry"]
            assert rest == seen[2:] == await log_of(api, session.id, after=seen[1]["id"])

    async def test_reading_does_not_keep_a_session_alive(self, api: Api) -> None:
        async with api.session(logs="commands") as session:
            before = (await session.show())["idle_expires_at"]
            await asyncio.sleep(0.01)
            await api.get(f"/api/sessions/{session.id}/logs")
            assert (await session.show())["idle_expires_at"] == before

    async def test_a_session_that_keeps_no_log_says_so(self, api: Api, session: SessionApi) -> None:
        await session.exec("true")
        page = await api.get(f"/api/sessions/{session.id}/logs")
        assert (session.found["logs"], page["level"], page["entries"]) == ("off", "off", [])
        async with api.events("GET", f"/api/sessions/{session.id}/logs") as events:
            [end] = [event async for event in events if event.kind != COMMENT]  # nothing would ever come
        assert (end.kind, end.data["hint"]) == ("end", page["hint"])
        assert "logs" in page["hint"]

    async def test_a_log_is_deleted_alone_or_with_its_session(self, api: Api) -> None:
        async with api.session(logs="commands") as session:
            await session.exec("true")
            assert len(await log_of(api, session.id)) == 2
            await api.call("DELETE", f"/api/sessions/{session.id}/logs", status=204)
            assert await log_of(api, session.id) == []
            await session.exec("false")
            assert [one["id"] for one in await log_of(api, session.id)] == [3, 4]
            await api.call("DELETE", f"/api/sessions/{session.id}", logs="true")
            assert await log_of(api, session.id) == []

    async def test_what_cannot_be_is_refused(self, api: Api, session: SessionApi) -> None:
        place = f"/api/sessions/{session.id}/logs"
        await api.refused("GET", f"/api/sessions/{UNKNOWN}/logs", status=404, code="session_not_found")
        await api.refused("DELETE", f"/api/sessions/{UNKNOWN}/logs", status=404, code="session_not_found")
        problem = await api.refused("POST", "/api/sessions", {"logs": "comands"}, status=422, code="invalid_request")
        assert "commands" in problem["remedy"]
        await api.refused("GET", place, kinds="thing", status=422, code="invalid_request")
        headers = {"Accept": "text/event-stream", "Last-Event-ID": "x"}
        await api.refused("GET", place, headers=headers, status=422, code="invalid_request")


@pytest.mark.anyio
class LinuxLogSuite:
    async def test_a_cell_is_logged_with_its_code_and_its_error(self, api: Api) -> None:
        async with api.session(logs="output") as session:
            await session.post("/code", {"code": "print('hi')\n6 * 7"})
            async with session.events("POST", "/code", {"code": "1 / 0"}) as events:
                assert [event.kind async for event in events][-1] == "end"

            async def both_ended() -> list[dict[str, Any]]:
                cells = [one for one in await log_of(api, session.id, kinds="cell") if one["event"] == "ended"]
                return cells if len(cells) == 2 else []

            first, second = await until(both_ended)
            entries = await log_of(api, session.id)
            begun = [one for one in entries if one.get("event") == "started"]
            assert [(one["kind"], one["language"], one["command"]) for one in begun] == [
                ("cell", "python", "print('hi')\n6 * 7"),
                ("cell", "python", "1 / 0"),
            ]
            assert (first["execution_count"], first["error"]) == (1, None)
            assert (second["execution_count"], second["error"]) == (2, "ZeroDivisionError")
            assert (text_of(entries, "stdout"), text_of(entries, "result")) == ("hi\n", "42\n")

    async def test_a_terminal_is_logged_from_its_opening_to_its_end(self, api: Api) -> None:
        async with api.session(logs="output") as session:
            async with session.socket("/terminal") as socket:
                process = (await socket.expect("started"))["process_id"]
                await socket.raw.send_bytes(b"echo $((6 * 7))\n")
                await socket.said(b"42\r\n")
                await socket.raw.send_bytes(b"exit 5\n")
                await socket.end()
            opened, *outputs, closed = await ended(api, session.id, process)
            assert (opened["kind"], opened["event"]) == ("terminal", "opened")
            assert (closed["kind"], closed["event"], closed["exit_code"]) == ("terminal", "closed", 5)
            assert "42\r\n" in text_of(outputs, "terminal")

    async def test_of_a_long_output_the_ends_are_kept_and_what_is_missing_is_said(self, api: Api) -> None:
        async with api.session(logs="output") as session:
            size = 8 * MIB
            await session.exec(
                f"echo first; head -c {size} /dev/zero | tr '\\0' x; echo; echo last", keep_bytes=1 << 20
            )
            entries = await log_of(api, session.id)
            text = text_of(entries, "stdout")
            missing = sum(one.get("missing", 0) for one in entries)
            assert (text.startswith("first\n"), text.endswith("x\nlast\n")) == (True, True)
            assert len(text) == 128 * 1024
            assert len(text) + missing == entries[-1]["bytes_total"] == size + len("first\n\nlast\n")
