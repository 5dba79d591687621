"""`warren self-test`: checks that a server does what it promises, in a session that is ended afterwards."""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click

from warren import SandboxClient
from warren.cli.options import server_options
from warren.cli.output import print_json
from warren.cli.remote import RemoteServer
from warren.model.errors import WarrenError

_TRANSFER_BYTES: Final = 1024 * 1024 + 1
# Children, also some that left the process group: a time-out must find and end them all.
_PROCESS_TREE: Final = "sleep 600 & setsid sleep 601 & (setsid sleep 602 &) ; sleep 603"
_COUNT_ROUTES: Final = "tail -n +2 /proc/net/route | wc -l"
_CONNECT: Final = "timeout 5 bash -c 'exec 3<>/dev/tcp/1.1.1.1/53' 2>/dev/null && echo reached || echo cut off"


class CheckFailed(Exception):
    """A check found something else than it expects."""


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
    """Check that a server does what it promises.

    Commands, files, no root, no network, state between commands, time-outs, cleaning up: in a session that is ended
    afterwards. The exit code is 1 if a check failed.

    Example: warren self-test --url http://localhost:8000
    """
    results: list[CheckResult] = []

    def note(result: CheckResult) -> None:
        results.append(result)
        if not as_json:
            _print(result)

    with RemoteServer(url) as server:
        _run_checks(server, note)
    failed = sum(not result.ok for result in results)
    if as_json:
        print_json({"ok": not failed, "url": server.url, "checks": [asdict(result) for result in results]})
    else:
        click.echo(f"\n{len(results) - failed} ok, {failed} failed, at {server.url}")
    return 1 if failed else 0


def _print(result: CheckResult) -> None:
    word = click.style(f"{'ok':<7}", fg="green") if result.ok else click.style("FAILED ", fg="red")
    click.echo(f"{word}{result.check:<32} {result.duration_ms:7.0f} ms  {result.found}")


def _run_checks(server: RemoteServer, note: Callable[[CheckResult], None]) -> None:
    """Runs all checks, but stops if the server does not answer or the session cannot be created."""
    client = SandboxClient(backend=server.backend, metadata={"warren": "self-test"})
    if not _run_check("the server answers", lambda: _check_version(server), note):
        return
    try:
        if not _run_check("a session is created", lambda: _check_create(client), note):
            return
        for name, check in CHECKS:
            _run_check(name, lambda check=check: check(client), note)  # type: ignore[misc]
    finally:
        session_id = client.session_id
        if session_id:
            _run_check("the session is ended and gone", lambda: _check_end(server, client, session_id), note)


def _run_check(name: str, check: Callable[[], str], note: Callable[[CheckResult], None]) -> bool:
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


def _check_version(server: RemoteServer) -> str:
    found = server.call("GET", "/version")
    expect(found.get("name") == "warren", found)
    return f"warren {found['version']}, provider {found['provider']}"


def _check_create(client: SandboxClient) -> str:
    session = client.create_session()
    expect(session.state == "running", session.state)
    return f"{session.session_id}, {'from the pool' if session.pooled else 'made anew'}"


def _check_end(server: RemoteServer, client: SandboxClient, session_id: str) -> str:
    client.cleanup()
    state = server.backend.call("get_session", session_id)["state"]
    expect(state == "ended", state)
    return ""


# -- the checks in the session


def _check_command(client: SandboxClient) -> str:
    done = client.execute("echo $((6 * 7)); echo wrong >&2; exit 3")
    expect((done.stdout, done.stderr, done.exit_code) == ("42\n", "wrong\n", 3), done)
    return "output, errors and exit code"


def _check_transfer(client: SandboxClient) -> str:
    sent = os.urandom(_TRANSFER_BYTES)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "sent"), Path(folder, "back")
        source.write_bytes(sent)
        client.upload_file(source, "self-test.bin")
        client.download_file("self-test.bin", target)
        expect(target.read_bytes() == sent, f"{target.stat().st_size} bytes, and not the same")
    return f"{len(sent)} bytes there and back"


def _check_ownership(client: SandboxClient) -> str:
    done = client.execute("echo more >> self-test.bin && mkdir -p a/b && touch a/b/c && rm -r a self-test.bin")
    expect(done.ok, done.output)
    return "what was uploaded can be changed and removed"


def _check_user(client: SandboxClient) -> str:
    done = client.execute("id -u; grep CapEff /proc/self/status")
    uid, capabilities = done.output.split()[0], done.output.split()[-1]
    expect(uid != "0" and int(capabilities, 16) == 0, done.output)
    return f"user {uid}, no capabilities"


def _check_network(client: SandboxClient) -> str:
    routes = client.execute(_COUNT_ROUTES).output.strip()
    expect(routes == "0", f"{routes} routes")
    reached = client.execute(_CONNECT, timeout=20).output.strip()
    expect(reached == "cut off", reached)
    return "no route, and no connection to 1.1.1.1"


def _check_state(client: SandboxClient) -> str:
    client.execute("cd /tmp && export COLOUR=red")
    done = client.execute("echo $COLOUR in $PWD")
    expect(done.output == "red in /tmp\n", done.output)
    return "directory and variables"


def _check_timeout(client: SandboxClient) -> str:
    done = client.execute(_PROCESS_TREE, timeout=1)
    expect(done.reason == "timeout" and done.killed >= 4 and not done.survivors, done)
    left = client.execute("cat /proc/[0-9]*/comm 2>/dev/null | grep -c sleep").output.strip()
    expect(left == "0", f"{left} processes are left")
    return f"{done.killed} processes killed, none left"


CHECKS: Final[Sequence[Check]] = (
    ("a command runs", _check_command),
    ("files go there and back", _check_transfer),
    ("the workspace is the user's own", _check_ownership),
    ("commands are not root", _check_user),
    ("there is no network", _check_network),
    ("state lasts between commands", _check_state),
    ("a time-out kills children too", _check_timeout),
)
