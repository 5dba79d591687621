"""What providers with the capability PAUSE promise (interfaces/provider.py); the second suite needs a kernel."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import anyio
import pytest
from contract.provider_contract import ProviderHooks
from this_run import patience

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Process, Sandbox
from warren.model.code import LANGUAGES
from warren.model.errors import SandboxLost, SandboxNotFound
from warren.model.operations import Command, Reason, TerminalSize
from warren.model.spec import MIB
from warren.sandboxes.keepers import start_keeper

_WAITS_FOR_FILE = """\
trap 'echo asked; until [ -e go ]; do sleep 0.02; done; echo saved; exit 7' TERM
echo up
while :; do sleep 0.02; done
"""
_SERVER = """\
import socket
server = socket.create_server(("127.0.0.1", 3000))
while True:
    caller = server.accept()[0]
    caller.sendall(caller.recv(100))
"""


class Frozen:
    """Freezes a sandbox for a block, at least for `seconds`; thaws it as a worker does."""

    def __init__(self, provider: Provider, sandbox: Sandbox, seconds: float = 0.0) -> None:
        self._provider, self._sandbox, self._seconds = provider, sandbox, seconds

    async def __aenter__(self) -> None:
        await self._provider.freeze(self._sandbox.id)
        self._began = time.monotonic()

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(self._began + self._seconds - time.monotonic())
        self._sandbox.note_pause(time.monotonic() - self._began)
        await self._provider.thaw(self._sandbox.id)


async def said(process: Process, text: bytes) -> None:
    """What a process has written, up to this text."""
    got, source = b"", process.output()
    with anyio.fail_after(patience(20)):
        async for chunk in source:
            got += chunk.data
            if text in got:
                break
    await source.aclose()  # type: ignore[attr-defined]
    assert text in got


@pytest.mark.anyio
class PauseContract(ProviderHooks):
    @pytest.fixture
    async def provider(self) -> AsyncIterator[Provider]:
        raise NotImplementedError
        yield

    @pytest.fixture
    async def sandbox(self, provider: Provider) -> AsyncIterator[Sandbox]:
        box = await provider.create(self.spec())
        try:
            with anyio.fail_after(patience(60)):
                yield box
        finally:
            await provider.destroy(box.id)

    async def test_what_is_frozen_does_nothing_and_goes_on_when_it_is_thawed(
        self, provider: Provider, sandbox: Sandbox
    ) -> None:
        process = await sandbox.start(Command(shell="echo up; cat; exit 5", stdin=True))
        await said(process, b"up")
        assert not sandbox.is_frozen()
        for word in (b"one", b"two"):
            await provider.freeze(sandbox.id)
            await provider.freeze(sandbox.id)
            assert sandbox.is_frozen()
            await process.write(word + b"\n")
            running = asyncio.ensure_future(sandbox.exec(Command(shell="echo later")))
            await asyncio.sleep(0.2)
            assert not running.done()
            await provider.thaw(sandbox.id)
            await provider.thaw(sandbox.id)
            assert not sandbox.is_frozen()
            assert (await running).stdout == "later\n"
            await said(process, word)
        await process.close_stdin()
        result = await process.wait()
        assert (result.stdout, result.exit_code, result.reason) == ("up\none\ntwo\n", 5, Reason.EXITED)

    async def test_the_time_limit_of_a_command_stands_still_with_it(self, provider: Provider, sandbox: Sandbox) -> None:
        limit_s = patience(2.5)
        process = await sandbox.start(Command(shell="echo up; cat", stdin=True, timeout_s=limit_s))
        await said(process, b"up")
        async with Frozen(provider, sandbox, limit_s + 0.5):
            pass
        await asyncio.sleep(1.3)  # it has the rest of its time, and not only a moment to be told of the pause
        await process.write(b"still here\n")
        await said(process, b"still here")
        result = await process.wait()
        assert result.reason is Reason.TIMEOUT
        assert result.duration_ms < (limit_s + 2) * 1000, "the pause counts as time that the command ran"

    async def test_a_frozen_sandbox_is_destroyed_as_any_other(self, provider: Provider) -> None:
        box = await provider.create(self.spec())
        waiting = asyncio.ensure_future((await box.start(Command(shell="sleep 60"))).wait())
        await provider.freeze(box.id)
        with anyio.fail_after(patience(5)):
            await provider.destroy(box.id)
            assert (await waiting).reason is Reason.SANDBOX_LOST
        assert box.id not in await provider.list_ids()

    async def test_a_frozen_sandbox_dies_like_any_other(self, provider: Provider, sandbox: Sandbox) -> None:
        await provider.freeze(sandbox.id)
        await provider.destroy(sandbox.id)
        for ask in (provider.freeze, provider.thaw, provider.adopt):
            with pytest.raises((SandboxLost, SandboxNotFound)):
                await ask(sandbox.id)

    async def test_what_never_was_or_has_died_is_neither_frozen_nor_thawed(
        self, provider: Provider, sandbox: Sandbox
    ) -> None:
        for ask in (provider.freeze, provider.thaw):
            with pytest.raises(SandboxNotFound):
                await ask("0" * 32)
        await self.lose(provider, sandbox)
        for ask in (provider.freeze, provider.thaw):
            with pytest.raises(SandboxLost):
                await ask(sandbox.id)

    @pytest.mark.parametrize("told", [True, False])
    async def test_adopting_a_frozen_sandbox_thaws_it(self, provider: Provider, *, told: bool) -> None:
        box = await provider.create(self.spec())
        limit_s = patience(2.5)
        shell = await box.start(Command(shell="cat", terminal=TerminalSize()), process_id="terminal")
        process = await box.start(
            Command(shell="echo up; cat; exit 3", stdin=True, timeout_s=limit_s if told else None), process_id="limited"
        )
        await said(process, b"up")
        await provider.freeze(box.id)
        began = time.monotonic()
        await box.close()
        again = await self.reopened(provider)
        try:
            await again.freeze(box.id)
            await asyncio.sleep(limit_s + 0.5 if told else 0)
            adopted = await again.adopt(box.id, paused_s=time.monotonic() - began if told else None)
            assert not adopted.is_frozen()
            assert [each.running for each in await adopted.processes()] == [True, True]
            await asyncio.sleep(1.3 if told else 0)
            shell, process = await adopted.process(shell.id), await adopted.process(process.id)
            await shell.write(b"typed\n")
            await said(shell, b"typed")
            await process.write(b"later\n")
            await process.close_stdin()
            result = await process.wait()
            assert (result.stdout, result.exit_code) == ("up\nlater\n", 3)
        finally:
            await again.destroy(box.id)
            await again.close()


class KernelPauseContract(PauseContract):
    async def test_a_frozen_sandbox_uses_no_processor(self, provider: Provider, sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(shell="while :; do :; done & while :; do :; done"))
        async with Frozen(provider, sandbox):
            before = (await sandbox.metrics()).cpu_s
            await asyncio.sleep(0.3)
            assert (await sandbox.metrics()).cpu_s == before
        while (await sandbox.metrics()).cpu_s < before + 0.05:
            await asyncio.sleep(0.01)
        await process.kill(0)

    async def test_the_grace_of_a_command_that_is_being_ended_stands_still(
        self, provider: Provider, sandbox: Sandbox
    ) -> None:
        process = await sandbox.start(Command(shell=_WAITS_FOR_FILE))
        await said(process, b"up")
        grace_s = patience(2)
        await process.kill(grace_s)
        await said(process, b"asked")
        async with Frozen(provider, sandbox, grace_s + 0.5):
            pass
        await asyncio.sleep(0.3)
        await sandbox.write("go", b"")
        assert (await process.wait()).stdout == "up\nasked\nsaved\n"

    async def test_an_idle_code_context_does_not_expire_meanwhile(self, provider: Provider, sandbox: Sandbox) -> None:
        idle_s = patience(3)
        await start_keeper(sandbox, LANGUAGES["python"], "ctx_paused", idle_s=idle_s)
        async with Frozen(provider, sandbox, idle_s + 1):
            pass
        await asyncio.sleep(1.2)  # it would take a moment to end
        assert [each.running for each in await sandbox.processes()] == [True]

    async def test_a_caller_of_a_frozen_server_is_answered_later(self, provider: Provider, sandbox: Sandbox) -> None:
        await sandbox.start(Command(argv=("python3", "-c", _SERVER)))
        while not await sandbox.ports():
            await asyncio.sleep(0.02)
        loop = asyncio.get_running_loop()
        async with Frozen(provider, sandbox):
            assert [each.port for each in await sandbox.ports()] == [3000]
            connected = await sandbox.dial(3000)
            await loop.sock_sendall(connected, b"hello")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(loop.sock_recv(connected, 9), 0.2)
                raise AssertionError("a frozen server has answered")
        with connected:
            assert await loop.sock_recv(connected, 9) == b"hello"

    async def test_the_caches_of_a_frozen_sandbox_are_given_back(self, provider: Provider, sandbox: Sandbox) -> None:
        await sandbox.exec(Command(shell="head -c 50000000 /dev/zero > file; sync; cat file > /dev/null"))
        assert (await sandbox.metrics()).cache_bytes > 40_000_000
        async with Frozen(provider, sandbox):
            while (await sandbox.metrics()).cache_bytes > 10 * MIB:
                await asyncio.sleep(0.01)
        assert (await sandbox.exec(Command(shell="wc -c < file"))).stdout == "50000000\n"
