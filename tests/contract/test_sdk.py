"""The clients' contract in all ways there are: blocking and asyncio, over HTTP and on this machine, real and fake."""

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
from contract.sdk_async_code_contract import AsyncCodeContract, AsyncPythonContract
from contract.sdk_async_contract import AsyncBatchContract, AsyncCommandContract, AsyncSessionContract
from contract.sdk_async_files_contract import AsyncFilesContract, AsyncTerminalContract
from contract.sdk_async_snapshots_contract import AsyncSnapshotsContract
from contract.sdk_blocking_code_contract import CodeContract, PythonContract
from contract.sdk_blocking_contract import BatchContract, CommandContract, SessionContract
from contract.sdk_blocking_files_contract import FilesContract, TerminalContract
from contract.sdk_blocking_snapshots_contract import SnapshotsContract
from marks import first_of
from server_process import ServerProcess, running_server
from this_run import new_state_dir

from warren import AsyncBatchSandboxClient, AsyncSandboxClient, BatchSandboxClient, SandboxClient
from warren.local import Local
from warren.local.engine import ENGINE
from warren.model.errors import ServerUnreachable

Options = dict[str, str]

pytestmark = pytest.mark.group_by("provider", "options")


@pytest.fixture(scope="module", params=first_of(["fake", "oci"]))
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def options(request: pytest.FixtureRequest, provider: str, image_cache: Path) -> Iterator[Options]:
    """How a client finds the place that is tested."""
    state = new_state_dir(image_cache)
    if request.param == "remote":
        with running_server(state, "--pool-size", "2", provider=provider) as server:
            yield {"server_url": server.url}
    else:
        yield from _local(state, provider)
    assert list((state / "sandboxes").glob("*")) == []
    shutil.rmtree(state)


def _local(state: Path, provider: str) -> Iterator[Options]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARREN_STATE_DIR", str(state))
        patch.setenv("WARREN_CONFIG", "/dev/null")
        patch.setenv("WARREN_PROVIDER", provider)
        patch.setenv("WARREN_POOL_SIZE", "2")
        # Holds the service, which would start anew for each test otherwise.
        keeper = Local()
        keeper.stats()
        yield {"mode": "local"}
        keeper.close()
        assert repr(ENGINE) == "<Engine not running, 0 clients>"


class Async:
    pytestmark = pytest.mark.parametrize("options", first_of(["local", "remote"]), scope="module", indirect=True)

    @pytest.fixture
    def new(self, options: Options) -> "partial[AsyncSandboxClient]":
        return partial(AsyncSandboxClient, **options)  # type: ignore[arg-type]

    @pytest.fixture
    def new_batch(self, options: Options) -> "partial[AsyncBatchSandboxClient]":
        return partial(AsyncBatchSandboxClient, **options)


class Blocking:
    pytestmark = pytest.mark.parametrize("options", first_of(["remote", "local"]), scope="module", indirect=True)

    @pytest.fixture
    def new(self, options: Options) -> "partial[SandboxClient]":
        return partial(SandboxClient, **options)  # type: ignore[arg-type]

    @pytest.fixture
    def new_batch(self, options: Options) -> "partial[BatchSandboxClient]":
        return partial(BatchSandboxClient, **options)


class TestAsyncSessions(Async, AsyncSessionContract):
    pass


@pytest.mark.parametrize("provider", ["oci"], scope="module", indirect=True)
class TestAsyncCommands(Async, AsyncCommandContract):
    pass


class TestAsyncBatch(Async, AsyncBatchContract):
    pass


class TestAsyncFiles(Async, AsyncFilesContract):
    pass


@pytest.mark.parametrize("provider", ["oci"], scope="module", indirect=True)
class TestAsyncTerminals(Async, AsyncTerminalContract):
    pass


class TestAsyncCode(Async, AsyncCodeContract):
    pass


class TestAsyncSnapshots(Async, AsyncSnapshotsContract):
    pass


@pytest.mark.parametrize("provider", ["oci"], scope="module", indirect=True)
class TestAsyncPython(Async, AsyncPythonContract):
    pass


class TestSessions(Blocking, SessionContract):
    pass


@pytest.mark.parametrize("provider", ["oci"], scope="module", indirect=True)
class TestCommands(Blocking, CommandContract):
    pass


class TestBatch(Blocking, BatchContract):
    pass


class TestFiles(Blocking, FilesContract):
    pass


@pytest.mark.parametrize("provider", ["oci"], scope="module", indirect=True)
class TestTerminals(Blocking, TerminalContract):
    pass


class TestCode(Blocking, CodeContract):
    pass


class TestSnapshots(Blocking, SnapshotsContract):
    pass


@pytest.mark.parametrize("provider", ["oci"], scope="module", indirect=True)
class TestPython(Blocking, PythonContract):
    pass


@pytest.mark.parametrize("provider", ["oci"], scope="module", indirect=True)
class TestAsyncCancellation(Async):
    pytestmark = pytest.mark.anyio

    async def test_cancelling_a_command_ends_it(self, new: "partial[AsyncSandboxClient]") -> None:
        async with new() as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client.execute("sleep 60")
            for _ in range(50):
                if (left := (await client.execute("pgrep -x sleep")).output) == "":
                    break
                await asyncio.sleep(0.1)
            assert left == ""

    async def test_cancelling_the_creation_of_a_session_leaves_none(self, new: "partial[AsyncSandboxClient]") -> None:
        async with new() as watcher:

            async def there() -> list[str]:
                found = await AsyncSandboxClient.list_sessions(backend=watcher._backend)
                return [info.session_id for info in found]

            client = new(limits={"memory_mb": 300})  # is made anew, which takes a while
            making = asyncio.ensure_future(client.__aenter__())
            while len(await there()) < 2 and not making.done():
                await asyncio.sleep(0)
            making.cancel()
            await asyncio.wait([making])
            if not making.cancelled():
                await client.leave()
            while await there() != [watcher.session_id]:
                await asyncio.sleep(0.05)

    async def test_cancelling_a_stream_ends_it_and_the_client_goes_on(self, new: "partial[AsyncSandboxClient]") -> None:
        async def follow(client: AsyncSandboxClient) -> None:
            async for _ in client.stream("while sleep 0.05; do echo on; done"):
                pass

        async with new() as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(follow(client), 0.5)
            assert (await client.execute("echo fine")).output == "fine\n"

    async def test_cancelling_code_interrupts_it_and_its_variables_stay(
        self, new: "partial[AsyncSandboxClient]"
    ) -> None:
        async with new() as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await client.run_code("x = 'kept'\nimport time\ntime.sleep(60)")
            assert (await client.run_code("x", timeout=20)).text == "'kept'"

    async def test_cancelling_an_upload_leaves_no_file(self, new: "partial[AsyncSandboxClient]") -> None:
        async def slowly() -> AsyncIterator[bytes]:
            yield b"first"
            await asyncio.sleep(60)

        async with new() as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client._backend.upload("write_file", client.session_id, slowly(), path="half")
            assert not await client.exists("half")


@pytest.mark.parametrize("provider", ["oci"], scope="module", indirect=True)
class TestInterruptedCode(Blocking):
    def test_ctrl_c_interrupts_the_code_and_its_variables_stay(self, new: "partial[SandboxClient]") -> None:
        def press(_: object) -> None:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()

        with new() as client:
            with pytest.raises(KeyboardInterrupt):
                client.run_code("x = 'kept'\nprint('begun', flush=True)\nimport time\ntime.sleep(60)", on_stdout=press)
            assert client.run_code("x", timeout=20).text == "'kept'"


def test_code_whose_server_dies_can_be_read_when_the_server_is_back(image_cache: Path) -> None:
    state = new_state_dir(image_cache)
    server = ServerProcess(state, "--pool-size", "0", "--on-stop", "destroy")
    server.start()
    try:
        with SandboxClient(server.url) as client:
            code = "import time\nprint('begun', flush=True)\ntime.sleep(3)\nprint('done')\n6 * 7"
            with pytest.raises(ServerUnreachable, match="get_execution") as caught:
                client.run_code(code, on_stdout=lambda _: server.kill())
            server.start()
            execution = client.get_execution(caught.value.execution_id)
            assert ("".join(execution.logs.stdout), execution.text) == ("begun\ndone\n", "42")
    finally:
        server.stop()
        shutil.rmtree(state)
