"""/api/e2b: runs code, reads and writes files, with the field names of E2B-style clients.

Code runs in the context of its language, which keeps variables from one call to the next (sessions/operations/code.py).
Files that are new or changed in the workspace come back in `artifacts`.
"""

import asyncio
import hashlib
import itertools
import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import quote

from pydantic import BaseModel, Field

from warren.http.api import flat
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.store import ANSWER_GONE, Key
from warren.model.code import CellExecution
from warren.model.errors import Conflict, LimitReached, WarrenError
from warren.model.operations import FileInfo, FileKind, check_path
from warren.model.session import Session, check_key
from warren.model.spec import WORKSPACE
from warren.sessions.contexts import cell_command, context_and_language
from warren.sessions.idempotency import remove_task
from warren.sessions.long_values import HasLongValues, LongText, encode
from warren.sessions.operations import code, files
from warren.sessions.operations.call import Call, Handler, Values, perform, perform_stream
from warren.sessions.operations.commands import EVENTS
from warren.sessions.output_events import Events, OutputEvent, close_source
from warren.sessions.request_context import note
from warren.sessions.schemas import (
    MAX_VARIABLES,
    Body,
    CodeBody,
    CodeErrorView,
    FileList,
    FileView,
    Timeout,
    data_of,
    file_view,
)

_DEPTH: Final = 10
_MAX_FILES: Final = 200_000
_LONGEST_ANSWER: Final = 1024 * 1024  # that is kept for an Idempotency-Key
_BASH_STATUS: Final = "ExitCode"  # the error of bash code that ends with a status other than 0
_STATUS: Final = re.compile("[0-9]{1,3}")
_LANGUAGE_OF: Final = {"Node": "javascript"}  # by environment; python in all others


class RunBody(Body):
    session_id: str = Field("", description="As creating the session gave it")
    thread_id: str = Field("", description="Instead of session_id: a thread without a session gets one")
    code: str = Field(examples=["print(42)"])
    language: str = Field(
        "",
        description="python, javascript, typescript, bash, r or java; "
        "by default javascript in the environment Node, else python",
    )
    context_id: str = Field("", description="A context of the session, by default the language's own")
    timeout: Timeout | None = Field(None, description="Seconds", examples=[30])
    envs: dict[str, str] = Field({}, description="Variables for this code alone", max_length=MAX_VARIABLES)
    stream: bool = Field(False, description="Answer with server-sent events, as with `Accept: text/event-stream`")
    replace_lost: bool = Field(False, description="If the thread's sandbox has died: go on in a fresh one")


class ChangedFileView(FileView):
    url: str = Field(description="Where the file can be read, with the caller's key")


class RunView(BaseModel):
    stdout: str
    stderr: str = Field(description="With the traceback of an error at its end")
    results: list[dict[str, Any]] = Field(description="The value of a last expression, and what the code displayed")
    artifacts: list[ChangedFileView] = Field(description="Files in /workspace that are new or changed")
    exit_code: int = Field(description="0; or 1 if there is an `error`, of bash code its status")
    reason: str = Field(description="exited, timeout, cancelled, context_lost, refused or sandbox_lost")
    error: CodeErrorView | None
    execution_count: int | None
    context_id: str
    session_id: str
    notice: str | None = Field(description="What the caller should know: that earlier files are gone")


class FileBody(Body):
    path: str = Field(description="Relative paths start in /workspace", examples=["notes.txt"])
    content: str = Field("", description="Text")
    content_base64: str = Field("", description="The same for bytes that are no text")


class FileOfBody(FileBody):
    session_id: str = Field("", description="As creating the session gave it")
    thread_id: str = Field("", description="Instead of session_id: a thread without a session gets one")


class FilesQuery(BaseModel):
    path: Annotated[files.AnyText, Field(description="A file to read; without it the workspace is listed")] = ""


class FilesOfQuery(FilesQuery):
    session_id: flat.SessionId = ""
    thread_id: flat.ThreadId = ""


class RemoveFileQuery(BaseModel):
    path: files.SandboxPath
    recursive: Annotated[bool, Field(description="A directory with everything in it")] = False


class RemoveOfQuery(RemoveFileQuery):
    session_id: flat.SessionId = ""
    thread_id: flat.ThreadId = ""


async def execute(call: Call, body: RunBody) -> Values:
    """Variables and files last from one call to the next.

    What the code raises is an `error` in the answer, not an error of the request. As a stream it answers with the
    events `started`, `stdout`, `stderr`, `result`, `error`, then an `artifact` for each new or changed file, and `end`.
    """
    session, notice = await _find(call, body)
    cell = _cell_of(session, body)
    values = await (_execute_once(call, body, cell) if call.key else _execute(call, cell))
    return {**values, "session_id": session.id, "notice": notice}


async def _find(call: Call, body: RunBody) -> tuple[Session, str | None]:
    """Finds or makes the session. Raises what is wrong with the request before a session is made for it."""
    context_id, language = context_and_language(body.context_id, body.language)
    body.timeout = call.context.limited_timeout(body.timeout)
    cell_command(context_id, language, body.code, body.envs, body.timeout)
    found = await flat.find_or_create(call, body.session_id, body.thread_id, replace_lost=body.replace_lost)
    call.session_id = found[0].id
    return found


def _cell_of(session: Session, body: RunBody) -> CodeBody:
    language = body.language
    if not language and not body.context_id:
        language = _LANGUAGE_OF.get(session.environment, "python")
    return CodeBody(
        code=body.code, language=language, context=body.context_id, timeout_s=body.timeout, env=body.envs, stream=False
    )


async def _execute(call: Call, cell: CodeBody) -> Values:
    async with call.sessions.using(call.tenant, call.session_id) as (_, sandbox):
        before = await _seen_files(sandbox)
        execution = await code.run_to_end(call, cell)
        artifacts = await files.show_files(call, _new_files(sandbox, before), partial(_show, call))
    shown = code.execution_view(execution)
    is_long = not isinstance(shown["results"], list)
    return {
        "stdout": _joined(execution.stdout, "", is_long),
        "stderr": _joined(execution.stderr, _last_words(execution), is_long),
        "results": shown["results"],
        "artifacts": artifacts,
        "exit_code": _exit_code(execution.language, shown["error"]),
        "reason": execution.reason,
        "error": shown["error"],
        "execution_count": execution.execution_count,
        "context_id": execution.context_id,
    }


def _joined(pieces: list[str], rest: str, is_long: bool) -> str | LongText:
    return LongText(lambda: itertools.chain(pieces, [rest])) if is_long else "".join([*pieces, rest])


def _last_words(execution: CellExecution) -> str:
    """Returns the error as a program shows it when it ends."""
    error = execution.error
    if error is None or (execution.language == "bash" and error.name == _BASH_STATUS):
        return ""
    trace = error.traceback.rstrip()
    return f"{trace}\n" if error.name in trace else f"{trace}\n{error.name}: {error.value}\n".lstrip()


def _exit_code(language: str, error: Values | None) -> int:
    if error is None:
        return 0
    if language == "bash" and error["name"] == _BASH_STATUS and _STATUS.fullmatch(error["value"]):
        return int(error["value"])
    return 1


def _show(call: Call, info: FileInfo) -> Values:
    path = quote(info.path.encode(errors="surrogateescape"))
    return {**file_view(info), "url": f"{call.base_url()}api/sessions/{call.session_id}/files/content?path={path}"}


async def stream_execute(call: Call, body: RunBody) -> Events:
    call.check_streamable()
    session, notice = await _find(call, body)
    async with call.sessions.using(call.tenant, call.session_id) as (_, sandbox):
        before, source = await _seen_files(sandbox), code.stream_code(call, _cell_of(session, body))
        try:
            async for event in source:
                if event is None or event.kind != "end":
                    yield event
                    continue
                async with aclosing(_new_files(sandbox, before)) as found:
                    async for info in found:
                        yield OutputEvent("artifact", _show(call, info))
                more = {
                    "exit_code": _exit_code(event.values["language"], event.values["error"]),
                    "session_id": session.id,
                    "notice": notice,
                }
                yield OutputEvent("end", {**event.values, **more})
        finally:
            await close_source(source)


async def _execute_once(call: Call, body: RunBody, cell: CodeBody) -> Values:
    """Returns the same answer for the same key. `run_to_end` runs the code once; here the whole answer is kept, files
    too."""
    sessions, request = call.sessions, _hash(body.model_dump_json())
    name = Key(call.tenant, call.session_id, f"e2b_{_hash(check_key(call.key))}", request)
    known = await sessions.store.claim_key(name, sessions.clock.epoch, sessions.clock.now())
    if known is not None and known.answer:
        return _read_kept(known.answer)
    running = sessions.keyed_commands.get(name)
    if running is not None:
        return _read_kept((await asyncio.shield(running))[1])
    task = sessions.keyed_commands[name] = asyncio.create_task(_execute_and_keep(call, cell, name))
    task.add_done_callback(lambda done: remove_task(sessions, name, done))
    values: Values = (await asyncio.shield(task))[0]
    return values


async def _execute_and_keep(call: Call, cell: CodeBody, name: Key) -> tuple[Values, str]:
    try:
        values = await _execute(call, cell)
    except WarrenError:
        await call.sessions.store.release_key(name)
        raise
    try:
        answer = encode(values).decode()
    except HasLongValues:
        answer = ANSWER_GONE
    answer = answer if len(answer) <= _LONGEST_ANSWER else ANSWER_GONE
    await call.sessions.store.answer_key(name, answer)
    return values, answer


def _read_kept(answer: str) -> Values:
    if answer == ANSWER_GONE:
        raise Conflict("the code of this Idempotency-Key has run, and its result is no longer kept")
    values: Values = json.loads(answer)
    note(replayed=True, exit_code=values["exit_code"], reason=values["reason"])
    return values


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


async def _seen_files(sandbox: Sandbox) -> set[int]:
    """Returns the files of the workspace as hashes: their names could be too much to keep."""
    seen: set[int] = set()
    entries = sandbox.entries(WORKSPACE, depth=_DEPTH)
    try:
        async for info in entries:
            seen.add(_fingerprint(info))
            if len(seen) > _MAX_FILES:
                raise LimitReached(
                    f"the workspace has more than {_MAX_FILES:,} files",
                    remedy="use /execute, which does not look for new ones",
                )
    finally:
        await close_source(entries)
    return seen


async def _new_files(sandbox: Sandbox, before: set[int]) -> AsyncGenerator[FileInfo, None]:
    entries = sandbox.entries(WORKSPACE, depth=_DEPTH)
    try:
        async for info in entries:
            if info.kind is FileKind.FILE and _fingerprint(info) not in before:
                yield info
    finally:
        await close_source(entries)


def _fingerprint(info: FileInfo) -> int:
    return hash((info.path, info.kind, info.modified, info.size))


async def read_files(call: Call, query: FilesQuery) -> Values | AsyncGenerator[Any, None]:
    if query.path:
        return perform_stream(files.READ_FILE, call, files.PathQuery(path=query.path))
    listed: Values = await perform(files.LIST_FILES, call, files.ListQuery(depth=_DEPTH))
    return listed


async def read_files_of(call: Call, query: FilesOfQuery) -> Values | AsyncGenerator[Any, None]:
    call.session_id = (await flat.find_session(call, query.session_id, query.thread_id)).id
    return await read_files(call, query)


async def write_file(call: Call, body: FileBody) -> Values:
    data = data_of(body.content, body.content_base64)
    written: Values = await perform(files.WRITE_FILE, call, files.WriteQuery(path=body.path), data)
    return written


async def write_file_of(call: Call, body: FileOfBody) -> Values:
    check_path(body.path)  # raises before a session is made
    session, _ = await flat.find_or_create(call, body.session_id, body.thread_id)
    call.session_id = session.id
    return await write_file(call, body)


async def remove_file(call: Call, query: RemoveFileQuery) -> None:
    await perform(files.REMOVE_FILE, call, files.RemoveQuery(path=query.path, recursive=query.recursive))


async def remove_file_of(call: Call, query: RemoveOfQuery) -> None:
    call.session_id = (await flat.find_session(call, query.session_id, query.thread_id)).id
    await remove_file(call, query)


_FILES_OR_FILE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The list; or, with `path`, the file", "content": files.BYTES}
}


HANDLERS = (
    Handler(
        "e2b_execute",
        execute,
        stream_execute,
        body=RunBody,
        result=RunView,
        other_results={200: EVENTS},
        headers=("accept", "idempotency_key"),
    ),
    Handler("e2b_read_files", read_files, query=FilesQuery, result=FileList, other_results=_FILES_OR_FILE),
    Handler(
        "e2b_read_files_by_query", read_files_of, query=FilesOfQuery, result=FileList, other_results=_FILES_OR_FILE
    ),
    Handler("e2b_write_file", write_file_of, body=FileOfBody, result=FileView),
    Handler("e2b_write_file_by_path", write_file, body=FileBody, result=FileView),
    Handler("e2b_remove_file", remove_file, query=RemoveFileQuery),
    Handler("e2b_remove_file_by_query", remove_file_of, query=RemoveOfQuery),
)
