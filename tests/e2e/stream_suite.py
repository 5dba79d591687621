"""Commands that are followed as they run: server-sent events, and WebSockets that also take input."""

import asyncio
import base64
from typing import Any

import pytest
from e2e.api_client import COMMENT, Api, Event, SessionApi, until
from e2e.command_suite import at_least, none_sleep


async def followed(session: SessionApi, command: str, **rest: Any) -> list[Event]:
    params = {"encoding": rest.pop("encoding")} if "encoding" in rest else {}
    async with session.events("POST", "/exec", {"command": command, **rest}, **params) as events:
        return [event async for event in events]


def text(events: list[Event], stream: str = "") -> str:
    shown = [event.data for event in events if event.kind == "output"]
    return "".join(one["data"] for one in shown if stream in ("", one["stream"]))


@pytest.mark.anyio
class StreamSuite:
    async def test_events_come_in_order(self, session: SessionApi) -> None:
        events = await followed(session, "echo one; sleep 0.2; echo two; sleep 0.2; echo three >&2; exit 4")
        events = [event for event in events if event.kind != COMMENT]
        assert [event.kind for event in events] == ["started", "output", "output", "output", "result"]
        assert text(events) == "one\ntwo\nthree\n"
        assert text(events, "stderr") == "three\n"
        result = events[-1].data
        assert (result["exit_code"], result["reason"], result["bytes_total"]) == (4, "exited", 14)
        assert result["process_id"] == events[0].data["process_id"]
        at = 0
        for event in events[1:-1]:
            assert event.data["offset"] == at
            at += len(event.data["data"])
            assert event.data["next_offset"] == at
            assert event.id == str(at)

    async def test_a_body_can_ask_for_the_stream(self, session: SessionApi) -> None:
        async with session.ask("POST", "/exec", {"command": "echo hi", "stream": True}) as answer:
            assert answer.content_type == "text/event-stream"
            assert answer.headers["Cache-Control"] == "no-store"
            assert b"event: result" in await answer.read()

    async def test_output_comes_while_the_command_runs(self, session: SessionApi) -> None:
        async with session.events("POST", "/exec", {"command": "echo first; cat", "timeout_s": 60}) as events:
            kinds = [(await anext(events)).kind for _ in range(2)]
            assert kinds == ["started", "output"]

    async def test_a_silent_command_gives_signs_of_life(self, session: SessionApi) -> None:
        events = await followed(session, "sleep 2; echo done")
        assert sum(event.kind == COMMENT for event in events) >= 2
        assert text(events) == "done\n"

    async def test_input_reaches_a_command_that_is_followed(self, session: SessionApi) -> None:
        assert text(await followed(session, "cat", stdin="some words")) == "some words"

    async def test_a_time_out_ends_the_stream_with_a_result(self, session: SessionApi) -> None:
        events = await followed(session, "echo begun; sleep 100", timeout_s=1)
        assert events[-1].data["reason"] == "timeout"
        assert text(events) == "begun\n"

    async def test_bytes_come_as_base64_if_they_are_to(self, session: SessionApi) -> None:
        events = await followed(session, r"printf 'a\xff\x00b'", encoding="base64")
        data = b"".join(base64.b64decode(event.data["data"]) for event in events if event.kind == "output")
        assert data == b"a\xff\0b"

    async def test_an_unknown_encoding_is_refused_and_runs_nothing(self, session: SessionApi) -> None:
        body = {"command": "echo run > ran", "stream": True}
        await session.refused("POST", "/exec", body, status=422, code="invalid_request", encoding="morse")
        assert (await session.exec("cat ran"))["exit_code"] != 0

    async def test_what_goes_wrong_before_the_start_is_a_plain_problem(self, session: SessionApi) -> None:
        body = {"command": "true", "user": "nobody-knows", "stream": True}
        await session.refused("POST", "/exec", body, status=422, code="unknown_user")

    async def test_much_output_comes_whole(self, session: SessionApi) -> None:
        events = await followed(session, "head -c 30000000 /dev/zero", encoding="base64")
        sizes = [len(base64.b64decode(event.data["data"])) for event in events if event.kind == "output"]
        assert sum(sizes) == 30_000_000
        assert events[-1].data["bytes_total"] == 30_000_000


@pytest.mark.anyio
class SocketSuite:
    async def test_a_command_over_a_socket(self, session: SessionApi) -> None:
        async with session.socket("/exec") as socket:
            await socket.raw.send_json({"command": "echo out; echo err >&2; exit 5"})
            started = await socket.expect("started")
            before, result = await socket.end()
            assert result["process_id"] == started["process_id"]
            assert (result["exit_code"], result["reason"]) == (5, "exited")
            assert sorted(one["data"] for one in before) == ["err\n", "out\n"]
            assert await socket.closed() == 1000

    async def test_input_and_its_end_over_a_socket(self, session: SessionApi) -> None:
        async with session.socket("/exec") as socket:
            await socket.raw.send_json({"command": "cat", "stdin": "0"})
            await socket.expect("started")
            await socket.send("stdin", data="é1")
            await socket.send("stdin", data_base64=base64.b64encode(b"2").decode())
            await socket.raw.send_bytes(b"3\n")
            await socket.send("close_stdin")
            before, result = await socket.end()
            assert "".join(one["data"] for one in before) == "0é123\n"
            assert result["exit_code"] == 0

    async def test_a_signal_over_a_socket(self, session: SessionApi) -> None:
        for name in ("TERM", "SIGTERM", 15):
            async with session.socket("/exec") as socket:
                await socket.raw.send_json({"command": ["sleep", "100"]})
                await socket.expect("started")
                await socket.send("signal", signal=name)
                _, result = await socket.end()
                assert (result["reason"], result["signal"]) == ("signal", 15)

    async def test_a_kill_over_a_socket(self, session: SessionApi) -> None:
        async with session.socket("/exec") as socket:
            await socket.raw.send_json({"command": "sleep 100 & sleep 100"})
            await socket.expect("started")
            await socket.send("kill")
            _, result = await socket.end()
            assert result["reason"] == "cancelled"
            assert result["killed"] >= 1

    async def test_a_silent_socket_gives_signs_of_life(self, session: SessionApi) -> None:
        async with session.socket("/exec") as socket:
            await socket.raw.send_json({"command": "sleep 100"})
            await socket.expect("started")
            assert (await socket.raw.receive_json()) == {"type": "keepalive"}

    async def test_bytes_come_as_base64_over_a_socket_too(self, session: SessionApi) -> None:
        async with session.socket("/exec", encoding="base64") as socket:
            await socket.raw.send_json({"command": r"printf 'a\xffb'"})
            await socket.expect("started")
            before, _ = await socket.end()
            assert b"".join(base64.b64decode(one["data"]) for one in before) == b"a\xffb"

    @pytest.mark.parametrize(
        "message",
        [
            {"type": "resize", "rows": 10, "columns": 10},
            {"type": "resize", "rows": "10", "columns": 10},
            {"type": "signal", "signal": "LUCK"},
            {"type": "signal", "signal": 0},
            {"type": "signal"},
            {"type": "stdin", "data": 7},
            {"type": "stdin", "data_base64": "%"},
            {"type": "dance"},
            {},
            [],
            "text",
        ],
    )
    async def test_a_message_that_cannot_be_obeyed_is_told(self, session: SessionApi, message: Any) -> None:
        async with session.socket("/exec") as socket:
            await socket.raw.send_json({"command": "sleep 100"})
            await socket.expect("started")
            await socket.raw.send_json(message)
            error = await socket.expect("error")
            assert (error["code"], error["status"]) == ("invalid_request", 422)
            assert error["detail"]
            assert await socket.closed() == 4422

    @pytest.mark.parametrize("first", ["", "not json", "[]", "{}", '{"command": 7}', '{"command": "true", "luck": 1}'])
    async def test_a_first_message_that_is_no_command_is_told(self, session: SessionApi, first: str) -> None:
        async with session.socket("/exec") as socket:
            await socket.raw.send_str(first)
            error = await socket.expect("error")
            assert error["code"] in ("invalid_request", "invalid_json")
            assert await socket.closed() == 4000 + error["status"]

    async def test_a_first_message_of_bytes_is_told(self, session: SessionApi) -> None:
        async with session.socket("/exec") as socket:
            await socket.raw.send_bytes(b'{"command": "true"}')
            assert (await socket.expect("error"))["code"] == "invalid_request"

    async def test_a_session_that_is_not_there_is_told_over_a_socket(self, api: Api) -> None:
        async with api.socket(f"/api/sessions/ses_{'0' * 32}/exec") as socket:
            await socket.raw.send_json({"command": "true"})
            assert (await socket.expect("error"))["code"] == "session_not_found"
            assert await socket.closed() == 4404


@pytest.mark.anyio
class LinuxStreamSuite:
    """What needs real processes to be seen."""

    async def test_a_client_that_goes_away_from_a_stream_ends_its_command(self, session: SessionApi) -> None:
        async with session.events("POST", "/exec", {"command": "sleep 1004 & sleep 1004"}) as events:
            assert (await anext(events)).kind == "started"
            await until(lambda: at_least(session, 2))
        await until(lambda: none_sleep(session))

    async def test_what_python_prints_comes_at_once(self, session: SessionApi) -> None:
        program = "import time; print('first'); time.sleep(1004)"
        async with (
            asyncio.timeout(30),
            session.events("POST", "/exec", {"command": ["python3", "-c", program]}) as events,
        ):
            async for event in events:
                if event.kind == "output":
                    assert event.data["data"].startswith("first")
                    break

    async def test_a_client_that_goes_away_while_output_floods_ends_its_command(self, session: SessionApi) -> None:
        async with session.events("POST", "/exec", {"command": "yes & sleep 1005"}) as events:
            for _ in range(10):
                await anext(events)
        await until(lambda: none_sleep(session))

    async def test_a_client_that_drops_its_socket_ends_its_command(self, session: SessionApi) -> None:
        async with session.socket("/exec") as socket:
            await socket.raw.send_json({"command": "sleep 1006 & sleep 1006"})
            await socket.expect("started")
            await until(lambda: at_least(session, 2))
        await until(lambda: none_sleep(session))

    async def test_a_slow_reader_slows_its_command_and_nobody_else(self, session: SessionApi) -> None:
        async with session.events("POST", "/exec", {"command": "head -c 200000000 /dev/zero; echo end"}) as events:
            assert (await anext(events)).kind == "started"
            await asyncio.sleep(1)
            assert await session.output("echo quick") == "quick\n"
