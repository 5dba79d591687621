"""What every sandbox promises of its metrics (interfaces/sandbox.py); the second suite is for those with a kernel."""

from collections.abc import AsyncIterator

import anyio
import pytest
from contract.provider_contract import ProviderHooks

from warren.interfaces.provider import Provider
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import SandboxLost
from warren.model.operations import Command
from warren.model.spec import MIB

HOG = "x = bytearray(80 * 1024 * 1024)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('held', flush=True)\ninput()\n"
BOMB = """\
import os, time
try:
    while os.fork():
        pass
except OSError:
    pass
time.sleep(1000)
"""


@pytest.mark.anyio
class MetricsContract(ProviderHooks):
    @pytest.fixture
    async def provider(self) -> AsyncIterator[Provider]:
        raise NotImplementedError
        yield

    @pytest.fixture
    async def sandbox(self, provider: Provider) -> AsyncIterator[Sandbox]:
        box = await provider.create(self.spec())
        try:
            with anyio.fail_after(60):
                yield box
        finally:
            await provider.destroy(box.id)

    async def test_files_and_processes_show_and_go_again(self, sandbox: Sandbox) -> None:
        before = await sandbox.metrics()
        assert before.processes >= 1
        await sandbox.write("large", b"x" * (5 * MIB))
        process = await sandbox.start(Command(shell="sleep 1000 & sleep 1000"))
        with anyio.fail_after(30):
            while (now := await sandbox.metrics()).processes < before.processes + 2:
                await anyio.sleep(0.01)
        assert 5 * MIB <= now.disk_bytes - before.disk_bytes < 6 * MIB
        await process.kill(grace_s=0)
        await sandbox.remove("large")
        with anyio.fail_after(30):
            while (after := await sandbox.metrics()).processes > before.processes:
                await anyio.sleep(0.01)
        assert after.disk_bytes < before.disk_bytes + MIB
        assert after.cpu_s >= now.cpu_s >= before.cpu_s

    async def test_a_lost_sandbox_has_none(self, sandbox: Sandbox, provider: Provider) -> None:
        await self.lose(provider, sandbox)
        with pytest.raises(SandboxLost):
            await sandbox.metrics()


class KernelMetricsContract(MetricsContract):
    async def test_memory_is_what_programs_hold_and_cache_is_counted_apart(self, sandbox: Sandbox) -> None:
        before = await sandbox.metrics()
        await sandbox.exec(Command(shell="head -c 50000000 /dev/zero > file; cat file > /dev/null"))
        cached = await sandbox.metrics()
        assert cached.cache_bytes - before.cache_bytes > 40_000_000
        assert cached.memory_bytes - before.memory_bytes < 20_000_000
        process = await sandbox.start(Command(argv=("python3", "-c", HOG), stdin=True), follow=True)
        async for chunk in process.output():
            if b"held" in chunk.data:
                break
        held = await sandbox.metrics()
        assert held.memory_bytes - cached.memory_bytes > 75 * MIB
        await process.close_stdin()
        await process.wait()
        assert (await sandbox.metrics()).memory_bytes < held.memory_bytes - 70 * MIB

    async def test_processor_time_adds_up_also_that_of_processes_that_have_ended(self, sandbox: Sandbox) -> None:
        before = await sandbox.metrics()
        work = "import time\nwhile time.process_time() < 0.5: pass"
        result = await sandbox.exec(Command(argv=("python3", "-c", work)))
        assert result.exit_code == 0
        assert 0.5 <= (await sandbox.metrics()).cpu_s - before.cpu_s < 5

    async def test_a_sandbox_that_can_start_nothing_more_is_read_all_the_same(self, sandbox: Sandbox) -> None:
        """Its programs have taken every process that it may have."""
        limit = self.spec().limits.pids
        await sandbox.start(Command(argv=("python3", "-c", BOMB)))
        with anyio.fail_after(60):
            while (await sandbox.metrics()).processes < limit * 9 // 10:
                await anyio.sleep(0.05)
        await sandbox.kill_all()
        assert (await sandbox.metrics()).processes < 10
