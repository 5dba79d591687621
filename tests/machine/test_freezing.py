"""The freezers of v1 and v2 on this machine, with processes of the test's own; and v2's files of memory, as files."""

import asyncio
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from this_run import patience

from warren.model.errors import ProviderUnavailable
from warren.sandboxes.host.cgroups import Hierarchies, SandboxCgroup
from warren.sandboxes.host.freezing import FREEZER, let_die, let_die_and_freeze
from warren.sandboxes.providers.host_provider import freeze

pytestmark = pytest.mark.anyio

_MOUNTS = Hierarchies.here().mounts
_KINDS = [name for name in (FREEZER, "") if name in _MOUNTS]
_BUSY = "import time\nwhile True: time.sleep(0.001)"


@pytest.fixture(params=_KINDS, ids=[name or "v2" for name in _KINDS])
async def cgroup(request: pytest.FixtureRequest) -> AsyncIterator[SandboxCgroup]:
    directory = _MOUNTS[request.param] / f"warren-test-{secrets.token_hex(4)}"
    directory.mkdir()
    cgroup = SandboxCgroup({request.param: str(directory)}, unified=request.param == "")
    yield cgroup
    await cgroup.remove()


@pytest.fixture
def processes(cgroup: SandboxCgroup) -> Iterator["list[subprocess.Popen[bytes]]"]:
    started = [subprocess.Popen(["python3", "-c", _BUSY]) for _ in range(3)]
    [directory] = cgroup.directories.values()
    for process in started:
        Path(directory, "cgroup.procs").write_text(str(process.pid))
    yield started
    cgroup.thaw()
    for process in started:
        process.kill()
        process.wait()


def switches(process: "subprocess.Popen[bytes]") -> str:
    return Path(f"/proc/{process.pid}/status").read_text().partition("voluntary_ctxt_switches:")[2].split()[0]


async def test_they_stand_still_and_run_on(cgroup: SandboxCgroup, processes: "list[subprocess.Popen[bytes]]") -> None:
    for _ in range(3):
        cgroup.freeze()
        cgroup.freeze()
        assert cgroup.is_frozen()
        await asyncio.sleep(0.05)  # the switch to standing still counts as well
        before = [switches(process) for process in processes]
        await asyncio.sleep(0.05)
        assert [switches(process) for process in processes] == before
        cgroup.thaw()
        cgroup.thaw()
        assert not cgroup.is_frozen()
        while [switches(process) for process in processes] == before:
            await asyncio.sleep(0.01)


async def test_all_of_them_can_be_killed_while_they_stand_still(
    cgroup: SandboxCgroup, processes: "list[subprocess.Popen[bytes]]"
) -> None:
    cgroup.freeze()
    await asyncio.wait_for(cgroup.kill(), patience(5))
    assert not cgroup.pids()


async def test_one_of_them_can_be_killed_and_the_others_stand_still_again(
    cgroup: SandboxCgroup, processes: "list[subprocess.Popen[bytes]]"
) -> None:
    cgroup.freeze()
    processes[0].kill()
    let_die_and_freeze([processes[0].pid])
    processes[0].wait(patience(5))
    while not cgroup.is_frozen():
        await asyncio.sleep(0.001)
    assert processes[1].poll() is None
    processes[1].kill()
    let_die(processes[1].pid)
    processes[1].wait(patience(5))


async def test_a_cgroup_without_processes_is_not_frozen(cgroup: SandboxCgroup) -> None:
    with pytest.raises(ProviderUnavailable):
        cgroup.freeze()
    assert not cgroup.is_frozen()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, text in {
        "cgroup.procs": "1\n",
        "cgroup.freeze": "0\n",
        "cgroup.events": "populated 1\nfrozen 0\n",
        "memory.current": "4096000\n",
        "memory.reclaim": "",
        "memory.swap.max": "0\n",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


async def test_one_that_cannot_be_stopped_runs_on(files: Path) -> None:
    with pytest.raises(ProviderUnavailable, match="waits for a disk"):
        SandboxCgroup({"": str(files)}, unified=True).freeze(within_s=0.05)
    assert (files / "cgroup.freeze").read_text().startswith("0")


async def test_who_waits_for_one_that_does_not_stop_takes_no_thread(files: Path) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    waiting = asyncio.create_task(freeze(SandboxCgroup({"": str(files)}, unified=True)))
    for _ in range(5):
        await asyncio.to_thread(int)
    assert not waiting.done()
    (files / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    await waiting


async def test_v2_is_asked_for_all_the_memory_there_is_and_swaps_only_meanwhile(files: Path) -> None:
    cgroup = SandboxCgroup({"": str(files)}, unified=True)
    assert cgroup.reclaim_order() == (f"{files}/memory.reclaim", 4096000)
    cgroup.allow_swap(True)
    assert (files / "memory.swap.max").read_text().startswith("max")
    cgroup.allow_swap(False)
    assert (files / "memory.swap.max").read_text().startswith("0")
    os.unlink(files / "memory.reclaim")
    assert cgroup.reclaim_order() is None
