"""`warren webhooks`: the real command against a real server, which calls a real receiver on loopback."""

import contextlib
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from machine.remote_cli import RemoteCli
from server_process import free_port, running_server
from this_run import new_state_dir


@pytest.fixture(scope="module")
def cli() -> Iterator[RemoteCli]:
    path = new_state_dir()
    networks, reserve_mb = "127.0.0.0/8", "1"
    with running_server(
        path, provider="fake", WARREN_WEBHOOK_NETWORKS=networks, WARREN_MIN_FREE_MEMORY_MB=reserve_mb
    ) as server:
        yield RemoteCli(server.url)
    shutil.rmtree(path)


@contextlib.contextmanager
def receiver(status: int) -> Iterator[tuple[str, list[bytes]]]:
    """Where it is, and the bodies that came."""
    came: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook", came
        finally:
            server.shutdown()
            thread.join()


def test_a_webhook_is_made_listed_called_and_deleted(cli: RemoteCli) -> None:
    with receiver(200) as (url, came):
        made = cli.document("webhooks", "create", url, "--event", "session.lost", "--description", "for us")
        assert made["secret"].startswith("whsec_")
        (found,) = cli.document("webhooks", "list")["webhooks"]
        assert found == {name: value for name, value in made.items() if name != "secret"}
        assert (found["url"], found["events"], found["description"]) == (url, ["session.lost"], "for us")
        row = cli.say("webhooks", "list").splitlines()[1]
        assert row.split()[:3] == [made["id"], url, "session.lost"]
        assert cli.document("webhooks", "test", made["id"])["delivered"] is True
        assert [json.loads(body)["type"] for body in came] == ["ping"]
    assert cli.say("webhooks", "delete", made["id"]) == f"deleted {made['id']}\n"
    assert cli.document("webhooks", "list")["webhooks"] == []


def test_the_secret_is_alone_on_stdout(cli: RemoteCli) -> None:
    done = cli.run("webhooks", "create", "http://127.0.0.1:9/hook")
    assert (done.returncode, done.stdout.startswith(b"whsec_"), done.stdout.count(b"\n")) == (0, True, 1)
    assert b"is shown this once" in done.stderr
    assert cli.say("webhooks", "create", "http://127.0.0.1:9/hook", "-q").startswith("whsec_")
    for hook in cli.document("webhooks", "list")["webhooks"]:
        assert hook["events"] == ["*"]
        cli.say("webhooks", "delete", hook["id"])


def test_a_ping_that_is_not_taken_is_exit_code_1(cli: RemoteCli) -> None:
    with receiver(500) as (url, _):
        made = cli.document("webhooks", "create", url)
        done = cli.run("webhooks", "test", made["id"])
        assert done.returncode == 1
        assert done.stdout.splitlines()[1].split()[:2] == [b"no", b"500"]
    cli.say("webhooks", "delete", made["id"])


def test_what_is_not_delivered_is_shown(cli: RemoteCli) -> None:
    made = cli.document("webhooks", "create", f"http://127.0.0.1:{free_port()}/hook", "--event", "session.created")
    assert cli.document("webhooks", "deliveries", made["id"])["deliveries"] == []
    cli.say("kill", cli.say("create").strip())
    shown = ""
    for _ in range(100):  # it is written down at once, but nobody waits for it
        shown = cli.say("webhooks", "deliveries", made["id"])
        if "session.created" in shown:
            break
    assert "session.created" in shown
    cli.say("webhooks", "delete", made["id"])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["create"], 2, "Missing argument"),
        (["create", "ftp://example.org/"], 125, "http"),
        (["create", "http://10.0.0.1/"], 125, "10.0.0.1"),
        (["create", "https://example.org/", "--event", "nope"], 125, "nope"),
        (["delete", "wh_0"], 125, "wh_0"),
        (["test", "wh_0"], 125, "wh_0"),
        (["deliveries", "wh_0"], 125, "wh_0"),
    ],
)
def test_a_mistake_is_one_sentence(cli: RemoteCli, arguments: list[str], code: int, message: str) -> None:
    done = cli.run("webhooks", *arguments)
    assert (done.returncode, done.stdout) == (code, b"")
    assert message in done.stderr.decode()
