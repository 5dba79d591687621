"""What programs in a sandbox read about the machine: the memory and the processors that they may use."""

from dataclasses import replace
from typing import ClassVar

import pytest
from contract.provider_contract import ProviderHooks

from warren.interfaces.provider import Provider
from warren.model.operations import Command
from warren.model.spec import Limits

_FIGURES = """
grep -c ^processor /proc/cpuinfo; grep -c ^cpu[0-9] /proc/stat; nproc; head -1 /proc/meminfo; cat /proc/loadavg
cut -d. -f1 /proc/uptime; python3 -c 'import os; print(os.cpu_count())'; touch /proc/meminfo 2>/dev/null || echo refused
"""


@pytest.mark.anyio
class ViewContract(ProviderHooks):
    own_uptime: ClassVar[bool] = True

    async def test_programs_see_the_memory_and_the_processors_that_they_may_use(self, provider: Provider) -> None:
        sandbox = await provider.create(replace(self.spec(), limits=Limits(cpus=0.5, memory_mb=300)))
        try:
            lines = (await sandbox.exec(Command(shell=_FIGURES))).stdout.splitlines()
        finally:
            await provider.destroy(sandbox.id)
        assert lines[:3] == ["1", "1", "1"]
        assert lines[3].split() == ["MemTotal:", str(300 * 1024), "kB"]
        assert lines[4].startswith("0.00 0.00 0.00 ")
        assert int(lines[5]) < 60 or not self.own_uptime
        assert lines[6:] == ["1", "refused"]
