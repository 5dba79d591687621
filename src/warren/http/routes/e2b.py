"""/api/e2b: code and files the way the requests of the E2B-style generation name them.

Code runs in a Python of its own each time; the value of a last expression comes back in `results`, files
that are new or changed in the workspace in `artifacts`.
"""

import json
import secrets
from typing import Annotated, Any, Final

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from warren.http.context import (
    Ctx,
    FileUser,
    Runner,
    SessionId,
    answer,
    data_of,
    limited_timeout,
    new_router,
    query,
)
from warren.http.routes import files
from warren.http.routes.exec import unless_gone
from warren.http.schemas import Body, FileList, FileView, Seconds, file_view
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import FileNotFound, FileProblem, InvalidRequest
from warren.model.operations import Command, FileInfo, FileKind
from warren.model.spec import WORKSPACE

router = new_router(prefix="/api/e2b", tags=["e2b"])

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
_LONGEST_RESULT: Final = 1024 * 1024


class CodeBody(Body):
    session_id: str = Field(description="As creating the session gave it")
    code: str = Field(examples=["print(42)"])
    language: str = Field("python", description="python, node or bash")
    timeout: Seconds | None = None


class CodeView(BaseModel):
    stdout: str
    stderr: str
    results: list[dict[str, Any]] = Field(description="The value of a last expression")
    artifacts: list[dict[str, Any]] = Field(description="Files in /workspace that are new or changed")
    exit_code: int
    reason: str


class FileBody(Body):
    session_id: str = Field(description="As creating the session gave it")
    path: str = Field(description="Relative paths start in /workspace", examples=["notes.txt"])
    content: str = Field("", description="Text")
    content_base64: str = Field("", description="The same for bytes that are no text")


@router.post("/execute", response_model=CodeView, summary="Run code")
async def execute(body: CodeBody, request: Request, context: Ctx, tenant: Runner) -> Response:
    """In a fresh interpreter each time: files last from one call to the next, variables do not."""
    timeout_s = limited_timeout(context, body.timeout)
    async with context.sessions.using(tenant, body.session_id) as (session, sandbox):
        before = {info.path: info for info in await sandbox.list(WORKSPACE, depth=10)}
        place = f"/tmp/.result-{secrets.token_hex(8)}"
        command = _command(body.language, session.env, timeout_s, place)
        result = await unless_gone(request, sandbox.exec(command, body.code.encode(errors="surrogateescape")))
        results = await _results(sandbox, place) if body.language == "python" else []
        after = await sandbox.list(WORKSPACE, depth=10)
        artifacts = [file_view(info) for info in after if _is_new(info, before)]
    return answer(
        {
            "stdout": result.stdout,
            "stderr": result.stderr,
            "results": results,
            "artifacts": artifacts,
            "exit_code": result.exit_code,
            "reason": result.reason,
        }
    )


def _command(language: str, env: dict[str, str], timeout_s: float, place: str) -> Command:
    programs = {
        "python": ("python3", "-c", _DRIVER),
        "node": ("node", "-"),
        "bash": ("bash", "-s"),
    }
    if language not in programs:
        raise InvalidRequest(f"there is no language {language!r}", remedy=f"there are: {', '.join(programs)}")
    extra = {"WARREN_RESULT": place} if language == "python" else {}
    return Command(argv=programs[language], base_env=env, env=extra, cwd=WORKSPACE, timeout_s=timeout_s)


async def _results(sandbox: Sandbox, place: str) -> list[dict[str, Any]]:
    """What the driver left, if it left something that can be read: user code may have written there too."""
    try:
        text = b"".join([part async for part in sandbox.read(place, length=_LONGEST_RESULT)])
        await sandbox.remove(place)
        found = json.loads(text)
    except (FileNotFound, FileProblem, ValueError, RecursionError):
        return []
    return found if isinstance(found, list) and all(isinstance(item, dict) for item in found) else []


def _is_new(info: FileInfo, before: dict[str, FileInfo]) -> bool:
    old = before.get(info.path)
    return info.kind is FileKind.FILE and (old is None or (old.modified, old.size) != (info.modified, info.size))


@router.get(
    "/files/{session_id}",
    response_model=FileList,
    summary="List the workspace, or read a file of it",
    responses={200: {"description": "The list; or, with `path`, the file", "content": files.BYTES}},
)
async def read_files(
    session_id: SessionId,
    request: Request,
    context: Ctx,
    tenant: FileUser,
    path: Annotated[str, Query(description="A file to read; without it the workspace is listed")] = "",
) -> Response:
    if wanted := query(request, "path"):
        return await files.download(context, tenant, session_id, wanted)
    async with context.sessions.using(tenant, session_id) as (_, sandbox):
        found = [file_view(info) for info in await sandbox.list(WORKSPACE, depth=10)]
        return answer({"path": WORKSPACE, "files": found})


@router.post("/files", status_code=201, response_model=FileView, summary="Write a file")
async def write_file(body: FileBody, context: Ctx, tenant: FileUser) -> Response:
    data = data_of(body.content, body.content_base64)
    async with context.sessions.using(tenant, body.session_id) as (_, sandbox):
        return answer(file_view(await sandbox.write(body.path, data)), 201)
