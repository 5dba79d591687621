"""The backend that talks to a server: each method sends one request."""

# Made from src/warren/sdk/aio/remote.py by scripts/generate_sync.py: edit that one.

import contextlib
from collections.abc import Generator, Iterable, Iterator
from typing import Any
from urllib.parse import quote

from warren.sdk.blocking.transport import Socket, Transport
from warren.sdk.protocol import Request

Values = dict[str, Any]
_EVENTS = "text/event-stream"
_BASE64 = {"encoding": "base64"}


class Remote:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return f"<Remote {self._transport!r}>"

    # -- sessions

    def create(self, wanted: Values, key: str) -> Values:
        return self._call(Request("POST", "/api/sessions", values=wanted, key=key, work_s=60))

    def session(self, session_id: str) -> Values:
        return self._call(Request("GET", _session(session_id)))

    def sessions(self, **filters: Any) -> Values:
        return self._call(Request("GET", "/api/sessions", filters))

    def of_thread(self, thread_id: str) -> Values | None:
        found = self.sessions(thread_id=thread_id, limit=1)
        return found["sessions"][0] if found["sessions"] else None

    def delete(self, session_id: str) -> Values:
        return self._call(Request("DELETE", _session(session_id)))

    def keep_alive(self, session_id: str) -> Values:
        return self._call(Request("POST", f"{_session(session_id)}/keep-alive", repeatable=True))

    def change(self, session_id: str, changes: Values) -> Values:
        return self._call(Request("PATCH", _session(session_id), values=changes))

    def stats(self) -> Values:
        return self._call(Request("GET", "/api/stats"))

    # -- commands

    def execute(self, session_id: str, command: Values, key: str, takes_s: float) -> Values:
        path = f"{_session(session_id)}/exec"
        return self._call(Request("POST", path, values=command, key=key, work_s=takes_s))

    def stream(self, session_id: str, command: Values) -> Generator[tuple[str, Values], None, None]:
        path = f"{_session(session_id)}/exec"
        return self._transport.events(Request("POST", path, _BASE64, values=command, accept=_EVENTS))

    def start(self, session_id: str, command: Values) -> Values:
        return self._call(Request("POST", f"{_session(session_id)}/processes", values=command))

    def processes(self, session_id: str) -> list[Values]:
        found = self._call(Request("GET", f"{_session(session_id)}/processes"))
        processes: list[Values] = found["processes"]
        return processes

    def process(self, session_id: str, process_id: str) -> Values:
        return self._call(Request("GET", _process(session_id, process_id)))

    def output(self, session_id: str, process_id: str, **how: Any) -> Values:
        work_s = float(how.get("wait_s", 0))
        return self._call(Request("GET", f"{_process(session_id, process_id)}/output", how, work_s=work_s))

    def follow(self, session_id: str, process_id: str, offset: int) -> Generator[tuple[str, Values], None, None]:
        query = {"offset": offset, **_BASE64}
        return self._transport.events(
            Request("GET", f"{_process(session_id, process_id)}/output", query, accept=_EVENTS)
        )

    def wait(self, session_id: str, process_id: str, timeout_s: float) -> Values | None:
        """Returns None while the command still runs."""
        request = Request("GET", f"{_process(session_id, process_id)}/wait", {"timeout_s": timeout_s}, work_s=timeout_s)
        found = self._call(request)
        return found if "output" in found else None

    def stdin(self, session_id: str, process_id: str, values: Values) -> None:
        self._call(Request("POST", f"{_process(session_id, process_id)}/stdin", values=values, work_s=3600))

    def signal(self, session_id: str, process_id: str, signal: str | int) -> None:
        self._call(Request("POST", f"{_process(session_id, process_id)}/signal", values={"signal": signal}))

    def kill(self, session_id: str, process_id: str, grace_s: float) -> Values:
        path = f"{_process(session_id, process_id)}/kill"
        return self._call(Request("POST", path, values={"grace_s": grace_s}, work_s=grace_s, repeatable=True))

    def forget(self, session_id: str, process_id: str) -> None:
        self._call(Request("DELETE", _process(session_id, process_id)))

    @contextlib.contextmanager
    def terminal(self, session_id: str, **how: Any) -> Iterator[Socket]:
        given = {name: value for name, value in how.items() if value != ""}
        with self._transport.socket(Request("GET", f"{_session(session_id)}/terminal", given)) as socket:
            yield socket

    # -- files

    def list_files(self, session_id: str, path: str, depth: int) -> list[Values]:
        found = self._call(Request("GET", _files(session_id), {"path": path, "depth": depth}))
        files: list[Values] = found["files"]
        return files

    def stat(self, session_id: str, path: str) -> Values:
        return self._call(Request("GET", f"{_files(session_id)}/stat", {"path": path}))

    @contextlib.contextmanager
    def read(
        self, session_id: str, path: str, offset: int = 0, length: int | None = None
    ) -> Iterator[tuple[int, Generator[bytes, None, None]]]:
        """Yields the length of the file, and its bytes from `offset` on."""
        request = Request(
            "GET", f"{_files(session_id)}/content", {"path": path}, byte_range=_byte_range(offset, length)
        )
        with self._transport.download(request) as (headers, parts):
            yield int(headers.get("x-file-size", 0)), parts

    def write(self, session_id: str, path: str, data: bytes | Iterable[bytes], mode: str) -> Values:
        request = Request("PUT", f"{_files(session_id)}/content", {"path": path, "mode": mode or None}, work_s=3600)
        found: Values = self._transport.upload(request, data)
        return found

    def mkdir(self, session_id: str, path: str) -> Values:
        return self._call(Request("POST", f"{_files(session_id)}/mkdir", values={"path": path}))

    def remove(self, session_id: str, path: str, recursive: bool) -> None:
        self._call(Request("DELETE", _files(session_id), {"path": path, "recursive": recursive}))

    def move(self, session_id: str, source: str, target: str) -> Values:
        return self._call(Request("POST", f"{_files(session_id)}/move", values={"source": source, "target": target}))

    @contextlib.contextmanager
    def pack(self, session_id: str, path: str) -> Iterator[Generator[bytes, None, None]]:
        with self._transport.download(Request("GET", f"{_files(session_id)}/archive", {"path": path})) as (
            _,
            parts,
        ):
            yield parts

    def unpack(self, session_id: str, path: str, tar: bytes | Iterable[bytes]) -> int:
        request = Request("PUT", f"{_files(session_id)}/archive", {"path": path}, work_s=3600)
        found = self._transport.upload(request, tar)
        return int(found["members"])

    def watch(self, session_id: str, path: str, recursive: bool) -> Generator[tuple[str, Values], None, None]:
        request = Request("GET", f"{_files(session_id)}/watch", {"path": path, "recursive": recursive}, accept=_EVENTS)
        return self._transport.events(request)

    def close(self) -> None:
        self._transport.close()

    def _call(self, request: Request) -> Values:
        found: Values = self._transport.call(request)
        return found


def _byte_range(offset: int, length: int | None) -> str:
    if not offset and length is None:
        return ""
    return f"bytes={offset}-{'' if length is None else offset + length - 1}"


def _session(session_id: str) -> str:
    return f"/api/sessions/{quote(session_id, safe='')}"


def _process(session_id: str, process_id: str) -> str:
    return f"{_session(session_id)}/processes/{quote(process_id, safe='')}"


def _files(session_id: str) -> str:
    return f"{_session(session_id)}/files"
