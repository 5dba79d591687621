"""Who may use the MCP server, which sandbox they get, and what happens when there is no Warren server."""

import asyncio
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx2
import pytest
import warm_parent
from frameworks.mcp_world import HttpServer, Tools, connected, http_server, stdio
from server_process import ServerProcess, clean_environ, free_port, running_server
from this_run import new_state_dir

_KEY = "a-long-random-text"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    state_dir = new_state_dir()
    try:
        with running_server(state_dir, "--pool-size", "2", provider="fake") as server:
            yield server
    finally:
        shutil.rmtree(state_dir)


@pytest.fixture(scope="module")
def guarded(server: ServerProcess) -> Iterator[HttpServer]:
    with http_server(server.url, "--thread", "usual", WARREN_MCP_KEY=_KEY) as http:
        yield http


def authorized(**headers: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {_KEY}", **headers}


@pytest.mark.anyio
@pytest.mark.parametrize("transport", ["http", "sse"])
class TestTheHeader:
    async def test_it_chooses_the_sandbox(self, guarded: HttpServer, transport: str) -> None:
        name = f"thread-{secrets.token_hex(4)}"
        async with connected(transport, guarded, **authorized(**{"X-Warren-Thread": name})) as client:
            assert f"sandbox: {name}\n" in await Tools(client).said("sandbox_info")
            assert f"sandbox: {name}\n" in await Tools(client, name).said("sandbox_info")
        async with connected(transport, guarded, **authorized()) as client:
            assert "sandbox: usual\n" in await Tools(client).said("sandbox_info")

    async def test_the_model_cannot_leave_it_by_an_argument(self, guarded: HttpServer, transport: str) -> None:
        async with connected(transport, guarded, **authorized(**{"X-Warren-Thread": "mine"})) as client:
            assert "cannot use 'other'" in await Tools(client, "other").refused("sandbox_info")
            assert "cannot use 'other'" in await Tools(client, "other").refused("reset_sandbox")

    async def test_two_headers_are_two_sandboxes(self, guarded: HttpServer, transport: str) -> None:
        async def session(name: str) -> str:
            async with connected(transport, guarded, **authorized(**{"X-Warren-Thread": name})) as client:
                return (await Tools(client).said("sandbox_info")).split("session: ")[1].split("\n")[0]

        one, two, one_again = await session("h-one"), await session("h-two"), await session("h-one")
        assert one == one_again != two


@pytest.mark.parametrize("path", ["/mcp", "/sse", "/messages/", "/"])
@pytest.mark.parametrize("value", ["", "Bearer wrong", f"Basic {_KEY}", f"Bearer {_KEY}x"])
def test_without_the_key_nothing_is_answered(guarded: HttpServer, path: str, value: str) -> None:
    headers = {"Authorization": value} if value else {}
    found = httpx2.post(f"{guarded.url}{path}", headers=headers, json={})
    assert found.status_code == 401
    assert found.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:8010"}, 421),
        ({"Host": "127.0.0.1.evil.example:8010"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_a_page_from_elsewhere_is_refused(guarded: HttpServer, headers: dict[str, str], status: int) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    for method, path in (("POST", "/mcp"), ("GET", "/sse")):
        found = httpx2.request(method, f"{guarded.url}{path}", headers=authorized(**headers), json=body)
        assert found.status_code == status


def mcp(*flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "warren.cli.main", "mcp", *flags]
    return warm_parent.run(
        command,
        env={**clean_environ(), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_another_address_than_loopback_needs_a_key(host: str) -> None:
    done = mcp("--http", "--host", host)
    assert done.returncode == 125
    assert "WARREN_MCP_KEY" in done.stderr


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--local", "--url", "http://localhost:1"), 2, "either --local or --url"),
        (("--thread", ""), 125, "thread"),
        (("--url", "ftp://server"), 125, "not the URL of a server"),
        (("--http", "--port", "99999"), 2, "99999"),
    ],
)
def test_wrong_flags_are_one_sentence(flags: tuple[str, ...], code: int, words: str) -> None:
    done = mcp(*flags)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_one_sentence(guarded: HttpServer) -> None:
    done = mcp("--http", "--port", str(guarded.port))
    assert done.returncode == 125
    assert "cannot listen on 127.0.0.1" in done.stderr


@pytest.mark.anyio
async def test_without_a_warren_server_every_tool_says_so() -> None:
    async with connected("stdio", stdio(f"http://127.0.0.1:{free_port()}")) as client:
        assert len((await client.list_tools()).tools) == 13
        for tool, arguments in (("bash", {"command": "ls"}), ("sandbox_info", {}), ("reset_sandbox", {})):
            said = await Tools(client).refused(tool, **arguments)
            assert "127.0.0.1" in said
            assert "tell the user" in said


@pytest.mark.anyio
async def test_a_warren_server_that_comes_back_is_used_again(server: ServerProcess) -> None:
    state_dir = new_state_dir()
    late = ServerProcess(state_dir, "--on-stop", "destroy", provider="fake")
    try:
        async with connected("stdio", stdio(late.url)) as client:
            assert "tell the user" in await Tools(client).refused("sandbox_info")
            await asyncio.to_thread(late.start)
            assert "state: running" in await Tools(client).said("sandbox_info")
            assert await asyncio.to_thread(late.stop) == 0
            assert "tell the user" in await Tools(client).refused("sandbox_info")
            await asyncio.to_thread(late.start)
            assert "state: running" in await Tools(client).said("sandbox_info")
    finally:
        late.stop()
        shutil.rmtree(state_dir)


@pytest.mark.anyio
async def test_a_wrong_key_for_the_warren_server_is_told() -> None:
    state_dir = new_state_dir()
    try:
        with running_server(state_dir, provider="fake", WARREN_API_KEY="right") as server:
            async with connected("stdio", stdio(server.url, WARREN_API_KEY="wrong")) as client:
                assert "WARREN_API_KEY" in await Tools(client).refused("sandbox_info")
            async with connected("stdio", stdio(server.url, WARREN_API_KEY="right")) as client:
                assert "state: running" in await Tools(client).said("sandbox_info")
    finally:
        shutil.rmtree(state_dir)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_it_waits_for_its_client(number: int) -> None:
    command = [sys.executable, "-m", "warren.cli.main", "mcp"]
    with warm_parent.Popen(
        command, env=clean_environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        process.stdin.flush()
        assert process.stdout.readline()
        process.send_signal(number)
        try:
            assert process.wait(10) == 128 + number
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_http_server(server: ServerProcess, number: int) -> None:
    with http_server(server.url) as http:
        http._process.send_signal(number)
        assert http._process.wait(10) == 128 + number
