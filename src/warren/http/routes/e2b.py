"""/api/e2b: runs code, reads and writes files, with the field names of E2B-style clients.

Code runs in an interpreter of its own each time; the value of a last expression comes back in `results`, files
that are new or changed in the workspace in `artifacts`. Policies and the audit record see the code, not the driver.
"""

import asyncio
import hashlib
import json
import secrets
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from warren.http.problems import read_json_body
from warren.http.routes import flat
from warren.interfaces.sandbox import Sandbox
from warren.interfaces.store import ANSWER_GONE, Key
from warren.model.errors import Conflict, FileNotFound, FileProblem, InvalidRequest, LimitReached, TooLarge, WarrenError
from warren.model.operations import Command, ExecResult, FileInfo, FileKind, check_path
from warren.model.session import Session, check_key
from warren.model.spec import WORKSPACE
from warren.sessions.idempotency import exec_once, remove_task
from warren.sessions.long_values import HasLongValues, encode
from warren.sessions.operations import files
from warren.sessions.operations.call import Call, Handler, Values, perform, perform_stream
from warren.sessions.request_context import note
from warren.sessions.schemas import Body, FileList, FileView, Timeout, data_of, shown_texts

# Runs what comes on stdin; a last expression's value goes, as JSON, into the file WARREN_RESULT names.
_DRIVER: Final = """
import ast, json, os, sys, traceback
code, out = sys.stdin.read(), os.environ.pop("WARREN_RESULT")
space = {"__name__": "__main__"}
try:
    tree = ast.parse(code, "<code>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<code>", "exec"), space)
    value = eval(compile(ast.Expression(last.value), "<code>", "eval"), space) if last else None
    if value is not None:
        with open(out, "w") as file:
            json.dump([{"text": repr(value), "is_main_result": True}], file)
except SystemExit:
    raise
except BaseException:
    kind, exc, trace = sys.exc_info()
    traceback.print_exception(kind, exc, trace.tb_next)
    sys.exit(1)
"""
_DEPTH: Final = 10
_MOST_FILES: Final = 200_000
_LONGEST_RESULT: Final = 1024 * 1024
_LONGEST_ANSWER: Final = 1024 * 1024  # that is kept for an Idempotency-Key
_LANGUAGE_OF: Final = {"Node": "node"}  # by environment; of all others python


class CodeBody(Body):
    session_id: str = Field(description="As creating the session gave it")
    code: str = Field(examples=["print(42)"])
    language: str = Field("", description="python, node or bash; by default node in the environment Node, else python")
    timeout: Timeout | None = None


class CodeView(BaseModel):
    stdout: str
    stderr: str
    results: list[dict[str, Any]] = Field(description="The value of a last expression")
    artifacts: list[dict[str, Any]] = Field(description="Files in /workspace that are new or changed")
    exit_code: int
    reason: str


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


class RemoveQuery(BaseModel):
    path: files.SandboxPath
    recursive: Annotated[bool, Field(description="A directory with everything in it")] = False


class RemoveOfQuery(RemoveQuery):
    session_id: flat.SessionId = ""
    thread_id: flat.ThreadId = ""


async def execute(call: Call, body: CodeBody) -> Values:
    """In a fresh interpreter each time: files last from one call to the next, variables do not."""
    body.timeout = call.context.limited_timeout(body.timeout)
    call.session_id = body.session_id
    return await (_execute_once(call, body) if call.key else _execute(call, body))


async def _execute(call: Call, body: CodeBody) -> Values:
    async with call.using():
        sandbox, session = call.sandbox, call.session
        before = await _seen_files(sandbox)
        language = body.language or _LANGUAGE_OF.get(session.environment, "python")
        result_path = f"/tmp/.result-{_hash(call.key)[:16] if call.key else secrets.token_hex(8)}"
        command, code = _command(session, language, body, result_path), body.code.encode(errors="surrogateescape")
        result = await _run(call, command, code)
        results = await _results(sandbox, result_path) if language == "python" else []
        artifacts = await files.show_files(call, _new_files(sandbox, before))
    stdout, stderr, _ = shown_texts(result)
    return {
        "stdout": stdout,
        "stderr": stderr,
        "results": results,
        "artifacts": artifacts,
        "exit_code": result.exit_code,
        "reason": result.reason,
    }


async def _run(call: Call, command: Command, code: bytes) -> ExecResult:
    if call.key:
        return await exec_once(call.sessions, call.tenant, call.session_id, command, code, call.key)
    return await call.sandbox.exec(command, code)


async def _execute_once(call: Call, body: CodeBody) -> Values:
    """The same answer for the same key. `exec_once` runs the code once; here the whole answer is kept, files too."""
    sessions, request = call.sessions, _hash(body.model_dump_json())
    name = Key(call.tenant, body.session_id, f"e2b_{_hash(check_key(call.key))}", request)
    known = await sessions.store.claim_key(name, sessions.clock.epoch, sessions.clock.now())
    if known is not None and known.answer:
        return _read_kept(known.answer)
    running = sessions.keyed_commands.get(name)
    if running is not None:
        return _read_kept((await asyncio.shield(running))[1])
    task = sessions.keyed_commands[name] = asyncio.create_task(_execute_and_keep(call, body, name))
    task.add_done_callback(lambda done: remove_task(sessions, name, done))
    values: Values = (await asyncio.shield(task))[0]
    return values


async def _execute_and_keep(call: Call, body: CodeBody, name: Key) -> tuple[Values, str]:
    try:
        values = await _execute(call, body)
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


def _command(session: Session, language: str, body: CodeBody, result_path: str) -> Command:
    programs: dict[str, tuple[tuple[str, ...], str | tuple[str, ...]]] = {
        "python": (("python3", "-c", _DRIVER), ("python3", "-c", body.code)),
        "node": (("node", "-"), ("node", "-e", body.code)),
        "bash": (("bash", "-s"), body.code or ":"),
    }
    if language not in programs:
        raise InvalidRequest(f"there is no language {language!r}", remedy=f"there are: {', '.join(programs)}")
    argv, judged_as = programs[language]
    return Command(
        argv=argv,
        base_env=session.env,
        env={"WARREN_RESULT": result_path} if language == "python" else {},
        cwd=WORKSPACE,
        timeout_s=body.timeout,
        judged_as=judged_as,
    )


async def _results(sandbox: Sandbox, result_path: str) -> list[dict[str, Any]]:
    """What the driver left, if it left something that can be read: user code may have written there too."""
    try:
        text = b"".join([part async for part in sandbox.read(result_path, length=_LONGEST_RESULT)])
        await sandbox.remove(result_path)
        found = await read_json_body(text)
    except (FileNotFound, FileProblem, InvalidRequest, TooLarge):
        return []
    return found if isinstance(found, list) and all(isinstance(item, dict) for item in found) else []


async def _seen_files(sandbox: Sandbox) -> set[int]:
    """The files of the workspace as hashes: their names could be too much to keep."""
    seen: set[int] = set()
    async for info in sandbox.entries(WORKSPACE, depth=_DEPTH):
        seen.add(_fingerprint(info))
        if len(seen) > _MOST_FILES:
            raise LimitReached(
                f"the workspace has more than {_MOST_FILES:,} files",
                remedy="use /execute, which does not look for new ones",
            )
    return seen


async def _new_files(sandbox: Sandbox, before: set[int]) -> AsyncGenerator[FileInfo, None]:
    async for info in sandbox.entries(WORKSPACE, depth=_DEPTH):
        if info.kind is FileKind.FILE and _fingerprint(info) not in before:
            yield info


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


async def remove_file(call: Call, query: RemoveQuery) -> None:
    await perform(files.REMOVE_FILE, call, files.RemoveQuery(path=query.path, recursive=query.recursive))


async def remove_file_of(call: Call, query: RemoveOfQuery) -> None:
    call.session_id = (await flat.find_session(call, query.session_id, query.thread_id)).id
    await remove_file(call, query)


_FILES_OR_FILE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The list; or, with `path`, the file", "content": files.BYTES}
}


HANDLERS = (
    Handler("e2b_execute", execute, body=CodeBody, result=CodeView, headers=("idempotency_key",)),
    Handler("e2b_read_files", read_files, query=FilesQuery, result=FileList, other_results=_FILES_OR_FILE),
    Handler(
        "e2b_read_files_by_query", read_files_of, query=FilesOfQuery, result=FileList, other_results=_FILES_OR_FILE
    ),
    Handler("e2b_write_file", write_file_of, body=FileOfBody, result=FileView),
    Handler("e2b_write_file_by_path", write_file, body=FileBody, result=FileView),
    Handler("e2b_remove_file", remove_file, query=RemoveQuery),
    Handler("e2b_remove_file_by_query", remove_file_of, query=RemoveOfQuery),
)
