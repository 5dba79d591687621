"""The API key, the addresses a server may listen on, and one server per state directory."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import warm_parent
from e2e.api_client import Api
from e2e.conftest import NewState
from server_process import ServerProcess, clean_environ, free_port, running_server

KEY = "correct-horse-battery-staple"

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server(new_state: NewState) -> Iterator[ServerProcess]:
    with running_server(new_state(), provider="fake", WARREN_API_KEY=KEY) as server:
        yield server


@pytest.fixture(scope="module")
def url(server: ServerProcess) -> str:
    return server.url


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-API-Key": "wrong"},
        {"X-API-Key": ""},
        {"X-API-Key": KEY[:-1]},
        {"X-API-Key": KEY.upper()},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": KEY},
        {"Authorization": "Bearer"},
    ],
)
@pytest.mark.parametrize(
    ("method", "place"),
    [
        ("GET", "/api/sessions"),
        ("POST", "/create_session"),
        ("GET", "/sessions"),
        ("GET", "/api/stats"),
        ("GET", "/metrics"),
        ("GET", "/nowhere"),
        ("GET", "/health/../api/sessions"),
    ],
)
async def test_without_the_key_nothing_is_done(api: Api, method: str, place: str, headers: dict[str, str]) -> None:
    refused = await api.refused(method, place, headers=headers, status=401, code="unauthorized")
    assert KEY not in str(refused)
    assert "X-API-Key" in refused["remedy"]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-API-Key": KEY},
        {"Authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY}"},
        {"Authorization": "Bearer wrong", "X-API-Key": KEY},
    ],
)
async def test_with_the_key_everything_works(url: str, headers: dict[str, str]) -> None:
    async with Api(url, headers) as api, api.session() as session:
        assert await session.output("echo hi") == "hi\n"
        async with session.socket("/exec") as socket:
            await socket.raw.send_json({"command": "echo hi"})
            await socket.expect("started")
            assert (await socket.end())[1]["exit_code"] == 0


async def test_what_says_that_the_server_lives_is_open(api: Api) -> None:
    assert (await api.get("/health"))["status"] == "healthy"
    assert (await api.get("/ready"))["status"] == "ready"
    assert (await api.get("/version"))["name"] == "warren"
    assert (await api.get("/openapi.json"))["info"]["title"] == "Warren"


async def test_without_the_key_there_is_no_socket(url: str, api: Api) -> None:
    async with Api(url, {"X-API-Key": KEY}) as opened, opened.session() as session:
        place = f"/api/sessions/{session.id}/terminal"
        for headers in ({}, {"X-API-Key": "wrong"}):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with api.socket(place, headers=headers):
                    pass
            assert refused.value.status == 401


async def test_a_refused_body_is_not_read(api: Api) -> None:
    await api.refused("POST", "/execute", {"command": "x" * 3_000_000}, status=401, code="unauthorized")


async def test_the_key_is_in_no_log(server: ServerProcess, api: Api) -> None:
    await api.refused("GET", f"/nowhere/{KEY}", headers={"X-API-Key": "wrong"}, status=401, code="unauthorized")
    assert KEY not in server.log


def test_a_server_for_everybody_asks_for_keys(new_state: NewState) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        ended = refused_start(new_state(), "--no-auth", "--host", host)
        assert "without authentication the server listens on loopback only" in ended
        assert "leave out --no-auth" in ended
    ended = refused_start(new_state(), "--no-auth", "--trusted-proxies", "127.0.0.1")
    assert "behind a proxy everybody can reach the server" in ended


def test_tokens_that_could_never_be_checked_are_told_before_anything_is_started(new_state: NewState) -> None:
    jwks = ("--jwt-jwks", "/nowhere/jwks.json")
    state = new_state()
    assert "WARREN_JWT_ISSUER" in refused_start(state, *jwks)
    ended = refused_start(state, *jwks, "--jwt-issuer", "me", "--jwt-audience", "you")
    assert "the JWKS file /nowhere/jwks.json cannot be read" in ended
    assert not (state / "sessions.db").exists()


def test_a_second_server_on_the_same_state_says_who_has_it(server: ServerProcess) -> None:
    ended = refused_start(server.state_dir)
    assert f"another server uses the state directory {server.state_dir} (process {server.pid})" in ended
    assert "--state-dir" in ended


def test_a_port_that_is_taken_is_told(server: ServerProcess, new_state: NewState) -> None:
    ended = refused_start(new_state(), port=server.port)
    assert str(server.port) in ended


def refused_start(state_dir: Path, *flags: str, port: int | None = None) -> str:
    """What a server that cannot start says; it is a sentence, not a stack trace."""
    argv = [sys.executable, "-m", "warren.cli.main", "serve", "--state-dir", str(state_dir), "--provider", "fake"]
    argv += ["--port", str(port or free_port()), *flags]
    ended = warm_parent.run(argv, env=clean_environ(), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode not in (0, -9)
    assert "Traceback" not in ended.stderr
    return ended.stderr


def whoami(server: ServerProcess) -> str:
    """What the command line says that finds its key by itself."""
    environ = {**clean_environ(), "WARREN_CREDENTIALS": str(server.credentials), "WARREN_URL": server.url}
    argv = [sys.executable, "-m", "warren.cli.main", "whoami"]
    return warm_parent.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=True).stdout


async def test_a_server_that_nobody_has_a_key_for_makes_one_once(new_state: NewState) -> None:
    server = ServerProcess(new_state(), "--on-stop", "destroy", provider="fake", WARREN_AUTH="true")
    for _ in range(2):
        server.start()
        try:
            (address, key), *others = json.loads(server.credentials.read_text()).items()
            assert (address, others) == (f"http://localhost:{server.port}", [])
            async with Api(server.url, {"X-API-Key": key}) as api:
                assert "admin" in (await api.get("/api/whoami"))["scopes"]
                assert [made["name"] for made in (await api.get("/api/admin/keys"))["keys"]] == ["first"]
            async with Api(server.url) as api:
                await api.refused("GET", "/api/whoami", status=401, code="unauthorized")
            assert "default" in whoami(server)
        finally:
            server.stop()
    assert server.credentials.stat().st_mode & 0o777 == 0o600
    assert server.log.count("Made a key") == 1
    assert key not in server.log
