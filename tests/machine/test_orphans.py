"""A process that makes sandboxes reaps what they leave, where nobody else does."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import warren
from warren.images.store.store import ImageStore
from warren.model.spec import SandboxSpec
from warren.sandboxes.host import orphans
from warren.sandboxes.host.processes import read_stat
from warren.sandboxes.providers.oci import OciProvider

pytestmark = pytest.mark.anyio

# Takes the place of a first process that reaps nobody; prints the zombies that its only child has, or has left to it.
LATE = """
import ctypes, glob, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
child = subprocess.Popen([sys.executable, *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
zombies = []
for path in glob.glob("/proc/[0-9]*/stat"):
    try:
        head, _, rest = open(path).read().rpartition(")")
    except OSError:
        continue
    state, parent = rest.split()[:2]
    if state == "Z" and int(parent) in (os.getpid(), child.pid):
        zombies.append(head)
print(zombies)
child.stdin.close()
sys.exit(child.wait())
"""
# Makes and destroys sandboxes, and fails to make some.
MAKER = """
import asyncio, sys
from pathlib import Path
import warren
from warren.images.store.store import ImageStore
from warren.model.errors import WarrenError
from warren.model.operations import Command
from warren.model.spec import SandboxSpec
from warren.sandboxes.providers.oci import OciProvider

async def main():
    def fault(step):
        if step == failing:
            raise WarrenError("as planned")
    failing = ""
    state = Path(sys.argv[1])
    provider = OciProvider(state, ImageStore(state), Path(warren.__file__).parent / "bin", sys.argv[2], fault=fault)
    for failing in ("", "launched", "dialled", ""):
        try:
            box = await provider.create(SandboxSpec())
            assert (await box.exec(Command(shell="exit 3"))).exit_code == 3
            await provider.destroy(box.id)
        except WarrenError as exc:
            assert failing, exc
    await provider.close()
    print("done", flush=True)
    sys.stdin.read()

asyncio.run(main())
"""
# Ends, and leaves a child that prints its pid and its new parent.
ORPHAN = """
import os, time
made = os.getpid()
if os.fork() == 0:
    while os.getppid() == made:
        time.sleep(0.01)
    print(os.getpid(), os.getppid())
"""


@pytest.mark.parametrize("runtime", ["direct", pytest.param("crun", marks=pytest.mark.extended)])
def test_a_server_leaves_nothing_for_the_first_process_of_the_machine_to_reap(state_dir: Path, runtime: str) -> None:
    argv = [sys.executable, "-c", LATE, "-c", MAKER, str(state_dir), runtime]
    out = subprocess.run(argv, capture_output=True, text=True, timeout=150, check=False)
    assert (out.stdout, out.returncode) == ("[]\n", 0), out.stderr


async def test_exit_codes_of_other_children_stay_theirs(provider: OciProvider) -> None:
    ended = await asyncio.create_subprocess_exec("sh", "-c", "exit 7")
    waiting = await asyncio.to_thread(subprocess.Popen, ["sh", "-c", "exit 9"])
    sandbox = await provider.create(SandboxSpec())
    record = provider.load_record(sandbox.id)
    assert record is not None
    assert read_stat(record.pid)[1] == str(os.getpid())  # its parent
    orphans.reap_strays()
    await provider.destroy(sandbox.id)
    assert not os.path.exists(f"/proc/{record.pid}")
    assert (await ended.wait(), await asyncio.to_thread(waiting.wait)) == (7, 9)


async def test_a_sandbox_that_ended_by_itself_is_reaped_when_it_is_destroyed(provider: OciProvider) -> None:
    sandbox = await provider.create(SandboxSpec())
    record = provider.load_record(sandbox.id)
    assert record is not None
    os.kill(record.pid, 9)
    for _ in range(100):
        if not record.alive():
            break
        await asyncio.sleep(0.05)
    await provider.destroy(sandbox.id)
    assert not os.path.exists(f"/proc/{record.pid}")


async def test_orphans_go_elsewhere_when_the_last_provider_is_closed(state_dir: Path, provider: OciProvider) -> None:
    await provider.check(SandboxSpec())
    second = OciProvider(state_dir, ImageStore(state_dir), Path(warren.__file__).parent / "bin")
    await second.check(SandboxSpec())
    await second.close()
    assert await _parent_of_an_orphan() == os.getpid()
    await provider.close()
    assert await _parent_of_an_orphan() != os.getpid()


async def _parent_of_an_orphan() -> int:
    maker = await asyncio.create_subprocess_exec(sys.executable, "-c", ORPHAN, stdout=subprocess.PIPE)
    out, _ = await maker.communicate()
    pid, parent = map(int, out.split())
    if parent == os.getpid():
        await asyncio.to_thread(os.waitpid, pid, 0)
    return parent
