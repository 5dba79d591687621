"""Everything that README and docs show is run, as it stands there. What this file does not know how to run fails.

Lines of commands are run one by one. Blocks that talk to a server (sh and python, with http://127.0.0.1:8000 in them,
or sh with lines that begin with `warren`) are run page by page, in order, against one real server that wants keys, as
quickstart.sh leaves it; only the port is another. So a page finds what the pages before it have left, as a reader does.
The server of the page about clusters is a cluster, started as that page says. Blocks that are marked `bash` need hosts
outside: tests/e2e/test_recipes.py runs them.
"""

import contextlib
import json
import os
import pty
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import pytest
import warm_parent
from server_process import ServerProcess, clean_environ, free_port, running_server
from this_run import new_state_dir, patience

import warren.http.app
from warren import SandboxClient
from warren.http import problems
from warren.model.access import Quota, Scope
from warren.model.errors import WarrenError
from warren.model.usage import Usage
from warren.sdk.discovery import read_key

ROOT = Path(__file__).parents[2]
# These show files of other programs, policies, builds, and other packages. They are tried by tests/frameworks,
# tests/unit/test_policy.py, tests/e2e/test_image_recipes.py, tests/e2b/test_sdks.py and tests/adapters.
_ELSEWHERE = {
    *(ROOT / "docs" / name for name in ("mcp.md", "integration-guide.md", "command-policy.md", "build.md", "e2b.md")),
    *(ROOT / "docs" / "integrations").glob("*.md"),
}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted({*(ROOT / "docs").rglob("*.md")} - _ELSEWHERE)]
# What these pages show leaves files in the directory that it is run in.
_WRITING = {ROOT / "docs" / name for name in ("e2b-guide.md", "e2b-examples.md")}
# `make test` cannot run in itself, and what leads to it is run by it: these are looked up in the Makefile.
GOALS = ("make test", "make check", "make docs", "make dist", "make setup")
SHOWN_SERVER = "http://127.0.0.1:8000"
OTHER_COORDINATOR = "http://127.0.0.1:8001"
_CLUSTER_UP = ["cluster", "up"]
_LONG = ("cli.md", "cluster.md", "tenants.md")  # they start dozens of programs
_CLUSTERED = ROOT / "docs" / "cluster.md"

Block = tuple[str, str]
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.M | re.S)


def fenced(page: Path) -> list[Block]:
    """Blocks between fences: their language and their text."""
    return [(match[1], match[2]) for match in _FENCED.finditer(page.read_text())]


_WARREN = re.compile(r"^warren ", flags=re.M)
_IN_TERMINAL = re.compile(r"^warren (?:shell|repl|exec -it?) .*$", flags=re.M)


def asks_a_server(block: Block) -> bool:
    kind, text = block
    talks = SHOWN_SERVER in text or (kind == "python" and "from orchestrator" in text)
    return (kind in ("sh", "python") and talks) or (kind == "sh" and bool(_WARREN.search(text)))


def commands(page: Path) -> list[str]:
    """Lines of code blocks, fenced or indented, without their comments; but for blocks that have tests of their own."""

    def as_indented(match: re.Match[str]) -> str:
        apart = match[1] in ("toml", "python", "text", "json", "yaml", "mermaid", "bash") or asks_a_server(
            (match[1], match[2])
        )
        return "" if apart else re.sub("^", "    ", match[2], flags=re.M)

    lines = re.findall(r"^(?: {4}|\t)(\S.*)$", _FENCED.sub(as_indented, page.read_text()), flags=re.M)
    found = [re.sub(r"\s+#.*$", "", line).strip() for line in lines]
    return [line for line in found if line]


SHOWN = [(page, line) for page in PAGES for line in commands(page)]
TALKING = [page for page in PAGES if any(asks_a_server(block) for block in fenced(page))]
ALONE = [
    (page, text)
    for page in PAGES
    for kind, text in fenced(page)
    if kind == "python" and not asks_a_server((kind, text))
]


def new_state(image_cache: Path) -> Iterator[Path]:
    path = new_state_dir(image_cache)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def fresh_state(image_cache: Path) -> Iterator[Path]:
    yield from new_state(image_cache)


@pytest.fixture(scope="module")
def environment(state_dir: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path), "WARREN_STATE_DIR": str(state_dir)}


# -- commands


def test_the_two_commands_are_shown() -> None:
    assert {"./quickstart.sh", "make test"} <= {line for page, line in SHOWN if page.name == "README.md"}


def shown(page: Path, line: str) -> object:
    """A whole cluster takes ten seconds of a processor; test_cluster_cli.py starts one too."""
    marks = [pytest.mark.extended] if shlex.split(line)[2:4] == _CLUSTER_UP else []
    return pytest.param(page, line, id=f"{page.name}: {line}", marks=marks)


@pytest.mark.parametrize(("page", "line"), [shown(*each) for each in SHOWN])
def test_a_shown_command_works(page: Path, line: str, environment: dict[str, str], fresh_state: Path) -> None:
    if line.startswith(GOALS):
        goal = line.split()[1]
        assert re.search(rf"^{goal}:", (ROOT / "Makefile").read_text(), flags=re.M)
        return
    if line == "./quickstart.sh":
        return  # it has tests of its own below
    words = shlex.split(line)
    assert words[:2] == ["sudo", ".venv/bin/warren"], f"{page.name} shows a command that nothing here can run: {line}"
    if words[2] == "serve":
        serve_and_stop(words[3:], environment)
        return
    if words[2:4] == _CLUSTER_UP:
        with cluster_up(words[4:], fresh_state):
            return
    code, said = in_a_terminal([sys.executable, "-m", "warren.cli.main", *words[2:]], environment)
    assert code == 0, said


def in_a_terminal(argv: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Runs it as a person would, who types `exit` if asked for something."""
    ours, theirs = pty.openpty()
    process = warm_parent.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm"})
    os.close(theirs)
    os.write(ours, b"exit\n")
    said = b""
    try:
        while part := os.read(ours, 65536):
            said += part
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
    return process.wait(timeout=60), said.decode(errors="replace")


def serve_and_stop(flags: list[str], environment: dict[str, str]) -> None:
    server = ServerProcess(Path(environment["WARREN_STATE_DIR"]), *flags)
    server.start()
    assert server.stop() == 0


@contextlib.contextmanager
def cluster_up(flags: Sequence[str], state: Path) -> Iterator[int]:
    """A cluster, started as it is shown, but for its ports: gives the first. Ctrl-C ends it, and nothing stays."""
    port = two_free_ports()
    argv = [sys.executable, "-m", "warren.cli.main", *_CLUSTER_UP, *flags, "--port", str(port)]
    own = {"WARREN_STATE_DIR": str(state), "WARREN_CREDENTIALS": str(state / "credentials.json"), "POOL_SIZE": "1"}
    environ = {**clean_environ(), **own, "WARREN_ON_STOP": "destroy"}
    process = warm_parent.Popen(argv, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        with process.stdout as said:
            assert any("The cluster is up" in line for line in iter(said.readline, ""))
            yield port
    finally:
        process.send_signal(signal.SIGINT)
        ended = process.wait(timeout=120)
    assert ended == 0
    assert list((state / "cluster").glob("worker-*/sandboxes/*")) == []


def two_free_ports() -> int:
    """A free port that is followed by another."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
            return port


# -- files of options


@pytest.mark.parametrize("page", [page for page in PAGES if any(kind == "toml" for kind, _ in fenced(page))], ids=str)
def test_a_shown_file_of_options_is_taken(page: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    for number, (_, text) in enumerate(block for block in fenced(page) if block[0] == "toml"):
        assert tomllib.loads(text)
        (tmp_path / f"{number}.toml").write_text(text)
        argv = [sys.executable, "-m", "warren.cli.main", "config", "--config", str(tmp_path / f"{number}.toml")]
        outcome = warm_parent.run(argv, env=environment, capture_output=True, text=True, timeout=60)
        assert outcome.returncode == 0, outcome.stderr


# -- programs


@pytest.mark.parametrize(("page", "text"), ALONE, ids=[page.name for page, _ in ALONE])
def test_a_shown_program_that_asks_no_server_needs_only_the_standard_library(page: Path, text: str) -> None:
    outcome = subprocess.run([sys.executable, "-ISc", text], capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 0, outcome.stderr


# -- requests


def test_the_pages_about_the_server_show_requests() -> None:
    assert {"README.md", "api.md", "cli.md", "operations.md"} <= {page.name for page in TALKING}


def talking(page: Path) -> object:
    marks = [pytest.mark.extended] if page.name in _LONG else []
    return pytest.param(page, id=page.name, marks=marks)


@pytest.fixture(scope="class")
def left_by_quickstart(image_cache: Path) -> Iterator[ServerProcess]:
    """A server as quickstart.sh leaves it: with its first key, and with the session of a request to the thread
    `hello`."""
    for state in new_state(image_cache):
        with running_server(state, WARREN_AUTH="true") as server:
            with client_of(server) as sandbox:
                assert sandbox.execute("uname -a > about", save_artifacts=["about"]).exit_code == 0
            yield server


class TestPages:
    """One server for all pages, in their order."""

    @pytest.mark.parametrize("page", [talking(page) for page in TALKING if page != _CLUSTERED])
    def test_the_requests_of_a_page_work(self, page: Path, left_by_quickstart: ServerProcess, tmp_path: Path) -> None:
        server = left_by_quickstart
        run_requests(page, server.port, server.credentials, tmp_path)
        with client_of(server) as sandbox:  # a page takes away only what it has made itself
            assert sandbox.read_text("about").startswith("Linux")
            assert [artifact.name for artifact in sandbox.artifacts.list()] == ["about"]


def client_of(server: ServerProcess) -> SandboxClient:
    return SandboxClient(server.url, api_key=read_key(server.credentials, server.url), thread_id="hello")


@pytest.mark.extended
def test_the_requests_of_the_page_about_clusters_work(fresh_state: Path, tmp_path: Path) -> None:
    (flags,) = [words[4:] for words in map(shlex.split, commands(_CLUSTERED)) if words[2:4] == _CLUSTER_UP]
    with cluster_up(flags, fresh_state) as port:
        run_requests(_CLUSTERED, port, fresh_state / "credentials.json", tmp_path)


def run_requests(page: Path, port: int, credentials: Path, tmp_path: Path) -> None:
    """Runs what a page shows as a user of the server's machine, who types it into one shell."""
    (tmp_path / ".curlrc").write_text("fail-with-body\nmax-time = 60\n")
    script = as_script([block for block in fenced(page) if asks_a_server(block)], port)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {"PATH": path, "CURL_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "TERM": "xterm"}
    environ["WARREN_CREDENTIALS"] = str(credentials)
    outcome = subprocess.run(
        ["bash", "-aeuxo", "pipefail", "-c", script],
        cwd=tmp_path if page in _WRITING else ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=patience(150),
    )
    assert outcome.returncode == 0, f"{outcome.stderr[-3000:]}\n{outcome.stdout[-1000:]}"


def as_script(blocks: list[Block], port: int) -> str:
    """All blocks as one script: what a block sets, the next ones may use."""
    parts = []
    for kind, text in blocks:
        for offset, shown in enumerate((SHOWN_SERVER, OTHER_COORDINATOR)):
            text = text.replace(shown, f"http://127.0.0.1:{port + offset}")
        text = _IN_TERMINAL.sub(typing_exit, text)
        parts.append(text if kind == "sh" else f"{shlex.quote(sys.executable)} -c {shlex.quote(text)}\n")
    return "\n".join(parts)


def typing_exit(line: re.Match[str]) -> str:
    """Runs it in a terminal, as a person would who types `exit`."""
    return f"(sleep 1; echo exit) | script -qec {shlex.quote(line[0])} /dev/null"


def test_every_error_code_is_in_the_reference_with_its_status() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (yes|no) \| \S", (ROOT / "docs" / "api.md").read_text(), flags=re.M)
    shown = {code: (int(status), again == "yes") for code, status, again in rows}
    assert warren.http.app  # whatever it defines is known by now
    known: dict[str, type[WarrenError]] = {**WarrenError.by_code, "internal": WarrenError}
    for code, error in known.items():
        assert shown.pop(code, None) == (error.http_status, error.retryable), f"{code} in docs/api.md"
    for code, (status, _) in shown.items():
        assert problems._CODES.get(status) == code, f"docs/api.md shows {code}, which is never answered"


def test_every_scope_quota_and_figure_of_usage_is_in_the_chapter_on_tenants() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", (ROOT / "docs" / "tenants.md").read_text(), flags=re.M)
    shown = {name for row in rows for name in re.findall(r"\w+", row)}
    assert shown == {*Scope, *(each.name for each in (*fields(Quota), *fields(Usage)))}


# -- quickstart

# Writes down what anybody could see of it: its arguments, and those of the shell that has started it.
_RECORDING_CURL = """#!/bin/sh
here=$(dirname "$0")
tr '\\0' ' ' </proc/$PPID/cmdline >>"$here/arguments"
printf '%s\\n' "$*" >>"$here/arguments"
PATH=${PATH#"$here":} exec curl "$@"
"""


@pytest.fixture
def quick(fresh_state: Path) -> Iterator[dict[str, str]]:
    """An environment for quickstart.sh; the server it has started is stopped at the end."""
    values = {"WARREN_STATE_DIR": str(fresh_state), "WARREN_PORT": str(free_port()), "WARREN_ON_STOP": "destroy"}
    values["WARREN_CREDENTIALS"] = str(fresh_state / "credentials.json")
    (fresh_state / "bin").mkdir()
    (fresh_state / "bin" / "curl").write_text(_RECORDING_CURL)
    (fresh_state / "bin" / "curl").chmod(0o755)
    yield {"PATH": f"{fresh_state / 'bin'}:{os.environ['PATH']}", "WARREN_CONFIG": "/dev/null", **values}
    pid_file = fresh_state / "server.pid"
    if pid_file.exists():
        stop_process(int(pid_file.read_text()))


def stop_process(pid: int) -> None:
    deadline = time.monotonic() + 60
    try:
        os.kill(pid, signal.SIGTERM)
        while time.monotonic() < deadline and not is_zombie(pid):
            os.kill(pid, 0)
            time.sleep(0.05)
    except ProcessLookupError:
        return


def is_zombie(pid: int) -> bool:
    """It has ended, and whoever has taken it over does not look after it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def quickstart(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["./quickstart.sh"], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=patience(170)
    )


def test_quickstart_ends_with_a_server_and_a_request_that_works(quick: dict[str, str]) -> None:
    first = quickstart(quick)
    assert first.returncode == 0, first.stderr
    assert "agent and launcher (compiled from C once, about 20 seconds)" in first.stdout
    assert "Hello from sandbox: sandboxuser in /workspace" in first.stdout
    shown = re.findall(r"^    (curl .*)$", first.stdout, flags=re.M)
    assert len(set(shown)) == 1
    outcome = subprocess.run(["sh", "-c", shown[0]], capture_output=True, text=True, timeout=60)
    assert '"exit_code": 0' in outcome.stdout, outcome.stderr
    (key,) = json.loads(Path(quick["WARREN_CREDENTIALS"]).read_text()).values()
    assert key not in first.stdout + first.stderr
    arguments = (Path(quick["WARREN_STATE_DIR"]) / "bin" / "arguments").read_text()
    assert "/execute" in arguments
    assert key not in arguments
    log = Path(quick["WARREN_STATE_DIR"]) / "server.log"
    assert key not in log.read_text()
    assert log.stat().st_mode & 0o077 == 0
    assert f"\nIts log is {log}.\n" in first.stdout
    assert re.search(rf"    env .*WARREN_CREDENTIALS={re.escape(quick['WARREN_CREDENTIALS'])} .* shell\n", first.stdout)
    pid_file = Path(quick["WARREN_STATE_DIR"]) / "server.pid"
    pid = pid_file.read_text().strip()
    aside = pid_file.rename(pid_file.with_name("aside"))  # as if somebody had started the server by hand
    again = quickstart(quick)
    aside.rename(pid_file)
    assert again.returncode == 0, again.stderr
    assert f"already running (process {pid})" in again.stdout
    assert f"\nIts log is where process {pid} was started.\n" in again.stdout
    refused = quickstart({**quick, "WARREN_API_KEY": "wk_of_another_server"})
    assert refused.returncode == 1
    assert "unset WARREN_API_KEY, and run this again" in refused.stderr
    elsewhere = quickstart({**quick, "WARREN_PORT": str(free_port())})
    assert elsewhere.returncode == 1
    assert f"a server (process {pid}) has the state directory" in elsewhere.stderr


def test_quickstart_says_when_the_port_is_taken(quick: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", int(quick["WARREN_PORT"]))):
        outcome = quickstart(quick)
    assert outcome.returncode == 1
    assert f"port {quick['WARREN_PORT']} is taken" in outcome.stderr
    assert "WARREN_PORT=" in outcome.stderr
