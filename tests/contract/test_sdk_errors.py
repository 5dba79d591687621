"""What a caller hears when something is wrong: one exception each, which says what, and what to do about it."""

import asyncio
import gc
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, free_port, running_server
from this_run import new_state_dir

from warren import AsyncSandboxClient, SandboxClient
from warren.model.errors import (
    FileNotFound,
    ServerUnreachable,
    SessionNotFound,
    TooLarge,
    Unauthorized,
    WarrenError,
)
from warren.sdk.aio.remote import AsyncRemote
from warren.sdk.aio.transport import AsyncTransport
from warren.sdk.blocking.remote import Remote
from warren.sdk.blocking.transport import Transport
from warren.sdk.discovery import find_key, find_url
from warren.sdk.protocol import TransportOptions

pytestmark = pytest.mark.anyio

Request = Callable[..., Awaitable[Any]]
QUICK = TransportOptions(first_pause_s=0.001)
KEY = "the-right-key-0123456789"


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    path = new_state_dir()
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def server(state: Path) -> Iterator[ServerProcess]:
    with running_server(state, provider="fake", WARREN_API_KEY=KEY) as server:
        yield server


@pytest.fixture(params=["blocking", "asyncio"])
def ask(request: pytest.FixtureRequest) -> Request:
    """Calls a method of a client that is made with the options, in either way."""

    async def blocking(name: str, *args: Any, **options: Any) -> Any:
        def work() -> Any:
            backend = Remote(Transport(*place(options), QUICK))
            client = SandboxClient(**options, backend=backend)
            try:
                with client.terminal() if name == "terminal" else _nothing(client, name, *args) as result:
                    return result
            finally:
                client.leave()
                backend.close()

        return await asyncio.to_thread(work)

    async def native(name: str, *args: Any, **options: Any) -> Any:
        backend = AsyncRemote(AsyncTransport(*place(options), QUICK))
        client = AsyncSandboxClient(**options, backend=backend)
        try:
            if name == "terminal":
                async with client.terminal():
                    return None
            return await getattr(client, name)(*args)
        finally:
            await client.leave()
            await backend.close()

    return blocking if request.param == "blocking" else native


def place(options: dict[str, Any]) -> tuple[str, str]:
    """Where the server is and with which key, as a client finds it."""
    url = options.pop("server_url", "") or find_url()
    return url, options.pop("api_key", "") or find_key(url)


class _nothing:
    def __init__(self, client: SandboxClient, name: str, *args: Any) -> None:
        self._call = (client, name, args)

    def __enter__(self) -> Any:
        client, name, args = self._call
        return getattr(client, name)(*args)

    def __exit__(self, *_: object) -> None:
        return None


async def heard(kind: type[WarrenError], work: Awaitable[Any], *words: str) -> None:
    with pytest.raises(WarrenError) as caught:
        await work
    assert type(caught.value) is kind
    assert caught.value.remedy
    for word in words:
        assert re.search(word, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("verb", ["create_session", "execute", "terminal", "read_file"])
async def test_a_server_that_is_not_there(ask: Request, verb: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    args = ["x"] if verb in ("execute", "read_file") else []
    work = ask(verb, *args, server_url=url, session_id="" if verb == "create_session" else "ses_x")
    await heard(ServerUnreachable, work, re.escape(url), "cannot be reached", "warren serve")


@pytest.mark.parametrize("key", ["", "wrong"])
@pytest.mark.parametrize("verb", ["create_session", "terminal", "list_files"])
async def test_a_key_that_is_not_right(ask: Request, server: ServerProcess, key: str, verb: str) -> None:
    session_id = "" if verb == "create_session" else "ses_x"
    await heard(Unauthorized, ask(verb, server_url=server.url, api_key=key, session_id=session_id))


async def test_the_right_key_from_the_environment(
    ask: Request, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARREN_URL", server.url)
    monkeypatch.setenv("WARREN_API_KEY", KEY)
    assert (await ask("execute", "echo in")).output == "in\n"


async def test_a_session_that_is_gone(ask: Request, server: ServerProcess) -> None:
    for verb, *args in (("execute", "true"), ("info",), ("read_file", "x"), ("terminal",)):
        with pytest.raises(SessionNotFound, match="ses_gone"):
            await ask(verb, *args, server_url=server.url, api_key=KEY, session_id="ses_gone")


async def test_a_file_that_is_missing(ask: Request, server: ServerProcess, tmp_path: Path) -> None:
    with pytest.raises(FileNotFound, match="no-such-file"):
        await ask("read_file", "no-such-file", server_url=server.url, api_key=KEY)
    with pytest.raises(FileNotFound, match="on this machine"):
        await ask("upload_file", tmp_path / "no-such-file", server_url=server.url, api_key=KEY)


async def test_a_body_that_is_too_large(ask: Request, server: ServerProcess) -> None:
    with pytest.raises(TooLarge):
        await ask("execute", "x" * 8_000_000, server_url=server.url, api_key=KEY)


async def test_a_server_that_dies_during_a_command(ask: Request, state: Path) -> None:
    own = new_state_dir()
    server = ServerProcess(own, provider="fake")
    server.start()
    try:
        client = AsyncSandboxClient(server.url)
        await client.create_session()
        command = asyncio.ensure_future(ask("execute", "sleep 30", server_url=server.url, session_id=client.session_id))
        while not (await client.processes() or command.done()):
            await asyncio.sleep(0.02)
        server.kill()
        await heard(ServerUnreachable, command, "broke during POST", "exactly_once")
        await client.close()
    finally:
        server.kill()
        shutil.rmtree(own)


async def test_an_async_client_that_is_dropped_says_that_it_was_not_closed(server: ServerProcess) -> None:
    client = AsyncSandboxClient(server.url, api_key=KEY)
    session_id = (await client.create_session()).session_id
    await client._backend.close()  # aiohttp would warn of connections as well
    clients = [client]
    del client
    with pytest.warns(RuntimeWarning, match=f"{session_id}.* was not closed: use `async with`"):
        clients.clear()
    async with AsyncSandboxClient(server.url, api_key=KEY, session_id=session_id) as again:
        await again.cleanup()
    async with AsyncSandboxClient(server.url, api_key=KEY) as closed:
        await closed.create_session()
    del again, closed
    gc.collect()  # a warning would be an error here
