"""Workers and coordinators that show each other certificates, or do not."""

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from certificates import Certificates, make_certificates
from machine.proxy_world import HOST, RecordingApp, World

from warren.http.client.client import WorkerClient
from warren.http.client.errors import ForwardingFailed, Unreachable
from warren.http.server.tls import new_tls_context

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()
    gc.collect()


async def get(client: WorkerClient, address: str, method: str = "GET", body: bytes = b"") -> bytes:
    async with asyncio.timeout(30), client.request(address, method, b"/", [HOST], body) as response:
        return await response.read_all(1 << 20)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


class TestTls:
    @staticmethod
    def server(certificates: Certificates) -> ssl.SSLContext:
        context = new_tls_context(certificates.cert, certificates.key)
        assert context is not None
        context.load_verify_locations(certificates.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    async def test_a_worker_and_a_coordinator_that_know_each_other(
        self, world: World, certificates: Certificates
    ) -> None:
        worker = RecordingApp(body=b"x" * 1_000_000)
        address = await world.start_worker(worker, self.server(certificates))
        tls = certificates.client
        tls.load_cert_chain(certificates.cert, certificates.key)
        client = WorkerClient(tls=tls)
        for where in (address, f"https://{address}", f"https://{address.replace('127.0.0.1', 'localhost')}"):
            for _ in range(2):
                assert await get(client, where, "POST", b"y" * 1_000_000) == worker.body
                assert worker.seen.pop().body == b"y" * 1_000_000
        assert repr(client).count("1 open, 1 idle") == 3
        await client.close()

    async def test_a_coordinator_without_a_certificate(self, world: World, certificates: Certificates) -> None:
        """Our workers just close the connection: it is not known then that nothing was done."""
        worker = RecordingApp()
        client = WorkerClient(tls=certificates.client)
        address = await world.start_worker(worker, self.server(certificates))
        with pytest.raises(ForwardingFailed):
            await get(client, address, "POST", b"x")
        assert worker.seen == []
        await client.close()

    async def test_a_coordinator_that_is_told_that_it_has_no_certificate(self, certificates: Certificates) -> None:
        client = WorkerClient(tls=certificates.client)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            refusing = asyncio.create_task(asyncio.to_thread(self.refuse, listener, self.server(certificates)))
            with pytest.raises(Unreachable, match="TLS"):
                await get(client, f"127.0.0.1:{listener.getsockname()[1]}", "POST", b"x")
            await refusing
        await client.close()

    @staticmethod
    def refuse(listener: socket.socket, context: ssl.SSLContext) -> None:
        taken, _ = listener.accept()
        with taken, pytest.raises(ssl.SSLError):
            context.wrap_socket(taken, server_side=True)

    async def test_a_worker_that_nobody_vouches_for(
        self, world: World, certificates: Certificates, tmp_path: Path
    ) -> None:
        client = WorkerClient(tls=make_certificates(tmp_path).client)
        with pytest.raises(Unreachable, match="TLS"):
            await get(client, await world.start_worker(RecordingApp(), self.server(certificates)))
        await client.close()

    async def test_a_worker_that_does_not_speak_tls(self, world: World, certificates: Certificates) -> None:
        client = WorkerClient(tls=certificates.client)
        with pytest.raises(Unreachable):
            await get(client, await world.start_worker(RecordingApp()))
        await client.close()
