"""A provider with real sandboxes, all of them destroyed at the end of the test; a server, and `warren` against it."""

import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from machine.cli_terminal import Open, Terminal
from machine.remote_cli import RemoteCli
from server_process import ServerProcess, running_server
from this_run import new_state_dir

import warren
from warren.images.store.store import ImageStore
from warren.sandboxes.providers.oci import OciProvider


@pytest.fixture
async def provider(state_dir: Path, image_store: ImageStore) -> AsyncIterator[OciProvider]:
    provider = OciProvider(state_dir, image_store, Path(warren.__file__).parent / "bin")
    yield provider
    for sandbox_id in await provider.list_ids():
        await provider.destroy(sandbox_id)
    await provider.close()


@contextlib.contextmanager
def checked_state_dir(image_cache: Path) -> Iterator[Path]:
    """With the kept images; at its end no sandbox may be left in it."""
    path = new_state_dir(image_cache)
    yield path
    left = list((path / "sandboxes").glob("*"))
    shutil.rmtree(path, ignore_errors=True)
    assert left == []


@pytest.fixture
def fresh_state_dir(image_cache: Path) -> Iterator[Path]:
    with checked_state_dir(image_cache) as path:
        yield path


@pytest.fixture(scope="module")
def server(image_cache: Path) -> Iterator[ServerProcess]:
    """A real server for the tests of a module."""
    with checked_state_dir(image_cache) as path, running_server(path, "--pool-size", "2") as server:
        yield server


@pytest.fixture(scope="module")
def cli(server: ServerProcess) -> RemoteCli:
    return RemoteCli(server.url)


@pytest.fixture
def session(cli: RemoteCli) -> Iterator[str]:
    session_id = cli.say("create").strip()
    yield session_id
    cli.say("kill", session_id)


@pytest.fixture
def opened(cli: RemoteCli) -> Iterator[Open]:
    """Runs `warren` in terminals; they are closed at the end of the test."""
    terminals: list[Terminal] = []

    def open_terminal(*arguments: str, columns: int = 100, **environ: str) -> Terminal:
        terminals.append(Terminal(cli.argv(*arguments), cli.environ | environ, rows=30, columns=columns))
        return terminals[-1]

    yield open_terminal
    for terminal in terminals:
        terminal.close()
