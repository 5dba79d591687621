"""Layers upon each other: what is seen at the end, and that no layer reaches outside of the tree."""

import gzip
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from warren.images.transfer.import_tree import ImportCaps
from warren.images.transfer.oci_layers import Layers
from warren.images.transfer.zstd_stream import MAGIC
from warren.images.trees.tree import Tree
from warren.kernel.zstd import zstd_module
from warren.model.errors import InvalidRequest

D, L, H = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
Member = tuple[str, str] | tuple[str, bytes, str]


def layer(*members: Member, **pax: str) -> bytes:
    """(name, content) is a file, (name, type, target) anything else."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, *rest in members:
            info = tarfile.TarInfo(name)
            info.mode, info.pax_headers = 0o4755, dict(pax)
            if len(rest) == 2:
                info.type, info.linkname = rest[0], rest[1]  # type: ignore[assignment]
                tar.addfile(info)
            else:
                data = str(rest[0]).encode()
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def apply(
    root: Path, *layers: bytes, caps: ImportCaps = ImportCaps(), packed: Callable[[bytes], bytes] = bytes
) -> None:
    root.mkdir(exist_ok=True)
    with Tree(root) as tree:
        unpacked = Layers(tree, caps)
        for data in layers:
            file = packed(data)
            unpacked.apply(lambda file=file: io.BytesIO(file), f"sha256:{hashlib.sha256(data).hexdigest()}")  # type: ignore[misc]


def check_complaint(complaint: str, act: Callable[[], None]) -> None:
    """Without a complaint it works, and nothing but the tree has changed."""
    if not complaint:
        return act()
    with pytest.raises((InvalidRequest, OSError), match=complaint):
        act()


def seen(root: Path) -> dict[str, str]:
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_dir():
            found[name] = "dir"
        else:
            found[name] = path.read_text()
    return found


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([[("a", "1"), ("b", "1")], [("a", "2"), (".wh.b", "")]], {"a": "2"}),
        ([[("d/a", "1"), ("d/b", "1")], [("d/.wh..wh..opq", ""), ("d/c", "2")]], {"d": "dir", "d/c": "2"}),
        # The whiteout stands behind what the same layer adds, and removes nothing of it.
        ([[("d/a", "1")], [("d/a", "2"), ("d/.wh..wh..opq", "")]], {"d": "dir", "d/a": "2"}),
        ([[("d/a", "1")], [("d/a", "2"), ("d/.wh.a", "")]], {"d": "dir", "d/a": "2"}),
        ([[("d/x/a", "1")], [(".wh.d", "")]], {}),
        ([[("d/x/a", "1")], [(".wh.d", "")], [("d/y", "3")]], {"d": "dir", "d/y": "3"}),
        ([[("a", "1")], [(".wh..wh.plnk", ""), (".wh.never-there", ""), ("no/such/.wh.dir", "")]], {"a": "1"}),
        # A file where a directory was, and the reverse; a link where one was, and back.
        ([[("d/a", "1")], [("d", "2")]], {"d": "2"}),
        ([[("d", "1")], [("d", D, ""), ("d/a", "2")]], {"d": "dir", "d/a": "2"}),
        ([[("d/a", "1"), ("e/b", "1")], [("d", L, "e")]], {"d": "-> e", "e": "dir", "e/b": "1"}),
        ([[("d", L, "e"), ("e/b", "1")], [("d", D, ""), ("d/a", "2")]],
         {"d": "dir", "d/a": "2", "e": "dir", "e/b": "1"}),
        # A parent that is a link inside is followed inside, as engines do.
        ([[("usr/bin", D, ""), ("bin", L, "usr/bin")], [("bin/x", "2")]],
         {"bin": "-> usr/bin", "usr": "dir", "usr/bin": "dir", "usr/bin/x": "2"}),
        ([[("usr/bin/x", "1"), ("bin", L, "/usr/bin")], [("bin/.wh.x", "")]],
         {"bin": "-> /usr/bin", "usr": "dir", "usr/bin": "dir"}),
        ([[("a", "1")], [("b", H, "a"), ("c", H, "./b")]], {"a": "1", "b": "1", "c": "1"}),
        ([[("a", "1"), ("b", H, "a")], [("a", "2")]], {"a": "2", "b": "1"}),
        ([[("/abs/a", "1"), ("./b", "1")]], {"abs": "dir", "abs/a": "1", "b": "1"}),
        ([[("dev/null", tarfile.CHRTYPE, ""), ("pipe", tarfile.FIFOTYPE, "")]], {"dev": "dir"}),
        ([[("x/y", L, "../../../../etc/passwd")]], {"x": "dir", "x/y": "-> /etc/passwd"}),
    ],
)  # fmt: skip
def test_layers_lie_upon_each_other(tmp_path: Path, layers: list[list[Member]], expected: dict[str, str]) -> None:
    for number, packed in enumerate((bytes, gzip.compress)):
        root = tmp_path / str(number)
        apply(root, *(layer(*members) for members in layers), packed=packed)
        assert seen(root) == expected
        assert not any(path.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID) for path in root.rglob("*"))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Beside the tree; nothing in it may change."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "file").write_text("ours")
    return path


@pytest.mark.parametrize(
    ("layers", "complaint"),
    [
        ([[("../outside/file", "evil")]], "leads out"),
        ([[("a/../../outside/file", "evil")]], "leads out"),
        ([[("l", L, "../outside")], [("l/new", "evil")]], ""),
        ([[("l", L, "../outside"), ("l/file", "evil")]], ""),
        ([[("l", L, "../outside")], [("l/.wh.file", "")]], ""),
        ([[("l", L, "../outside")], [("l/.wh..wh..opq", "")]], ""),
        ([[("l", L, "OUTSIDE")], [("l/.wh.file", ""), ("l/x", "evil")]], ""),
        ([[("d/a", "1"), ("l", L, "../outside")], [("l", D, ""), ("l/file", "evil")]], ""),
        ([[("d", D, "")], [("d", L, "../outside")], [("d/file", "evil")], [("d", D, ""), ("d/file", "x")]], ""),
        ([[("h", H, "../outside/file")]], "leads out"),
        ([[("l", L, "../outside"), ("h", H, "l/file"), ("h", "evil")]], "not there"),
        ([[("l", L, "../outside/file"), ("h", H, "l"), ("h/x", "evil")]], ""),
        ([[("h", H, "/"), ("h", "x")]], "leads to the root"),
        ([[("a", "1")], [(".wh...", "")]], "names nothing"),
        ([[("a", "1")], [("a/.wh.", "")]], "names nothing"),
        ([[("a", "1")], [("x/../../.wh.outside", "")]], "leads out"),
        ([[("/".join(["d"] * 300), D, "")]], "directories deep"),
        ([[("/".join(["d"] * 150), D, ""), ("l", L, "/".join(["d"] * 150))], [("l/" + "/".join(["e"] * 150), D, "")]],
         "more than 200 deep"),
        ([[("f", "1")], [("f/x", "2")]], "no directory"),
        ([[("n" * 300, "1")]], "File name too long"),
    ],
)  # fmt: skip
def test_a_hostile_layer_is_refused_or_stays_inside(
    tmp_path: Path, outside: Path, layers: list[list[Member]], complaint: str
) -> None:
    built = [
        layer(*(tuple(str(outside) if part == "OUTSIDE" else part for part in member) for member in members))  # type: ignore[arg-type,misc]
        for members in layers
    ]
    check_complaint(complaint, lambda: apply(tmp_path / "root", *built))
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"file": "ours"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "root"]


@pytest.mark.parametrize(
    ("data", "caps", "complaint"),
    [
        (layer(("a", "x" * 5000)), ImportCaps(size=4096), "larger than"),
        (layer(*((f"{number}", "") for number in range(20))), ImportCaps(members=10), "more than 10 members"),
        (layer(("a", "x" * 3_000_000)), ImportCaps(ratio=10, ratio_from=100_000), "a bomb"),
        (layer(("a", "1")) + bytes(3_000_000), ImportCaps(ratio=10, ratio_from=100_000), "a bomb"),
        (layer(("a", "1"), mtime="1e300"), ImportCaps(), ""),
        (layer(("a", "1"), mtime="nan"), ImportCaps(), ""),
        (layer(("a", "1"), uid="99999999999"), ImportCaps(), "belongs to"),
        (layer(("a", "1"), **{"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}), ImportCaps(), "damaged"),
        (b"x" * 2000, ImportCaps(), "damaged"),
    ],
)
@pytest.mark.parametrize("packed", [gzip.compress, zstd_module().compress])
def test_bombs_and_nonsense_are_refused(
    tmp_path: Path, data: bytes, caps: ImportCaps, complaint: str, packed: Callable[[bytes], bytes]
) -> None:
    check_complaint(complaint, lambda: apply(tmp_path / "root", layer(), data, caps=caps, packed=packed))


def in_frames(data: bytes) -> bytes:
    """As tools that let layers be read in parts write them: several frames, and notes that are no content."""
    compress, half = zstd_module().compress, len(data) // 2
    note = b"\x50\x2a\x4d\x18" + (100).to_bytes(4, "little") + bytes(100)
    return bytes(compress(data[:half], level=19) + note + compress(data[half:], level=1) + note)


def with_window(log: int) -> Callable[[bytes], bytes]:
    """A frame that says its reader has to keep 2 ** log bytes, of blocks that are not compressed."""

    def packed(data: bytes) -> bytes:
        parts = [data[start : start + 65536] for start in range(0, len(data), 65536)]
        blocks = [(len(part) << 3 | (part is parts[-1])).to_bytes(3, "little") + part for part in parts]
        return MAGIC + bytes([0, log - 10 << 3]) + b"".join(blocks)

    return packed


@pytest.mark.parametrize(
    ("packed", "complaint"),
    [
        (in_frames, ""),
        (with_window(27), ""),
        (with_window(28), "too much memory"),
        (with_window(41), "too much memory"),
        (lambda data: in_frames(data)[:-150], "before the end"),
        (lambda data: MAGIC + b"no frame" * 10, "cannot be unpacked"),
    ],
)
def test_layers_by_zstd_are_read_within_bounds(
    tmp_path: Path, packed: Callable[[bytes], bytes], complaint: str
) -> None:
    data = layer(("a", "x" * 100_000), ("b", "1"))
    check_complaint(complaint, lambda: apply(tmp_path / "root", data, packed=packed))
    assert complaint or (tmp_path / "root/b").read_text() == "1"


def test_the_caps_are_for_all_layers_together(tmp_path: Path) -> None:
    layers = [layer((f"{number}", "x" * 1000)) for number in range(5)]
    apply(tmp_path / "root", *layers, caps=ImportCaps(size=5000, members=5))
    with pytest.raises(InvalidRequest, match="larger than 4999 bytes"):
        apply(tmp_path / "other", *layers, caps=ImportCaps(size=4999))
    with pytest.raises(InvalidRequest, match="more than 4 members"):
        apply(tmp_path / "third", *layers, caps=ImportCaps(members=4))


def test_headers_that_follow_each_other_without_end_are_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    with pytest.raises(InvalidRequest, match="damaged"):
        apply(tmp_path / "root", header.tobuf(tarfile.USTAR_FORMAT) * 3000)


@pytest.mark.parametrize("upper", [False, True])
def test_a_layer_that_is_another_than_its_digest_says_is_refused(tmp_path: Path, upper: bool) -> None:
    data, lower = layer(("a", "evil"), (".wh.b", "")), layer(("a", "good"), ("b", "good"))
    (tmp_path / "root").mkdir()
    with Tree(tmp_path / "root") as tree:
        layers = Layers(tree)
        if upper:
            layers.apply(lambda: io.BytesIO(lower), f"sha256:{hashlib.sha256(lower).hexdigest()}")
        with pytest.raises(InvalidRequest, match="unpacks to sha256:"):
            layers.apply(lambda: io.BytesIO(data), f"sha256:{'0' * 64}")
    if upper:
        assert seen(tmp_path / "root") == {"a": "good", "b": "good"}


def test_a_damaged_gzip_is_refused(tmp_path: Path) -> None:
    data = layer(("a", "x" * 100_000))
    for damaged in (gzip.compress(data)[:-5], gzip.compress(data)[:30] + b"\0" * 100):
        with pytest.raises(InvalidRequest, match=r"damaged|unpacks to"):
            apply(tmp_path / "root", data, packed=lambda _, damaged=damaged: damaged)  # type: ignore[misc]
