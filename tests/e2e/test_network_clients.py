"""Unmodified programs in sandboxes reach what the rules allow and nothing else, in an Internet of the test's own."""

import asyncio
import io
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from certificates import Certificates, make_certificates
from e2e.api_client import Api, SessionApi
from e2e.conftest import NewState
from network_servers import Servers
from network_world import ADDRESSES, HEADERS, PRIVATE, NetworkWorld, PlacedServer

pytestmark = pytest.mark.anyio

WEB, OTHER, CLOSED = ADDRESSES[0], ADDRESSES[1], ADDRESSES[2]
NAMES: Final = {
    "packages.example": [WEB],
    "api.example": [WEB],
    "deep.api.example": [WEB],
    "other.example": [OTHER],
    "code.example": [OTHER],
    "db.example": [OTHER],
    "inner.example": [PRIVATE],
}
TRUSTED_IN: Final = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "NODE_EXTRA_CA_CERTS")
TRUST: Final = dict.fromkeys(TRUSTED_IN, "/workspace/ca.pem")
PYTHON_TLS: Final = "import urllib.request as r; print(r.urlopen('https://{0}/', timeout=20).read().decode())"
NODE_TLS: Final = (
    "require('https').get('https://{0}/', a => a.pipe(process.stdout)).on('error', e => {{console.log(e.code); "
    "process.exit(7)}})"
)
CLIENTS: Final = {
    "curl": "curl -sS --max-time 20 https://{0}/",
    "plain curl": "curl -sS --max-time 20 http://{0}/",
    "python": f'python3 -c "{PYTHON_TLS}"',
    "node": f'node -e "{NODE_TLS}"',
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="warren-network-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture(scope="module")
def certificates(folder: Path) -> Certificates:
    return make_certificates(folder, *NAMES)


@pytest.fixture(scope="module")
def world(folder: Path) -> Iterator[NetworkWorld]:
    with NetworkWorld(folder) as world:
        world.names.update(NAMES)
        yield world


@pytest.fixture(scope="module")
def servers(world: NetworkWorld, folder: Path, certificates: Certificates) -> Iterator[Servers]:
    with Servers(folder, certificates) as servers:
        for address in (WEB, OTHER, PRIVATE):
            servers.serve_web(world.listen(address, 443), tls=True)
            servers.serve_web(world.listen(address, 80), tls=False)
        servers.serve_ssh(world.listen(OTHER, 22))
        servers.serve_postgres(world.listen(OTHER, 5432))
        servers.serve_postgres(world.listen(PRIVATE, 5432))
        yield servers


@pytest.fixture(scope="module")
def server(new_state: NewState, world: NetworkWorld, servers: Servers) -> Iterator[PlacedServer]:
    flags = ("--on-stop", "destroy", "--pool-size", "2")
    server = PlacedServer(world, new_state(), *flags, WARREN_EGRESS_NETWORKS="10.99.0.0/24")
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
async def api(server: PlacedServer, world: NetworkWorld) -> AsyncIterator[Api]:
    connector = aiohttp.TCPConnector(limit=0, socket_factory=world.new_socket)
    async with Api(server.url, HEADERS, connector) as api:
        yield api


class Sandbox:
    """A session whose programs trust the test's authority."""

    def __init__(self, session: SessionApi, certificates: Certificates) -> None:
        self.session, self._certificates = session, certificates

    async def prepared(self) -> "Sandbox":
        await self.session.write("ca.pem", self._certificates.ca.read_bytes())
        return self

    async def run(self, command: str, **rest: Any) -> dict[str, Any]:
        values = {"command": command, "env": {**TRUST, "GIT_TERMINAL_PROMPT": "0"}, "timeout_s": 60, **rest}
        result: dict[str, Any] = await self.session.post("/exec", values)
        return result

    async def allow(self, *rules: str, **rest: Any) -> None:
        await self.session.call("PUT", "/network", {"allow": list(rules), **rest})

    async def says(self, command: str, text: str) -> None:
        result = await self.run(command)
        assert result["exit_code"] == 0, result
        assert text in result["stdout"], result

    async def fails(self, command: str) -> dict[str, Any]:
        result = await self.run(command)
        assert result["exit_code"] not in (0, 124), result
        assert "hello from" not in result["stdout"], result
        return result


@pytest.fixture(params=["base"])
def environment(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def sandbox(api: Api, environment: str, certificates: Certificates) -> AsyncIterator[Sandbox]:
    async with api.session(environment=environment) as session:
        yield await Sandbox(session, certificates).prepared()


async def test_at_first_nothing_is_reached(sandbox: Sandbox, world: NetworkWorld) -> None:
    world.asked.clear()
    for client in CLIENTS.values():
        await sandbox.fails(client.format("api.example"))
    assert world.asked == [], "a look-up went out"


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
async def test_a_name_is_reached_when_the_rules_say_so(sandbox: Sandbox, client: str) -> None:
    await sandbox.allow("api.example")
    await sandbox.says(client.format("api.example"), "hello from api.example")
    await sandbox.fails(client.format("deep.api.example"))
    await sandbox.fails(client.format("other.example"))
    await sandbox.allow("*.api.example")
    await sandbox.says(client.format("deep.api.example"), "hello from deep.api.example")
    await sandbox.fails(client.format("api.example"))
    await sandbox.allow(internet=True, deny=["api.example"])
    await sandbox.says(client.format("other.example"), "hello from other.example")
    await sandbox.fails(client.format("api.example"))
    await sandbox.allow()
    await sandbox.fails(client.format("other.example"))


async def test_networks_and_ports_are_told_apart(sandbox: Sandbox) -> None:
    await sandbox.allow(f"{WEB}/32:80")
    await sandbox.says(f"curl -sS --max-time 20 http://{WEB}/", "hello from")
    await sandbox.fails(f"curl -sSk --max-time 20 https://{WEB}/")
    await sandbox.fails(f"curl -sS --max-time 20 http://{OTHER}/")
    await sandbox.allow("10.99.0.0/24")
    await sandbox.says(f"curl -sS --max-time 20 http://{PRIVATE}/", "hello from")
    await sandbox.allow("api.example:443")
    await sandbox.says(CLIENTS["curl"].format("api.example"), "hello from api.example")
    await sandbox.fails(CLIENTS["plain curl"].format("api.example"))


async def test_pip_installs(sandbox: Sandbox) -> None:
    install = "pip install --no-input --retries 0 --timeout 10 --index-url https://packages.example/simple tiny-package"
    await sandbox.fails(install)
    await sandbox.allow("packages.example")
    await sandbox.says(f"{install} && python3 -c 'import tiny_package; print(tiny_package.answer)'", "42")


async def test_git_clones_over_https(sandbox: Sandbox) -> None:
    clone = "rm -rf repo; git clone -q https://code.example/git/repository.git repo && cat repo/hello.txt"
    await sandbox.fails(clone)
    await sandbox.allow("code.example")
    await sandbox.says(clone, "hello from the repository")


async def test_a_websocket_client_works(sandbox: Sandbox) -> None:
    await sandbox.session.call("PUT", "/files/archive", data=packed_module(), path="modules", status=201)
    client = (
        "import asyncio, websockets\n"
        "async def main():\n"
        "    async with websockets.connect('wss://api.example/ws', proxy=None) as socket:\n"
        "        await socket.send('over and back')\n"
        "        print(await socket.recv())\n"
        "asyncio.run(main())\n"
    )
    await sandbox.session.write("client.py", client.encode())
    await sandbox.fails("PYTHONPATH=modules python3 client.py")
    await sandbox.allow("api.example")
    await sandbox.says("PYTHONPATH=modules python3 client.py", "over and back")


def packed_module(name: str = "websockets") -> bytes:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.add(
            Path(spec.origin).parent,
            name,
            filter=lambda member: None if member.name.endswith((".so", "__pycache__")) else member,
        )
    return made.getvalue()


@pytest.mark.parametrize("environment", ["host"], indirect=True)
async def test_npm_installs(sandbox: Sandbox) -> None:
    flags = "--no-audit --no-fund --fetch-retries=0 --cafile=/workspace/ca.pem --registry=https://packages.example/npm/"
    install = f"cd $(mktemp -d) && npm install {flags} tiny-package"
    await sandbox.fails(install)
    await sandbox.allow("packages.example")
    await sandbox.says(f"""{install} && node -e 'console.log(require("tiny-package"))'""", "42")


@pytest.mark.parametrize("environment", ["host"], indirect=True)
async def test_git_clones_over_ssh(sandbox: Sandbox) -> None:
    ssh = "ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=10"
    address = "ssh://git@code.example/repository.git"
    clone = f"rm -rf repo; GIT_SSH_COMMAND='{ssh}' git clone -q {address} repo && cat repo/hello.txt"
    await sandbox.fails(clone)
    await sandbox.allow("code.example:443")
    await sandbox.fails(clone)
    await sandbox.allow("code.example:22")
    await sandbox.says(clone, "hello from the repository")


@pytest.mark.parametrize("environment", ["host"], indirect=True)
async def test_psql_connects_by_name_and_by_address(sandbox: Sandbox) -> None:
    query = "PGCONNECT_TIMEOUT=10 psql -X -At -h {0} -U test test -c 'select 42'"
    await sandbox.fails(query.format("db.example"))
    await sandbox.allow("db.example:5432")
    await sandbox.says(query.format("db.example"), "42")
    await sandbox.fails(query.format(OTHER))
    await sandbox.allow("10.99.0.0/24:5432")
    await sandbox.says(query.format(PRIVATE), "42")
    await sandbox.fails(query.format("inner.example"))


async def test_what_is_no_longer_allowed_is_cut(sandbox: Sandbox) -> None:
    await sandbox.allow("db.example", "api.example")
    talk = (
        "import socket, time\n"
        "ends = [socket.create_connection((name, 80), 20) for name in ('db.example', 'api.example')]\n"
        "open('connected', 'w').close()\n"
        "def ended(end):\n"
        "    end.settimeout(20)\n"
        "    end.sendall(b'GET / HTTP/1.1\\r\\nHost: api.example\\r\\n\\r\\n') if end is ends[1] else None\n"
        "    try:\n"
        "        return not end.recv(1)\n"
        "    except ConnectionError:\n"
        "        return True\n"
        "print([ended(end) for end in ends])\n"
    )
    await sandbox.session.write("talk.py", talk.encode())
    running = asyncio.ensure_future(sandbox.run("python3 talk.py"))
    while (await sandbox.run("test -e connected"))["exit_code"]:
        await asyncio.sleep(0.05)
    await sandbox.allow("api.example")
    assert "[True, False]" in (await running)["stdout"]
