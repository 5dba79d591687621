"""Commands that run once per Idempotency-Key, however often they are asked for, also over a restart.

The key is written down first; then the command is started in the sandbox under a process id made from the
key, which the agent starts only once. Whoever comes later, in this server or the next one, waits for the
same process; within one server by waiting for the same task, since a process that was forgotten could be
started again. When it has ended its result is written down, if it is not too long, and the agent may
forget it; a longer one stays with the agent for as long as that keeps it.
"""

import asyncio
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
    known = await sessions.store.claim_key(name, sessions.clock.epoch, sessions.clock.now())
    answer = "" if known is None else known.answer
    if answer not in ("", _FED):
        return _decoded(answer)
    # No await between reading the answer and this: whoever wrote none yet is still in `once`.
    task = sessions.once.get(name)
    if task is None:
        task = sessions.once[name] = asyncio.create_task(_run(sessions, name, command, stdin, fed=answer == _FED))
        task.add_done_callback(lambda done: _over(sessions, name, done))
    return await asyncio.shield(task)


def _over(sessions: Sessions, name: Key, task: asyncio.Task[ExecResult]) -> None:
    del sessions.once[name]
    if not task.cancelled():
        task.exception()  # the callers have it; all of them may have gone


async def _run(sessions: Sessions, name: Key, command: Command, stdin: bytes, *, fed: bool) -> ExecResult:
    store = sessions.store
    async with sessions.using(name.tenant, name.scope) as (_, sandbox):
        process = await _started(store, sandbox, command, stdin, name, fed=fed)
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
