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
from dataclasses import asdict, replace
from typing import Final

from warren.interfaces.sandbox import Sandbox
from warren.interfaces.store import Key, SessionStore
from warren.model.errors import CommandRefused, Conflict, InvalidRequest, ProcessNotFound, WarrenError
from warren.model.operations import Command, ExecResult, Reason
from warren.model.session import check_key
from warren.sessions.manager import Sessions
from warren.sessions.new_session import fingerprint
from warren.sessions.refused_process import refused_result
from warren.sessions.request_context import note, note_command, note_end

MAX_STDIN: Final = 64 * 1024
_MAX_ANSWER: Final = 1024 * 1024
_FED: Final = "fed"  # an answer that says only that the command has all of its stdin


async def exec_once(
    sessions: Sessions, tenant: str, session_id: str, command: Command, stdin: bytes, key: str
) -> ExecResult:
    if len(stdin) > MAX_STDIN:
        raise InvalidRequest(
            f"with an Idempotency-Key stdin may have {MAX_STDIN} bytes, this has {len(stdin)}",
            remedy="write it to a file and let the command read that",
        )
    # The variables of the session are the same for all of its commands, and forgotten when it has ended.
    asked = fingerprint(replace(command, base_env={})) + hashlib.sha256(stdin).hexdigest()
    name = Key(tenant, session_id, check_key(key), asked)
    known = await sessions.store.claim_key(name, sessions.clock.epoch, sessions.clock.now())
    answer = "" if known is None else known.answer
    note_command(command)
    if known is not None:
        note(replayed=True)
    if answer not in ("", _FED):
        result = _decoded(answer)
        note_end(result)
        return result
    # No await between reading the answer and this: whoever wrote none yet is still in `once`.
    task = sessions.once.get(name)
    if task is None:
        task = sessions.once[name] = asyncio.create_task(_run(sessions, name, command, stdin, fed=answer == _FED))
        task.add_done_callback(lambda done: _over(sessions, name, done))
    result = await asyncio.shield(task)
    note_end(result)
    return result


def _over(sessions: Sessions, name: Key, task: asyncio.Task[ExecResult]) -> None:
    del sessions.once[name]
    if not task.cancelled():
        task.exception()  # the callers have it; all of them may have gone


async def _run(sessions: Sessions, name: Key, command: Command, stdin: bytes, *, fed: bool) -> ExecResult:
    store = sessions.store
    async with sessions.using(name.tenant, name.scope) as (_, sandbox):
        if stdin:
            result = await _result_with_stdin(store, sandbox, command, stdin, name, fed=fed)
        else:
            result = await _result(store, sandbox, command, name)
        answer = json.dumps(asdict(result))
        if len(answer) <= _MAX_ANSWER:
            await store.answer_key(name, answer)
            if result.reason is not Reason.SANDBOX_LOST and not result.background:
                await _forget(sandbox, _process_id(name))
        return result


def _process_id(name: Key) -> str:
    return f"key_{hashlib.sha256(name.key.encode()).hexdigest()[:32]}"


async def _result(store: SessionStore, sandbox: Sandbox, command: Command, name: Key) -> ExecResult:
    try:
        return await sandbox.exec(command, process_id=_process_id(name))
    except Conflict:
        return await (await sandbox.process(_process_id(name))).wait()
    except WarrenError:
        await store.release_key(name)
        raise


async def _result_with_stdin(
    store: SessionStore, sandbox: Sandbox, command: Command, stdin: bytes, name: Key, *, fed: bool
) -> ExecResult:
    try:
        process = await sandbox.start(command, process_id=_process_id(name))
    except Conflict:
        process = await sandbox.process(_process_id(name))
        if fed:
            await process.close_stdin()  # its server may have died before it could
        else:
            await process.kill(0)  # nor may it run on half of its stdin, or a second time
        return await process.wait()
    except CommandRefused as exc:
        return refused_result(exc)
    except WarrenError:
        await store.release_key(name)
        raise
    await process.write(stdin)
    await store.answer_key(name, _FED)
    await process.close_stdin()
    return await process.wait()


async def _forget(sandbox: Sandbox, process_id: str) -> None:
    try:
        await sandbox.forget(process_id)
    except ProcessNotFound:
        return


def _decoded(answer: str) -> ExecResult:
    values = json.loads(answer)
    return ExecResult(**{**values, "reason": Reason(values["reason"])})
