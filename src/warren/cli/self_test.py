"""`warren self-test`: does a server do what it promises? One line per check, in a session that is gone afterwards."""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click

from warren import SandboxClient
from warren.cli.remote import Server, server_options
from warren.cli.tables import print_json
from warren.model.errors import WarrenError
from warren.sdk.protocol import Request

_TRANSFER: Final = 1024 * 1024 + 1
# Children, also one that has left the process group: what a time-out has to find and end.
_FAMILY: Final = "sleep 600 & setsid sleep 601 & (setsid sleep 602 &) ; sleep 603"
_ROUTES: Final = "tail -n +2 /proc/net/route | wc -l"
_CONNECT: Final = "timeout 5 bash -c 'exec 3<>/dev/tcp/1.1.1.1/53' 2>/dev/null && echo reached || echo cut off"


class CheckFailed(Exception):
    """A check found something else than it should have."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    check: str
    ok: bool
    found: str
    duration_ms: float


Check = tuple[str, Callable[[SandboxClient], str]]


@click.command("self-test")
@server_options
def self_test(url: str, as_json: bool) -> int:
    """Try whether a server does what it promises.

    Commands, files, no root, no network, state between commands, time-outs, cleaning up: in a session that is gone
    afterwards. The exit code is 1 if a check failed.

    Example: warren self-test --url http://localhost:8000
    """
    outcomes: list[CheckResult] = []

    def note(outcome: CheckResult) -> None:
        outcomes.append(outcome)
        if not as_json:
            _print(outcome)

    with Server(url) as server:
        _test(server, note)
    failed = sum(not outcome.ok for outcome in outcomes)
    if as_json:
        print_json({"ok": not failed, "url": server.url, "checks": [asdict(outcome) for outcome in outcomes]})
    else:
        click.echo(f"\n{len(outcomes) - failed} ok, {failed} failed, at {server.url}")
    return 1 if failed else 0


def _print(outcome: CheckResult) -> None:
    word = click.style(f"{'ok':<7}", fg="green") if outcome.ok else click.style("FAILED ", fg="red")
    click.echo(f"{word}{outcome.check:<32} {outcome.duration_ms:7.0f} ms  {outcome.found}")


def _test(server: Server, note: Callable[[CheckResult], None]) -> None:
    """Without a server or a session there is nothing more to try."""
    client = SandboxClient(backend=server.backend, metadata={"warren": "self-test"})
    if not _tried("the server answers", lambda: _version(server), note):
        return
    try:
        if not _tried("a session is created", lambda: _create(client), note):
            return
        for name, check in CHECKS:
            _tried(name, lambda check=check: check(client), note)  # type: ignore[misc]
    finally:
        session_id = client.session_id
        if session_id:
            _tried("the session is ended and gone", lambda: _end(server, client, session_id), note)


def _tried(name: str, check: Callable[[], str], note: Callable[[CheckResult], None]) -> bool:
    began = time.perf_counter()
    try:
        ok, found = True, check()
    except (CheckFailed, WarrenError, OSError) as exc:
        ok, found = False, str(exc)
    note(CheckResult(name, ok, found, round((time.perf_counter() - began) * 1000, 1)))
    return ok


def expect(holds: object, found: object) -> None:
    if not holds:
        raise CheckFailed(f"found instead: {str(found)[:300].strip() or 'nothing'}")


def _version(server: Server) -> str:
    found = server.transport.call(Request("GET", "/version"))
    expect(found.get("name") == "warren", found)
    return f"warren {found['version']}, provider {found['provider']}"


def _create(client: SandboxClient) -> str:
    session = client.create_session()
    expect(session.state == "running", session.state)
    return f"{session.session_id}, {'from the pool' if session.pooled else 'made anew'}"


def _end(server: Server, client: SandboxClient, session_id: str) -> str:
    client.cleanup()
    state = server.backend.session(session_id)["state"]
    expect(state == "ended", state)
    return ""


# -- what is tried in the session


def _runs(client: SandboxClient) -> str:
    done = client.execute("echo $((6 * 7)); echo wrong >&2; exit 3")
    expect((done.stdout, done.stderr, done.exit_code) == ("42\n", "wrong\n", 3), done)
    return "output, errors and exit code"


def _transfers(client: SandboxClient) -> str:
    sent = os.urandom(_TRANSFER)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "sent"), Path(folder, "back")
        source.write_bytes(sent)
        client.upload_file(source, "self-test.bin")
        client.download_file("self-test.bin", target)
        expect(target.read_bytes() == sent, f"{target.stat().st_size} bytes, and not the same")
    return f"{len(sent)} bytes there and back"


def _owns(client: SandboxClient) -> str:
    done = client.execute("echo more >> self-test.bin && mkdir -p a/b && touch a/b/c && rm -r a self-test.bin")
    expect(done.ok, done.output)
    return "what was uploaded can be changed and removed"


def _not_root(client: SandboxClient) -> str:
    done = client.execute("id -u; grep CapEff /proc/self/status")
    uid, capabilities = done.output.split()[0], done.output.split()[-1]
    expect(uid != "0" and int(capabilities, 16) == 0, done.output)
    return f"user {uid}, no capabilities"


def _no_network(client: SandboxClient) -> str:
    routes = client.execute(_ROUTES).output.strip()
    expect(routes == "0", f"{routes} routes")
    reached = client.execute(_CONNECT, timeout=20).output.strip()
    expect(reached == "cut off", reached)
    return "no route, and no connection to 1.1.1.1"


def _keeps_state(client: SandboxClient) -> str:
    client.execute("cd /tmp && export COLOUR=red")
    done = client.execute("echo $COLOUR in $PWD")
    expect(done.output == "red in /tmp\n", done.output)
    return "directory and variables"


def _times_out(client: SandboxClient) -> str:
    done = client.execute(_FAMILY, timeout=1)
    expect(done.reason == "timeout" and done.killed >= 4 and not done.survivors, done)
    left = client.execute("cat /proc/[0-9]*/comm 2>/dev/null | grep -c sleep").output.strip()
    expect(left == "0", f"{left} processes are left")
    return f"{done.killed} processes killed, none left"


CHECKS: Final[Sequence[Check]] = (
    ("a command runs", _runs),
    ("files go there and back", _transfers),
    ("the workspace is the user's own", _owns),
    ("commands are not root", _not_root),
    ("there is no network", _no_network),
    ("state lasts between commands", _keeps_state),
    ("a time-out kills children too", _times_out),
)
