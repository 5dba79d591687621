"""`warren mcp` starts fast because it does without the SDK, and works with both versions of the SDK."""

import fcntl
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from server_process import clean_environ, running_server
from this_run import new_state_dir

_ROOT = Path(__file__).parents[2]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
_DISCOVER: Final = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": _META}}


@pytest.mark.parametrize("request_", [_INITIALIZE, _DISCOVER], ids=["initialize", "discover"])
def test_the_first_answer_waits_for_no_large_package(request_: dict[str, Any]) -> None:
    command = [sys.executable, "-m", "warren.cli.main", "mcp"]
    with subprocess.Popen(command, env=clean_environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request_).encode() + b"\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        mapped = Path(f"/proc/{process.pid}/maps").read_text()
        process.stdin.close()
        assert process.wait(20) == 0
    assert answer["result"]["capabilities"] == {"tools": {"listChanged": False}}
    assert "pydantic" not in mapped
    assert "aiohttp" not in mapped


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("tools/list", {}, -32602),
        ("tools/list", {"_meta": {**_META, "io.modelcontextprotocol/protocolVersion": "2031-01-01"}}, -32022),
        ("tools/call", {"_meta": _META}, -32602),
        ("prompts/list", {"_meta": _META}, -32601),
        ("initialize", {"protocolVersion": "2025-06-18"}, -32022),
    ],
)
def test_what_the_newest_protocol_does_not_allow_is_refused(method: str, params: dict[str, Any], code: int) -> None:
    command = [sys.executable, "-m", "warren.cli.main", "mcp"]
    wrong = {"jsonrpc": "2.0", "id": 2, "method": method, "params": params}
    lines = "".join(f"{json.dumps(each)}\n" for each in (_DISCOVER, wrong))
    done = subprocess.run(command, env=clean_environ(), input=lines, capture_output=True, text=True, check=False)
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["result"]["supportedVersions"] == ["2026-07-28"]
    assert (second["id"], second["error"]["code"]) == (2, code)


def test_the_server_ends_with_a_client_that_says_nothing() -> None:
    done = subprocess.run([sys.executable, "-m", "warren.cli.main", "mcp"], env=clean_environ(), input=b"", timeout=30)
    assert done.returncode == 0


@pytest.fixture(scope="module")
def version_1() -> Path:
    """The Python of a virtual environment with version 1 of the SDK; it is made once and kept in build/."""
    place = _ROOT / "build" / "mcp-1"
    wanted = ["mcp>=1.23,<2", *_PROJECT["dependencies"]]
    place.parent.mkdir(exist_ok=True)
    with (place.parent / "mcp-1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = place / "installed.json"
        if not done.exists() or json.loads(done.read_text()) != wanted:
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", place], check=True)
            subprocess.run([place / "bin" / "pip", "install", "-q", *wanted], check=True)
            done.write_text(json.dumps(wanted))
    return place / "bin" / "python"


@pytest.mark.timeout(600)
@pytest.mark.extended
def test_it_works_beside_packages_that_need_version_1(version_1: Path) -> None:
    [extra] = [each for each in _PROJECT["optional-dependencies"]["mcp"] if each.startswith("mcp")]
    assert extra == "mcp>=1.23,<3"
    state_dir = new_state_dir()
    program = Path(__file__).with_name("mcp_version_1.py")
    environ = {**clean_environ(), "PYTHONPATH": str(_ROOT / "src")}
    try:
        with running_server(state_dir, "--pool-size", "2", provider="fake") as server:
            done = subprocess.run(
                [version_1, program, server.url], env=environ, capture_output=True, text=True, timeout=300
            )
    finally:
        shutil.rmtree(state_dir)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("version").startswith("1.")
    assert {transport: each.pop("sandbox") for transport, each in found.items()} == {
        "stdio": "by-flag",
        "http": "by-header",
        "sse": "by-header",
    }
    for each in found.values():
        assert each["with_schema"] == 11
        assert each["wrong"] == [
            True,
            "The tool write_file has no argument 'mode'. Its arguments are path, content, sandbox.",
        ]
        assert each["unknown"][0]
        assert "There is no tool 'nope'" in each["unknown"][1]
        assert each["written"] == {"path": "/workspace/a.txt", "bytes": 5}
        assert each["read"] == "hello"


def test_lines_that_are_no_requests_are_answered_in_words() -> None:
    lines = [
        "{",
        "[]",
        '{"jsonrpc": "2.0", "id": null, "method": "ping"}',
        '{"jsonrpc": "2.0", "id": 1, "method": "prompts/list"}',
        '{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "bash", "arguments": [1]}}',
        '{"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": []}',
        '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}',
        '{"jsonrpc": "2.0", "id": 4, "result": {}}',
        "",
        '{"jsonrpc": "2.0", "id": 5, "method": "ping"}',
    ]
    command = [sys.executable, "-m", "warren.cli.main", "mcp"]
    done = subprocess.run(
        command, env=clean_environ(), input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["id"], each.get("error", {}).get("message")) for each in answers] == [
        (None, "a line must be one JSON-RPC message"),
        (None, "a line must be one JSON-RPC message, not several"),
        (None, "the id of a request must be a string or an integer"),
        (1, "this server has no method 'prompts/list'; it serves tools"),
        (2, "a call needs the name of a tool, and its arguments as an object"),
        (3, "params must be an object"),
        (5, None),
    ]
