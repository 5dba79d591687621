"""What the documents that this service was built after set in variables, and nginx as they put it before the server."""

import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import warm_parent
from certificates import Certificates, make_certificates
from nginx_process import NginxProcess
from server_process import ServerProcess, running_server
from this_run import new_state_dir, patience

from warren.sandboxes.host.record import SandboxRecord

ROOT = Path(__file__).parents[2]
_PATIENCE_S = patience(60.0)
_KEY = "correct-horse-battery-staple"
_TIME_IS_UP = 28  # of curl


@pytest.fixture
def state(image_cache: Path) -> Iterator[Path]:
    path = new_state_dir(image_cache)
    yield path
    shutil.rmtree(path, ignore_errors=True)


class AsTheDocumentsStartIt(ServerProcess):
    """Without a flag that a variable could be hidden by."""

    def __init__(self, state_dir: Path, **environ: str) -> None:
        super().__init__(state_dir, **environ)
        self._argv = [sys.executable, "-m", "warren.cli.main", "serve", "--on-stop", "destroy"]
        self.environ |= {"WARREN_STATE_DIR": str(state_dir), "PORT": str(self.port)}


def ask(server: ServerProcess, path: str, body: dict[str, Any] | None = None) -> Any:
    data = [] if body is None else ["-d", json.dumps(body)]
    argv = ["curl", "-sS", "--fail-with-body", f"{server.url}{path}", *data]
    outcome = warm_parent.run(argv, capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return json.loads(outcome.stdout)


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"in {_PATIENCE_S} s it did not come to be: {what}"
        time.sleep(0.1)


def test_the_variables_of_the_documents_take_effect(state: Path) -> None:
    server = AsTheDocumentsStartIt(
        state,
        POOL_SIZE="3",
        WORKER_ID="worker1",
        SESSION_TIMEOUT="2h",
        MEMORY_LIMIT="128m",
        CPU_QUOTA="25000",
        CONTAINER_IMAGE="host",
    )
    try:
        server.start()  # PORT: it is reached there
        until(lambda: ask(server, "/health")["pool_size"] == 3, "a pool of three")
        assert ask(server, "/health")["worker_id"] == "worker1"
        session_id = ask(server, "/create_session", {})["session_id"]
        shown = ask(server, f"/api/sessions/{session_id}")
        assert (shown["max_lifetime_s"], shown["idle_timeout_s"]) == (7200, 7200)
        assert "128 MiB" in shown["isolation"]["in_force"]["memory_limit"]
        record = SandboxRecord.load(state / "sandboxes" / shown["sandbox_id"])
        assert record is not None
        assert (record.spec.image, record.spec.limits.cpus) == ("host", 0.25)
        greedy = {"session_id": session_id, "command": "python3 -c 'print(len(bytearray(300 << 20)))'"}
        assert ask(server, "/execute", greedy)["reason"] == "oom"
    finally:
        server.stop()


def test_a_session_ends_when_the_session_timeout_is_over(state: Path) -> None:
    server = AsTheDocumentsStartIt(state, SESSION_TIMEOUT="2", POOL_SIZE="1")
    try:
        server.start()
        session_id = ask(server, "/create_session", {})["session_id"]
        until(lambda: ask(server, f"/api/sessions/{session_id}")["state"] == "ended", "the end of the session")
        assert ask(server, f"/api/sessions/{session_id}")["reason"] == "lifetime"
    finally:
        server.stop()


# -- nginx, as the documents have it

_SITE = """
server {{
    listen 127.0.0.1:{https} ssl;
    server_name {name};

    ssl_certificate {cert};
    ssl_certificate_key {key};

    location / {{
        proxy_pass http://localhost:{port};
        proxy_set_header Host $host;
        proxy_set_header X-Real-IP $remote_addr;
        {more}
    }}
}}
"""
_TIMES = "proxy_connect_timeout 60s; proxy_send_timeout 60s; proxy_read_timeout 60s;"
_MORE = """\
client_max_body_size 0;
proxy_set_header X-Forwarded-For $remote_addr;
proxy_read_timeout 1h;
proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;"""
_SITES = {
    "your-domain.com": "",
    "sandbox.yourdomain.com": _TIMES,
    "with-more.example": _MORE,
    "not-allowed.example": "",
}
_SOCKET = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
)


@pytest.fixture
def nginx(state: Path) -> Iterator["DocumentedNginx"]:
    folder = state / "nginx"
    folder.mkdir()
    names = ",".join(name for name in _SITES if name != "not-allowed.example")
    flags = ("--allowed-hosts", names, "--trusted-proxies", "127.0.0.1", "--pool-size", "1")
    with running_server(state, *flags, WARREN_API_KEY=_KEY) as server:
        nginx = DocumentedNginx(folder, make_certificates(folder), server.port)
        try:
            nginx.start()
            yield nginx
        finally:
            nginx.stop()


class DocumentedNginx(NginxProcess):
    """Has the sites of `_SITES` in place of that of Warren's own configuration."""

    def __init__(self, prefix: Path, certificates: Certificates, port: int) -> None:
        super().__init__(prefix, certificates, port)
        sites = {"https": self.https, "cert": certificates.cert, "key": certificates.key, "port": port}
        text = "".join(_SITE.format(name=name, more=more, **sites) for name, more in _SITES.items())
        (prefix / "warren.conf").write_text(text)

    def ask(self, name: str, path: str, *arguments: str) -> tuple[int, str]:
        """Gives the status and the body of the answer; of a stream what comes in a second."""
        place = f"{name}:{self.https}"
        how = [
            "-sSk",
            "--http1.1",
            "--resolve",
            f"{place}:127.0.0.1",
            "-H",
            f"X-API-Key: {_KEY}",
            "-w",
            "\n%{http_code}",
        ]
        argv = ["curl", *how, f"https://{place}{path}", *arguments]
        outcome = warm_parent.run(argv, capture_output=True, text=True, timeout=60, errors="replace")
        assert outcome.returncode in (0, _TIME_IS_UP), outcome.stderr
        body, status = outcome.stdout.rsplit("\n", 1)
        return int(status), body


def test_nginx_as_documented_needs_an_allowed_name_and_a_few_lines(nginx: DocumentedNginx, tmp_path: Path) -> None:
    lines = re.findall(r"^\| `([^`]+;)` \|", (ROOT / "docs" / "coming-from.md").read_text(), flags=re.M)
    assert lines == _MORE.splitlines()
    create = ("/create_session", "-X", "POST")
    status, said = nginx.ask("not-allowed.example", *create)
    assert (status, json.loads(said)["code"]) == (421, "host_not_allowed")
    (tmp_path / "large").write_bytes(bytes(2 << 20))
    for name in ("your-domain.com", "sandbox.yourdomain.com"):
        status, made = nginx.ask(name, *create)
        assert status == 200, made
        session_id = json.loads(made)["session_id"]
        form = ("/upload_file", "-F", f"session_id={session_id}", "-F", f"file=@{tmp_path}/large")
        assert nginx.ask(name, *form)[0] == 413
        assert nginx.ask("with-more.example", *form)[0] == 200
    socket = [part for header in _SOCKET for part in ("-H", header)]
    terminal = (f"/api/sessions/{session_id}/terminal", "--max-time", str(patience(1.0)), *socket)
    assert nginx.ask("your-domain.com", *terminal)[0] >= 400
    assert nginx.ask("with-more.example", *terminal)[0] == 101
