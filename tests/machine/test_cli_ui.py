"""`warren ui`, and tickets of the clients, against a real server."""

import json
import shutil
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine.remote_cli import RemoteCli
from server_process import ServerProcess, running_server
from this_run import new_state_dir

from warren import AsyncSandboxClient, SandboxClient
from warren.model.errors import InvalidRequest

KEY = "wk_" + "k" * 40


@pytest.fixture(scope="module")
def server(image_cache: Path) -> Iterator[ServerProcess]:
    state = new_state_dir(image_cache)
    with running_server(state, provider="fake", WARREN_API_KEY=KEY) as server:
        yield server
    shutil.rmtree(state)


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> Any:
    headers = {"X-Warren-Page": "1", "Origin": server.url, "Content-Type": "application/json"}
    asked = urllib.request.Request(f"{server.url}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return json.load(answer)


def test_ui_prints_a_link_that_signs_in_and_opens_a_browser_without_telling_others(
    server: ServerProcess, tmp_path: Path
) -> None:
    """What a browser is started with, every user of the machine can read."""
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\necho "$@" > {seen}\n')
    browser.chmod(0o755)
    cli = RemoteCli(server.url, WARREN_API_KEY=KEY, BROWSER=f"{browser} %s", XDG_RUNTIME_DIR=str(tmp_path))
    link = cli.say("ui").strip()
    place, _, code = link.partition("#")
    assert place == f"{server.url}/ui/enter"
    page = Path(seen.read_text().strip().removeprefix("file://"))
    assert code not in seen.read_text()
    assert (stat.S_IMODE(page.stat().st_mode), link in page.read_text()) == (0o600, True)
    assert post(server, "/api/ui/sign-in", {"code": code})["key_id"] == "admin"
    seen.unlink()
    assert cli.say("ui", "--no-browser").startswith(place)
    assert cli.document("ui")["expires_at"]
    assert not seen.exists()


def test_ui_says_what_is_wrong(server: ServerProcess) -> None:
    done = RemoteCli(server.url, WARREN_API_KEY="wrong").run("ui", "--print")
    assert (done.returncode, b"does not take this API key" in done.stderr) == (125, True)


@pytest.mark.anyio
async def test_clients_make_tickets_for_their_sessions(server: ServerProcess) -> None:
    with SandboxClient(server.url, api_key=KEY) as client:
        made = client.create_ticket(expires_s=60, origins=["https://app.example.com"])
        assert made.url == f"{server.url}/embed/terminal?ticket={made.ticket}"
        assert post(server, "/api/ui/tickets/redeem", {"ticket": made.ticket})["session_id"] == client.session_id
        with pytest.raises(InvalidRequest, match="not an origin"):
            client.create_ticket(origins=["*"])
    async with AsyncSandboxClient(server.url, api_key=KEY) as other:
        made = await other.create_ticket(process_id="p", read_only=True)
        assert post(server, "/api/ui/tickets/redeem", {"ticket": made.ticket})["read_only"] is True
