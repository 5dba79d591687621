"""What becomes of a reading that the kernel does not answer: only a sandbox whose first process has ended is lost."""

import asyncio
import os
from pathlib import Path

import pytest

from warren.model.errors import ProviderUnavailable, SandboxLost
from warren.sandboxes.host.cgroups import SandboxCgroup
from warren.sandboxes.host.metrics import MetricsReader, MetricsSource

pytestmark = pytest.mark.anyio
FILES = {
    "cpu.stat": "usage_usec 2500000\n",
    "memory.current": "900\n",
    "memory.stat": "anon 900\n",
    "pids.current": "3\n",
}


def a_source(directory: Path, *, alive: bool = True) -> MetricsSource:
    """This process has no sandbox's disk."""
    return MetricsSource(SandboxCgroup({"": directory}, unified=True), os.getpid(), lambda: alive)


async def test_what_cannot_be_read_is_no_loss_while_the_sandbox_lives(tmp_path: Path) -> None:
    reader = MetricsReader()
    with pytest.raises(ProviderUnavailable, match="cannot be read") as refused:
        await reader.read(a_source(tmp_path / "gone"))
    assert str(tmp_path) not in refused.value.message
    with pytest.raises(SandboxLost):
        await reader.read(a_source(tmp_path / "gone", alive=False))


async def test_a_disk_that_is_not_the_sandboxs_any_more_is_not_told(tmp_path: Path) -> None:
    """Its process number may be another's: then the device at that place is another, too."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    source = a_source(tmp_path)
    where, device = str(tmp_path), os.stat(tmp_path).st_dev
    source._disk = where, device
    metrics = source.read()
    assert (metrics.cpu_s, metrics.memory_bytes, metrics.processes) == (2.5, 900, 3)
    assert metrics.disk_bytes > 0
    source._disk = where, device + 1
    with pytest.raises(ProcessLookupError):
        source.read()
    (tmp_path / "link").symlink_to(tmp_path)
    source._disk = f"{where}/link", device
    with pytest.raises(OSError, match="directory"):
        source.read()


async def test_readings_that_are_asked_for_at_once_share_a_thread_and_one_that_is_given_up_harms_no_other(
    tmp_path: Path,
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    reader, sources = MetricsReader(), [a_source(tmp_path) for _ in range(20)]
    for source in sources:
        source._disk = str(tmp_path), os.stat(tmp_path).st_dev
    asked = [asyncio.create_task(reader.read(source)) for source in sources]
    await asyncio.sleep(0)
    assert repr(reader) == "<MetricsReader: 20 asked>"
    asked[0].cancel()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert {each.processes for each in found[1:]} == {3}  # type: ignore[union-attr]
