"""Snapshots as files: callers download them, and upload these files or tars.

A file that this installation has signed becomes a saved disk as it is. Anything else is taken for a tar, which the
agent of a fresh sandbox unpacks inside it, with the rights of its user: the host's kernel never reads a file system
that somebody else has made.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from warren.images.transfer import zstd_stream
from warren.kernel.shielding import run_shielded
from warren.kernel.zstd import zstd_module
from warren.model.access import Scope
from warren.model.artifact import SavedAtEnd
from warren.model.errors import Forbidden, InvalidRequest, RequestTimedOut, WarrenError
from warren.model.network import NO_NETWORK
from warren.model.snapshot import Snapshot, SnapshotWish
from warren.model.spec import WORKSPACE
from warren.sessions.manager import Sessions
from warren.sessions.new_session import NewSession
from warren.sessions.request_context import current_caller, set_if_undelivered
from warren.sessions.snapshots.byte_reader import PIECE, ByteReader
from warren.sessions.snapshots.service import Snapshots
from warren.sessions.snapshots.signed_files import MARK, SignedFile, write_file

_UPLOAD_S: Final = 3600.0
_GZIP: Final = b"\x1f\x8b"
_TAR_HEAD: Final = 512
_IN_FILE: Final = (
    *("name", "provider", "environment", "image", "writable_root", "disk_mb", "bytes", "sha256", "created_at"),
    *("session_id", "thread_id", "parent", "metadata"),
)


@dataclass(frozen=True, slots=True)
class Upload:
    """What a caller says of an upload. The rest is for a tar; `path` is where it goes."""

    wish: SnapshotWish = field(default_factory=SnapshotWish)
    environment: str = ""
    image: str = ""
    disk_mb: int | None = None
    path: str = WORKSPACE


def download(snapshots: Snapshots, snapshot: Snapshot) -> AsyncGenerator[bytes, None]:
    values = snapshot.as_mapping()
    header = {"id": snapshot.id, **{name: values[name] for name in _IN_FILE}}
    return write_file(snapshots.signer, snapshot.tenant, header, snapshots.packed(snapshot))


async def upload(sessions: Sessions, snapshots: Snapshots, tenant: str, asked: Upload, data: Any) -> Snapshot:
    reader = ByteReader(_chunks(data))
    head = await reader.up_to(len(MARK))
    if not head:
        raise InvalidRequest("the upload is empty", remedy="send what a download gave, or a tar")
    try:
        async with asyncio.timeout(_UPLOAD_S):
            if head == MARK:
                return await _bring_back(snapshots, tenant, asked.wish, SignedFile(snapshots.signer, reader))
            reader.put_back(head)
            return await _unpack_in_sandbox(sessions, snapshots, tenant, asked, reader)
    except TimeoutError:
        raise RequestTimedOut(f"the upload took longer than {_UPLOAD_S:g} s", remedy="send less at once") from None


async def _chunks(data: bytes | AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    if isinstance(data, bytes):
        for at in range(0, len(data), PIECE):
            yield data[at : at + PIECE]
    else:
        async for part in data:
            yield part


async def _bring_back(snapshots: Snapshots, tenant: str, wish: SnapshotWish, file: SignedFile) -> Snapshot:
    header = await file.read(tenant)
    disks = snapshots.disks(header["provider"])
    async with snapshots.begin(tenant, current_caller().key_id) as making:
        await snapshots.check_room(making, header["bytes"])
        making.provider = header["provider"]
        async with aclosing(file.content()) as content:
            disk = await disks.unpack(making.id, content)
        if disk.sha256 != header["sha256"]:
            raise InvalidRequest("the contents of the file are not those that its header names")
        snapshot = snapshots.new(making, disk, wish, {name: header[name] for name in _IN_FILE})
        return await snapshots.keep(making, snapshot)


async def _unpack_in_sandbox(
    sessions: Sessions, snapshots: Snapshots, tenant: str, asked: Upload, reader: ByteReader
) -> Snapshot:
    if not current_caller().may(Scope.SESSIONS):
        raise Forbidden("a tar is unpacked in a session, and this key may not make one", remedy="use one that may")
    head = await reader.up_to(len(zstd_stream.MAGIC))
    reader.put_back(head)
    limits = {} if asked.disk_mb is None else {"disk_mb": asked.disk_mb}
    request = NewSession(environment=asked.environment, image=asked.image, limits=limits, network=NO_NETWORK)
    session = (await sessions.create(tenant, request)).session
    set_if_undelivered(None)  # the session ends here in every case
    try:
        snapshots.disks(session.provider)
        async with sessions.using(tenant, session.id) as (_, sandbox):
            await sandbox.unpack(asked.path, _plain(reader, head))
            return await snapshots.save(session, asked.wish)
    finally:
        await run_shielded(_end(sessions, tenant, session.id))


async def _end(sessions: Sessions, tenant: str, session_id: str) -> None:
    """Ends the session of an upload. What lies in /workspace/artifacts belongs to the snapshot alone."""
    session = await sessions.get(tenant, session_id)
    if session.state.can_run:
        with suppress(WarrenError):
            await sessions.store.swap(session.changed(artifacts=SavedAtEnd()))
    await sessions.delete(tenant, session_id)


async def _plain(reader: ByteReader, head: bytes) -> AsyncGenerator[bytes, None]:
    """Yields the tar, whatever has compressed it. How much comes of it the sandbox bounds."""
    if head.startswith(_GZIP):
        source = _inflate(reader)
    elif head == zstd_stream.MAGIC:
        source = _unzstd(reader)
    else:
        source = reader.rest()
    is_begun = False
    async with aclosing(source):
        async for part in source:
            if not is_begun and not part[:_TAR_HEAD].strip(b"\0"):  # so begins the image of a disk, too
                raise InvalidRequest("the tar has no files", remedy="upload a tar, or what a download gave")
            is_begun = True
            yield part


async def _inflate(reader: ByteReader) -> AsyncGenerator[bytes, None]:
    inflater, data = zlib.decompressobj(31), b""
    while True:
        data = data or await reader.up_to(PIECE)
        try:
            part = await asyncio.to_thread(inflater.decompress, data, PIECE)
        except zlib.error as exc:
            raise InvalidRequest(f"what gzip has compressed cannot be unpacked: {exc}") from exc
        if part:
            yield part
        data_before, data = data, inflater.unconsumed_tail
        if inflater.eof:
            data = inflater.unused_data
            if len(data) < len(_GZIP):  # the next member may begin in what was not read yet
                data += await reader.up_to(PIECE)
            if not data.startswith(_GZIP):
                return  # programs pad tars on tapes with zeros
            inflater = zlib.decompressobj(31)
        elif not data_before and not part:
            raise InvalidRequest("what gzip has compressed is not whole")


async def _unzstd(reader: ByteReader) -> AsyncGenerator[bytes, None]:
    zstd = zstd_module()
    options = {zstd.DecompressionParameter.window_log_max: zstd_stream.LARGEST_WINDOW_LOG}
    inflater, data = zstd.ZstdDecompressor(options=options), await reader.up_to(PIECE)
    while True:
        try:
            part = await asyncio.to_thread(inflater.decompress, data, PIECE)
        except zstd.ZstdError as exc:
            raise InvalidRequest(f"what zstd has compressed cannot be unpacked: {exc}") from exc
        if part:
            yield part
        data = b""
        if inflater.eof:
            data = inflater.unused_data or await reader.up_to(PIECE)
            if not data:
                return
            inflater = zstd.ZstdDecompressor(options=options)
        elif inflater.needs_input and not (data := await reader.up_to(PIECE)):
            raise InvalidRequest("what zstd has compressed is not whole")
