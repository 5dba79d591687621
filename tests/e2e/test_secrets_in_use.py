"""Secrets in real sandboxes: unmodified clients use them, and nothing inside ever has them."""

import base64
import contextlib
import json
import os
import shlex
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from certificates import make_certificates
from network_servers import Servers
from network_world import ADDRESSES, HEADERS, NetworkWorld, PlacedServer

API: Final = "api.bound.example"
OTHER: Final = "other.example"
GIT: Final = "git.bound.example"
PIP: Final = "pip.bound.example"
NPM: Final = "npm.bound.example"
VALUE: Final = "sk-live-0123456789abcdef"
CARRIED: Final = f"Bearer {VALUE}"


class World:
    def __init__(self, network: NetworkWorld, servers: Servers, server: PlacedServer) -> None:
        self.network, self.servers, self.server = network, servers, server
        self.session_id = ""

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {**HEADERS, "Content-Type": "application/json"}
        request = urllib.request.Request(self.server.url + path, data, headers, method=method)
        with self.network.inside():
            try:
                with urllib.request.urlopen(request, timeout=90) as answer:
                    status, text = answer.status, answer.read()
            except urllib.error.HTTPError as exc:
                status, text = exc.code, exc.read()
        assert VALUE.encode() not in text
        return status, json.loads(text) if text else None

    def set(self, name: str, host: str, **more: Any) -> None:
        body = {"value": VALUE, "hosts": [host], **more}
        status, answer = self.call("PUT", f"/api/secrets/{name}", body)
        assert status == 200, answer

    def create(self, *secrets: str, **more: Any) -> str:
        body = {"image": "host", "secrets": list(secrets), "limits": {"memory_mb": 1024, "cpus": 2}, **more}
        status, session = self.call("POST", "/api/sessions", body)
        assert status == 201, session
        return str(session["session_id"])

    def run(self, command: str, session_id: str = "") -> str:
        """What it prints; it has to succeed."""
        result = self.exec(command, session_id)
        assert result["exit_code"] == 0, result
        return str(result["stdout"])

    def exec(self, command: str, session_id: str = "") -> Any:
        path = f"/api/sessions/{session_id or self.session_id}/exec"
        status, result = self.call("POST", path, {"command": command, "timeout_s": 80})
        assert status == 200, result
        return result

    def seen(self, host: str, path: str) -> dict[str, str]:
        """The headers of the last such request."""
        return next(headers for name, _, where, headers in reversed(self.servers.seen) if (name, where) == (host, path))


@pytest.fixture(scope="module")
def world(
    image_cache: Path, new_state: Callable[[], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    made = make_certificates(folder, API, OTHER, GIT, PIP, NPM)
    with NetworkWorld(folder) as network, Servers(folder, made) as servers:
        for host in (API, OTHER, GIT, PIP, NPM):
            network.names[host] = [ADDRESSES[0]]
        servers.serve_web(network.listen(ADDRESSES[0], 443), tls=True)
        servers.serve_web(network.listen(ADDRESSES[0], 80), tls=False)
        server = PlacedServer(
            network,
            new_state(),
            WARREN_EGRESS_CA_FILE=str(made.ca),
            WARREN_POOL_SIZE="0",
            WARREN_POOL_MIN="0",
            WARREN_ON_STOP="destroy",
        )
        server.start()
        try:
            made_world = World(network, servers, server)
            made_world.set("openai", API, kind="openai")
            made_world.set("git", GIT, kind="git")
            made_world.set("pip", PIP, kind="pip")
            made_world.set("npm", NPM, kind="npm", path="/npm/")
            made_world.session_id = made_world.create("openai", "git", "pip", "npm")
            yield made_world
            assert VALUE not in server.log
        finally:
            server.stop()


# -- unmodified clients


def test_rules_of_e2bs_clients_set_headers_outside_of_the_sandbox(world: World) -> None:
    rules = {"rules": {OTHER.upper(): [{"transform": {"headers": {"X-Key": VALUE}}}]}}
    network = {"allowOut": [OTHER], "denyOut": ["0.0.0.0/0"], **rules}
    status, made = world.call("POST", "/v2/sandboxes", {"templateID": "host", "timeout": 300, "network": network})
    assert status == 201, made
    place, session = f"/sandboxes/{made['sandboxID']}", f"ses_{made['sandboxID']}"

    def carried(path: str, options: str = "") -> str:
        command = f"curl -sS --fail -m20 {options} -H 'X-Key: mine' https://{OTHER}{path}"
        assert world.run(command, session) == f"hello from {OTHER}\n"
        return world.seen(OTHER, path)["X-Key"]

    assert carried("/rules") == VALUE
    assert world.exec("env; cat /proc/*/environ; grep -rs sk-live ~ /tmp /run", session)["stdout"].count("sk-live") == 0
    shown = world.call("GET", place)[1]["network"]["rules"]
    assert shown == {OTHER: [{"transform": {"headers": {"X-Key": "***"}}}]}
    # Warren's own API knows nothing of them, and leaves them as they are.
    assert world.call("PUT", f"/api/sessions/{session}/network", {"internet": True})[0] == 200
    assert carried("/kept") == VALUE
    assert world.call("PUT", f"{place}/network", {"allow_internet_access": True})[0] == 204
    assert carried("/gone", "-k") == "mine"
    assert world.call("PUT", f"{place}/network", {"maskRequestHost": "x"})[0] == 400
    assert world.call("PUT", f"{place}/network", rules)[0] == 204  # they open nothing
    assert world.call("PUT", f"{place}/network", {"allow_internet_access": True, **rules})[0] == 204
    assert carried("/again") == VALUE
    world.call("GET", "/api/admin/audit?limit=100")  # no answer has a value
    assert world.call("DELETE", place)[0] == 204


def test_curl_uses_a_secret_that_it_does_not_have(world: World) -> None:
    for url, path in ((f"https://{API}/curl", "/curl"), ("http://openai.broker.internal/v1/models", "/v1/models")):
        assert world.run(f"curl -sS --fail -H 'Authorization: Bearer fake' {url}") == f"hello from {API}\n"
        assert world.seen(API, path)["Authorization"] == CARRIED


_URLLIB: Final = """
import os, urllib.request
key = os.environ["OPENAI_API_KEY"]
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/urllib", headers={"Authorization": f"Bearer {key}"})
print(urllib.request.urlopen(request).read(), urllib.request.urlopen("https://HOST/urllib-tls").read())
"""
_REQUESTS: Final = """
try:
    import requests
except ImportError:
    from pip._vendor import requests
with requests.Session() as session:
    for number in range(3):
        answer = session.post(f"https://HOST/sink", data=iter([b"a" * 100_000] * 5))
        assert answer.text == "500000", answer.text
    print(session.get("https://HOST/requests").text)
"""
_NODE: Final = """
const https = require("https");
const ask = (url) => new Promise((done, fail) =>
  https.get(url, (answer) => { let text = "";
    answer.on("data", (d) => text += d).on("end", () => done(text)); }).on("error", fail));
(async () => {
  console.log(await ask("https://HOST/node-https"));
  console.log(await (await fetch("https://HOST/node-fetch", {headers: {Authorization: "Bearer fake"}})).text());
  console.log(await (await fetch(process.env.OPENAI_BASE_URL + "/node")).text());
})();
"""


@pytest.mark.parametrize(
    ("program", "script", "paths"),
    [
        ("python3", _URLLIB, ["/v1/urllib", "/urllib-tls"]),
        ("python3", _REQUESTS, ["/requests"]),
        ("node", _NODE, ["/node-https", "/node-fetch", "/v1/node"]),
    ],
    ids=["urllib", "requests", "node"],
)
def test_a_client_library_uses_a_secret(world: World, program: str, script: str, paths: list[str]) -> None:
    option = "-e" if program == "node" else "-c"
    printed = world.run(f"{program} {option} {shlex.quote(script.replace('HOST', API))}")
    assert printed.count(f"hello from {API}") == len(paths)
    for path in paths:
        assert world.seen(API, path)["Authorization"] == CARRIED


def test_git_clones_a_private_repository_by_every_address(world: World) -> None:
    basic = f"Basic {base64.b64encode(VALUE.encode()).decode()}"
    for number, address in enumerate((f"https://{GIT}/git/", f"git@{GIT}:git/", f"ssh://git@{GIT}/git/")):
        world.run(f"cd /tmp && git clone -q {address}repository.git clone-{number} && cat clone-{number}/hello.txt")
        requests = [each for each in world.servers.seen if each[0] == GIT]
        assert {headers.get("Authorization") for *_, headers in requests} == {basic}
        world.servers.seen.clear()
    world.run(f"cd /tmp && env -u GIT_CONFIG_COUNT git clone -q https://{GIT}/git/repository.git clone-tls")
    assert {headers.get("Authorization") for *_, headers in world.servers.seen} == {basic}


def test_pip_installs_from_a_private_index(world: World) -> None:
    world.run("pip install -q --no-cache-dir --target /tmp/pip tiny-package")
    assert world.run("PYTHONPATH=/tmp/pip python3 -c 'import tiny_package; print(tiny_package.answer)'") == "42\n"
    seen = world.seen(PIP, "/simple/tiny-package/")
    assert seen["Authorization"] == f"Basic {base64.b64encode(VALUE.encode()).decode()}"


def test_npm_installs_from_a_private_registry(world: World) -> None:
    world.run("mkdir -p /tmp/npm && cd /tmp/npm && npm install --no-audit --no-fund tiny-package")
    assert world.run("cd /tmp/npm && node -e 'console.log(require(`tiny-package`))'") == "42\n"
    assert world.seen(NPM, "/npm/tiny-package")["Authorization"] == CARRIED


# -- what the sandbox cannot do


@pytest.mark.parametrize(
    "command",
    [
        f"curl -sS -m5 http://{API}/down",  # without TLS
        f"curl -sS -m5 http://{API}:8443/",
        "curl -sS -m5 http://nobody.broker.internal/",
        "curl -sS -m5 http://broker.internal/",
        "curl -sS -m5 https://openai.broker.internal/",
        f"curl -sS -m5 https://{OTHER}/",
        f"curl -sSk -m5 --resolve {OTHER}:443:$(getent hosts {API} | cut -d' ' -f1) https://{OTHER}/",
        f"curl -sSf -m5 -H 'Host: {OTHER}' https://{API}/",
        f"curl -sSf -m5 -H 'Host: {OTHER}' http://openai.broker.internal/",
        f"curl -sSf -m5 --http1.0 https://{API}/old",
        f"curl -sSf -m5 --request-target http://{OTHER}/ https://{API}/",
        f"curl -sS -m5 -p -x http://openai.broker.internal:80 https://{OTHER}/",
        f"curl -sS -m5 https://{ADDRESSES[0]}/",
        f"curl -sSf -m5 -H 'Transfer-Encoding: chunked' -H 'Content-Length: 5' -d hello https://{API}/smuggled",
    ],
)
def test_no_other_way_leads_to_a_server(world: World, command: str) -> None:
    world.servers.seen.clear()
    assert world.exec(command)["exit_code"] != 0
    assert world.servers.seen == []


def test_nothing_inside_has_the_value(world: World) -> None:
    """Neither variables nor files nor the memory of processes that the user can read."""
    world.run(f"curl -sS https://{API}/x")
    encoded = base64.b64encode(VALUE.encode()).decode()
    halves = (
        f"A={VALUE[:10]} B={VALUE[10:]} C={encoded[:10]} D={encoded[10:]}"  # so that the command does not find itself
    )
    places = "/home /tmp /workspace /proc/self/environ /proc/1/environ /run /etc"
    found = world.exec(f'{halves}; grep -rsIl -e "$A""$B" -e "$C""$D" {places}; env | grep -c -e "$A""$B"')
    assert found["stdout"].strip() == "0"
    status, session = world.call("GET", f"/api/sessions/{world.session_id}")
    assert status == 200
    assert session["secrets"] == ["openai", "git", "pip", "npm"]
    assert "no_network" not in session["isolation"]["in_force"]


def test_the_value_is_in_no_record_and_the_proxy_cannot_be_read(world: World) -> None:
    state = world.server.state_dir
    for path in state.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.suffix in (".db", ".log", ".jsonl", ".db-wal", ".json"):
            assert VALUE.encode() not in path.read_bytes(), path
    status, audit = world.call("GET", "/api/audit")
    assert status == 200
    assert "set_secret" in json.dumps(audit)
    proxy = proxy_of(world.server.pid)
    assert (proxy / "environ").stat().st_uid == 0  # not dumpable: the kernel gives it to root
    status_lines = (proxy / "status").read_text()
    assert "Uid:\t0" not in status_lines
    assert "Max core file size        0                    0" in (proxy / "limits").read_text()


def proxy_of(server: int) -> Path:
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_child = f"PPid:\t{server}\n" in (path / "status").read_text()
            if is_child and b"warren.sandboxes.egress" in (path / "cmdline").read_bytes():
                return path
    raise AssertionError("the proxy does not run")


# -- secrets while a session runs


def test_a_secret_that_is_changed_or_deleted_is_so_at_once(world: World) -> None:
    world.set("short", API, header="X-Key")
    session = world.create("short")
    try:
        command = f"curl -sS --fail -m5 https://{API}/short"
        world.run(command, session)
        assert world.seen(API, "/short")["X-Key"] == VALUE
        world.set("short", API, header="X-Other-Key", format="v {}")
        world.run(command, session)
        assert world.seen(API, "/short")["X-Other-Key"] == f"v {VALUE}"
        assert world.call("DELETE", "/api/secrets/short")[0] == 204
        world.servers.seen.clear()
        assert world.exec(command, session)["exit_code"] != 0
        assert world.servers.seen == []
        world.set("short", OTHER, header="X-Key")
        assert world.run(f"curl -sS --fail https://{OTHER}/back", session) == f"hello from {OTHER}\n"
        assert world.exec(command, session)["exit_code"] != 0
    finally:
        world.call("DELETE", f"/api/sessions/{session}")


def test_an_open_connection_ends_with_the_secret(world: World) -> None:
    world.set("open", API, header="X-Key")
    session = world.create("open")
    script = f"""
import http.client, time
connection = http.client.HTTPSConnection("{API}")
connection.request("GET", "/before")
print(connection.getresponse().read(), flush=True)
open("/tmp/asked", "w").close()
deadline = time.monotonic() + 30
while time.monotonic() < deadline:
    connection.sock.settimeout(30)
    print(connection.sock.recv(1))
    break
"""
    try:
        start = {"command": ["python3", "-c", script], "process_id": "holder"}
        assert world.call("POST", f"/api/sessions/{session}/processes", start)[0] == 201
        world.run("for _ in $(seq 200); do test -e /tmp/asked && exit 0; sleep 0.1; done; exit 1", session)
        begun = time.monotonic()
        assert world.call("DELETE", "/api/secrets/open")[0] == 204
        world.call("GET", f"/api/sessions/{session}/processes/holder/wait?timeout_s=20")
        assert time.monotonic() - begun < 10
    finally:
        world.call("DELETE", f"/api/sessions/{session}")


def test_secrets_work_again_after_the_proxy_or_the_server_was_killed(world: World) -> None:
    command = f"curl -sS --fail --retry 20 --retry-all-errors --retry-delay 1 https://{API}/again"
    os.kill(int(proxy_of(world.server.pid).name), signal.SIGKILL)
    assert world.run(command) == f"hello from {API}\n"
    world.server.kill()
    world.server.start()
    assert world.run(command) == f"hello from {API}\n"
    assert world.seen(API, "/again")["Authorization"] == CARRIED


# -- who may have which


def test_names_that_are_not_the_tenants_are_refused(world: World) -> None:
    status, key = world.call("POST", "/api/admin/keys", {"name": "another tenant's", "tenant": "acme"})
    assert status == 201
    status, answer = world.call("POST", "/api/sessions", {"secrets": ["nobody"]})
    assert (status, "nobody" in answer["detail"]) == (422, True)
    body = {"value": VALUE, "hosts": [API], "header": "X-Key"}
    assert world.call("PUT", "/api/secrets/theirs?tenant=acme", body)[0] == 200
    status, answer = world.call("POST", "/api/sessions", {"secrets": ["theirs"]})
    assert status == 422
    assert world.call("GET", "/api/secrets/theirs")[0] == 404
    status, answer = world.call("GET", "/api/secrets?tenant=acme")
    assert [each["name"] for each in answer["secrets"]] == ["theirs"]
    del key


def test_two_secrets_for_one_place_and_a_required_isolation_are_refused(world: World) -> None:
    world.set("one", API, header="X-Key")
    world.set("two", API, header="x-key")
    assert world.call("POST", "/api/sessions", {"secrets": ["one", "two"]})[0] == 422
    assert world.call("POST", "/api/sessions", {"secrets": ["one"], "require": ["no_network"]})[0] == 422
