"""Private parts of libraries that we use are still there, and still do what we use them for.

Each is used at one place: `warren.local.engine` (threading), `warren.sdk.aio.transport` (aiohttp), `warren.http.server`
(uvicorn), `warren.images.transfer.import_tree` (tarfile), `warren.integrations.deepagents_files` (deepagents).
"""

import ast
import asyncio
import contextlib
import inspect
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Iterator

import aiohttp
import pytest
import uvicorn
from deepagents.backends.utils import _get_file_type
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from warren.http.server.connections import HttpConnection, WebSocketConnection
from warren.http.server.http_guard import HttpLimits
from warren.http.server.serving import HttpServer
from warren.sdk.aio.transport import disable_retries

_AT_EXIT = """
import concurrent.futures
from warren.local.engine import run_before_executors_close
pool = concurrent.futures.ThreadPoolExecutor(1)
run_before_executors_close(lambda: print(pool.submit(int, "7").result()))
"""

# What uvicorn calls of a protocol, and we answer: one that it no longer calls would be a limit that no longer holds.
_HTTP_HOOKS = {
    *(
        "connection_made",
        "connection_lost",
        "eof_received",
        "data_received",
        "on_message_begin",
        "on_headers_complete",
    ),
    *("on_body", "on_message_complete", "on_response_complete", "shutdown", "_start_asgi_task"),
}
_WEBSOCKET_HOOKS = {
    "receive",
    "data_received",
    "send",
    "handle_ping",
    "handle_cont",
    "send_receive_event_to_app",
    "keepalive_timeout",
    "send_keepalive_ping",
    "shutdown",
    "handle_parser_exception",
}


def test_threading_calls_us_before_executors_close() -> None:
    done = subprocess.run([sys.executable, "-c", _AT_EXIT], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("7\n", "")


@pytest.mark.anyio
@pytest.mark.parametrize("is_disabled", [False, True])
async def test_aiohttp_repeats_a_request_over_a_new_connection_unless_told_not_to(is_disabled: bool) -> None:
    connections = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the first request of a connection, and closes over the second."""
        connections.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, aiohttp.ClientSession() as session:
        if is_disabled:
            disable_retries(session)
        await (await session.get(url)).read()
        if is_disabled:
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await session.get(url)
        else:
            assert (await session.get(url)).status == 200
        assert len(connections) == (1 if is_disabled else 2)
    for writer in connections:
        writer.close()


def test_tarfile_lets_a_member_refuse_its_own_headers() -> None:
    """tests/unit/test_image_import.py has an archive that would fill the memory."""
    assert list(inspect.signature(tarfile.TarInfo._proc_member).parameters) == ["self", "tarfile"]


@pytest.mark.parametrize(("path", "kind"), [("/a.py", "text"), ("/a", "text"), ("/a.png", "image"), ("/a.pdf", "file")])
def test_deepagents_tells_files_by_their_names(path: str, kind: str) -> None:
    assert _get_file_type(path) == kind


@pytest.mark.parametrize(
    ("ours", "base", "hooks"),
    [
        (HttpConnection, HttpToolsProtocol, _HTTP_HOOKS),
        (WebSocketConnection, WebSocketsSansIOProtocol, _WEBSOCKET_HOOKS),
    ],
)
def test_uvicorn_calls_what_we_override(ours: type, base: type, hooks: set[str]) -> None:
    overridden = {name for name in vars(ours) if name in vars(base) and not name.startswith("__")}
    assert overridden == hooks
    source = inspect.getsource(inspect.getmodule(base))  # type: ignore[arg-type]
    for name in hooks:
        assert source.count(name) >= 1
        parameters = [list(inspect.signature(getattr(kind, name)).parameters) for kind in (ours, base)]
        assert parameters[0] == parameters[1], name
    if base is HttpToolsProtocol:
        assert source.count("self._start_asgi_task(") == 2
        assert source.count("self.headers.append(") == 1  # we give it another list when the head is complete


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [HttpConnection, WebSocketConnection])
async def test_uvicorn_has_the_attributes_that_we_use(kind: type) -> None:
    limits = HttpLimits()
    config = uvicorn.Config(_app, http=HttpToolsProtocol, ws=WebSocketsSansIOProtocol)  # type: ignore[arg-type]
    protocol = kind(limits=limits, config=config, server_state=ServerState(), app_state={})
    if kind is HttpConnection:
        protocol.on_message_begin()
    missing = {name for name in _attributes_of(kind, "self") if not hasattr(protocol, name)}
    assert missing <= {"_response_transport", "_flow", "scope"}  # made with the connection


@pytest.mark.anyio
async def test_uvicorn_has_the_parts_of_a_connection_that_we_use() -> None:
    cycle_names = set(inspect.getsource(RequestResponseCycle).split())
    for name in _attributes_of(HttpConnection, "cycle", "last", "_active"):
        assert hasattr(RequestResponseCycle, name) or f"self.{name}" in cycle_names or f"self.{name}:" in cycle_names
    for name in _attributes_of(HttpConnection, "flow"):
        assert hasattr(FlowControl, name) or name in inspect.getsource(FlowControl)
    state = ServerState()
    assert all(hasattr(state, name) for name in _attributes_of(HttpServer, "_state"))


async def _app(scope: object, receive: object, send: object) -> None: ...


def _attributes_of(kind: type, *owners: str) -> set[str]:
    """The attributes that a class uses of its variables with one of these names: `x.attribute`, `self.x.attribute`."""
    return set(_attributes(ast.parse(textwrap.dedent(inspect.getsource(kind))), owners))


def _attributes(tree: ast.AST, owners: tuple[str, ...]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if owner in owners:
                yield node.attr
