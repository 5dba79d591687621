"""Terminals over a WebSocket: what is typed, what comes back, and coming back to one after the line has broken."""

import asyncio
from typing import Any

import pytest
from e2e.api_client import Api, SessionApi
from e2e.expiry_suite import IDLE, outlives
from e2e.server_time import ServerTime

from warren.model.spec import USER


@pytest.mark.anyio
class TerminalSuite:
    async def test_a_terminal_echoes_and_answers(self, session: SessionApi) -> None:
        async with session.socket("/terminal") as socket:
            await socket.expect("started")
            await socket.raw.send_bytes(b"echo $((6 * 7)) $USER\n")
            await socket.said(f"42 {USER}".encode())
            assert b"echo $((6 * 7))" in socket.binary

    async def test_the_end_of_the_shell_is_a_result(self, session: SessionApi) -> None:
        async with session.socket("/terminal") as socket:
            await socket.expect("started")
            await socket.raw.send_bytes(b"exit 3\n")
            _, result = await socket.end()
            assert (result["exit_code"], result["reason"]) == (3, "exited")
            assert await socket.closed() == 1000

    async def test_a_terminal_has_its_size_and_can_be_resized(self, session: SessionApi) -> None:
        async with session.socket("/terminal", rows=30, columns=100) as socket:
            await socket.expect("started")
            await socket.raw.send_bytes(b"stty size\n")
            await socket.said(b"30 100")
            await socket.send("resize", rows=50, columns=132)
            await socket.raw.send_bytes(b"stty size\n")
            await socket.said(b"50 132")

    async def test_text_input_works_like_bytes(self, session: SessionApi) -> None:
        async with session.socket("/terminal") as socket:
            await socket.expect("started")
            await socket.send("stdin", data="echo a''b\n")
            await socket.said(b"ab\r\n")

    async def test_control_c_ends_what_runs_and_not_the_shell(self, session: SessionApi) -> None:
        async with session.socket("/terminal") as socket:
            await socket.expect("started")
            await socket.raw.send_bytes(b"sh -c 'echo be\"\"gun; exec sleep 1000'\n")
            await socket.said(b"begun")
            await socket.raw.send_bytes(b"\x03")
            await socket.raw.send_bytes(b"echo a''gain\n")
            await socket.said(b"again")

    async def test_one_may_come_back_to_a_terminal_and_gets_what_was_missed(self, session: SessionApi) -> None:
        async with session.socket("/terminal") as socket:
            process = (await socket.expect("started"))["process_id"]
            await socket.raw.send_bytes(b"KEPT=yes; echo fir''st; sleep 1; echo sec''ond\n")
            await socket.said(b"first")
            seen = len(socket.binary)
        await asyncio.sleep(1.5)
        async with session.socket("/terminal", process_id=process, offset=seen) as socket:
            assert (await socket.expect("started"))["process_id"] == process
            await socket.said(b"second")
            assert b"first" not in socket.binary
            await socket.raw.send_bytes(b"echo kept=$KEPT\n")
            await socket.said(b"kept=yes")
        async with session.socket("/terminal", process_id=process) as socket:
            await socket.expect("started")
            await socket.said(b"kept=yes")
            assert b"first" in socket.binary

    async def test_coming_back_gives_the_terminal_the_new_size(self, session: SessionApi) -> None:
        async with session.socket("/terminal", rows=30, columns=100) as socket:
            process = (await socket.expect("started"))["process_id"]
        async with session.socket("/terminal", process_id=process, rows=40, columns=90) as socket:
            await socket.expect("started")
            await socket.raw.send_bytes(b"stty size\n")
            await socket.said(b"40 90", besides="size")  # told to all who look, and the first may not be gone yet

    async def test_all_who_look_at_a_terminal_learn_its_size(self, session: SessionApi) -> None:
        async with session.socket("/terminal", rows=30, columns=100) as first:
            process = (await first.expect("started"))["process_id"]
            async with session.socket("/terminal", process_id=process) as second:
                assert _size(await second.expect("started")) == (30, 100)
                async with session.socket(f"/processes/{process}/attach") as watcher:
                    assert _size(await watcher.expect("started")) == (30, 100)
                    await second.send("resize", rows=20, columns=70)
                    for one in (first, second):
                        assert _size((await one.until("size"))[-1]) == (20, 70)
                    assert _size((await watcher.until("size"))[-1]) == (20, 70)
                await first.raw.send_bytes(b"stty size\n")
                await first.said(b"20 70")
            await session.call("POST", f"/processes/{process}/resize", {"rows": 25, "columns": 90}, status=204)
            assert _size(await first.expect("size")) == (25, 90)

    async def test_no_more_comes_than_the_window_of_a_client_that_tells_what_it_has_shown(
        self, session: SessionApi
    ) -> None:
        command = "echo ready; read; seq 1500000"
        async with session.socket("/terminal", command=command, window=100_000) as socket:
            process = (await socket.expect("started"))["process_id"]
            await socket.said(b"ready\r\n")  # what is written before somebody reads waits for nobody
            await socket.raw.send_bytes(b"\n")
            await socket.said(b"1000\r\n")
            waiting = 0
            while (total := (await session.get(f"/processes/{process}"))["bytes_total"]) != waiting:
                waiting = total
                await asyncio.sleep(0.5)
            assert waiting < 2_000_000  # of 12 million: the command waits for this client
            reader = asyncio.create_task(socket.end())
            while not reader.done():
                await socket.send("shown", offset=len(socket.binary))
                await asyncio.sleep(0.01)
            await reader
            assert socket.binary.count(b"\r\n") == 1_500_002

    async def test_output_that_was_not_kept_is_a_gap(self, session: SessionApi) -> None:
        body = {"command": "seq 200000; sleep 1000", "keep_bytes": 65536, "terminal": {"rows": 24, "columns": 80}}
        process = (await session.call("POST", "/processes", body, status=201))["process_id"]
        total = sum(len(f"{number}\r\n") for number in range(1, 200_001))
        while (await session.get(f"/processes/{process}"))["bytes_total"] < total:
            await asyncio.sleep(0.05)
        async with session.socket("/terminal", process_id=process) as socket:
            await socket.expect("started")
            gap = await socket.expect("gap")
            head = len(socket.binary)
            await socket.said(b"199999\r\n200000\r\n")
            assert gap["offset"] + len(socket.binary) - head == total

    async def test_a_terminal_with_a_name_is_made_once_and_found_again(self, session: SessionApi) -> None:
        for expected in (b"N=1.", b"N=2."):
            async with session.socket("/terminal", process_id="main") as socket:
                assert (await socket.expect("started"))["process_id"] == "main"
                await socket.raw.send_bytes(b"N=$((N+1)); echo N=$N.\n")
                await socket.said(expected)

    async def test_a_command_of_ones_own_in_a_directory_of_ones_own(self, session: SessionApi) -> None:
        async with session.socket("/terminal", command="pwd; tty", cwd="/tmp") as socket:
            await socket.expect("started")
            _, result = await socket.end()
            assert result["exit_code"] == 0
            assert socket.binary.startswith(b"/tmp\r\n/dev/")

    async def test_variables_of_the_session_are_in_the_terminal(self, session: SessionApi) -> None:
        async with session.socket("/terminal") as socket:
            await socket.expect("started")
            await socket.raw.send_bytes(b"echo term=$TERM in=$PWD\n")
            await socket.said(b"term=xterm-256color in=/workspace")

    async def test_a_terminal_is_listed_and_can_be_ended(self, session: SessionApi) -> None:
        async with session.socket("/terminal") as socket:
            process = (await socket.expect("started"))["process_id"]
            assert (await session.get(f"/processes/{process}"))["terminal"] is True
            await session.post(f"/processes/{process}/kill")
            assert (await socket.end())[1]["reason"] == "cancelled"

    async def test_a_process_without_a_terminal_is_none_to_come_back_to(self, session: SessionApi) -> None:
        process = await session.start("sleep 100")
        async with session.socket("/terminal", process_id=process) as socket:
            assert (await socket.expect("error"))["code"] == "invalid_request"

    async def test_a_size_that_cannot_be_is_told(self, session: SessionApi) -> None:
        async with session.socket("/terminal", rows=0, columns=10) as socket:
            assert (await socket.expect("error"))["code"] == "invalid_request"
            assert await socket.closed() == 4422

    async def test_much_output_comes_whole(self, session: SessionApi) -> None:
        async with session.socket("/terminal", command="seq 300000") as socket:
            await socket.expect("started")
            await socket.end()
            assert socket.binary.split() == [str(number).encode() for number in range(1, 300_001)]

    async def test_input_keeps_the_session_alive(self, api: Api, session: SessionApi, time: ServerTime) -> None:
        await session.call("PATCH", "", {"idle_timeout_s": IDLE * time.unit_s})
        async with session.socket("/terminal") as socket:

            async def write() -> None:
                socket.binary = b""
                await socket.raw.send_bytes(b"x")
                await socket.said(b"x")  # the terminal has echoed it, so the server has seen it

            await socket.expect("started")
            await outlives(session, api, time, write)


def _size(message: dict[str, Any]) -> tuple[int, int]:
    return message["rows"], message["columns"]
