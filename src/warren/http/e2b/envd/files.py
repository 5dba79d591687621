"""Whole files of a sandbox, in and out: `/files` of E2B's wire. Both ways are streams; nothing is kept here.

A file comes as the body (application/octet-stream) or as parts of a form, whose file names are paths. It is written in
place, so that whoever watches its directory sees what E2B's clients expect: it is created, given to the user, written.
"""

import asyncio
import posixpath
import urllib.parse
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from typing import Any, Final

from starlette.responses import Response

from warren.http.context import answer_json
from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.envd.places import Rights, rights_of
from warren.http.e2b.errors import E2bError
from warren.http.multipart import read_parts
from warren.http.server.http_guard import StreamedAnswer
from warren.interfaces.sandbox import Sandbox
from warren.kernel.pacing import Pace
from warren.model.errors import InvalidRequest
from warren.model.operations import FileInfo, FileKind, check_metadata
from warren.sessions.output_events import close_source
from warren.sessions.request_context import note

MAX_PARTS: Final = 5000
_METADATA: Final = b"x-metadata-"
_GZIP: Final = 31  # zlib's code for a stream with gzip's head
_STEP: Final = 64 * 1024


# Out.


async def _get_file(call: E2bCall) -> Response:
    source = _read_file(call)
    headers = await anext(source)  # raises what is wrong before the answer begins
    assert isinstance(headers, dict)
    pieces: AsyncGenerator[Any, None] = source
    if _asks_for_gzip(call.header("accept-encoding")):
        headers["Content-Encoding"] = "gzip"
        headers.pop("Content-Length", None)
        pieces = _gzipped(source)
    return StreamedAnswer(pieces, 200, headers, "application/octet-stream")


async def _read_file(call: E2bCall) -> AsyncGenerator[dict[str, str] | bytes, None]:
    """Yields the headers of the answer, then the file. The sandbox is in use for as long as that takes."""
    async with call.sandbox() as (session, sandbox):
        rights = await rights_of(call, session, sandbox, call.parameter("username"))
        path = rights.path(call.parameter("path"))
        info = await _readable(sandbox, path, rights)
        # What the kernel makes up (/proc) has no size. A file that grows is read as far as it was.
        length = info.size or None
        pieces = sandbox.read(info.path, length=length, user=rights.user)
        try:
            first = await anext(pieces, b"")
            name = urllib.parse.quote(posixpath.basename(path).encode(errors="surrogateescape"))
            # A browser that follows a signed link must not take the file for a page of this server.
            headers = {
                "Vary": "Accept-Encoding",
                "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
            }
            if length is not None:
                headers["Content-Length"] = str(length)
            yield headers
            yield first
            async for piece in pieces:
                yield piece
        finally:
            await close_source(pieces)


async def _readable(sandbox: Sandbox, path: str, rights: Rights) -> FileInfo:
    """Returns the file itself, also if the path is a link."""
    info = await sandbox.stat(path, user=rights.user, details=True)
    if info.target_path:
        info = await sandbox.stat(info.target_path, user=rights.user)
    if info.kind is FileKind.DIRECTORY:
        raise E2bError(400, f"{path!r} is a directory")
    if info.kind is FileKind.SYMLINK:
        raise E2bError(404, f"{path!r} is a link that leads nowhere")
    return info


def _asks_for_gzip(accepted: str) -> bool:
    """Whether the client wants gzip. The lists that HTTP libraries send by themselves only say that they could take it:
    packing costs more time than it saves on most ways to a sandbox."""
    return accepted.strip().lower() == "gzip"


async def _gzipped(source: AsyncGenerator[Any, None]) -> AsyncGenerator[bytes, None]:
    packer = zlib.compressobj(1, wbits=_GZIP)
    try:
        async for piece in source:
            if packed := await asyncio.to_thread(packer.compress, piece):
                yield packed
        yield packer.flush()
    finally:
        await close_source(source)


# In.


async def _post_files(call: E2bCall) -> Response:
    metadata = _read_metadata(call)
    body = unpacked_body(call)
    kind = call.header("content-type").partition(";")[0].strip().lower()
    async with call.sandbox() as (session, sandbox):
        rights = await rights_of(call, session, sandbox, call.parameter("username"))
        given = "path" in call.query
        if kind == "application/octet-stream":
            if not given:
                raise E2bError(400, "which file? give its path in the query")
            path = rights.path(call.parameter("path"))
            return answer_json([await _write_file(sandbox, path, body, metadata, rights)])
        if not kind.startswith("multipart/"):
            raise E2bError(400, f"a body of type {kind[:80]!r} is not taken: send multipart/form-data or "
                           "application/octet-stream")  # fmt: skip
        written: dict[str, dict[str, Any]] = {}
        async for part in read_parts(body, call.header("content-type"), MAX_PARTS):
            if part.name != "file":
                continue
            path = rights.path(call.parameter("path") if given else part.filename or "")
            if path in written:
                raise E2bError(400, f"{path!r} comes twice in one request; only the first file was written")
            written[path] = await _write_file(sandbox, path, part.chunks(), metadata, rights)
        note(files=len(written))
    return answer_json(list(written.values()))


async def _write_file(
    sandbox: Sandbox, path: str, data: AsyncIterable[bytes], metadata: Mapping[str, str], rights: Rights
) -> dict[str, Any]:
    info = await sandbox.write(path, data, user=rights.user, owner=rights.owner, in_place=True, metadata=metadata)
    shown = path.encode(errors="surrogateescape").decode(errors="replace")
    entry: dict[str, Any] = {"path": shown, "name": posixpath.basename(shown), "type": "file"}
    if info.metadata:
        entry["metadata"] = info.metadata
    return entry


def _read_metadata(call: E2bCall) -> Mapping[str, str]:
    """Of several headers of one name the first counts."""
    metadata: dict[str, str] = {}
    for name, value in call.scope["headers"]:
        if name.lower().startswith(_METADATA) and len(name) > len(_METADATA):
            metadata.setdefault(name[len(_METADATA) :].decode("latin-1").lower(), value.decode("latin-1"))
    return check_metadata(metadata)


def unpacked_body(call: E2bCall) -> AsyncIterator[bytes]:
    encoding = call.header("content-encoding").strip().lower()
    if encoding in ("", "identity"):
        return call.stream()
    if encoding != "gzip":
        raise E2bError(400, f"a body in the encoding {encoding[:80]!r} is not taken, only gzip")
    return gunzip(call.stream())


async def gunzip(source: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Unpacks the source as it is read, in small pieces however much comes out of one: only the sandbox's disk can run
    full."""
    unpacker, pace = zlib.decompressobj(wbits=_GZIP), Pace()
    async for packed in source:
        more = True
        while more:
            if unpacker.eof and packed:
                unpacker = zlib.decompressobj(wbits=_GZIP)  # another member
            try:
                piece = unpacker.decompress(packed, _STEP)
            except zlib.error as exc:
                raise InvalidRequest(f"the body is not gzip: {exc}") from None
            packed = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            more = bool(packed) or len(piece) == _STEP
            if piece:
                yield piece
            await pace.give_way()
    if not unpacker.eof:
        raise InvalidRequest("the upload ended too early: the body is gzip that is cut off")


HANDLERS: Mapping[str, Run] = {"e2b_read_file": _get_file, "e2b_write_files": _post_files}
