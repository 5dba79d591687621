"""Tar streams: what tarfile and GNU tar write is read, what leads out is refused, any cut will do."""

import asyncio
import contextlib
import io
import tarfile
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warren.model.errors import InvalidRequest
from warren.model.operations import FileKind
from warren.sandboxes.agent.tar_stream import TarMember, TarReader, header, padding, trailer

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def tar_of(
    *members: tuple[str, bytes | None, dict[str, object]],
    kind: int = tarfile.PAX_FORMAT,
    pax: dict[str, str] | None = None,
) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind, pax_headers=pax) as tar:
        for name, data, attributes in members:
            info = tarfile.TarInfo(name)
            info.size = len(data or b"")
            for key, value in attributes.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data or b""))
    return out.getvalue()


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def read_all(source: bytes | AsyncIterator[bytes]) -> list[tuple[TarMember, bytes]]:
    reader = TarReader(source)
    found = []
    async for member in reader.members():
        found.append((member, b"".join([bytes(part) async for part in reader.content(member)])))
    return found


def unpacked(data: bytes, cut: int = 0) -> list[tuple[TarMember, bytes]]:
    return asyncio.run(read_all(pieces(data, cut) if cut else data))


def link(name: str, target: str) -> tuple[str, None, dict[str, object]]:
    return name, None, {"type": tarfile.SYMTYPE, "linkname": target}


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("cut", [1, 100, 511, 512, 513, 100_000])
def test_every_format_in_any_cut(kind: int, cut: int) -> None:
    data = tar_of(
        ("folder", None, {"type": tarfile.DIRTYPE, "mode": 0o750}),
        ("folder/file", b"x" * 1000, {"mode": 0o4755, "mtime": 1_700_000_000}),
        ("exact", b"b" * 512, {}),
        ("empty", b"", {}),
        link("folder/link", "../exact"),
        kind=kind,
    )
    found = unpacked(data, cut)
    assert [(member.path, member.kind) for member, _ in found] == [
        ("folder", FileKind.DIRECTORY), ("folder/file", FileKind.FILE), ("exact", FileKind.FILE),
        ("empty", FileKind.FILE), ("folder/link", FileKind.SYMLINK),
    ]  # fmt: skip
    assert found[1] == (TarMember("folder/file", FileKind.FILE, 1000, 0o755, 1_700_000_000), b"x" * 1000)
    assert found[4][0].target == "../exact"


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_strange_names(kind: int) -> None:
    names = ["d" * 150 + "/" + "f" * 200, "ünïcödé ☃", "new\nline", "bad\udcff", " ", "-", "..."]
    data = tar_of(*((name, name.encode(errors="surrogateescape"), {}) for name in names), kind=kind)
    assert [member.path for member, _ in unpacked(data)] == names
    target = "t" * 300
    assert unpacked(tar_of(link("l", target), kind=kind))[0][0].target == target


def test_names_are_made_plain() -> None:
    data = tar_of(
        ("./", None, {"type": tarfile.DIRTYPE}), ("./a//b/./c", b"", {}), ("d/", None, {"type": tarfile.DIRTYPE})
    )
    assert [member.path for member, _ in unpacked(data)] == ["a/b/c", "d"]


def test_an_archive_may_end_without_its_empty_blocks() -> None:
    data = tar_of(("x", b"1", {}))[:1024]
    assert len(unpacked(data)) == 1


def test_bytes_after_the_end_are_ignored() -> None:
    assert len(unpacked(tar_of(("x", b"1", {})) + b"garbage" * 1000)) == 1


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([("/etc/passwd", b"", {})], "absolute"),
        ([("../x", b"", {})], "leads out"),
        ([("a/../../x", b"", {})], "leads out"),
        ([("a/../x", b"", {})], "leads out"),
        ([link("l", "/etc")], "leads out"),
        ([link("l", "..")], "leads out"),
        ([link("a/l", "../../x")], "leads out"),
        ([link("a/l", "b/../../..")], "leads out"),
        ([link("l", "")], "link to nowhere"),
        ([link("a/b/l", "../.."), link("m", "a/b/l/..")], "leads out"),
        ([link("m", "a/b/l/.."), link("a/b/l", "../..")], "leads out"),
        ([link("l", "."), ("l/x", b"", {})], "beneath a link"),
        ([("x", b"", {}), ("h", None, {"type": tarfile.LNKTYPE, "linkname": "x"})], "hard link"),
        ([("c", None, {"type": tarfile.CHRTYPE})], "device"),
        ([("b", None, {"type": tarfile.BLKTYPE})], "device"),
        ([("f", None, {"type": tarfile.FIFOTYPE})], "named pipe"),
        ([("s", None, {"type": tarfile.GNUTYPE_SPARSE})], "sparse"),
        ([("odd", None, {"type": b"Z"})], "type b'Z'"),
        ([("n" * 4100, b"", {})], "cannot be"),
        ([(".", b"x", {})], "no name"),
    ],
)
def test_hostile_members_are_refused_by_name(
    members: list[tuple[str, bytes | None, dict[str, object]]], why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why) as caught:
        unpacked(tar_of(*members))
    assert any(repr(name)[:60] in str(caught.value) for name, _, _ in members)


def test_links_that_stay_inside_are_taken() -> None:
    data = tar_of(link("a/b/l", "../../x/y"), link("here", "."), link("m", "a/b/l"), link("n", "./a/b"))
    assert len(unpacked(data)) == 4


def test_a_link_that_was_replaced_by_a_directory_is_no_link() -> None:
    data = tar_of(link("a", "b"), ("a", None, {"type": tarfile.DIRTYPE}), ("a/x", b"1", {}))
    assert len(unpacked(data)) == 3


@pytest.mark.parametrize("data", [b"", b"x", b"no tar at all" * 99, bytes(100)])
def test_what_is_no_tar_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        unpacked(data)


def test_a_compressed_archive_says_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match="uncompressed"):
        unpacked(b"\x1f\x8b\x08" + b"x" * 1000)


@pytest.mark.parametrize("size", [600, 1024, 1100, 1535])
def test_an_archive_cut_short_is_refused(size: int) -> None:
    with pytest.raises(InvalidRequest, match="in the middle"):
        unpacked(tar_of(("x", b"1" * 600, {}), ("y", b"2" * 600, {}))[:size])


def test_sizes_that_lie_are_refused() -> None:
    for size in ("-5", "x", "99999999999999999999999"):
        with pytest.raises(InvalidRequest):
            unpacked(tar_of(("x", b"1", {"pax_headers": {"size": size}})))


@pytest.mark.extended
def test_too_many_members_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="more than 100,000 members"):
        unpacked(tarfile.TarInfo("again").tobuf() * 100_001)


def test_too_many_bytes_are_refused_before_they_come() -> None:
    bomb = tarfile.TarInfo("bomb")
    bomb.size = 17 * 1024**3
    with pytest.raises(InvalidRequest, match="unpacks to more than"):
        unpacked(bomb.tobuf(tarfile.GNU_FORMAT))


def test_endless_extension_headers_are_refused() -> None:
    extension = tarfile.TarInfo("x")
    extension.type, extension.size = tarfile.XHDTYPE, 0
    with pytest.raises(InvalidRequest, match="extension headers"):
        unpacked(extension.tobuf() * 100)
    extension.size = 1 << 40
    with pytest.raises(InvalidRequest, match="extension header"):
        unpacked(extension.tobuf(tarfile.GNU_FORMAT))


@patient
@given(st.binary(max_size=3000), st.integers(1, 3000))
def test_any_bytes_are_members_or_an_invalid_request(data: bytes, cut: int) -> None:
    with contextlib.suppress(InvalidRequest):
        unpacked(data, cut)


@patient
@given(st.data())
def test_a_damaged_archive_is_members_or_an_invalid_request(draw: st.DataObject) -> None:
    whole = bytearray(tar_of(("a" * 120, b"1" * 700, {}), link("l", "a"), ("ä", b"2", {}), kind=tarfile.PAX_FORMAT))
    for _ in range(draw.draw(st.integers(1, 6))):
        whole[draw.draw(st.integers(0, len(whole) - 1))] = draw.draw(st.integers(0, 255))
    try:
        for member, _ in unpacked(bytes(whole), 1000):
            assert not member.path.startswith("/")
            assert ".." not in member.path.split("/")
    except InvalidRequest:
        pass


@patient
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=150),
            st.binary(max_size=1500),
        ),
        max_size=5,
    )
)
def test_what_we_write_tarfile_reads(files: list[tuple[str, bytes]]) -> None:
    members = [
        (TarMember(f"d/{name}", FileKind.FILE, len(data), 0o640, 5, uid=1000, gid=1000), data) for name, data in files
    ]
    stream = b"".join(header(member) + data + padding(len(data)) for member, data in members) + trailer()
    with tarfile.open(fileobj=io.BytesIO(stream)) as tar:
        infos = tar.getmembers()
        assert [(info.name, info.size, info.mode, info.uid) for info in infos] == [
            (member.path, len(data), 0o640, 1000) for member, data in members
        ]
        for info, (_, data) in zip(infos, members, strict=True):
            content = tar.extractfile(info)
            assert content is not None
            assert content.read() == data


def pax_header(records: dict[str, str], *, for_all: bool) -> bytes:
    """A pax header, as an archive may have any number of them."""
    return tarfile.TarInfo._create_pax_generic_header(  # type: ignore[attr-defined, no-any-return]
        records, tarfile.XGLTYPE if for_all else tarfile.XHDTYPE, "utf-8"
    )


@pytest.mark.extended
def test_headers_for_all_members_are_not_piled_up() -> None:
    """Every member would be compared with all of them: ever slower, in ever more memory."""

    async def archive() -> AsyncIterator[bytes]:
        for number in range(300):
            others = {f"user.{number}.{key}": "x" * 900 for key in range(100)}
            yield pax_header({**others, "path": f"from-{number}"}, for_all=True)
            yield tar_of((f"{number}", b"", {}), kind=tarfile.USTAR_FORMAT)[:512]
        yield trailer()

    async def read() -> list[str]:
        return [member.path async for member in TarReader(archive()).members()]

    tracemalloc.start()
    try:
        assert asyncio.run(read()) == [f"from-{number}" for number in range(300)]
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_header_of_many_records_is_refused() -> None:
    data = pax_header({f"user.{key}": "" for key in range(2000)}, for_all=False) + tar_of(("a", b"", {}))
    with pytest.raises(InvalidRequest, match="more than 1,000 records"):
        unpacked(data)


@pytest.mark.extended
def test_a_directory_full_of_long_links_costs_little_memory() -> None:
    name = "/".join(["d" * 250] * 15)

    async def archive() -> AsyncIterator[bytes]:
        for number in range(10_000):
            info = tarfile.TarInfo(f"{name}/{number}")
            info.type, info.linkname = tarfile.SYMTYPE, "x"
            yield info.tobuf(tarfile.GNU_FORMAT)

    async def read() -> int:
        return len([1 async for _ in TarReader(archive()).members()])

    tracemalloc.start()
    try:
        assert asyncio.run(read()) == 10_000
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    finally:
        tracemalloc.stop()
