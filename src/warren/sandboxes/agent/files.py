"""File operations in a sandbox, done by its agent with the user's rights.

The host never opens a path of a sandbox.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import anyio

from warren.kernel.pacing import Pace
from warren.model.errors import (
    Conflict,
    FileExists,
    FileNotFound,
    FileProblem,
    InvalidPath,
    InvalidRequest,
    LimitReached,
    ProtocolError,
    WarrenError,
)
from warren.model.operations import (
    Change,
    FileEvent,
    FileInfo,
    FileKind,
    Search,
    SearchLimit,
    SearchMatch,
    SearchTotals,
    check_metadata,
    check_path,
    check_user,
)
from warren.sandboxes.agent.channel import AgentChannel, AgentReply
from warren.sandboxes.agent.link import AgentLink
from warren.sandboxes.agent.process import next_record, read_records, send_all
from warren.sandboxes.agent.tar_stream import BLOCK, TarMember, TarReader, header, is_beneath_link, padding, trailer
from warren.sandboxes.agent.wire import (
    ChangeKind,
    FileOp,
    Flag,
    Records,
    SearchEnd,
    WireFields,
    WireKind,
    WireRequest,
    WireTag,
    fields,
    record,
)

MAX_LIST_BYTES = 32 * 1024 * 1024
_MAX_LINKS = 200_000  # of a packed directory
_ENTRY_BYTES = 400  # of a FileInfo, beside its texts
_MAX_SYNCS = 1000  # that wait at once
_KINDS = {
    int(WireKind.FILE): FileKind.FILE,
    int(WireKind.DIRECTORY): FileKind.DIRECTORY,
    int(WireKind.SYMLINK): FileKind.SYMLINK,
    int(WireKind.OTHER): FileKind.OTHER,
}
_KIND_NUMBERS = {kind: number for number, kind in _KINDS.items()}
_CHANGES = {int(kind): Change[kind.name] for kind in ChangeKind if kind is not ChangeKind.SYNCED}
_SEARCH_ENDS = {
    int(SearchEnd.COMPLETE): None,
    int(SearchEnd.MATCHES): SearchLimit.MAX_MATCHES,
    int(SearchEnd.TIME): SearchLimit.TIME,
}


class AgentFiles:
    """The file operations of interfaces/sandbox.py.

    `watch` begins to watch when it is first iterated. From its WATCHING event on it reports every change, however
    late the caller takes it, or an OVERFLOW if some were lost.
    """

    def __init__(self, link: AgentLink) -> None:
        self._link = link

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, user: str = ""
    ) -> AsyncIterator[bytes]:
        if offset < 0 or (length is not None and length < 0):
            raise InvalidRequest(f"cannot read {length} bytes from offset {offset}")
        items = [(WireTag.OFFSET, offset)] if offset else []
        if length is not None:
            items.append((WireTag.LENGTH, length))
        left = length
        async with self._operation(FileOp.READ, path, user, *items) as channel:
            while isinstance(data := await channel.take(), bytes):
                if left is not None:
                    left -= len(data)
                    if left < 0:
                        raise channel.violation("more of a file than was asked for")
                yield data

    async def write(
        self,
        path: str,
        data: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        user: str = "",
        in_place: bool = False,
        metadata: Mapping[str, str] | None = None,
        owner: str = "",
    ) -> FileInfo:
        items: list[tuple[WireTag, int | str]] = [] if mode is None else [(WireTag.MODE, check_mode(mode))]
        if in_place or metadata is not None or owner:
            flags = Flag.DETAILS | (Flag(0) if metadata is None else Flag.METADATA)
            items += [(WireTag.FLAGS, int(flags)), *_owner_item(owner)]
            items += [(WireTag.METADATA, f"{key}={value}") for key, value in check_metadata(metadata or {}).items()]
        op = FileOp.WRITE_IN_PLACE if in_place else FileOp.WRITE
        async with self._operation(op, path, user, *items) as channel:
            if isinstance(data, bytes | bytearray):
                await send_all(channel, bytes(data))
                end = await channel.last()
            else:
                end = await _send_and_wait(channel, send_all(channel, data))
            return _file_info(channel, end.fields, check_path(path))

    async def list(self, path: str, *, depth: int = 1, user: str = "", details: bool = False) -> Sequence[FileInfo]:
        found: list[FileInfo] = []
        size = 0
        async with contextlib.aclosing(self.entries(path, depth=depth, user=user, details=details)) as entries:
            async for info in entries:
                found.append(info)
                size += len(info.path) + len(info.target) + len(info.target_path) + _ENTRY_BYTES
                size += sum(len(key) + len(value) for key, value in info.metadata.items())
                if size > MAX_LIST_BYTES:
                    raise LimitReached(f"the list of {path!r} is too long", remedy="list less deep")
        return found

    async def entries(
        self, path: str, *, depth: int = 1, user: str = "", details: bool = False
    ) -> AsyncGenerator[FileInfo, None]:
        if not 1 <= depth <= 1000:
            raise InvalidRequest(f"a depth of {depth} cannot be: 1 to 1000")
        base = check_path(path)
        items = [(WireTag.DEPTH, depth), *_flags(Flag.DETAILS * details)]
        async with self._operation(FileOp.LIST, path, user, *items) as channel:
            async for entry in read_records(channel):
                yield _file_info(channel, entry, base)

    async def stat(self, path: str, *, user: str = "", details: bool = False) -> FileInfo:
        async with self._operation(FileOp.STAT, path, user, *_flags(Flag.DETAILS * details)) as channel:
            found = _file_info(channel, (await channel.last()).fields, check_path(path))
            return replace(found, path=check_path(path))

    async def mkdir(self, path: str, *, mode: int = 0o755, user: str = "", owner: str = "") -> None:
        await self._run(FileOp.MKDIR, path, user, (WireTag.MODE, check_mode(mode)), *_owner_item(owner))

    async def remove(self, path: str, *, recursive: bool = False, user: str = "") -> None:
        await self._run(FileOp.REMOVE, path, user, *_flags(Flag.RECURSIVE * recursive))

    async def rename(self, source: str, target: str, *, user: str = "") -> None:
        await self._run(FileOp.RENAME, source, user, (WireTag.PATH2, check_path(target)))

    async def pack(self, path: str, *, user: str = "") -> AsyncIterator[bytes]:
        pad = 0
        async with contextlib.aclosing(self.members(path, user=user)) as members:
            async for part in members:
                if isinstance(part, TarMember):
                    if pad % BLOCK:
                        yield padding(pad)
                    yield header(part)
                    pad = part.size
                else:
                    yield part
        if pad % BLOCK:
            yield padding(pad)
        yield trailer()

    async def members(self, path: str, *, user: str = "") -> AsyncGenerator[TarMember | bytes, None]:
        """Yields what `pack` packs: members, each file followed by its bytes."""
        async with self._operation(FileOp.PACK, path, user) as channel:
            records, links, pace = Records(), set[int](), Pace()
            left = 0
            while isinstance(data := await channel.take(), bytes):
                records.add(data)
                while True:
                    if left:
                        raw = records.take_raw(left)
                        left -= len(raw)
                        if raw:
                            yield raw
                        if left:
                            break
                    member = _next_member(channel, records, links)
                    if member is None:
                        break
                    yield member
                    left = member.size
                    await pace.give_way()
            if left or len(records):
                raise channel.violation("a packed directory that ends in the middle")

    async def unpack(self, path: str, tar: bytes | AsyncIterable[bytes], *, user: str = "") -> int:
        reader = TarReader(tar)
        async with self._operation(FileOp.UNPACK, path, user) as channel:
            end = await _send_and_wait(channel, _send_members(channel, reader))
            return end.fields.number(WireTag.COUNT)

    async def place(self, path: str, members: AsyncIterable[TarMember | bytes], *, user: str = "") -> int:
        """Makes these members below the directory `path`, as `unpack` does, and gives them their owners, which only
        root can do. Their links may lead anywhere: only for sandboxes of which nothing is kept that somebody else could
        be led astray by."""
        async with self._operation(FileOp.UNPACK, path, user) as channel:
            end = await _send_and_wait(channel, _send_parts(channel, members))
            return end.fields.number(WireTag.COUNT)

    def watch(self, path: str, *, recursive: bool = False, user: str = "", attributes: bool = False) -> "AgentWatch":
        flags = Flag.RECURSIVE * recursive | Flag.ATTRIBUTES * attributes
        return AgentWatch(self._operation(FileOp.WATCH, path, user, *_flags(flags)), check_path(path))

    async def search(self, query: Search) -> AsyncIterator[SearchMatch | SearchTotals]:
        base, matches = check_path(query.path), 0
        async with self._operation(FileOp.SEARCH, query.path, query.user, *_search_items(query)) as channel:
            async for found in read_records(channel):
                matches += 1
                if matches > query.max_matches:
                    raise channel.violation("more matches than were asked for")
                yield _search_match(channel, found, base)
            yield _search_summary(channel, (await channel.last()).fields)

    async def _run(self, op: FileOp, path: str, user: str, *items: tuple[WireTag, int | str]) -> None:
        async with self._operation(op, path, user, *items) as channel:
            await channel.last()

    @contextlib.asynccontextmanager
    async def _operation(
        self, op: FileOp, path: str, user: str, *items: tuple[WireTag, int | str]
    ) -> AsyncGenerator[AgentChannel, None]:
        """Yields the channel of a file operation. Leaving before its end undoes the operation."""
        payload: list[tuple[WireTag, int | str]] = [(WireTag.OP, int(op)), (WireTag.PATH, check_path(path)), *items]
        if user:
            payload.append((WireTag.USER, check_user(user)))
        channel = await self._link.open(WireRequest.FILE, fields(payload))
        try:
            yield channel
        except (FileProblem, FileNotFound, FileExists, InvalidPath) as exc:
            names = [path, *(str(value) for tag, value in items if tag is WireTag.PATH2)]
            raise _with_path(exc, " to ".join(repr(name) for name in names)) from exc
        finally:
            channel.close()


class AgentWatch(AsyncGenerator[FileEvent, None]):
    """A FileWatch. The agent answers a request to sync after all changes that came before it, so `sync` returns when
    whoever iterates has been given them."""

    def __init__(self, opening: contextlib.AbstractAsyncContextManager[AgentChannel], base: str) -> None:
        self._opening, self._base = opening, base
        self._events = self._read()
        self._channel: AgentChannel | None = None
        self._syncs = deque[asyncio.Future[None]]()

    async def asend(self, value: None) -> FileEvent:
        return await self._events.asend(value)

    async def athrow(self, typ: Any, val: BaseException | object = None, tb: TracebackType | None = None) -> FileEvent:
        return await self._events.athrow(typ)

    async def aclose(self) -> None:
        await self._events.aclose()

    async def sync(self) -> None:
        if self._channel is None:
            raise Conflict("the watch has not begun, or has ended")
        if len(self._syncs) >= _MAX_SYNCS:
            raise LimitReached(f"{_MAX_SYNCS} callers wait for the changes of one watch")
        synced = asyncio.get_running_loop().create_future()
        self._syncs.append(synced)
        await self._channel.send(b"s")
        await synced

    async def _read(self) -> AsyncGenerator[FileEvent, None]:
        failure: WarrenError = Conflict("the watch has ended")
        try:
            async with self._opening as channel:
                async for found in read_records(channel):
                    if not found:
                        self._channel = channel
                        yield FileEvent(Change.WATCHING, self._base, True)
                    elif (event := _file_event(channel, found, self._base)) is not None:
                        yield event
                    else:
                        self._pass_sync(channel)
        except WarrenError as exc:
            failure = exc
            raise
        finally:
            self._channel = None
            while self._syncs:
                if not (synced := self._syncs.popleft()).done():
                    synced.set_exception(failure)
                    synced.exception()  # marks it as retrieved: perhaps no task waits for it

    def _pass_sync(self, channel: AgentChannel) -> None:
        if not self._syncs:
            raise channel.violation("an answer to a request to sync that was never made")
        if not (synced := self._syncs.popleft()).done():
            synced.set_result(None)


def _with_path(exc: WarrenError, name: str) -> WarrenError:
    """Adds the path to what the agent reports, which is only the text of the system error."""
    return type(exc)(f"{name}: {exc.message[:1].lower()}{exc.message[1:]}", remedy=exc.remedy)


async def _send_members(channel: AgentChannel, reader: TarReader) -> None:
    async for member in reader.members():
        if not await channel.send(_member_record(member)):
            return
        async for part in reader.content(member):
            if not await channel.send(part):
                return
    channel.send_eof()


async def _send_parts(channel: AgentChannel, members: AsyncIterable[TarMember | bytes]) -> None:
    async for part in members:
        if not await channel.send(_member_record(part) if isinstance(part, TarMember) else part):
            return
    channel.send_eof()


async def _send_and_wait(channel: AgentChannel, sending: Coroutine[None, None, None]) -> AgentReply:
    """Waits for the end of a channel while data is being sent on it.

    Neither waits for the other: a source that hangs does not hide that the sandbox is lost, and an error of the
    source ends the operation at once.
    """
    sender = asyncio.ensure_future(sending)
    ending = asyncio.ensure_future(channel.last())
    try:
        await asyncio.wait((sender, ending), return_when=asyncio.FIRST_COMPLETED)
        if sender.done() and not ending.done():
            sender.result()
        return await ending
    finally:
        sender.cancel()
        ending.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.gather(sender, ending, return_exceptions=True)


def _next_member(channel: AgentChannel, records: Records, links: set[int]) -> TarMember | None:
    """Returns the next member of a packed directory; skips the directory itself and what tar cannot carry.

    `links` are the links so far. A member beneath one would be written wherever the link leads.
    """
    while (found := next_record(channel, records)) is not None:
        info = _file_info(channel, found, "")
        parts = [part for part in info.path.split("/") if part not in ("", ".")]
        if info.path.startswith("/") or ".." in parts or info.size >= 1 << 60:
            raise channel.violation("a packed directory with a member that lies outside")
        if is_beneath_link(parts, links):
            raise FileProblem("it changed while it was packed: what was a link has files beneath it")
        if parts and info.kind is FileKind.SYMLINK:
            links.add(hash("/".join(parts)))
            if len(links) > _MAX_LINKS:
                raise LimitReached("more links than can be packed", remedy="take its directories one by one")
        if parts and info.kind is not FileKind.OTHER:
            size = info.size if info.kind is FileKind.FILE else 0
            return TarMember(
                "/".join(parts), info.kind, size, info.mode, int(info.modified), info.target, info.uid, info.gid
            )
    return None


def _member_record(member: TarMember) -> bytes:
    items: list[tuple[WireTag, int | str]] = [
        (WireTag.PATH, member.path),
        (WireTag.KIND, _KIND_NUMBERS[member.kind]),
        (WireTag.SIZE, member.size),
        (WireTag.MODE, member.mode),
        (WireTag.MTIME_NS, member.mtime * 10**9),
    ]
    if member.kind is FileKind.SYMLINK:
        items.append((WireTag.TARGET, member.target))
    if member.uid or member.gid:
        items += [(WireTag.UID, member.uid), (WireTag.GID, member.gid)]
    return record(items)


def _signed(number: int) -> int:
    """Reads 64 bits as a signed number: files may be older than 1970."""
    return number - (1 << 64) if number >> 63 else number


def _file_info(channel: AgentChannel, found: WireFields, base: str) -> FileInfo:
    try:
        kind = _KINDS.get(found.number(WireTag.KIND))
        if kind is None:
            raise ProtocolError("a file of an unknown kind")
        return FileInfo(
            path=_whole_path(base, found.text(WireTag.PATH)),
            kind=kind,
            size=found.number(WireTag.SIZE),
            mode=found.number(WireTag.MODE) & 0o7777,
            uid=found.number(WireTag.UID),
            gid=found.number(WireTag.GID),
            modified=_signed(found.number(WireTag.MTIME_NS)) / 1e9,
            target=found.text(WireTag.TARGET),
            owner=found.text(WireTag.OWNER),
            group=found.text(WireTag.GROUP),
            target_path=found.text(WireTag.TARGET_PATH),
            target_kind=_KINDS.get(found.number(WireTag.TARGET_KIND)) if WireTag.TARGET_KIND in found else None,
            target_mode=found.number(WireTag.TARGET_MODE) & 0o7777,
            metadata=_metadata(found) if WireTag.METADATA in found else {},
        )
    except ProtocolError as exc:
        raise channel.violation(exc.message) from None


def _metadata(found: WireFields) -> dict[str, str]:
    texts = [text.decode(errors="replace") for text in found.raw(WireTag.METADATA).split(b"\0")]
    if texts.pop() or len(texts) % 2:
        raise ProtocolError("metadata that ends in the middle")
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _file_event(channel: AgentChannel, found: WireFields, base: str) -> FileEvent | None:
    """Returns None for a record that only answers a request to sync."""
    try:
        if found.number(WireTag.CHANGE) == ChangeKind.SYNCED:
            return None
        change = _CHANGES.get(found.number(WireTag.CHANGE))
        if change is None:
            raise ProtocolError("a change of an unknown kind")
        directory = found.number(WireTag.KIND) == WireKind.DIRECTORY
        return FileEvent(change, _whole_path(base, found.text(WireTag.PATH)), directory)
    except ProtocolError as exc:
        raise channel.violation(exc.message) from None


def _search_items(query: Search) -> list[tuple[WireTag, int | str]]:
    flags = Flag.IGNORE_CASE * query.ignore_case | Flag.HIDDEN * query.hidden
    items: list[tuple[WireTag, int | str]] = [
        (WireTag.FLAGS, int(flags)),
        (WireTag.COUNT, query.max_matches),
        (WireTag.LENGTH, query.max_file_bytes),
        (WireTag.TIMEOUT_MS, round(query.timeout_s * 1000)),
        *((WireTag.GLOB, glob) for glob in query.globs()),
    ]
    if query.pattern:
        items.append((WireTag.PATTERN, query.pattern))
    return items


def _search_match(channel: AgentChannel, found: WireFields, base: str) -> SearchMatch:
    try:
        kind = _KINDS.get(found.number(WireTag.KIND))
        if kind is None:
            raise ProtocolError("a match of an unknown kind")
        return SearchMatch(
            path=_whole_path(base, found.text(WireTag.PATH)),
            kind=kind,
            line=found.number(WireTag.LINE),
            column=found.number(WireTag.COLUMN),
            text=found.text(WireTag.TEXT),
            text_truncated=bool(found.number(WireTag.TRUNCATED)),
        )
    except ProtocolError as exc:
        raise channel.violation(exc.message) from None


def _search_summary(channel: AgentChannel, found: WireFields) -> SearchTotals:
    try:
        if found.number(WireTag.TRUNCATED) not in _SEARCH_ENDS:
            raise ProtocolError("a search that ended for an unknown reason")
        return SearchTotals(
            matches=found.number(WireTag.COUNT),
            files_searched=found.number(WireTag.SEARCHED),
            binary=found.number(WireTag.BINARY),
            too_large=found.number(WireTag.TOO_LARGE),
            unreadable=found.number(WireTag.UNREADABLE),
            hidden=found.number(WireTag.HIDDEN),
            long_lines=found.number(WireTag.LONG_LINES),
            truncated_by=_SEARCH_ENDS[found.number(WireTag.TRUNCATED)],
        )
    except ProtocolError as exc:
        raise channel.violation(exc.message) from None


def _whole_path(base: str, path: str) -> str:
    """The whole path. The agent sends whole paths, or paths relative to the requested directory."""
    if not base or path.startswith("/"):
        return path
    return f"{base.rstrip('/')}/{path}" if path else base


def _flags(flags: int) -> list[tuple[WireTag, int | str]]:
    return [(WireTag.FLAGS, int(flags))] if flags else []


def _owner_item(owner: str) -> list[tuple[WireTag, int | str]]:
    return [(WireTag.OWNER, check_user(owner))] if owner else []


def check_mode(mode: int) -> int:
    if not 0 <= mode <= 0o7777:
        raise InvalidRequest(f"a mode of {mode:o} cannot be")
    return mode
