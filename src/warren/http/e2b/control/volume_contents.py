"""What is in a volume: `/volumecontent`, for which clients send the token of the volume.

Paths begin at the top of the volume. Root reads and writes, as E2B does, in a sandbox that has nothing but the volume
(sessions/volumes/contents.py); in an environment without `sudo` its user does. New entries belong to the sandbox user,
unless the client names others. A link that leads out of the volume leads into that sandbox.
"""

import posixpath
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.responses import Response

from warren.http.context import answer_json
from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.control.bodies import bad, read_whole, whole_in_query
from warren.http.e2b.control.volumes import volumes_of
from warren.http.e2b.envd.files import unpacked_body
from warren.http.e2b.envd.filesystem import all_entries, moment_of, text_of
from warren.http.e2b.errors import E2bError
from warren.http.server.http_guard import StreamedAnswer
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import FileExists, FileNotFound, IsDirectory, NotADirectory, PermissionDenied
from warren.model.operations import Command, FileInfo, FileKind, check_path
from warren.model.spec import USER, USER_UID
from warren.sessions.long_values import LongList
from warren.sessions.output_events import close_source
from warren.sessions.request_context import note
from warren.sessions.volumes.contents import ROOT

_TEMPLATE: Final = "base"
_MOST_DEEP: Final = 1000
_FEW: Final = 100
_MAX_ID: Final = 65534
_PLAIN_MODE: Final = 0o777
_MAX_MODE: Final = 0o7777
_TYPES: Final = {FileKind.FILE: "file", FileKind.DIRECTORY: "directory", FileKind.SYMLINK: "symlink"}


class _Content:
    """A volume that is in use. Paths are those of the sandbox."""

    def __init__(self, sandbox: Sandbox, user: str) -> None:
        self.sandbox, self.user = sandbox, user
        self.owner = USER if user else ""

    async def show(self, path: str) -> dict[str, Any]:
        return _entry(await self.sandbox.stat(path, user=self.user))

    async def change(self, path: str, uid: int | None, gid: int | None, mode: int | None) -> None:
        """Does what no file operation of an agent does, by the programs that every image has."""
        if uid is not None or gid is not None:
            ids = f"{'' if uid is None else uid}:{'' if gid is None else gid}"
            await self._run("chown", "-h", ids, path)
        if mode is not None:
            await self._run("chmod", f"{mode:o}", path)

    async def _run(self, *argv: str) -> None:
        command = Command(argv=(*argv[:-1], "--", argv[-1]), cwd="/", user=self.user, timeout_s=10, carry_state=False)
        result = await self.sandbox.exec(command)
        if result.exit_code != 0:
            why = result.stderr.strip().rpartition(": ")[2] or "it took too long"
            raise PermissionDenied(f"owner or mode of {_shown(argv[-1])!r} cannot be changed: {why[:200]}")


@asynccontextmanager
async def _content(call: E2bCall) -> AsyncIterator[_Content]:
    call.sessions.uses.check_open()
    name = call.rules.templates.get(_TEMPLATE, _TEMPLATE)
    user = "root" if call.context.environments(name).sudo else ""
    try:
        async with volumes_of(call).contents.using(call.tenant, call.params["volume"], name) as sandbox:
            yield _Content(sandbox, user)
    except (IsDirectory, NotADirectory) as exc:
        raise bad(exc.message.replace(ROOT, "")) from exc
    except FileNotFound as exc:
        raise E2bError(404, exc.message.replace(ROOT, "")) from exc


def _path(call: E2bCall) -> str:
    """Returns the path in the sandbox. It cannot leave the volume: there is nothing above its top."""
    given = call.parameter("path")
    if not given:
        raise bad("which path? give it in the query")
    path = ROOT + posixpath.normpath(f"/{given.lstrip('/')}")
    note(path=check_path(given))
    return check_path(path.rstrip("/"))


def _shown(path: str) -> str:
    return text_of(path[len(ROOT) :] or "/")


def _entry(info: FileInfo) -> dict[str, Any]:
    """Sandboxes tell the time of the last change of the content alone."""
    path, at = _shown(info.path), moment_of(info.modified)
    entry = {
        "name": posixpath.basename(path) or "/",
        "type": _TYPES.get(info.kind, "unknown"),
        "path": path,
        "size": info.size if info.kind is FileKind.FILE else 0,
        "mode": info.mode & _MAX_MODE,
        "uid": info.uid,
        "gid": info.gid,
        **{"atime": at, "mtime": at, "ctime": at},
    }
    return {**entry, "target": text_of(info.target)} if info.target else entry


def _ids_and_mode(call: E2bCall) -> tuple[int | None, int | None, int | None]:
    bounds = {"uid": _MAX_ID, "gid": _MAX_ID, "mode": _MAX_MODE}
    uid, gid, mode = (whole_in_query(call.parameter(name), name, 0, most) for name, most in bounds.items())
    return uid, gid, mode


# -- entries


async def stat_entry(call: E2bCall) -> Response:
    path = _path(call)
    async with _content(call) as content:
        return answer_json(await content.show(path))


async def change_entry(call: E2bCall) -> Response:
    path, values = _path(call), await call.json()
    uid, gid = (read_whole(values, name, 0, _MAX_ID) for name in ("uid", "gid"))
    mode = read_whole(values, "mode", 0, _MAX_MODE)
    async with _content(call) as content:
        await content.show(path)  # says it in its own words if there is none
        await content.change(path, uid, gid, mode)
        return answer_json(await content.show(path))


async def remove_entry(call: E2bCall) -> Response:
    path = _path(call)
    if path == ROOT:
        raise bad("the top of a volume cannot be removed")
    async with _content(call) as content:
        await content.sandbox.remove(path, recursive=True, user=content.user)
    return Response(status_code=204)


# -- directories


async def list_directory(call: E2bCall) -> Response:
    """Ordered by name, as far down as asked. Links are not followed."""
    depth = whole_in_query(call.parameter("depth"), "depth", 1, _MOST_DEEP) or 1
    source = _entries(call, _path(call), depth)
    begun: list[Any] = []
    async for entry in source:  # raises what is wrong with the path
        begun.append(entry)
        if len(begun) == _FEW:
            return answer_json(LongList(all_entries(begun, source)))
    return answer_json(begun)


async def _entries(call: E2bCall, path: str, depth: int) -> AsyncGenerator[dict[str, Any], None]:
    async with _content(call) as content:
        entries = content.sandbox.entries(path, depth=depth, user=content.user, details=True)
        try:
            async for info in entries:
                yield _entry(info)
        finally:
            await close_source(entries)


async def make_directory(call: E2bCall) -> Response:
    """`force` makes those above it as well, and takes one that is there."""
    path, force = _path(call), call.parameter("force") == "true"
    uid, gid, mode = _ids_and_mode(call)
    async with _content(call) as content:
        if not force:
            await content.sandbox.stat(posixpath.dirname(path) if path != ROOT else ROOT, user=content.user)
        try:
            await content.sandbox.mkdir(path, user=content.user, owner=content.owner)
        except FileExists as exc:
            if not force or (await content.sandbox.stat(path, user=content.user)).kind is not FileKind.DIRECTORY:
                raise E2bError(409, f"{_shown(path)!r} exists already") from exc
        await content.change(path, uid, gid, mode)
        return answer_json(await content.show(path), 201)


# -- files


async def read_file(call: E2bCall) -> Response:
    source = _read(call, _path(call))
    headers = await anext(source)  # raises what is wrong before the answer begins
    assert isinstance(headers, dict)
    return StreamedAnswer(source, 200, headers, "application/octet-stream")


async def _read(call: E2bCall, path: str) -> AsyncGenerator[Any, None]:
    """Yields the headers of the answer, then the file. The volume is in use for as long as that takes."""
    async with _content(call) as content:
        info = await content.sandbox.stat(path, user=content.user, details=True)
        if info.target_path:
            info = await content.sandbox.stat(info.target_path, user=content.user)
        if info.kind is not FileKind.FILE:
            what = "a directory" if info.kind is FileKind.DIRECTORY else "no file"
            raise E2bError(404 if info.kind is FileKind.SYMLINK else 400, f"{_shown(path)!r} is {what}")
        pieces = content.sandbox.read(info.path, length=info.size, user=content.user)
        try:
            first = await anext(pieces, b"")
            yield {"Content-Length": str(info.size), "Content-Disposition": "attachment"}
            yield first
            async for piece in pieces:
                yield piece
        finally:
            await close_source(pieces)


async def write_file(call: E2bCall) -> Response:
    """Makes the directories above it, and takes the place of a file that is there: `force` changes nothing."""
    path, (uid, gid, mode) = _path(call), _ids_and_mode(call)
    async with _content(call) as content:
        body = unpacked_body(call)
        await content.sandbox.write(path, body, mode=mode, user=content.user, owner=content.owner)
        if content.owner:  # has got the directories that were made, and not the file, which took a place at once
            uid, gid = USER_UID if uid is None else uid, USER_UID if gid is None else gid
        await content.change(path, uid, gid, None if mode is None or mode <= _PLAIN_MODE else mode)
        return answer_json(await content.show(path), 201)


HANDLERS: Mapping[str, Run] = {
    "e2b_stat_in_volume": stat_entry,
    "e2b_change_in_volume": change_entry,
    "e2b_remove_in_volume": remove_entry,
    "e2b_list_in_volume": list_directory,
    "e2b_mkdir_in_volume": make_directory,
    "e2b_read_in_volume": read_file,
    "e2b_write_in_volume": write_file,
}
