"""How a server stops: what runs may finish, new work is refused, sessions are kept for the next start or destroyed."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator

import aiohttp
import pytest
from e2e.api_client import Api, SessionApi, until
from e2e.conftest import NewState
from e2e.hosts import Hosts
from e2e.once_suite import key
from server_process import ServerProcess

pytestmark = pytest.mark.anyio

Serving = Callable[..., ServerProcess]


@pytest.fixture
def serving(new_state: NewState) -> Iterator[Serving]:
    """Starts servers; at the end whatever they left is destroyed."""
    started: list[ServerProcess] = []

    def start(*flags: str, provider: str = "oci") -> ServerProcess:
        server = ServerProcess(new_state(), "--pool-size", "1", *flags, provider=provider)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.kill()
        last = ServerProcess(server.state_dir, "--on-stop", "destroy", "--pool-size", "0")
        last.start()
        last.stop()


async def stopped(server: ServerProcess) -> int:
    return await asyncio.to_thread(server.wait_for_end)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_running_command_finishes_and_is_answered(serving: Serving, number: int) -> None:
    server = serving("--stop-grace", "60", provider="fake")
    async with Api(server.url) as api:
        session = SessionApi(api, await api.post("/api/sessions", status=201))
        running = asyncio.ensure_future(session.output("sleep 3; echo finished"))
        await asyncio.sleep(0.7)
        server.send(number)
        await until(lambda: is_stopping(api))
        for method, place, body in (
            ("POST", "/api/sessions", {}),
            ("POST", "/create_session", {}),
            ("POST", f"/api/sessions/{session.id}/exec", {"command": "true"}),
            ("GET", "/ready", None),
        ):
            await api.refused(method, place, body, status=503, code="stopping")
        assert (await api.get(f"/api/sessions/{session.id}"))["state"] == "running"
        assert await running == "finished\n"
    assert await stopped(server) == 0


async def test_a_running_stream_finishes_too(serving: Serving) -> None:
    server = serving("--stop-grace", "60", provider="fake")
    async with Api(server.url) as api:
        session = SessionApi(api, await api.post("/api/sessions", status=201))
        async with session.events("POST", "/exec", {"command": "sleep 2; echo finished"}) as events:
            assert (await anext(events)).kind == "started"
            server.send(signal.SIGTERM)
            rest = [event async for event in events if event.kind != "comment"]
        assert [event.kind for event in rest] == ["output", "result"]
    assert await stopped(server) == 0


async def test_a_command_that_does_not_finish_in_time_does_not_hold_up_the_stop(serving: Serving) -> None:
    server = serving("--stop-grace", "1", provider="fake")
    async with Api(server.url) as api:
        session = SessionApi(api, await api.post("/api/sessions", status=201))
        running = asyncio.ensure_future(session.exec("sleep 1000"))
        await asyncio.sleep(0.5)
        server.send(signal.SIGTERM)
        assert await stopped(server) == 0
        with pytest.raises((aiohttp.ClientError, AssertionError)):
            await running


async def test_who_waits_for_a_sandbox_does_not_hold_up_the_stop(serving: Serving) -> None:
    server = serving("--stop-grace", "0", "--max-sandboxes", "1", "--pool-size", "0", provider="fake")
    async with Api(server.url) as api:
        await api.post("/api/sessions", status=201)
        waiting = asyncio.ensure_future(api.post("/api/sessions", {"thread_id": "t"}, status=503))
        await asyncio.sleep(0.5)
        server.send(signal.SIGTERM)
        assert await asyncio.to_thread(server.wait_for_end, 15) == 0
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_signal_ends_a_server_that_is_still_starting(new_state: NewState) -> None:
    state, silent = new_state(), str(new_state() / "silent.sock")
    server = ServerProcess(state, provider="docker", WARREN_DOCKER_URL=f"unix://{silent}")
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(silent)
        engine.listen()
        engine.settimeout(60)
        server.start(wait=False)
        try:
            request_context, _ = await asyncio.to_thread(engine.accept)
            with request_context:
                server.send(signal.SIGTERM)
                assert await asyncio.to_thread(server.wait_for_end, 15) == 0
        finally:
            server.kill()


async def test_a_second_signal_does_not_wait(serving: Serving) -> None:
    server = serving("--stop-grace", "1000", provider="fake")
    async with Api(server.url) as api:
        session = SessionApi(api, await api.post("/api/sessions", status=201))
        running = asyncio.ensure_future(session.exec("sleep 1000"))
        await asyncio.sleep(0.5)
        server.send(signal.SIGTERM)
        await until(lambda: is_stopping(api))
        server.send(signal.SIGTERM)
        await stopped(server)
        await asyncio.gather(running, return_exceptions=True)


async def test_attached_clients_do_not_hold_up_the_stop(serving: Serving) -> None:
    server = serving("--stop-grace", "60", provider="fake")
    async with Api(server.url) as api:
        session = SessionApi(api, await api.post("/api/sessions", status=201))
        process = await session.start("sleep 1000")
        async with (
            session.socket(f"/processes/{process}/attach") as socket,
            session.events("GET", "/files/watch") as events,
        ):
            await socket.expect("started")
            assert (await anext(events)).kind == "watching"
            server.send(signal.SIGTERM)
            assert await asyncio.to_thread(server.wait_for_end, 30) == 0


async def test_kept_sessions_go_on_in_the_next_server(serving: Serving) -> None:
    server = serving("--on-stop", "keep")
    headers = key()
    async with Api(server.url) as api:
        session = SessionApi(api, await api.post("/api/sessions", {"thread_id": "kept"}, status=201))
        await session.exec("cd /tmp; export A=b; echo precious > note")
        once = await session.exec("echo run >> count; cat count", headers=headers)
        process = await session.start("for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.5; done")
        created = await api.post("/api/sessions", {"metadata": {"n": "1"}}, status=201, headers=headers)
    assert await asyncio.to_thread(server.stop) == 0
    assert session.found["sandbox_id"] in Hosts(server.state_dir).sandboxes()
    server.start()
    async with Api(server.url) as api:
        again = await api.post("/api/sessions", {"thread_id": "kept"})
        assert again["session_id"] == session.id
        session = SessionApi(api, again)
        assert await session.output("pwd; echo $A; cat note") == "/tmp\nb\nprecious\n"
        assert await session.exec("echo run >> count; cat count", headers=headers) == once
        replayed = await api.post("/api/sessions", {"metadata": {"n": "1"}}, status=201, headers=headers)
        assert replayed["session_id"] == created["session_id"]
        result = await session.get(f"/processes/{process}/wait")
        assert result["stdout"].split() == [str(number) for number in range(1, 10)]
        for session_id in (session.id, created["session_id"]):
            await api.call("DELETE", f"/api/sessions/{session_id}")


async def test_only_sandboxes_of_sessions_outlive_a_stop(serving: Serving) -> None:
    server = serving("--on-stop", "keep")
    async with Api(server.url) as api:
        found = await api.post("/api/sessions", status=201)
    await asyncio.to_thread(server.stop)
    assert Hosts(server.state_dir).sandboxes() == {found["sandbox_id"]}


async def test_sessions_are_destroyed_if_they_are_to(serving: Serving) -> None:
    server = serving("--on-stop", "destroy")
    async with Api(server.url) as api:
        session = SessionApi(api, await api.post("/api/sessions", {"thread_id": "t"}, status=201))
        await session.start("sleep 1000")
    assert await asyncio.to_thread(server.stop) == 0
    assert Hosts(server.state_dir).sandboxes() == set()
    server.start()
    async with Api(server.url) as api:
        shown = await api.get(f"/api/sessions/{session.id}")
        assert (shown["state"], shown["reason"]) == ("ended", "shutdown")
        found = await api.post("/execute", {"thread_id": "t", "command": "echo hi"})
        assert "server was stopped" in found["notice"]


async def is_stopping(api: Api) -> bool:
    return bool((await api.get("/health"))["status"] == "stopping")
