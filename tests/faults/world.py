"""A server that is killed again and again, over one state directory, with sessions that outlive all of it."""

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from faults.caller import Answer, Caller, calling
from faults.faulty_server import ARGV, FAULT, arm
from faults.invariants import Ledger, check, differences, occupied
from server_process import ServerProcess
from this_run import new_state_dir

import warren
from warren.images.store.store import ImageStore
from warren.sandboxes.providers.oci import OciProvider

BIN = Path(warren.__file__).parent / "bin"
FLAGS = ("--pool-size", "2", "--pool-min", "1", "--pool-max", "4", "--container-image", "host", "--cpus", "1")

Work = Callable[[Caller], Awaitable[Answer]]


class World:
    """`crash` is the heart: a server that dies at a step while work is done, and its next start."""

    def __init__(self, image_cache: Path, *flags: str) -> None:
        self.state_dir = new_state(image_cache)
        self.server = ServerProcess(self.state_dir, *FLAGS, *flags, argv=ARGV)
        self.ledger = Ledger()
        self.server.start()

    async def people(self) -> None:
        async with calling(self.server.url) as caller:
            await occupied(caller, self.ledger, thread_id="lasting")
            await occupied(caller, self.ledger)

    async def sound(self) -> bool:
        if not self.server.alive:
            return False
        async with calling(self.server.url) as caller:
            return not await differences(caller, self.state_dir)

    async def crash(self, caller: Caller, step: str, work: Work) -> Answer:
        """What `work` was answered by a server that died at that step; the server runs again."""
        arm(self.state_dir, step)
        answer = await work(caller)
        await asyncio.to_thread(self.server.wait_for_end, 30)
        self.restart()
        return answer

    def restart(self) -> None:
        assert self.server.wait_for_end(30) == -signal.SIGKILL
        self.server.start()

    async def check(self, caller: Caller) -> None:
        await check(caller, self.state_dir, self.ledger)

    async def tidy(self, caller: Caller, *lasting: str) -> None:
        """Ends every session but the lasting ones."""
        for session in await caller.sessions():
            if session["session_id"] not in lasting:
                (await caller.delete(session["session_id"])).good()
                self.ledger.dropped(session["session_id"])
        self.ledger.deleted.clear()

    def close(self) -> None:
        (self.state_dir / FAULT).unlink(missing_ok=True)
        self.server.kill()
        remove_state(self.state_dir)


def new_state(image_cache: Path) -> Path:
    path = new_state_dir(image_cache)
    return path


def remove_state(state_dir: Path) -> None:
    asyncio.run(_destroy_all(state_dir))
    shutil.rmtree(state_dir, ignore_errors=True)


async def _destroy_all(state_dir: Path) -> None:
    provider = OciProvider(state_dir, ImageStore(state_dir), BIN)
    for sandbox_id in await provider.list_ids():
        await provider.destroy(sandbox_id)
    await provider.sweep()  # what the killed server was making at that moment: its launchers go on without it
    await provider.close()


async def until(holds: Callable[[], Awaitable[Any]], what: str, within_s: float = 30.0) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not await holds():
        assert loop.time() < deadline, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.05)
