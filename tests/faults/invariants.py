"""What must hold after any crash, checked from outside: over HTTP and by looking at the machine.

A `Ledger` is the clients' side of the story: what the server has acknowledged. `check` compares it with the server
and the machine as they are, after giving the server time to finish what it has begun.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from faults.caller import Caller
from faults.host_view import described, sandboxes, strays, uid_ranges

COUNTER: Final = "n=0; while :; do echo $n; n=$((n+1)); sleep 0.05; done"
_SETTLE_S: Final = 20.0


@dataclass
class Held:
    """A session that was acknowledged. `files`: what each may hold; two contents while a write was cut off."""

    id: str
    thread_id: str = ""
    files: dict[str, set[bytes]] = field(default_factory=dict)
    counter: str = ""
    counted: int = 0


@dataclass
class Ledger:
    held: dict[str, Held] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)

    def holds(self, session: dict[str, Any]) -> Held:
        found = Held(session["session_id"], session["thread_id"] or "")
        return self.held.setdefault(found.id, found)

    def dropped(self, session_id: str) -> None:
        self.held.pop(session_id, None)
        self.deleted.add(session_id)


async def occupied(caller: Caller, ledger: Ledger, **body: Any) -> Held:
    """A new session with a file and a process that counts."""
    held = ledger.holds((await caller.create(**body)).good())
    data = f"of {held.id}".encode()
    (await caller.upload(held.id, "kept.txt", data)).good()
    held.files["kept.txt"] = {data}
    (await caller.start(held.id, COUNTER, "counter")).good()
    held.counter = "counter"
    return held


async def check(caller: Caller, state_dir: Path, ledger: Ledger) -> None:
    await settled(caller, state_dir)
    for held in list(ledger.held.values()):
        await check_held(caller, held)
    for session_id in ledger.deleted:
        shown = (await caller.show(session_id)).good()
        assert shown["state"] == "ended", f"session {session_id} was deleted, and is {shown['state']}"


async def settled(caller: Caller, state_dir: Path) -> None:
    """Nothing is in between any more, and what is on the machine is what the server says there is."""
    deadline = time.monotonic() + _SETTLE_S
    while wrong := await differences(caller, state_dir):
        assert time.monotonic() < deadline, f"after {_SETTLE_S:g} s: " + "; ".join(wrong)
        await asyncio.sleep(0.1)


async def differences(caller: Caller, state_dir: Path) -> list[str]:
    active = await caller.sessions()
    running = [session for session in active if session["state"] in ("running", "paused")]
    used, pool = {session["sandbox_id"] for session in running}, (await caller.health())["pool_size"]
    there, claims = sandboxes(state_dir), uid_ranges(state_dir)
    threads = Counter(session["thread_id"] for session in active if session["thread_id"])
    found = [f"{session['session_id']} is {session['state']}" for session in active if is_between(session)]
    found += [f"the thread {thread} has {count} sessions" for thread, count in threads.items() if count > 1]
    found += [f"sandbox {name} is used and not there" for name in used - there]
    if len(used) != len(running):
        found.append(f"{len(running)} sessions run in {len(used)} sandboxes")
    if len(there) != len(used) + pool:
        unused = ", ".join(described(state_dir, there - used))
        found.append(
            f"{len(there)} sandboxes, for {len(used)} sessions and a pool of {pool}; without a session: {unused}"
        )
    if claims != len(there):
        found.append(f"{claims} uid ranges for {len(there)} sandboxes")
    return found + strays(state_dir)


def is_between(session: dict[str, Any]) -> bool:
    return session["state"] in ("creating", "stopping", "restoring")


async def check_held(caller: Caller, held: Held) -> None:
    shown = (await caller.show(held.id)).good()
    assert shown["state"] == "running", f"session {held.id} is {shown['state']}: {shown['reason']}, {shown['detail']}"
    assert (shown["thread_id"] or "") == held.thread_id
    for path, contents in held.files.items():
        found = (await caller.output(held.id, f"cat /workspace/{path}")).encode()
        assert found in contents, f"{path} of {held.id} holds {found[:100]!r} and {len(found)} bytes"
        held.files[path] = {found}
    if held.counter:
        await check_counter(caller, held)


async def check_counter(caller: Caller, held: Held) -> None:
    """It runs, it has counted on from where it was, and nothing of its output is missing."""
    assert (await caller.process(held.id, held.counter)).good()["running"]
    before = await counted(caller, held)
    assert before >= held.counted
    while await counted(caller, held) == before:
        await asyncio.sleep(0.02)
    held.counted = before


async def counted(caller: Caller, held: Held) -> int:
    numbers = [int(line) for line in (await caller.process_output(held.id, held.counter)).split()]
    assert numbers == list(range(len(numbers))), f"the output of {held.id} has gaps"
    return len(numbers)
