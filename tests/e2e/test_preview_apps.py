"""Real servers in sandboxes, as their authors wrote them, behind previews: Jupyter from PyPI and Vite from npm.

Sandboxes have no network here: the packages are installed on the host, once for each machine, and copied in.
"""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from e2e.api_client import Api, SessionApi
from e2e.conftest import NewState
from e2e.preview_suite import Preview, http  # noqa: F401
from server_process import running_server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600), pytest.mark.extended]
APPS = Path(__file__).parents[2] / "build" / "preview-apps"
KEY = "wk_" + "k" * 40
HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def url(new_state: NewState) -> Iterator[str]:
    with running_server(new_state(), "--pool-size", "0", "--cpus", "2", WARREN_API_KEY=KEY) as server:
        yield server.url


@pytest.fixture
async def api(url: str) -> AsyncIterator[Api]:
    async with Api(url, {"X-API-Key": KEY}) as api:
        yield api


def installed(name: str, *command: str) -> bytes:
    """The packages that the command installs into `{}`, as a tar."""
    target = APPS / name
    if not (target / "complete").exists():
        target.mkdir(parents=True, exist_ok=True)
        subprocess.run([word.replace("{}", str(target)) for word in command], check=True, capture_output=True)
        (target / "complete").touch()
    pack = ["tar", "--hard-dereference", "--directory", str(target.parent), "--create", target.name]
    return subprocess.run(pack, check=True, capture_output=True).stdout


async def unpack(session: SessionApi, tree: bytes) -> None:
    await session.call("PUT", "/files/archive", data=tree, path="/workspace", status=201)


async def opened(http: aiohttp.ClientSession, session: SessionApi, port: int, **how: str) -> Preview:  # noqa: F811
    """The preview as a browser has it after it has opened a link: with the cookie."""
    preview = Preview(http, session, by_host=True, port=port)
    link = await session.post("/links", {"port": port, **how}, status=201)
    target = "/?" + link["url"].partition("/?")[2]
    async with preview.ask("GET", target, headers=HTML, allow_redirects=False) as answer:
        assert answer.status == 302
        preview.headers["Cookie"] = answer.headers["set-cookie"].partition(";")[0]
    return preview


async def test_jupyter_runs_a_terminal_over_its_websocket(session: SessionApi, http: aiohttp.ClientSession) -> None:  # noqa: F811
    await unpack(
        session, installed("jupyter", sys.executable, "-m", "pip", "install", "-q", "--target", "{}", "jupyter_server")
    )
    options = "--ServerApp.token=own --ServerApp.password= --ServerApp.open_browser=False --ServerApp.port=8888"
    options += " --ServerApp.jpserver_extensions=jupyter_server_terminals=True"
    command = f"PYTHONPATH=/workspace/jupyter python3 -m jupyter_server {options}"
    await session.start(command, env={"HOME": "/workspace"})
    await session.get("/ports", wait_for=8888, timeout_s=120)
    strange = await opened(http, session, 8888)
    async with strange.ask("GET", "/api/status", headers={"Authorization": "token own"}) as answer:
        assert answer.status == 403  # it listens on loopback, and so takes no other host
    preview = await opened(http, session, 8888, host_header="localhost")
    own = {"Authorization": "token own"}
    async with preview.ask("GET", "/api/status", headers=own) as answer:
        assert "started" in await answer.json()
    async with preview.ask("POST", "/api/terminals", headers=own) as answer:
        assert answer.status == 200, await answer.text()
        name = (await answer.json())["name"]
    origin = {"Origin": f"http://{preview.host}"}
    async with preview.socket(f"/terminals/websocket/{name}", headers={**own, **origin}) as socket:
        await socket.send_str(json.dumps(["stdin", "echo $((6 * 7))\r"]))
        async with asyncio.timeout(60):
            while "42" not in (await socket.receive_str()):
                pass


async def test_vite_serves_modules_and_reloads_them(session: SessionApi, http: aiohttp.ClientSession) -> None:  # noqa: F811
    await unpack(session, installed("vite", "npm", "install", "--prefix", "{}", "--no-audit", "--no-fund", "vite@5"))
    await session.write("vite/index.html", b'<script type="module" src="/main.js"></script>')
    await session.write("vite/main.js", b"console.log('first')")
    command = "cd /workspace/vite && node_modules/.bin/vite --host 127.0.0.1 --port 5173 --strictPort"
    await session.start(command, env={"HOME": "/workspace"})
    await session.get("/ports", wait_for=5173, timeout_s=120)
    preview = await opened(http, session, 5173)
    async with preview.ask("GET", "/", headers=HTML) as answer:
        assert "/@vite/client" in await answer.text()
    async with preview.ask("GET", "/main.js") as answer:
        assert "first" in await answer.text()
    async with preview.ask("GET", "/@vite/client") as answer:
        token = re.search(r'wsToken = "([^"]+)"', await answer.text())
        assert token is not None
    origin = {"Origin": f"http://{preview.host}"}
    async with preview.socket(f"/?token={token[1]}", headers=origin, protocols=("vite-hmr",)) as socket:
        assert socket.protocol == "vite-hmr"
        assert json.loads(await socket.receive_str()) == {"type": "connected"}
        await session.write("vite/main.js", b"console.log('second')")
        async with asyncio.timeout(60):
            assert json.loads(await socket.receive_str())["type"] in ("full-reload", "update")
    async with preview.ask("GET", "/main.js") as answer:
        assert "second" in await answer.text()
