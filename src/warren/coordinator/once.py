"""Commands that run once per Idempotency-Key, however often they are asked for, also over a restart.

The key is written down first; then the command is started in the sandbox under a process id made from the
key, which the agent starts only once. Whoever comes later, in this server or the next one, waits for the
same process. When it has ended its result is written down, if it is not too long, and the agent may
forget it; a longer one stays with the agent for as long as that keeps it.
"""

import hashlib
import json
from dataclasses import asdict
from typing import Final

from warren.coordinator.sessions import Sessions, fingerprint
from warren.interfaces.sandbox import Process, Sandbox
from warren.interfaces.store import Key, SessionStore
from warren.model.errors import Conflict, InvalidRequest, ProcessNotFound, WarrenError
from warren.model.operations import Command, ExecResult, Reason
from warren.model.session import check_key

MAX_STDIN: Final = 64 * 1024
_MAX_ANSWER: Final = 1024 * 1024
_FED: Final = "fed"


async def exec_once(
    sessions: Sessions, tenant: str, session_id: str, command: Command, stdin: bytes, key: str
) -> ExecResult:
    if len(stdin) > MAX_STDIN:
        raise InvalidRequest(
            f"with an Idempotency-Key stdin may have {MAX_STDIN} bytes, this has {len(stdin)}",
            remedy="write it to a file and let the command read that",
        )
    name = Key(tenant, session_id, check_key(key), fingerprint(command) + hashlib.sha256(stdin).hexdigest())
    store, clock = sessions.store, sessions.clock
    known = await store.claim_key(name, clock.epoch, clock.now())
    if known is not None and known.answer not in ("", _FED):
        return _decoded(known.answer)
    async with sessions.using(tenant, session_id) as (_, sandbox):
        process = await _started(store, sandbox, command, stdin, name, fed=known is not None and known.answer == _FED)
        result = await process.wait()
        answer = json.dumps(asdict(result))
        if len(answer) <= _MAX_ANSWER:
            await store.answer_key(name, answer)
            if result.reason is not Reason.SANDBOX_LOST and not result.background:
                await _forget(sandbox, process.id)
        return result


async def _started(
    store: SessionStore, sandbox: Sandbox, command: Command, stdin: bytes, name: Key, *, fed: bool
) -> Process:
    process_id = f"key_{hashlib.sha256(name.key.encode()).hexdigest()[:32]}"
    try:
        process = await sandbox.start(command, process_id=process_id)
    except Conflict:
        process = await sandbox.process(process_id)
        if stdin and not fed:
            # Its server died before it had given all of stdin: it must not run on half of it, nor again.
            await process.kill(0)
        return process
    except WarrenError:
        await store.release_key(name)
        raise
    if stdin:
        await process.write(stdin)
        await store.answer_key(name, _FED)
    await process.close_stdin()
    return process


async def _forget(sandbox: Sandbox, process_id: str) -> None:
    try:
        await sandbox.forget(process_id)
    except ProcessNotFound:
        return


def _decoded(answer: str) -> ExecResult:
    values = json.loads(answer)
    return ExecResult(**{**values, "reason": Reason(values["reason"])})
