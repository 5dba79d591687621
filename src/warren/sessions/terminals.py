"""Terminals of a sandbox: opened anew, or come back to."""

from typing import Final

from warren.interfaces.sandbox import Process, Sandbox
from warren.model.errors import InvalidRequest
from warren.model.operations import Command, TerminalSize
from warren.model.session import Session

_SHELL: Final = "exec bash -l"


async def open_terminal(
    session: Session, sandbox: Sandbox, size: TerminalSize, *, process_id: str = "", command: str = "", cwd: str = ""
) -> Process:
    """The terminal `process_id`, which takes this size; without one, a new one with a shell, or `command`, in it."""
    there = [info for info in await sandbox.processes() if info.id == process_id] if process_id else []
    if not there:
        wanted = Command(shell=command or _SHELL, cwd=cwd, base_env=session.env, terminal=size)
        return await sandbox.start(wanted, process_id=process_id)
    if not there[0].terminal:
        raise InvalidRequest(f"{process_id!r} has no terminal", remedy="attach to it instead")
    process = await sandbox.process(process_id)
    await process.resize(size)
    return process
