"""What is done with the commands of a sandbox that run on their own: found, fed, waited for, ended, forgotten."""

import asyncio
import contextlib
import signal as signals

from warren.interfaces.sandbox import Sandbox
from warren.model.errors import InvalidRequest, ProcessNotFound
from warren.model.operations import Command, ExecResult, ProcessInfo


async def start(sandbox: Sandbox, command: Command, process_id: str) -> ProcessInfo:
    process = await sandbox.start(command, process_id=process_id)
    return await find(sandbox, process.id)


async def find(sandbox: Sandbox, process_id: str) -> ProcessInfo:
    for info in await sandbox.processes():
        if info.id == process_id:
            return info
    raise ProcessNotFound(f"there is no process {process_id!r}")


async def ended_within(sandbox: Sandbox, process_id: str, timeout_s: float) -> ExecResult | None:
    """Its result; None if it still runs after so long."""
    process = await sandbox.process(process_id)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            return await process.wait()
    return None


async def feed(sandbox: Sandbox, process_id: str, data: bytes, *, close: bool) -> None:
    """To its standard input; with `close` that was all. What comes after its end is ignored."""
    process = await sandbox.process(process_id)
    if data:
        await process.write(data)
    if close:
        await process.close_stdin()


async def kill(sandbox: Sandbox, process_id: str, grace_s: float) -> ExecResult:
    """Returns when the whole tree of processes is gone."""
    process = await sandbox.process(process_id)
    await process.kill(grace_s)
    return await process.wait()


async def forget(sandbox: Sandbox, process_id: str) -> None:
    """Ends it, with what it left in the background, and forgets its output."""
    info = await find(sandbox, process_id)
    if info.running or info.background:
        process = await sandbox.process(process_id)
        await process.kill()
        await process.wait()
    await sandbox.forget(process_id)


def signal_number(name: str | int) -> int:
    if isinstance(name, int):
        if not 0 < name <= 64:
            raise InvalidRequest(f"there is no signal {name}")
        return name
    try:
        return int(signals.Signals[f"SIG{name.upper().removeprefix('SIG')}"])
    except KeyError:
        raise InvalidRequest(
            f"there is no signal {name!r}", remedy="TERM, INT, KILL, HUP, USR1 … or a number"
        ) from None
