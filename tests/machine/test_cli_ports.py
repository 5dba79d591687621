"""`warren ports`, `open` and `forward`, and the same of the clients, with a real server inside a real sandbox."""

import contextlib
import http.client
import re
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine.remote_cli import RemoteCli
from server_process import ServerProcess, running_server
from this_run import new_state_dir

from warren import AsyncSandboxClient, SandboxClient
from warren.model.errors import Forbidden, PortClosed

KEY = "wk_" + "k" * 40


@pytest.fixture(scope="module")
def server(image_cache: Path) -> Iterator[ServerProcess]:
    state = new_state_dir(image_cache)
    with running_server(state, "--pool-size", "1", "--cpus", "2", WARREN_API_KEY=KEY) as server:
        yield server
    shutil.rmtree(state)


@pytest.fixture(scope="module")
def cli(server: ServerProcess) -> RemoteCli:
    return RemoteCli(server.url, WARREN_API_KEY=KEY)


@pytest.fixture(scope="module")
def session(cli: RemoteCli) -> Iterator[str]:
    session = cli.say("create").strip()
    cli.say("cp", "-", f"{session}:index.html", stdin=b"<h1>hello</h1>")
    cli.say("exec", "-d", session, "--", "python3", "-m", "http.server", "--bind", "127.0.0.1", "3000")
    assert re.search(r"^3000 +127\.0\.0\.1 +no$", cli.say("ports", session, "--wait", "3000"), re.M)
    yield session
    cli.say("kill", session)


def fetch(server: ServerProcess, link: str) -> bytes:
    """By the link's host, which leads to loopback; not every resolver knows that."""
    host, _, target = link.removeprefix("http://").partition("/")
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.request("GET", f"/{target}", headers={"Host": host})
        answer = connection.getresponse()
        body = answer.read()
    assert answer.status == 200, body
    return body


def test_open_prints_a_link_that_needs_no_key(cli: RemoteCli, server: ServerProcess, session: str) -> None:
    link = cli.say("open", session, "3000").strip()
    assert link.startswith(f"http://3000-{session.removeprefix('ses_')}.localhost:{server.port}/?warren_token=")
    assert fetch(server, link.replace("/?", "/index.html?")) == b"<h1>hello</h1>"
    by_path = cli.say("open", session, "3000", "--path").strip()
    assert by_path.startswith(f"{server.url}/api/sessions/{session}/ports/3000/?warren_token=")
    with urllib.request.urlopen(by_path.replace("/?", "/index.html?"), timeout=30) as answer:
        assert answer.read() == b"<h1>hello</h1>"
    newer = cli.document("open", session, "3000", "--revoke", "--expires", "10m", "--local-host")
    assert fetch(server, newer["url"].replace("/?", "/index.html?")) == b"<h1>hello</h1>"
    with pytest.raises(AssertionError, match="revoked"):
        fetch(server, link)
    nothing = cli.run("open", session, "3999")
    assert (nothing.returncode, nothing.stderr) == (0, b"warren: nothing listens on port 3999 yet\n")
    refused = cli.run("open", session, "3000", "--public")
    assert refused.returncode != 0
    assert b"no public previews" in refused.stderr
    for wrong in (["open", session], ["open", session, "x"], ["open", session, "0"], ["forward", session, "1:2:3:4"]):
        assert cli.run(*wrong).returncode != 0
    assert cli.run("ports", session, "--wait", "3999", "--timeout", "0.1").returncode != 0


def test_forward_carries_any_bytes_both_ways(cli: RemoteCli, session: str) -> None:
    program = (
        "import socket; s = socket.create_server(('127.0.0.1', 3002))\n"
        "while 1: c = s.accept()[0]; d = c.makefile('rb').read(); c.sendall(d[::-1]); c.close()"
    )
    cli.say("exec", "-d", session, "--", "python3", "-c", program)
    cli.say("ports", session, "--wait", "3002")
    forwarding = cli.start("forward", session, "0:3000", "127.0.0.1:0:3002", "0:3999",
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    assert forwarding.stdout is not None
    assert forwarding.stderr is not None
    try:
        lines = [forwarding.stdout.readline().decode() for _ in range(3)]
        ports = [int(line.partition(" ")[0].rpartition(":")[2]) for line in lines]
        assert lines[0] == f"127.0.0.1:{ports[0]} leads to port 3000 of the sandbox\n"
        for _ in range(2):
            with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/index.html", timeout=30) as answer:
                assert answer.read() == b"<h1>hello</h1>"
        data = bytes(range(256)) * 8192
        with socket.create_connection(("127.0.0.1", ports[1]), timeout=30) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            assert sock.makefile("rb").read() == data[::-1]
        with socket.create_connection(("127.0.0.1", ports[2]), timeout=30) as sock:
            assert sock.recv(1) == b""
        assert forwarding.stderr.readline() == b"warren: nothing listens on port 3999 of the sandbox\n"
    finally:
        with forwarding:
            forwarding.send_signal(signal.SIGINT)
    assert forwarding.returncode == 0


def test_forward_ends_silently_by_a_signal_and_says_that_a_port_is_taken(cli: RemoteCli, session: str) -> None:
    forwarding = cli.start("forward", session, "0:3000", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert forwarding.stdout is not None
    port = int(forwarding.stdout.readline().partition(b" ")[0].rpartition(b":")[2])
    with forwarding, socket.create_connection(("127.0.0.1", port), timeout=30) as still_open:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/index.html", timeout=30) as answer:
            assert answer.read() == b"<h1>hello</h1>"
        taken = cli.run("forward", session, f"{port}:3000")
        assert taken.returncode == 125
        assert f"warren: cannot listen on 127.0.0.1 port {port}: ".encode() in taken.stderr
        forwarding.send_signal(signal.SIGTERM)
        assert forwarding.communicate(timeout=30) == (b"", b"")
        assert still_open.recv(1) == b""
    assert forwarding.returncode == 128 + signal.SIGTERM


def test_the_client_waits_for_ports_and_makes_links(server: ServerProcess, session: str) -> None:
    with SandboxClient.attach(session, server.url, api_key=KEY) as client:
        client.wait_for_port(3000)
        assert (3000, "127.0.0.1", False) in [(each.port, each.address, each.public) for each in client.ports()]
        link = client.url(3000, expires_s=60).replace("/?", "/index.html?")
        assert fetch(server, link) == b"<h1>hello</h1>"
        with urllib.request.urlopen(client.url(3000, by_path=True), timeout=30) as answer:
            assert answer.status == 200
        client.set_port(3000, host_header="localhost")
        client.revoke_links()
        with pytest.raises(AssertionError):
            fetch(server, link)
        with pytest.raises(PortClosed):
            client.wait_for_port(3999, timeout=0.1)
        with pytest.raises(Forbidden):
            client.set_port(3000, public=True)


@pytest.mark.anyio
async def test_so_does_the_client_for_asyncio(server: ServerProcess, session: str) -> None:
    async with AsyncSandboxClient.attach(session, server.url, api_key=KEY) as client:
        await client.wait_for_port(3000)
        assert fetch(server, (await client.url(3000)).replace("/?", "/index.html?")) == b"<h1>hello</h1>"
