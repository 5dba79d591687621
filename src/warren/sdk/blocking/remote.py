"""A server over HTTP as a backend: each verb is one request."""

# Made from src/warren/sdk/aio/remote.py by scripts/generate_sync.py: edit that one.

import contextlib
from collections.abc import Generator, Iterable, Iterator
from typing import Any
from urllib.parse import quote

from warren.sdk.blocking.transport import Socket, Transport
from warren.sdk.wire import Ask

Values = dict[str, Any]
_EVENTS = "text/event-stream"
_EVERY_BYTE = {"encoding": "base64"}


class Remote:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return f"<Remote {self._transport!r}>"

    # -- sessions

    def create(self, wanted: Values, key: str) -> Values:
        return self._ask(Ask("POST", "/api/sessions", values=wanted, key=key, takes_s=60))

    def session(self, session_id: str) -> Values:
        return self._ask(Ask("GET", _session(session_id)))

    def sessions(self, **filters: Any) -> Values:
        return self._ask(Ask("GET", "/api/sessions", filters))

    def of_thread(self, thread_id: str) -> Values | None:
        found = self.sessions(thread_id=thread_id, limit=1)
        return found["sessions"][0] if found["sessions"] else None

    def delete(self, session_id: str) -> Values:
        return self._ask(Ask("DELETE", _session(session_id)))

    def keep_alive(self, session_id: str) -> Values:
        return self._ask(Ask("POST", f"{_session(session_id)}/keep-alive", repeatable=True))

    def change(self, session_id: str, changes: Values) -> Values:
        return self._ask(Ask("PATCH", _session(session_id), values=changes))

    def stats(self) -> Values:
        return self._ask(Ask("GET", "/api/stats"))

    # -- commands

    def execute(self, session_id: str, command: Values, key: str, takes_s: float) -> Values:
        path = f"{_session(session_id)}/exec"
        return self._ask(Ask("POST", path, values=command, key=key, takes_s=takes_s))

    def stream(self, session_id: str, command: Values) -> Generator[tuple[str, Values], None, None]:
        path = f"{_session(session_id)}/exec"
        return self._transport.events(Ask("POST", path, _EVERY_BYTE, values=command, accept=_EVENTS))

    def start(self, session_id: str, command: Values) -> Values:
        return self._ask(Ask("POST", f"{_session(session_id)}/processes", values=command))

    def processes(self, session_id: str) -> list[Values]:
        found = self._ask(Ask("GET", f"{_session(session_id)}/processes"))
        processes: list[Values] = found["processes"]
        return processes

    def process(self, session_id: str, process_id: str) -> Values:
        return self._ask(Ask("GET", _process(session_id, process_id)))

    def output(self, session_id: str, process_id: str, **how: Any) -> Values:
        takes_s = float(how.get("wait_s", 0))
        return self._ask(Ask("GET", f"{_process(session_id, process_id)}/output", how, takes_s=takes_s))

    def follow(self, session_id: str, process_id: str, offset: int) -> Generator[tuple[str, Values], None, None]:
        query = {"offset": offset, **_EVERY_BYTE}
        return self._transport.events(Ask("GET", f"{_process(session_id, process_id)}/output", query, accept=_EVENTS))

    def wait(self, session_id: str, process_id: str, timeout_s: float) -> Values | None:
        """None: it still runs."""
        ask = Ask("GET", f"{_process(session_id, process_id)}/wait", {"timeout_s": timeout_s}, takes_s=timeout_s)
        found = self._ask(ask)
        return found if "output" in found else None

    def stdin(self, session_id: str, process_id: str, values: Values) -> None:
        self._ask(Ask("POST", f"{_process(session_id, process_id)}/stdin", values=values, takes_s=3600))

    def signal(self, session_id: str, process_id: str, signal: str | int) -> None:
        self._ask(Ask("POST", f"{_process(session_id, process_id)}/signal", values={"signal": signal}))

    def kill(self, session_id: str, process_id: str, grace_s: float) -> Values:
        path = f"{_process(session_id, process_id)}/kill"
        return self._ask(Ask("POST", path, values={"grace_s": grace_s}, takes_s=grace_s, repeatable=True))

    def forget(self, session_id: str, process_id: str) -> None:
        self._ask(Ask("DELETE", _process(session_id, process_id)))

    @contextlib.contextmanager
    def terminal(self, session_id: str, **how: Any) -> Iterator[Socket]:
        given = {name: value for name, value in how.items() if value != ""}
        with self._transport.socket(Ask("GET", f"{_session(session_id)}/terminal", given)) as socket:
            yield socket

    # -- files

    def list_files(self, session_id: str, path: str, depth: int) -> list[Values]:
        found = self._ask(Ask("GET", _files(session_id), {"path": path, "depth": depth}))
        files: list[Values] = found["files"]
        return files

    def stat(self, session_id: str, path: str) -> Values:
        return self._ask(Ask("GET", f"{_files(session_id)}/stat", {"path": path}))

    @contextlib.contextmanager
    def read(
        self, session_id: str, path: str, offset: int = 0, length: int | None = None
    ) -> Iterator[tuple[int, Generator[bytes, None, None]]]:
        """How long the file is, and its bytes, or those of them that were asked for."""
        ask = Ask("GET", f"{_files(session_id)}/content", {"path": path}, part=_part(offset, length))
        with self._transport.receive(ask) as (headers, parts):
            yield int(headers.get("x-file-size", 0)), parts

    def write(self, session_id: str, path: str, data: bytes | Iterable[bytes], mode: str) -> Values:
        ask = Ask("PUT", f"{_files(session_id)}/content", {"path": path, "mode": mode or None}, takes_s=3600)
        found: Values = self._transport.send(ask, data)
        return found

    def mkdir(self, session_id: str, path: str) -> Values:
        return self._ask(Ask("POST", f"{_files(session_id)}/mkdir", values={"path": path}))

    def remove(self, session_id: str, path: str, recursive: bool) -> None:
        self._ask(Ask("DELETE", _files(session_id), {"path": path, "recursive": recursive}))

    def move(self, session_id: str, source: str, target: str) -> Values:
        return self._ask(Ask("POST", f"{_files(session_id)}/move", values={"source": source, "target": target}))

    @contextlib.contextmanager
    def pack(self, session_id: str, path: str) -> Iterator[Generator[bytes, None, None]]:
        with self._transport.receive(Ask("GET", f"{_files(session_id)}/archive", {"path": path})) as (_, parts):
            yield parts

    def unpack(self, session_id: str, path: str, tar: bytes | Iterable[bytes]) -> int:
        ask = Ask("PUT", f"{_files(session_id)}/archive", {"path": path}, takes_s=3600)
        found = self._transport.send(ask, tar)
        return int(found["members"])

    def watch(self, session_id: str, path: str, recursive: bool) -> Generator[tuple[str, Values], None, None]:
        ask = Ask("GET", f"{_files(session_id)}/watch", {"path": path, "recursive": recursive}, accept=_EVENTS)
        return self._transport.events(ask)

    def close(self) -> None:
        self._transport.close()

    def _ask(self, ask: Ask) -> Values:
        found: Values = self._transport.ask(ask)
        return found


def _part(offset: int, length: int | None) -> str:
    if not offset and length is None:
        return ""
    return f"bytes={offset}-{'' if length is None else offset + length - 1}"


def _session(session_id: str) -> str:
    return f"/api/sessions/{quote(session_id, safe='')}"


def _process(session_id: str, process_id: str) -> str:
    return f"{_session(session_id)}/processes/{quote(process_id, safe='')}"


def _files(session_id: str) -> str:
    return f"{_session(session_id)}/files"
