"""Commands as E2B's clients run them: raw frames against a real server."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.api_client import Api, SessionApi, of, until
from e2e.conftest import NewState
from e2e.e2b_client import END, Envd, bash, encode, frame
from measured_server import MIB, Costs, running_measured
from server_process import ServerProcess

from warren.app.wiring import SECRETS_KEY
from warren.http.e2b.tokens import Opens, SandboxTokens
from warren.stores.encryption import key_in

pytestmark = pytest.mark.anyio

_EXITED = {"exitCode": 0, "exited": True, "status": "exit status 0"}
_KILLED = {"exitCode": -1, "exited": False, "status": "signal: killed", "error": "signal: killed"}
_FLAGS = ("--pool-size", "1", "--pool-min", "1", "--pool-max", "2", "--environment", "host")


@pytest.fixture(scope="module")
def server(new_state: NewState) -> Iterator[ServerProcess]:
    with running_measured(new_state(), *_FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def url(server: ServerProcess) -> str:
    return server.url


@pytest.fixture
async def envd(session: SessionApi, url: str) -> AsyncIterator[Envd]:
    """At the end nothing of a test runs any more, and no command is remembered."""
    async with Envd(url, session.id) as envd:
        yield envd
        if (await envd.http.get("/health")).status_code == 204:
            await until(lambda: _is_clean(session))


async def _is_clean(session: SessionApi) -> bool:
    return not (await session.get("/processes"))["processes"]


async def test_a_command_has_its_output_its_variables_and_its_end(envd: Envd, session: SessionApi) -> None:
    line = "echo out; echo err >&2; echo $A-$E2B_SANDBOX-$E2B_SANDBOX_ID-$E2B_TEMPLATE_ID-$USER-$HOME; pwd; cat; exit 3"
    stdout, stderr, end = await envd.run(bash(line, envs={"A": "é x"}))
    sandbox_id = session.id.removeprefix("ses_")
    assert stdout.decode() == f"out\né x-true-{sandbox_id}-host-user-/home/user\n/home/user\n"
    assert (stderr, end) == (
        b"err\n",
        {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"},
    )
    assert await envd.run(bash("pwd", cwd="~/../..")) == (b"/\n", b"", _EXITED)
    assert await envd.run("kill -9 $$") == (b"", b"", _KILLED)
    assert (await envd.run("kill $$"))[2]["error"] == "signal: terminated"
    assert await envd.run({"process": {"cmd": "printf", "args": ["%s", "a b"]}, "tag": None}) == (b"a b", b"", _EXITED)
    async with envd.started(f"head -c {3 * MIB} /dev/urandom | tee /tmp/x; sha256sum </tmp/x >&2") as stream:
        await stream.start()
        assert await stream.end() == _EXITED
    assert (len(stream.output["stdout"]), stream.longest) == (3 * MIB, 32 * 1024)


async def test_login_shells_find_what_pip_installs_for_the_user(url: str) -> None:
    async with Api(url) as api, api.session(environment="e2b") as session, Envd(url, session.id) as envd:
        await envd.run("mkdir -p ~/.local/bin; cp /bin/true ~/.local/bin/fresh")
        assert await envd.run("command -v fresh") == (b"/home/user/.local/bin/fresh\n", b"", _EXITED)


async def test_what_cannot_be_run_is_refused_with_the_code_that_clients_know(envd: Envd) -> None:
    wrong = [
        (bash("true", cwd="/not/there"), {}, "invalid_argument", "cwd '/not/there' does not exist"),
        (bash("true"), {"Authorization": f"Basic {encode(b'bob:')}"}, "unauthenticated", "invalid username: 'bob'"),
        (bash("true"), {"Authorization": "Basic %%%"}, "unauthenticated", "no user"),
        (bash("true"), {"Connect_Timeout_Ms": "soon"}, "invalid_argument", "milliseconds"),
        (bash("true", args="no list"), {}, "invalid_argument", "`process.args` must be a list"),
        (bash("true", envs={"A=B": "1"}), {}, "invalid_argument", "A=B"),
        ({}, {}, "invalid_argument", "argv[0]"),
    ]
    for message, headers, code, text in wrong:
        found = await envd.refused(message, headers=headers)
        assert (found[0], text in found[1]) == (code, True), (message, found)
    nobody: dict[str, Any] = {"process": {"pid": 99999}}
    for name in ("SendSignal", "SendInput", "CloseStdin", "Update"):
        status, problem = await envd.call(name, nobody)
        assert (status, problem) == (404, {"code": "not_found", "message": "process with pid 99999 not found"})
    async with envd.stream("Connect", frame({"process": {"tag": "mine"}})) as stream:
        assert await stream.error() == ("not_found", "process with tag mine not found")
    assert (await envd.call("SendSignal", {}))[0] == 400
    assert (await envd.call("Nothing", {}))[0] == 501
    async with envd.started("cat", stdin=True) as stream:
        process = {"process": {"pid": str(await stream.start())}}
        for message in ({"signal": "SIGNAL_SIGSTOP"}, {}):
            assert (await envd.call("SendSignal", {**process, **message}))[0] == 501
        for body in ({}, {"input": {"pty": ""}}, {"input": {"stdin": "%"}}, {"input": {"stdin": 7}}):
            assert (await envd.call("SendInput", {**process, **body}))[0] == 400
        assert (await envd.call("Update", {**process, "pty": {"size": {"cols": 5, "rows": 5}}}))[0] == 400
        await envd.done("SendSignal", {**process, "signal": 9})
        assert await stream.end() == _KILLED


async def test_a_client_who_leaves_ends_nothing_and_others_come_back(envd: Envd) -> None:
    line = "echo before; read x </tmp/go; echo after; head -c 2000000 /dev/zero; exit 4"
    await envd.run("mkfifo /tmp/go")
    async with envd.started(bash(line, envs={"A": "1"}), tag="mine") as stream:
        pid = await stream.start()
        await stream.said(b"before\n")
    (shown,) = await envd.processes()
    assert shown == {"config": {**bash(line)["process"], "envs": {"A": "1"}}, "pid": pid, "tag": "mine"}

    async def follow(process: dict[str, Any], ready: asyncio.Semaphore) -> tuple[int, bytes, int]:
        async with envd.stream("Connect", frame({"process": process})) as stream:
            found = await stream.start()
            ready.release()
            end = await stream.end()
            return found, stream.output["stdout"], end["exitCode"]

    ready = asyncio.Semaphore(0)
    readers = [asyncio.create_task(follow(one, ready)) for one in ({"pid": pid}, {"pid": pid}, {"tag": "mine"})]
    for _ in readers:
        await ready.acquire()
    await envd.run("echo >/tmp/go")
    assert await asyncio.gather(*readers) == [(pid, b"after\n" + bytes(2_000_000), 4)] * 3
    await until(lambda: _nothing_listed(envd))
    assert (await envd.call("SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}))[0] == 404


async def _nothing_listed(envd: Envd) -> bool:
    return await envd.processes() == []


async def test_who_leaves_before_reading_anything_does_not_end_the_command(
    envd: Envd, session: SessionApi, server: ServerProcess
) -> None:
    line = "head -c 3000000 /dev/zero; echo done >>/tmp/done"
    for _ in range(3):
        async with envd.started(line) as stream:
            await stream.start()
    body = frame(bash(line))
    for moment in range(12):  # before it is started, while it is, and after
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = f"POST /process.Process/Start HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}E2b-Sandbox-Id: {envd.http.headers['e2b-sandbox-id']}\r\n\r\n".encode() + body)
        await asyncio.sleep(moment / 1000)
        writer.transport.abort()
    await until(lambda: _nothing_listed(envd))
    assert "cancelled" not in str(await session.get("/processes"))
    assert int((await envd.run("wc -l </tmp/done"))[0]) >= 3


async def test_a_deadline_ends_a_command_and_not_one_that_is_only_watched(envd: Envd) -> None:
    async with envd.started("echo up; setsid sleep 60 & sleep 60", headers={"Connect_Timeout_Ms": "1500"}) as stream:
        await stream.start()
        code, _ = await stream.error()
    assert (code, stream.output["stdout"]) == ("deadline_exceeded", b"up\n")
    await until(lambda: _nothing_listed(envd))
    assert (await envd.run("pgrep -c sleep"))[0] == b"0\n"
    async with envd.started("read x; exit 5", stdin=True, headers={"Connect_Timeout_Ms": "0"}) as stream:
        process = {"process": {"pid": await stream.start()}}
        async with envd.stream("Connect", frame(process), Connect_Timeout_Ms="100") as watching:
            await watching.start()
            assert (await watching.error())[0] == "deadline_exceeded"
        await envd.done("CloseStdin", process)
        assert (await stream.end())["exitCode"] == 5


async def test_input_is_streamed_closed_and_not_taken_after_that(envd: Envd) -> None:
    message = bash("wc -c; echo end")
    del message["stdin"]  # older clients say nothing, and get an input
    async with envd.started(message) as stream:
        process = {"process": {"pid": await stream.start()}}
        await envd.done("SendInput", {**process, "input": {"stdin": encode(b"12345")}})
        parts = [{"data": {"input": {"stdin": encode(b"x" * 500_000)}}}] * 4
        frames = [frame(one) for one in ({"start": process}, {"keepalive": {}}, *parts)]
        async with envd.stream("StreamInput", *frames) as answer:
            assert [await answer.next(), await answer.next()] == [(0, {}), (END, {})]
        await envd.done("CloseStdin", process)
        assert await stream.end() == _EXITED
    assert stream.output["stdout"] == b"2000005\nend\n"
    async with envd.started("sleep 60") as stream:
        process = {"process": {"pid": await stream.start()}}
        status, problem = await envd.call("SendInput", {**process, "input": {"stdin": encode(b"x")}})
        assert (status, problem["code"]) == (400, "failed_precondition")
        async with envd.stream("StreamInput", frame({"data": {}})) as answer:
            assert (await answer.error())[0] == "invalid_argument"
        await envd.done("SendSignal", {**process, "signal": "SIGNAL_SIGKILL"})
        assert await stream.end() == _KILLED
    async with envd.started("sleep 60", stdin=True) as stream:
        process = {"process": {"pid": await stream.start()}}
        much = {**process, "input": {"stdin": encode(bytes(MIB))}}
        status, problem = await envd.call("SendInput", much, Connect_Timeout_Ms="300")
        assert (status, problem["code"]) == (504, "deadline_exceeded")
        await envd.done("SendSignal", {**process, "signal": "SIGNAL_SIGTERM"})
        assert (await stream.end())["status"] == "signal: terminated"


async def test_a_terminal_is_resized_and_typed_into(envd: Envd) -> None:
    shell = {"process": {"cmd": "/bin/bash", "args": ["-i", "-l"], "envs": {"TERM": "xterm-256color"}, "cwd": "/tmp"}}
    async with envd.started({**shell, "pty": {"size": {"cols": 91, "rows": 31}}}) as stream:
        process = {"process": {"pid": await stream.start()}}

        async def enter(line: str) -> None:
            await envd.done("SendInput", {**process, "input": {"pty": encode(f"{line}\n".encode())}})

        await enter("stty size; echo $TERM")
        await stream.said(b"31 91\r\nxterm-256color\r\n", "pty")
        await envd.done("Update", {**process, "pty": {"size": {"cols": 120, "rows": 40}}})
        await enter("stty size")
        await stream.said(b"40 120\r\n", "pty")
        for name, message in (("SendInput", {"input": {"stdin": encode(b"x")}}), ("CloseStdin", {})):
            assert (await envd.call(name, {**process, **message}))[0] == 400
        await enter("exit 6")
        assert (await stream.end())["exitCode"] == 6
    assert (stream.output["stdout"], stream.output["stderr"]) == (b"", b"")


async def test_a_stream_lasts_as_long_as_somebody_can_write_to_it(envd: Envd) -> None:
    began = time.monotonic()
    assert await envd.run("(sleep 0.5; echo child) & echo shell") == (b"shell\nchild\n", b"", _EXITED)
    assert await envd.run("sleep 60 >/dev/null 2>&1 & echo shell") == (b"shell\n", b"", _EXITED)
    async with envd.started("setsid sleep 60 & sleep 0.5; echo up; sleep 60") as stream:
        process = {"process": {"pid": await stream.start()}}
        await stream.said(b"up\n")
        await envd.done("SendSignal", {**process, "signal": "SIGNAL_SIGKILL"})
        assert await stream.end() == _KILLED
    assert await envd.refused("setsid sleep 60 & echo up", headers={"Connect_Timeout_Ms": "2000"}) == (
        "deadline_exceeded",
        "the time that the client has set is over",
    )
    assert time.monotonic() - began < 20
    assert (await envd.run("pgrep -c sleep"))[0] == b"3\n"


async def test_signs_of_life_come_when_nothing_else_does(envd: Envd) -> None:
    async with envd.started("sleep 2.5; echo x; sleep 0.1", headers={"Keepalive_Ping_Interval": "1"}) as stream:
        await stream.start()
        assert await stream.end() == _EXITED
    assert stream.keepalives in (2, 3)


async def test_a_refused_command_says_why_and_is_recorded_as_the_client_wrote_it(
    admin: Api, guarded: ServerProcess
) -> None:
    await admin.call("PUT", "/api/admin/tenants/judged", {"policy": {"mode": "enforce", "deny": ["curl"]}})
    tokens = SandboxTokens([key_in(guarded.state_dir / SECRETS_KEY)])
    async with of(admin, "judged") as api, api.session(env={"TOKEN": "very-secret"}) as session:
        async with Envd(guarded.url, session.id, tokens.sign(Opens.ACCESS, session.id)) as envd:
            code, text = await envd.refused("echo a; curl example.org")
            assert (code, "curl" in text) == ("permission_denied", True)
            user = {"Authorization": f"Basic {encode(b'user:')}"}
            stdout, _, _ = await envd.run("echo $TOKEN-b-very-secret", headers=user)
            assert stdout == b"very-secret-b-very-secret\n"
        async with Envd(guarded.url, session.id, tokens.sign(Opens.ACCESS, "ses_" + 32 * "0")) as stranger:
            assert (await stranger.call("List", {}))[0] == 401
            assert (await stranger.http.get("/health")).status_code == 204

        async def recorded() -> Any:
            deeds = (await api.get("/api/audit", action="e2b_start_process", limit=10))["deeds"]
            return deeds if len(deeds) == 2 and all("reason" in deed["detail"] for deed in deeds) else None

        deeds = await until(recorded)
    refused, allowed = sorted((deed["detail"]["reason"], deed["detail"]["command"]) for deed in deeds)[::-1]
    assert (refused, allowed[0]) == (("refused", "echo a; curl example.org"), "exited")
    assert allowed[1].startswith("echo $TOKEN-b-")
    assert "very-secret" not in json.dumps(deeds)


async def test_exec_seconds_pay_for_commands_and_end_those_that_cannot_pay(admin: Api, guarded: ServerProcess) -> None:
    await admin.call("PUT", "/api/admin/tenants/paying", {"quota": {"exec_seconds_per_day": 3}})
    tokens = SandboxTokens([key_in(guarded.state_dir / SECRETS_KEY)])
    async with of(admin, "paying") as api, api.session() as session:
        envd = Envd(guarded.url, session.id, tokens.sign(Opens.ACCESS, session.id))
        assert await envd.run("echo paid") == (b"paid\n", b"", _EXITED)
        assert (await envd.run("sleep 60"))[2]["exited"] is False
        assert (await envd.refused("true"))[0] == "resource_exhausted"
        await envd.http.aclose()


async def test_broken_frames_are_refused_and_cut_streams_leave_nothing(envd: Envd, server: ServerProcess) -> None:
    good, dice = frame(bash("sleep 60")), random.Random(7)
    broken = [b"", good[:3], good[:-1], good + good, frame(b"[]"), frame(b"{"), frame(b"\xff"), b"\1" + good[1:]]
    broken += [b"\0\xff\xff\xff\xff" + good[5:], good[:5], frame({}, END), frame({"process": []})]
    broken += [dice.randbytes(dice.randrange(1, 200)) for _ in range(60)]
    for _ in range(60):
        changed = bytearray(good)
        changed[dice.randrange(5)] ^= 1 << dice.randrange(8)
        broken.append(bytes(changed))
    for data in broken:
        for name in ("Start", "Connect", "StreamInput"):
            async with envd.stream(name, data) as stream:
                assert stream.status == 200, (data, stream.status)
                flags, message = (END, {}) if name == "StreamInput" and not data else await stream.next()
                assert flags == END or message == {}, (data, message)
    for data in (b"", b"[", b"[]", b"7", b'{"process":7}', b'{"process":{"pid":-1}}', b'{"process":{"pid":1e99}}'):
        for name in ("List", "SendInput", "Update", "SendSignal", "CloseStdin"):
            answer = await envd.http.post(f"/process.Process/{name}", content=data)
            assert answer.status_code in ((200, 400) if name == "List" else (400,)), (name, data, answer.text)
            assert answer.status_code == 200 or set(answer.json()) == {"code", "message"}
    for cut in (good[:20], good):  # the body does not end
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = "POST /process.Process/Start HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        head += f"E2b-Sandbox-Id: {envd.http.headers['e2b-sandbox-id']}\r\n\r\n{len(cut):x}\r\n"
        writer.write(head.encode() + cut + b"\r\n")
        await asyncio.sleep(0.1)
        writer.transport.abort()
    assert await envd.processes() == []
    assert await envd.run("echo works") == (b"works\n", b"", _EXITED)
    assert "Traceback" not in server.log


async def test_fifty_streams_and_one_who_does_not_read_hold_nobody_up(envd: Envd, server: ServerProcess) -> None:
    costs, before = Costs(server), _open_files(server)
    sandbox_id, line = envd.http.headers["e2b-sandbox-id"], "echo a; sleep 0.2; head -c 300000 /dev/zero; exit 2"
    async with Envd(server.url, sandbox_id) as others, others.started("exec cat /dev/zero") as unread:
        pid = await unread.start()
        costs.reset()
        began = time.monotonic()
        results = await asyncio.gather(*(others.run(line) for _ in range(50)))
        assert time.monotonic() - began < 45
        assert {(len(out), end["exitCode"]) for out, _, end in results} == {(300002, 2)}
        assert costs.held_ms < 50
        assert costs.memory_mib < 60
        used = [(await envd.run(f"cat /proc/{pid}/schedstat"))[0] for _ in range(2)]
        assert used[0] == used[1]  # it waits for its reader
    await envd.done("SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"})
    await until(lambda: _nothing_listed(envd))
    await until(lambda: _has_files(server, before))


def _open_files(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


async def _has_files(server: ServerProcess, most: int) -> bool:
    return _open_files(server) <= most + 1


async def test_a_sandbox_that_is_killed_ends_its_streams_with_an_error(api: Api, url: str) -> None:
    async with api.session() as session, Envd(url, session.id) as envd:
        async with envd.started("echo up; sleep 60") as first, envd.started("sleep 60") as second:
            await first.start(), await second.start()
            await first.said(b"up\n")
            await api.call("DELETE", f"/api/sessions/{session.id}")
            for stream in (first, second):
                code, message = await stream.error()
                assert (code, message.endswith("ended before the stream completed")) == ("unavailable", True)
        gone = {"sandboxId": session.id.removeprefix("ses_"), "message": "The sandbox was not found", "code": 502}
        for answer in (
            await envd.http.get("/health"),
            await envd.http.post("/process.Process/List", json={}),
            await envd.http.post("/process.Process/Start", content=frame(bash("true"))),
        ):
            assert (answer.status_code, answer.json()) == (502, gone)


async def test_a_server_that_stops_ends_its_streams_with_an_error(new_state: NewState) -> None:
    with running_measured(new_state(), *_FLAGS, "--stop-grace", "0.5") as server:
        async with Api(server.url) as api, api.session() as session, Envd(server.url, session.id) as envd:
            loud = envd.started("while :; do echo loud; sleep 0.01; done")
            async with envd.started("sleep 60") as quiet, loud as talking:
                await quiet.start(), await talking.start()
                server.send(signal.SIGTERM)
                for stream in (quiet, talking):
                    assert await stream.error() == (
                        "unavailable",
                        "the server was stopped before the stream completed",
                    )
            server.wait_for_end()
            server.start()


async def test_commands_outlive_a_restart_of_the_server(new_state: NewState, tmp_path: Path) -> None:
    with running_measured(new_state(), *_FLAGS, "--on-stop", "keep") as server:
        async with Api(server.url) as api:
            session_id = (await api.post("/api/sessions", {}, status=201))["session_id"]
        async with Envd(server.url, session_id) as envd, envd.started("read x; echo got $x", stdin=True) as stream:
            pid = await stream.start()
            server.kill()
        server.start()
        async with Envd(server.url, session_id) as envd:
            (shown,) = await envd.processes()
            assert shown == {"config": {"cmd": "/bin/bash", "args": ["-l", "-c", "read x; echo got $x"]}, "pid": pid}
            async with envd.stream("Connect", frame({"process": {"pid": pid}})) as stream:
                assert await stream.start() == pid
                await envd.done("SendInput", {"process": {"pid": pid}, "input": {"stdin": encode(b"it\n")}})
                assert await stream.end() == _EXITED
            assert stream.output["stdout"] == b"got it\n"
            await until(lambda: _nothing_listed(envd))
        async with Api(server.url) as api:
            await api.call("DELETE", f"/api/sessions/{session_id}")
