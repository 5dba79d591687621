"""The start command of a template: it runs in each of its sandboxes from the beginning.

The client gets its sandbox when the ready command succeeds. A ready command that only sleeps is for builds elsewhere,
where sandboxes begin as copies of a running one: nobody waits for it here.
"""

import asyncio
import re
from typing import Final

from warren.http.e2b.call import E2bCall
from warren.http.e2b.control.template_lookup import Template
from warren.http.e2b.errors import E2bError
from warren.http.e2b.users import resolve
from warren.interfaces.sandbox import Sandbox
from warren.kernel.shielding import run_shielded
from warren.model.operations import Command
from warren.model.session import Session
from warren.sessions.request_context import shorter_wait

_READY_S: Final = 45.0  # less if the client has waited for the sandbox already
_AGAIN_S: Final = 0.2
_SHOWN: Final = 500
_PORT: Final = re.compile(r'\[ -n "\$\(ss -\w+ sport = :([0-9]{1,5})\)" \]|ss -\w+ \| grep :([0-9]{1,5})', re.ASCII)
_SLEEP: Final = re.compile(r"\s*sleep\s+[0-9.]+\s*", re.ASCII)


async def start_template(call: E2bCall, session: Session, template: Template) -> None:
    """Raises E2bError if the sandbox does not become ready in time; it is ended then."""
    if not template.start and not template.ready:
        return
    try:
        async with call.sessions.using(call.tenant, session.id) as (_, sandbox):
            if template.start:
                await sandbox.start(await _command(sandbox, session, template, template.start))
            if template.ready and not _SLEEP.fullmatch(template.ready):
                line, ready_s = _without_ss(template.ready), max(1.0, shorter_wait(_READY_S))
                await _wait(sandbox, await _command(sandbox, session, template, line, ready_s), ready_s)
    except BaseException:
        await run_shielded(call.sessions.delete(call.tenant, session.id))
        raise


async def _wait(sandbox: Sandbox, command: Command, ready_s: float) -> None:
    said = ""
    try:
        async with asyncio.timeout(ready_s):
            while True:
                result = await sandbox.exec(command)
                if result.exit_code == 0:
                    return
                said = result.stderr.strip()[-_SHOWN:]
                await asyncio.sleep(_AGAIN_S)
    except TimeoutError:
        why = f"; it says: {said}" if said else ""
        raise E2bError(
            500,
            f"the ready command of the template did not succeed within {ready_s:.0f} s after the start command{why}",
        ) from None


def _without_ss(line: str) -> str:
    """Adds another way to a command with which E2B's clients wait for a port: not every image has its `ss`."""
    match = _PORT.fullmatch(line)
    if match is None:
        return line
    place = f"/dev/tcp/127.0.0.1/{match[1] or match[2]}"
    return f"if command -v ss >/dev/null; then {line}; else (exec 3<>{place}) 2>/dev/null; fi"


async def _command(
    sandbox: Sandbox, session: Session, template: Template, line: str, timeout_s: float | None = None
) -> Command:
    user = await resolve(sandbox, template.user)
    return Command(
        argv=("/bin/bash", "-l", "-c", line),
        env={**user.env, **session.env},
        user=user.name,
        timeout_s=timeout_s,
        carry_state=False,
        judged_as=line,
    )
