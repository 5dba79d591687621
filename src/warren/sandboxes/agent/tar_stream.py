"""Reads and writes tar archives as streams, one member after the other, without holding one in memory.

`members` parses an archive as its bytes arrive and yields each member before its content, which the caller then
takes with `content`. `check_member` decides what an archive may hold: no path out of the directory it is unpacked
in, no devices, no hard links.

The target of a link may begin with `..` as long as it stays inside, and `..` may not follow a name: so a path leads
where it says, whatever other links the archive brings. For the same reason no member may lie beneath a link of the
archive.

Of the extensions only those that say where a member goes and how long it is are kept, so an archive costs the same
memory however many headers it has. Reading gives way to other work between headers (`Pace`).
"""

import tarfile
from collections.abc import AsyncIterable, AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from warren.kernel.pacing import Pace
from warren.model.errors import InvalidRequest
from warren.model.operations import FileKind

BLOCK = 512
MAX_MEMBERS = 100_000
MAX_TOTAL_BYTES = 16 * 1024**3
MAX_PATH_BYTES = 4095
_MAX_EXTENSION_BYTES = 1024 * 1024
_MAX_EXTENSION_RECORDS = 1000  # of one pax header; programs that write archives use about ten
_MAX_EXTENSIONS = 16  # in a row
_SPARSE = "GNU.sparse."
_KEPT_RECORDS = {b"path": "path", b"linkpath": "linkpath", b"size": "size"}
_END = b"\0" * (2 * BLOCK)


@dataclass(frozen=True, slots=True)
class TarMember:
    path: str
    kind: FileKind
    size: int
    mode: int
    mtime: int
    target: str = ""
    uid: int = 0
    gid: int = 0


class _Skip(Enum):
    ROOT = auto()


class ByteStream:
    """Reads exact amounts from chunks of any size."""

    def __init__(self, source: bytes | AsyncIterable[bytes]) -> None:
        self._chunks = aiter(source if not isinstance(source, bytes | bytearray) else _single_chunk(bytes(source)))
        self._chunk = memoryview(b"")

    async def some(self, limit: int) -> memoryview:
        """Reads between one and `limit` bytes; none at the end of the stream."""
        while not self._chunk:
            try:
                self._chunk = memoryview(await anext(self._chunks))
            except StopAsyncIteration:
                return memoryview(b"")
        part, self._chunk = self._chunk[:limit], self._chunk[limit:]
        return part

    async def exactly(self, size: int, what: str) -> bytes:
        """Reads `size` bytes, or none at the end of the stream. Raises if the stream ends in between."""
        parts: list[memoryview] = []
        missing = size
        while missing:
            part = await self.some(missing)
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        if missing and parts:
            raise InvalidRequest(f"the tar archive ends in the middle of {what}")
        return b"".join(parts)


async def _single_chunk(data: bytes) -> AsyncIterator[bytes]:
    yield data


class TarReader:
    """`async for member in reader.members()`, and for each file all of `reader.content(member)`."""

    def __init__(self, source: bytes | AsyncIterable[bytes]) -> None:
        self._stream = ByteStream(source)
        self._links: set[int] = set()
        self._pace = Pace()
        self._count = 0
        self._total = 0
        self._pax_global: dict[str, str] = {}

    async def members(self) -> AsyncIterator[TarMember]:
        while (info := await self._read_member()) is not None:
            member = check_member(info, self._links)
            if member is _Skip.ROOT:
                continue
            assert isinstance(member, TarMember)
            self._check_totals(member)
            yield member

    async def content(self, member: TarMember) -> AsyncIterator[memoryview]:
        left = member.size
        while left:
            part = await self._stream.some(left)
            if not part:
                raise InvalidRequest(f"the tar archive ends in the middle of {member.path!r}")
            left -= len(part)
            yield part
        await self._stream.exactly(-member.size % BLOCK, repr(member.path))

    def _check_totals(self, member: TarMember) -> None:
        self._count += 1
        self._total += member.size
        if self._count > MAX_MEMBERS:
            raise InvalidRequest(f"the tar archive has more than {MAX_MEMBERS:,} members, at {member.path!r}")
        if self._total > MAX_TOTAL_BYTES:
            raise InvalidRequest(f"the tar archive unpacks to more than {MAX_TOTAL_BYTES:,} bytes, at {member.path!r}")

    async def _read_member(self) -> tarfile.TarInfo | None:
        """Returns the next member with its extensions (long names, pax records) applied."""
        pax: dict[str, str] = {}
        gnu: dict[str, str] = {}
        extensions = 0
        while True:
            await self._pace.give_way()
            block = await self._stream.exactly(BLOCK, "a header")
            if not block and not (pax or gnu) and self._count:
                return None
            info = self._parse_header(block)
            if info is None:
                return None
            if info.type in _EXTENSIONS:
                extensions += 1
                if extensions > _MAX_EXTENSIONS:
                    raise InvalidRequest("the tar archive has too many extension headers in a row")
                text = await self._read_extension(info)
                if info.type == tarfile.GNUTYPE_LONGNAME:
                    gnu["path"] = _decode_name(text)
                elif info.type == tarfile.GNUTYPE_LONGLINK:
                    gnu["linkpath"] = _decode_name(text)
                else:
                    into = self._pax_global if info.type == tarfile.XGLTYPE else pax
                    into.update(_parse_pax(text))
                continue
            _apply_extensions(info, {**self._pax_global, **gnu, **pax})
            return info

    def _parse_header(self, block: bytes) -> tarfile.TarInfo | None:
        if block and not block.strip(b"\0"):
            return None
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as exc:
            remedy = ""
            if (
                block[:2] == b"\x1f\x8b"
                or block[:3] == b"BZh"
                or block[:6] == b"\xfd7zXZ\0"
                or block[:4] == b"\x28\xb5\x2f\xfd"
            ):
                remedy = "it is compressed: send it uncompressed"
            raise InvalidRequest(f"this is not a tar archive ({exc})", remedy=remedy) from exc

    async def _read_extension(self, info: tarfile.TarInfo) -> bytes:
        if not 0 <= info.size <= _MAX_EXTENSION_BYTES:
            raise InvalidRequest(f"the tar archive has an extension header of {info.size} bytes")
        padded = info.size + -info.size % BLOCK
        text = await self._stream.exactly(padded, "an extension header")
        if len(text) != padded:
            raise InvalidRequest("the tar archive ends in the middle of an extension header")
        return text[: info.size]


_EXTENSIONS = {
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.XGLTYPE,
}
_KINDS = {
    tarfile.REGTYPE: FileKind.FILE,
    tarfile.AREGTYPE: FileKind.FILE,
    tarfile.CONTTYPE: FileKind.FILE,
    tarfile.DIRTYPE: FileKind.DIRECTORY,
    tarfile.SYMTYPE: FileKind.SYMLINK,
}
_REFUSED = {
    tarfile.LNKTYPE: ("a hard link", "pack it with `tar --hard-dereference`, or with links as copies"),
    tarfile.CHRTYPE: ("a device", ""),
    tarfile.BLKTYPE: ("a device", ""),
    tarfile.FIFOTYPE: ("a named pipe", ""),
    tarfile.GNUTYPE_SPARSE: ("a sparse file", "pack it without `--sparse`"),
}


def check_member(info: tarfile.TarInfo, links: set[int]) -> TarMember | _Skip:
    """Returns the member as it may be unpacked. Raises InvalidRequest with its name.

    `links` collects the links so far, as hashes of their paths: 100,000 paths of 4 KiB would be too much to keep. Two
    paths with the same hash would only refuse a member, and nobody outside this process can make such two.
    """
    kind = _KINDS.get(info.type)
    if kind is None:
        what, remedy = _REFUSED.get(info.type, (f"of type {info.type!r}", ""))
        raise InvalidRequest(f"the tar member {info.name!r} is {what}, which is not taken", remedy=remedy)
    if info.type == tarfile.AREGTYPE and info.name.endswith("/"):
        kind = FileKind.DIRECTORY
    parts = _split_path(info.name)
    if not parts:
        if kind is FileKind.DIRECTORY:
            return _Skip.ROOT
        raise InvalidRequest(f"the tar member {info.name!r} has no name")
    if is_beneath_link(parts, links):
        raise InvalidRequest(f"the tar member {info.name!r} lies beneath a link of the same archive")
    path = "/".join(parts)
    links.discard(hash(path))
    if kind is FileKind.SYMLINK:
        _check_link_target(info, len(parts) - 1)
        links.add(hash(path))
    size = info.size if kind is FileKind.FILE else 0
    if size < 0:
        raise InvalidRequest(f"the tar member {info.name!r} has a size below zero")
    return TarMember(
        path=path,
        kind=kind,
        size=size,
        mode=info.mode & 0o777,
        mtime=min(max(int(info.mtime), 0), 1 << 33),
        target=info.linkname if kind is FileKind.SYMLINK else "",
    )


def _split_path(name: str) -> list[str]:
    """Returns the components of a path. Raises if it leads out of the directory it starts in."""
    if "\0" in name or len(name.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES:
        raise InvalidRequest(f"the tar member {name[:80]!r} has a name that cannot be")
    if name.startswith("/"):
        raise InvalidRequest(f"the tar member {name!r} has an absolute path")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InvalidRequest(f"the tar member {name!r} leads out of its directory")
    return parts


def is_beneath_link(parts: Sequence[str], links: Collection[int]) -> bool:
    return bool(links) and any(hash("/".join(parts[:depth])) in links for depth in range(1, len(parts)))


def _check_link_target(info: tarfile.TarInfo, depth: int) -> None:
    target = info.linkname
    if not target or "\0" in target or len(target.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES:
        raise InvalidRequest(f"the tar member {info.name!r} is a link to nowhere")
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    if target.startswith("/") or ups > depth or ".." in parts[ups:]:
        raise InvalidRequest(f"the tar member {info.name!r} is a link that leads out of its directory, to {target!r}")


def _decode_name(raw: bytes) -> str:
    """Returns at most one byte more than a path may have, which is enough to refuse it."""
    return raw.split(b"\0", 1)[0][: MAX_PATH_BYTES + 1].decode("utf-8", "surrogateescape")


def _parse_pax(text: bytes) -> dict[str, str]:
    """Returns the records of _KEPT_RECORDS, cut like names, and _SPARSE if there is one of a sparse file."""
    found: dict[str, str] = {}
    at = count = 0
    while at < len(text) and text[at] != 0:
        count += 1
        if count > _MAX_EXTENSION_RECORDS:
            raise InvalidRequest(f"the tar archive has a pax header of more than {_MAX_EXTENSION_RECORDS:,} records")
        space = text.find(b" ", at, at + 20)
        digits = text[at:space] if space > 0 else b""
        length = int(digits) if digits.isdigit() else 0
        record = text[space + 1 : at + length]
        key, equals, value = record.partition(b"=")
        if length <= space - at + 1 or at + length > len(text) or not equals or not value.endswith(b"\n"):
            raise InvalidRequest("the tar archive has a broken pax header")
        if key in _KEPT_RECORDS:
            found[_KEPT_RECORDS[key]] = value[:-1][: MAX_PATH_BYTES + 1].decode("utf-8", "surrogateescape")
        elif key.startswith(_SPARSE.encode()):
            found[_SPARSE] = ""
        at += length
    return found


def _apply_extensions(info: tarfile.TarInfo, extras: dict[str, str]) -> None:
    if _SPARSE in extras:
        raise InvalidRequest(
            f"the tar member {info.name!r} is a sparse file, which is not taken",
            remedy=_REFUSED[tarfile.GNUTYPE_SPARSE][1],
        )
    info.name = extras.get("path", info.name)
    info.linkname = extras.get("linkpath", info.linkname)
    if "size" in extras:
        if not extras["size"].isascii() or not extras["size"].isdigit() or len(extras["size"]) > 20:
            raise InvalidRequest(f"the tar member {info.name!r} has a size that is no number")
        info.size = int(extras["size"])


def header(member: TarMember) -> bytes:
    """The header blocks of a member, in the pax format."""
    info = tarfile.TarInfo(member.path + "/" if member.kind is FileKind.DIRECTORY else member.path)
    info.type = {
        FileKind.FILE: tarfile.REGTYPE, FileKind.DIRECTORY: tarfile.DIRTYPE, FileKind.SYMLINK: tarfile.SYMTYPE,
    }[member.kind]  # fmt: skip
    info.size, info.mode, info.mtime = member.size, member.mode & 0o7777, member.mtime
    info.uid, info.gid, info.linkname = member.uid, member.gid, member.target
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> bytes:
    return b"\0" * (-size % BLOCK)


def trailer() -> bytes:
    return _END
