"""E2B's service filesystem.Filesystem, but for its watchers: lists, entries, directories, moves and removals."""

import contextlib
import posixpath
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime
from typing import Final

from starlette.responses import Response

from warren.http.context import answer_json
from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.connect import Message, unary
from warren.http.e2b.envd.places import called_user, rights_of, text_field
from warren.http.e2b.errors import ConnectError
from warren.http.e2b.users import DEFAULT_USER
from warren.model.errors import FileExists, FileNotFound, NotADirectory
from warren.model.operations import FileInfo, FileKind
from warren.model.spec import USER
from warren.sessions.long_values import LongList
from warren.sessions.output_events import close_source

_TYPES: Final = {
    FileKind.FILE: "FILE_TYPE_FILE",
    FileKind.DIRECTORY: "FILE_TYPE_DIRECTORY",
    FileKind.SYMLINK: "FILE_TYPE_SYMLINK",
    FileKind.OTHER: "FILE_TYPE_UNSPECIFIED",
}
_SIGNS: Final = {FileKind.FILE: "", FileKind.DIRECTORY: "d", FileKind.SYMLINK: "L", FileKind.OTHER: "?"}
_FEW: Final = 100
_EARLIEST: Final = datetime(1, 1, 1, tzinfo=UTC).timestamp()
_LATEST: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


def entry_of(info: FileInfo) -> Message:
    """Returns what E2B tells of a file. The type and mode of a link are those of what it leads to."""
    path = text_of(info.path)
    entry: Message = {
        "name": posixpath.basename(path.rstrip("/")) or "/",
        "type": _TYPES[info.target_kind or info.kind],
        "path": path,
        "size": info.size,
        "mode": (info.target_mode if info.target_kind else info.mode) & 0o777,
        "permissions": permissions(info.kind, info.mode),
        "owner": _named(info.owner or str(info.uid)),
        "group": _named(info.group or str(info.gid)),
        "modifiedTime": moment_of(info.modified),
    }
    if info.kind is FileKind.SYMLINK:
        entry["isSymlink"] = True
    if info.target_path:
        entry["symlinkTarget"] = text_of(info.target_path)
    if info.metadata:
        entry["metadata"] = info.metadata
    return entry


def permissions(kind: FileKind, mode: int) -> str:
    """Writes them as Go does: `-rw-r--r--`, `dtrwxrwxrwx`, `Lrwxrwxrwx`."""
    signs = _SIGNS[kind] + "".join(sign for bit, sign in ((0o4000, "u"), (0o2000, "g"), (0o1000, "t")) if mode & bit)
    bits = "".join(sign if mode >> 8 - at & 1 else "-" for at, sign in enumerate("rwxrwxrwx"))
    return (signs or "-") + bits


def moment_of(seconds: float) -> str:
    """Bounds the time to what a calendar has: a sandbox can give its files any time."""
    moment = datetime.fromtimestamp(min(max(seconds, _EARLIEST), _LATEST), UTC)
    return moment.isoformat().replace("+00:00", "Z")


def _named(name: str) -> str:
    """Returns the name that clients know: the sandbox user has another one for them."""
    return DEFAULT_USER if name == USER else text_of(name)


def text_of(name: str) -> str:
    """Replaces bytes that are not UTF-8, which JSON cannot carry."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


async def _list_dir(call: E2bCall) -> Response:
    """Ordered by name, as far down as asked. Links in it are not followed."""
    message = await call.json()
    depth = message.get("depth") or 1
    if not isinstance(depth, int) or not 1 <= depth <= 1000:
        raise ConnectError("invalid_argument", "depth must be 1 to 1000")
    source = _read_entries(call, text_field(message, "path"), depth)
    begun: list[Message] = []
    async for entry in source:  # raises what is wrong with the path
        begun.append(entry)
        if len(begun) == _FEW:
            return answer_json({"entries": LongList(all_entries(begun, source))})
    return answer_json({"entries": begun})


async def _read_entries(call: E2bCall, path: str, depth: int) -> AsyncGenerator[Message, None]:
    """Yields the entries. The sandbox is in use for as long as the list takes."""
    async with call.sandbox() as (session, sandbox):
        rights = await rights_of(call, session, sandbox, called_user(call))
        entries = sandbox.entries(rights.path(path), depth=depth, user=rights.user, details=True)
        try:
            async for info in entries:
                yield entry_of(info)
        finally:
            await close_source(entries)


async def all_entries(begun: list[Message], source: AsyncGenerator[Message, None]) -> AsyncGenerator[Message, None]:
    try:
        for entry in begun:
            yield entry
        begun.clear()
        async for entry in source:
            yield entry
    finally:
        await close_source(source)


async def _stat(call: E2bCall, message: Message) -> Message:
    async with call.sandbox() as (session, sandbox):
        rights = await rights_of(call, session, sandbox, called_user(call))
        path = rights.path(text_field(message, "path"))
        try:
            info = await sandbox.stat(path, user=rights.user, details=True)
        except NotADirectory as exc:  # nothing is below a file: `exists` is to say so
            raise FileNotFound(exc.message) from exc
    return {"entry": entry_of(info)}


async def _make_dir(call: E2bCall, message: Message) -> Message:
    async with call.sandbox() as (session, sandbox):
        rights = await rights_of(call, session, sandbox, called_user(call))
        path = rights.path(text_field(message, "path"))
        path = path.rstrip("/") or "/"
        with contextlib.suppress(FileNotFound):
            info = await sandbox.stat(path, user=rights.user, details=True)
            if FileKind.DIRECTORY in (info.kind, info.target_kind):
                raise ConnectError("already_exists", f"the directory {path!r} exists")
            raise ConnectError("invalid_argument", f"{path!r} exists and is not a directory")
        await sandbox.mkdir(path, user=rights.user, owner=rights.owner)
        return {"entry": entry_of(await sandbox.stat(path, user=rights.user, details=True))}


async def _move(call: E2bCall, message: Message) -> Message:
    async with call.sandbox() as (session, sandbox):
        rights = await rights_of(call, session, sandbox, called_user(call))
        source = rights.path(text_field(message, "source"))
        target = rights.path(text_field(message, "destination"), "target")
        with contextlib.suppress(FileExists):
            await sandbox.mkdir(posixpath.dirname(target.rstrip("/")) or "/", user=rights.user, owner=rights.owner)
        await sandbox.rename(source, target, user=rights.user)
        return {"entry": entry_of(await sandbox.stat(target, user=rights.user, details=True))}


async def _remove(call: E2bCall, message: Message) -> Message:
    """Succeeds if there is nothing to remove."""
    async with call.sandbox() as (session, sandbox):
        rights = await rights_of(call, session, sandbox, called_user(call))
        with contextlib.suppress(FileNotFound, NotADirectory):
            await sandbox.remove(rights.path(text_field(message, "path")), recursive=True, user=rights.user)
    return {}


HANDLERS: Mapping[str, Run] = {
    "e2b_list_directory": _list_dir,
    "e2b_stat_entry": unary(_stat),
    "e2b_make_directory": unary(_make_dir),
    "e2b_move_entry": unary(_move),
    "e2b_remove_entry": unary(_remove),
}
