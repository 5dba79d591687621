"""Networks of sessions against servers out there: what is counted, recorded and told, what bounds them, what a restart
leaves of them. The sandbox's programs are ordinary ones."""

import contextlib
import http.server
import json
import shutil
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from network_world import ADDRESSES, HEADERS, NetworkWorld, PlacedServer
from this_run import new_state_dir

HERE, THERE = ADDRESSES[0], ADDRESSES[1]
SIZE = 200_000
CLOSED: dict[str, Any] = {"allow": []}


class Pages(http.server.BaseHTTPRequestHandler):
    """Answers every request with SIZE bytes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(SIZE))
        self.end_headers()
        self.wfile.write(bytes(SIZE))

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class Site(http.server.ThreadingHTTPServer):
    """Serves pages on a socket of the world outside."""

    daemon_threads = True

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(("", 0), Pages, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()


class Asked(Exception):
    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(f"{status}: {problem}")
        self.status, self.problem = status, problem


class Client:
    def __init__(self, world: NetworkWorld, server: PlacedServer) -> None:
        self.world, self.server = world, server
        self.key = HEADERS

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.server.url}{path}", data, dict(self.key), method=method)
        with self.world.inside():
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as exc:
                raise Asked(exc.code, json.loads(exc.read())) from None

    @contextlib.contextmanager
    def session(self, **wanted: Any) -> Iterator[str]:
        session = self.call("POST", "/api/sessions", wanted)["session_id"]
        try:
            yield str(session)
        finally:
            self.call("DELETE", f"/api/sessions/{session}")

    def run(self, session: str, command: str) -> dict[str, Any]:
        body = {"command": command, "timeout_s": 50}
        return dict(self.call("POST", f"/api/sessions/{session}/exec", body))

    def fetch(self, session: str, url: str) -> str:
        """What an ordinary program gets: the number of bytes, or how it failed."""
        code = (
            "import sys, urllib.request\n"
            "try: print(len(urllib.request.urlopen(sys.argv[1], timeout=20).read()))\n"
            "except OSError as exc: print(type(getattr(exc, 'reason', exc)).__name__)\n"
        )
        return str(self.run(session, f"python3 -c {json.dumps(code)} {url}".replace("\\n", "\n"))["stdout"]).strip()

    def network(self, session: str, **rules: Any) -> Any:
        return self.call("PUT" if rules else "GET", f"/api/sessions/{session}/network", rules or None)

    def entries(self, session: str, action: str) -> list[dict[str, Any]]:
        found = self.call("GET", f"/api/audit?session_id={session}&action={action}")["deeds"]
        return [dict(entry["detail"]) for entry in found]


def until(check: Callable[[], Any], within_s: float = 20.0) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := check()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.2)
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkWorld]:
    with NetworkWorld(tmp_path_factory.mktemp("world")) as world:
        world.names.update({"here.example": [HERE], "there.example": [THERE], "secret.here.example": [THERE]})
        sites = [Site(world.listen(address, port)) for address in (HERE, THERE) for port in (80, 8080)]
        yield world
        for site in sites:
            site.shutdown()


@pytest.fixture(scope="module")
def presets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("presets") / "presets.yaml"
    file.write_text(
        'python-packages:\n  allow: ["here.example:80"]\n  env: {PIP_INDEX_URL: "http://here.example/simple"}\n'
    )
    return file


@pytest.fixture(scope="module")
def client(world: NetworkWorld, presets: Path, image_cache: Path) -> Iterator[Client]:
    settings = {"WARREN_EGRESS_DENIED": "secret.here.example", "WARREN_EGRESS_PRESETS": str(presets)}
    server = PlacedServer(world, new_state_dir(image_cache), "--pool-size", "1", "--on-stop", "destroy", **settings)
    server.start()
    try:
        yield Client(world, server)
    finally:
        server.stop()
        shutil.rmtree(server.state_dir, ignore_errors=True)


def test_what_went_through_is_counted_recorded_and_told(client: Client) -> None:
    before = client.call("GET", "/api/usage")["total"]
    with client.session(network={"allow": ["here.example:80"]}) as session:
        assert client.fetch(session, "http://here.example/") == str(SIZE)
        assert client.fetch(session, "http://there.example/") == "gaierror"
        assert client.fetch(session, f"http://{THERE}/") == "ConnectionResetError"
        shown = client.network(session)
        assert shown["connections"] == 1
        assert shown["bytes_received"] >= SIZE
        rules = {refusal["rule"] for refusal in shown["refusals"]}
        assert {"there.example", f"{THERE}:80"} <= rules, shown["refusals"]
    (connection,) = until(lambda: client.entries(session, "network.connection"))
    assert (connection["name"], connection["port"]) == ("here.example", 80)
    assert connection["bytes_received"] >= SIZE
    refused = client.entries(session, "network.refused")
    named = {
        entry["name"] or entry["address"] for entry in refused if "count" not in entry
    }  # repeated ones are counted
    assert named == {"there.example", THERE}
    after = client.call("GET", "/api/usage")["total"]
    assert after["egress_bytes"] - before["egress_bytes"] >= SIZE
    assert after["egress_connections"] - before["egress_connections"] == 1
    assert after["egress_refused"] - before["egress_refused"] >= 2


def test_what_the_operator_denies_no_rule_allows(client: Client) -> None:
    with client.session(network={"allow": ["*.here.example", "secret.here.example"]}) as session:
        assert client.fetch(session, "http://secret.here.example/") in ("gaierror", "ConnectionResetError")
        refusals = client.network(session)["refusals"]
        assert all(not refusal["rule"] for refusal in refusals), refusals


def test_a_connection_ends_when_its_rule_does(client: Client) -> None:
    with client.session(network={"allow": ["here.example"]}) as session:
        slow = (
            "import socket; s = socket.create_connection(('here.example', 8080)); print('open', flush=True); s.recv(1)"
        )
        process = client.call("POST", f"/api/sessions/{session}/processes", {"command": ["python3", "-c", slow]})
        path = f"/api/sessions/{session}/processes/{process['process_id']}"
        until(lambda: client.call("GET", f"{path}/output")["chunks"])
        client.network(session, allow=["there.example"])
        assert until(lambda: client.call("GET", path)["running"] is False)


def test_a_preset_opens_its_hosts_and_sets_its_variables(client: Client) -> None:
    with client.session(network={"allow": ["python-packages"]}) as session:
        assert client.network(session)["allow"] == ["python-packages"]
        assert client.run(session, "echo $PIP_INDEX_URL")["stdout"] == "http://here.example/simple\n"
        assert client.fetch(session, "http://here.example/simple") == str(SIZE)
        assert client.fetch(session, "http://here.example:8080/") == "ConnectionResetError"
    with client.session() as session:
        client.network(session, allow=["python-packages"])
        assert client.run(session, "echo $PIP_INDEX_URL")["stdout"] == "http://here.example/simple\n"
    with pytest.raises(Asked) as refused:
        client.call("POST", "/api/sessions", {"network": {"allow": ["git-hosts"]}})
    assert refused.value.status == 422
    assert "egress_presets" in refused.value.problem["remedy"]


@contextlib.contextmanager
def tenant(client: Client, **quota: Any) -> Iterator[Client]:
    name = f"t{time.monotonic_ns()}"
    client.call("PUT", f"/api/admin/tenants/{name}", {"quota": quota})
    made = client.call("POST", "/api/admin/keys", {"name": name, "tenant": name})
    other = Client(client.world, client.server)
    other.key = {"Authorization": f"Bearer {made['key']}"}
    yield other
    client.call("DELETE", f"/api/admin/tenants/{name}")


def test_a_tenant_opens_no_more_than_its_quota_names(client: Client) -> None:
    asked = {"allow": ["here.example", "*.here.example:80", "python-packages"]}
    ceiling = ["*.example", "python-packages"]
    with tenant(client, egress=ceiling) as other, other.session(network=asked) as session:
        for rules in ({"internet": True}, {"allow": ["here.example.org"]}, {"allow": [HERE]}):
            with pytest.raises(Asked) as refused:
                other.network(session, **rules)
            assert refused.value.status == 403, refused.value
    with tenant(client, egress=["none"]) as other, pytest.raises(Asked) as refused:
        other.call("POST", "/api/sessions", {"network": {"allow": ["here.example"]}})
    assert refused.value.status == 403


def test_a_network_is_closed_when_the_bytes_of_the_day_are_used_up(client: Client) -> None:
    with tenant(client, egress_bytes_per_day=3 * SIZE) as other:
        with other.session(network={"allow": ["here.example"]}) as session:
            assert other.fetch(session, "http://here.example/") == str(SIZE)

            def is_closed() -> bool:
                return other.fetch(session, "http://here.example/") != str(SIZE)

            until(is_closed)
            with pytest.raises(Asked) as refused:
                other.network(session, allow=["here.example"])
            assert refused.value.status == 429
            with pytest.raises(Asked) as refused:
                other.call("POST", "/api/sessions", {"network": {"internet": True}})
            assert (refused.value.status, refused.value.problem["code"]) == (429, "quota_exceeded")
        assert client.call("GET", "/api/admin/audit?action=quota.reached")["deeds"]


def test_sandboxes_of_a_tenant_share_its_connections(client: Client) -> None:
    allow = {"allow": ["here.example"]}
    hold = "import socket, time; s = socket.create_connection(('here.example', 80)); print(1, flush=True)"
    with tenant(client, egress_connections=1) as other, other.session(network=allow) as first:
        script = {"command": f'python3 -c "{hold}; time.sleep(60)"'}
        path = f"/api/sessions/{first}/processes"
        process = other.call("POST", path, script)["process_id"]
        until(lambda: other.call("GET", f"{path}/{process}/output")["chunks"])
        with other.session(network=allow) as second, client.session(network=allow) as strange:
            assert other.fetch(second, "http://here.example/") == "ConnectionResetError"
            refusals = other.network(second)["refusals"]
            assert "together may have 1 connections open" in refusals[-1]["reason"]
            assert client.fetch(strange, "http://here.example/") == str(SIZE)
            name = other.call("GET", "/api/whoami")["tenant"]
            client.call("PUT", f"/api/admin/tenants/{name}", {"quota": {"egress_connections": 2}})
            until(lambda: other.fetch(second, "http://here.example/") == str(SIZE))


def test_a_restarted_server_gives_the_sandbox_its_rules_again(client: Client) -> None:
    with client.session(network={"allow": ["here.example"]}) as session:
        assert client.fetch(session, "http://here.example/") == str(SIZE)
        client.server.kill()
        client.server.start()
        until(lambda: client.fetch(session, "http://here.example/") == str(SIZE))
        assert client.fetch(session, "http://there.example/") == "gaierror"
