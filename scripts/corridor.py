"""Prints how far a request goes inside the server: files entered, own calls, and changes from one file to another.

    .venv/bin/python scripts/corridor.py                              this checkout
    PYTHONPATH=DIRECTORY/src .venv/bin/python scripts/corridor.py     another one
    .venv/bin/python scripts/corridor.py --calls exec                 every call of a request, in order

The whole server runs in this process, with the provider `fake`, keys and the audit record; a thread sends it requests
over loopback. `sys.setprofile` sees the server's thread from the first byte of a request to the end of its answer. What
counts is each time that code of Warren's is entered, also when it goes on after it has waited; tasks that were there
before the request do not count. Each request is sent several times, and the row with the fewest calls is shown.
"""

import argparse
import asyncio
import contextlib
import http.client
import io
import itertools
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import warren
from warren.app.service import Service
from warren.cli.serve import run_server
from warren.config.settings import Settings, read_settings

OWN: Final = str(Path(warren.__file__).parent) + os.sep
KEY: Final = "wk_corridor_0000000000000000000000000000"
REPEATS: Final = 7


class Trace:
    """What one request enters. `begin` and `end` run in the server's thread."""

    def __init__(self) -> None:
        self.calls: list[CodeType] = []
        self._before: set[asyncio.Task[Any]] = set()

    def begin(self) -> None:
        self._before = set(asyncio.all_tasks())
        asyncio.get_running_loop().set_task_factory(self._new_task)
        sys.setprofile(self._on_event)

    def end(self) -> None:
        sys.setprofile(None)
        asyncio.get_running_loop().set_task_factory(None)
        self._before.clear()

    def _new_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> "asyncio.Task[Any]":
        """What an older task starts is no part of the request."""
        task = asyncio.Task(work, loop=loop, **options)
        if asyncio.current_task() in self._before:
            self._before.add(task)
        return task

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OWN) and asyncio.current_task() not in self._before:
            self.calls.append(code)

    @property
    def figures(self) -> tuple[int, int, int]:
        files = [code.co_filename for code in self.calls]
        changes = sum(one != other for one, other in itertools.pairwise(files))
        return len(set(files)), len(files), changes


class Client:
    """Sends requests to the server that runs in the main thread, and traces them."""

    def __init__(self, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._loop = loop

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self._connection.request(method, path, data, {"X-API-Key": KEY, **headers})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text!r}")
        return json.loads(text) if text else None

    def trace(self, send: Callable[[], Any]) -> Trace:
        trace = Trace()
        self._in_loop(trace.begin)
        try:
            send()
        finally:
            self._in_loop(trace.end)
        return trace

    def _in_loop(self, work: Callable[[], None]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(work)
        self._loop.call_soon_threadsafe(done.set)
        done.wait()


def requests(client: Client) -> dict[str, Callable[[], Any]]:
    session = client.ask("POST", "/api/sessions", {})["session_id"]
    of_session = f"/api/sessions/{session}"
    return {
        "exec": lambda: client.ask("POST", f"{of_session}/exec", {"command": ["true"]}),
        "create from pool": lambda: client.ask("POST", "/api/sessions", {}),
        "upload": lambda: client.ask("PUT", f"{of_session}/files/content?path=/workspace/file", b"content"),
        "run_code": lambda: client.ask("POST", f"{of_session}/code", {"code": "true", "language": "bash"}),
        "E2B create": lambda: client.ask("POST", "/sandboxes", {"templateID": "host"}),
        "GET /version": lambda: client.ask("GET", "/version"),
    }


def measure(client: Client) -> dict[str, Trace]:
    found = {}
    for name, send in requests(client).items():
        send()
        found[name] = min((client.trace(send) for _ in range(REPEATS)), key=lambda trace: len(trace.calls))
    return found


@contextlib.contextmanager
def served_settings() -> Iterator[Settings]:
    with tempfile.TemporaryDirectory(prefix="corridor-") as state, contextlib.ExitStack() as stack:
        given = {
            "WARREN_PROVIDER": "fake",
            "WARREN_STATE_DIR": state,
            "WARREN_API_KEY": KEY,
            "WARREN_DEFAULT_ENVIRONMENT": "host",
            "WARREN_POOL_SIZE": "32",
            "WARREN_MIN_FREE_MEMORY_MB": "1",
            "WARREN_MIN_FREE_DISK_MB": "1",
            "WARREN_LOG_LEVEL": "info",
            "WARREN_LOG_FILE": os.devnull,
            "XDG_CONFIG_HOME": state,
        }
        os.environ.update(given)
        stack.callback(lambda: [os.environ.pop(name) for name in given])
        yield replace(read_settings(), port=0)  # any that is free


def run() -> dict[str, Trace]:
    """Serves in this thread, which is the one that gets signals, and asks from another."""
    found: dict[str, Trace] = {}
    failures: list[BaseException] = []
    output = io.StringIO()

    def ask(loop: asyncio.AbstractEventLoop) -> None:
        try:
            found.update(measure(Client(_wait_for_port(output), loop)))
        except BaseException as exc:
            failures.append(exc)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    class AskedService(Service):
        async def start(self) -> None:
            await super().start()
            threading.Thread(target=ask, args=(asyncio.get_running_loop(),), daemon=True).start()

    with served_settings() as settings, contextlib.redirect_stdout(output):
        run_server(settings, AskedService)
    if failures:
        raise failures[0]
    return found


def _wait_for_port(output: io.StringIO) -> int:
    """The port that the server prints when it listens."""
    waited = threading.Event()
    for _ in range(300):
        text = output.getvalue()
        if "docs:" in text:
            return int(text.split("http://", 1)[1].split("/")[0].split()[0].rpartition(":")[2])
        waited.wait(0.1)
    raise RuntimeError("the server did not start")


def print_table(found: dict[str, Trace]) -> None:
    print(f"{'request':18}{'files':>8}{'calls':>8}{'changes of file':>18}")
    for name, trace in found.items():
        files, calls, changes = trace.figures
        print(f"{name:18}{files:8}{calls:8}{changes:18}")


def print_calls(trace: Trace) -> None:
    last = ""
    for code in trace.calls:
        file = code.co_filename.removeprefix(OWN)
        print(f"{'' if file == last else file:44} {code.co_qualname}")
        last = file


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", metavar="REQUEST", help="print every call of one of the requests")
    wanted = parser.parse_args().calls
    measured = run()
    print_calls(measured[wanted]) if wanted else print_table(measured)
