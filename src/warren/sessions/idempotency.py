"""Commands that run once per Idempotency-Key, however often a caller sends them, also over a restart.

The key is saved first. Then the command is started under a process id made from the key, and the agent starts a process
id only once. Later requests with the key wait for the same process, in this server or the next one. Within one server
they wait for the same task, because a process that the agent has forgotten could be started again. When the command has
ended, its result is saved if it is not too long, and the agent forgets the process; a longer result stays with the
agent for as long as the agent keeps it.
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from typing import Any, Final

from warren.interfaces.sandbox import Sandbox
from warren.interfaces.store import ANSWER_GONE, Key, SessionStore
from warren.kernel.answer_memory import count_held, separate_room
from warren.model.command_output import Shown, output_of
from warren.model.errors import CommandRefused, Conflict, InvalidRequest, ProcessNotFound, WarrenError
from warren.model.operations import Command, ExecResult, Reason
from warren.model.session import check_key
from warren.sessions.manager import Sessions
from warren.sessions.new_session import fingerprint
from warren.sessions.refused_process import refused_result
from warren.sessions.request_context import note, note_command, note_end

MAX_STDIN: Final = 64 * 1024
_MAX_ANSWER: Final = 1024 * 1024
_ANSWERED: Final = tuple(field.name for field in fields(ExecResult) if field.name != "written")
_SHOWN: Final = ("stdout", "stderr", "output", "stdout_base64", "stderr_base64")
_STDIN_SENT: Final = "fed"  # instead of an answer: the command has all of its stdin, and no result yet


Prepare = Callable[[Sandbox, Command], Awaitable[Command]]


async def _as_it_is(sandbox: Sandbox, command: Command) -> Command:
    return command


async def exec_once(
    sessions: Sessions,
    tenant: str,
    session_id: str,
    command: Command,
    stdin: bytes,
    key: str,
    prepare: Prepare = _as_it_is,
) -> ExecResult:
    """Runs a command once per key, and returns its result to every request with the key.

    `prepare` completes a command that is about to run. What it adds may differ in a repetition: it is not compared.
    """
    if len(stdin) > MAX_STDIN:
        raise InvalidRequest(
            f"with an Idempotency-Key stdin may have {MAX_STDIN} bytes, this has {len(stdin)}",
            remedy="write it to a file and let the command read that",
        )
    # The variables of the session are the same for all of its commands, and forgotten when it has ended.
    request = fingerprint(replace(command, base_env={})) + hashlib.sha256(stdin).hexdigest()
    name = Key(tenant, session_id, check_key(key), request)
    known = await sessions.store.claim_key(name, sessions.clock.epoch, sessions.clock.now())
    answer = "" if known is None else known.answer
    note_command(command)
    if known is not None:
        note(replayed=True)
    if answer == ANSWER_GONE:
        raise Conflict(
            "the command of this Idempotency-Key has run, and its result is no longer kept",
            remedy="send fewer commands with a key, or with less output: the oldest results make room for new ones",
        )
    if answer not in ("", _STDIN_SENT):
        result = _read_answer(answer)
        note_end(result)
        return result
    # There is no await between reading the answer and this: a command without an answer is still in the dictionary.
    task = sessions.keyed_commands.get(name)
    if task is None:
        task = sessions.keyed_commands[name] = asyncio.create_task(
            _run_apart(sessions, name, command, stdin, prepare, stdin_sent=answer == _STDIN_SENT)
        )
        task.add_done_callback(lambda done: remove_task(sessions, name, done))
    result = await asyncio.shield(task)
    count_held(result.written.kept)
    note_end(result)
    return result


def remove_task(sessions: Sessions, name: Key, task: asyncio.Task[Any]) -> None:
    del sessions.keyed_commands[name]
    if not task.cancelled():
        task.exception()  # marks it as seen: all callers may have disconnected


async def _run_apart(
    sessions: Sessions, name: Key, command: Command, stdin: bytes, prepare: Prepare, *, stdin_sent: bool
) -> ExecResult:
    """Runs the command with room of its own for its output: several requests may wait for the result, and the first may
    leave before the others."""
    with separate_room():
        return await _run(sessions, name, command, stdin, prepare, stdin_sent=stdin_sent)


async def _run(
    sessions: Sessions, name: Key, command: Command, stdin: bytes, prepare: Prepare, *, stdin_sent: bool
) -> ExecResult:
    store = sessions.store
    async with sessions.using(name.tenant, name.scope) as (_, sandbox):
        if prepare is not _as_it_is and not await _exists(sandbox, _process_id(name)):
            try:
                command = await prepare(sandbox, command)
            except WarrenError:
                await store.release_key(name)
                raise
        if stdin:
            result = await _exec_with_stdin(store, sandbox, command, stdin, name, stdin_sent=stdin_sent)
        else:
            result = await _exec(store, sandbox, command, name)
        answer = _write_answer(result)
        if answer:
            await store.answer_key(name, answer)
            if result.reason is not Reason.SANDBOX_LOST and not result.background:
                await _forget(sandbox, _process_id(name))
        return result


def _process_id(name: Key) -> str:
    return f"key_{hashlib.sha256(name.key.encode()).hexdigest()[:32]}"


async def _exec(store: SessionStore, sandbox: Sandbox, command: Command, name: Key) -> ExecResult:
    try:
        return await sandbox.exec(command, process_id=_process_id(name))
    except Conflict:
        return await (await sandbox.process(_process_id(name))).wait()
    except WarrenError:
        await store.release_key(name)
        raise


async def _exec_with_stdin(
    store: SessionStore, sandbox: Sandbox, command: Command, stdin: bytes, name: Key, *, stdin_sent: bool
) -> ExecResult:
    try:
        process = await sandbox.start(command, process_id=_process_id(name))
    except Conflict:
        process = await sandbox.process(_process_id(name))
        if stdin_sent:
            await process.close_stdin()  # the server may have died before it did this
        else:
            await process.kill(0)  # it has only a part of its stdin, and must not run a second time
        return await process.wait()
    except CommandRefused as exc:
        return refused_result(exc)
    except WarrenError:
        await store.release_key(name)
        raise
    await process.write(stdin)
    await store.answer_key(name, _STDIN_SENT)
    await process.close_stdin()
    return await process.wait()


async def _exists(sandbox: Sandbox, process_id: str) -> bool:
    try:
        await sandbox.process(process_id)
    except ProcessNotFound:
        return False
    return True


async def _forget(sandbox: Sandbox, process_id: str) -> None:
    try:
        await sandbox.forget(process_id)
    except ProcessNotFound:
        return


def _write_answer(result: ExecResult) -> str:
    """Returns the result as JSON; empty if it is too long to be kept."""
    if result.written.kept > _MAX_ANSWER // 2:  # an answer has every byte twice
        return ""
    stdout, stderr, output = result.written.texts()
    values = {name: getattr(result, name) for name in _ANSWERED}
    shown = {"stdout": stdout, "stderr": stderr, "output": output}
    for name in (Shown.STDOUT, Shown.STDERR):
        if exact := "".join(result.written.base64_if_broken(name)):
            shown[f"{name}_base64"] = exact
    answer = json.dumps({**values, **shown})
    return answer if len(answer) <= _MAX_ANSWER else ""


def _read_answer(answer: str) -> ExecResult:
    values = json.loads(answer)
    written = output_of(**{name: values.pop(name) for name in _SHOWN if name in values})
    return ExecResult(**{**values, "written": written, "reason": Reason(values["reason"])})
