"""Hostile and odd archives and trees: what is taken, what is refused, and that nothing lands outside."""

import bz2
import gzip
import io
import lzma
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from warren.images.transfer.import_tree import ImportCaps, copy_directory, is_tar, unpack_tar
from warren.images.trees.tree import Tree
from warren.kernel.zstd import zstd_module
from warren.model.errors import InvalidRequest

Entry = tuple[str, bytes, str]  # name, type, link target or contents

FILE, LINK, HARD, DIRECTORY = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


def tar_of(*entries: Entry, mode: int = 0o644, uid: int = 0) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, kind, text in entries:
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.uid, member.gid = kind, mode, uid, uid
            if kind == FILE:
                member.size = len(text.encode())
                tar.addfile(member, io.BytesIO(text.encode()))
            else:
                member.linkname = text
                tar.addfile(member)
    stream.seek(0)
    return stream


def unpack(stream: io.BytesIO, path: Path, caps: ImportCaps | None = None) -> Path:
    path.mkdir(exist_ok=True)
    with Tree(path) as tree:
        unpack_tar(stream, tree, caps or ImportCaps())
    return path


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([("/etc/evil", FILE, "x")], "absolute path"),
        ([("../evil", FILE, "x")], "leads out"),
        ([("a/../../evil", FILE, "x")], "leads out"),
        ([("a", LINK, "../evil")], "leads out"),
        ([("d/a", LINK, "../../evil")], "leads out"),
        ([("a", LINK, "/../evil")], "leads out"),
        ([("a", LINK, "/tmp"), ("a/evil", FILE, "x")], "no directory"),
        ([("a", LINK, "b"), ("b", DIRECTORY, ""), ("a/evil", FILE, "x")], "no directory"),
        ([("a", LINK, "/tmp"), ("a", DIRECTORY, "")], "no directory"),
        ([("a", HARD, "/etc/passwd")], "absolute path"),
        ([("a", HARD, "../evil")], "leads out"),
        ([("a", HARD, "missing")], "not there"),
        ([("l", LINK, "/etc/passwd"), ("a", HARD, "l")], "no file"),
        ([("l", LINK, "/etc"), ("a", HARD, "l/passwd")], "no directory"),
        ([("a", DIRECTORY, ""), ("a", FILE, "x")], "is a directory"),
        ([("a", FILE, "x"), ("a/b", FILE, "x")], "no directory"),
        ([(".", LINK, "a")], "'.' is the root of the image"),
        ([("./", FILE, "x")], "'.' is the root of the image"),
        ([("a", FILE, "x"), (".", HARD, "a")], "'.' is the root of the image"),
        ([("a", HARD, ".")], "'.' is the root of the image"),
    ],
)
def test_an_archive_that_reaches_out_is_refused(entries: list[Entry], message: str, tmp_path: Path) -> None:
    outside = sorted(os.listdir(tmp_path))
    with pytest.raises(InvalidRequest, match=message):
        unpack(tar_of(*entries), tmp_path / "tree")
    assert sorted(os.listdir(tmp_path)) == [*outside, "tree"]


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_pipes_are_left_out(kind: bytes, tmp_path: Path) -> None:
    tree = unpack(tar_of(("dev/x", kind, ""), ("a", FILE, "1")), tmp_path / "tree")
    assert sorted(os.listdir(tree)) == ["a"]


def test_links_files_and_owners_come_through(tmp_path: Path) -> None:
    entries = [
        ("./usr/bin/a", FILE, "hello"),
        ("bin", LINK, "usr/bin"),
        ("up/x", LINK, "../a"),
        ("b", HARD, "usr/bin/a"),
    ]
    tree = unpack(tar_of(*entries, uid=1234), tmp_path / "tree")
    assert (tree / "usr/bin/a").read_text() == "hello"
    assert os.readlink(tree / "bin") == "usr/bin"
    assert (tree / "b").stat().st_ino == (tree / "usr/bin/a").stat().st_ino
    assert (tree / "usr/bin/a").stat().st_uid == 1234
    assert (tree / "bin").lstat().st_uid == 1234


def test_a_later_member_replaces_an_earlier_one_and_not_what_it_links_to(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("untouched")
    tree = unpack(tar_of(("a", LINK, str(tmp_path / "victim")), ("a", FILE, "new")), tmp_path / "tree")
    assert (tree / "a").read_text() == "new"
    assert (tmp_path / "victim").read_text() == "untouched"


def test_set_id_bits_are_taken_off_and_the_sticky_bit_stays(tmp_path: Path) -> None:
    tree = unpack(tar_of(("a", FILE, "x"), ("d", DIRECTORY, ""), mode=0o7755), tmp_path / "tree")
    assert stat.S_IMODE((tree / "a").stat().st_mode) == 0o1755
    assert stat.S_IMODE((tree / "d").stat().st_mode) == 0o1755


@pytest.mark.parametrize(
    ("caps", "message"),
    [
        (ImportCaps(members=2), "more than 2 members"),
        (ImportCaps(size=100), "larger than 100 bytes"),
        (ImportCaps(ratio=10, ratio_from=1000), "a bomb"),
    ],
)
def test_caps_hold(caps: ImportCaps, message: str, tmp_path: Path) -> None:
    plain = tar_of(*[(f"f{number}", FILE, "0" * 100_000) for number in range(5)])
    with pytest.raises(InvalidRequest, match=message):
        unpack(io.BytesIO(gzip.compress(plain.read())), tmp_path / "tree", caps)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstd_module().compress, bytes])
def test_a_tar_comes_compressed_through_a_pipe(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    packed = pack(tar_of(("a", FILE, "x" * 5000), ("d/b", LINK, "../a")).read())
    assert is_tar(io.BytesIO(packed))
    assert not is_tar(io.BytesIO(pack(b"no tar at all" * 100)))
    reader, writer = os.pipe()
    os.write(writer, packed)
    os.close(writer)
    (tmp_path / "tree").mkdir()
    with open(reader, "rb") as stream, Tree(tmp_path / "tree") as tree:
        unpack_tar(stream, tree)
    assert (tmp_path / "tree/d/b").read_text() == "x" * 5000


def test_a_header_of_any_size_is_not_read_into_memory(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 32
    with pytest.raises(InvalidRequest, match="header of 4294967296 bytes"):
        unpack(io.BytesIO(header.tobuf()), tmp_path / "tree")


@pytest.mark.parametrize("damage", [lambda raw: b"no tar at all" * 100, lambda raw: raw[:700], lambda raw: b""])
def test_what_is_no_archive_is_said_so(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    raw = tar_of(("a", FILE, "x" * 5000)).read()
    with pytest.raises(InvalidRequest, match="not a tar archive"):
        unpack(io.BytesIO(damage(raw)), tmp_path / "tree")


@pytest.mark.parametrize("name", ["with space", "new\nline", "-dash", "ünïcode", "x" * 200, "tab\there"])
def test_odd_names_come_through(name: str, tmp_path: Path) -> None:
    tree = unpack(tar_of((f"d/{name}", FILE, "x")), tmp_path / "tree")
    assert os.listdir(tree / "d") == [name]


def test_a_directory_is_copied_with_its_links_and_without_its_pipes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "usr/bin").mkdir(parents=True)
    (source / "usr/bin/a").write_text("hello")
    os.chmod(source / "usr/bin/a", 0o4755)
    os.link(source / "usr/bin/a", source / "b")
    (source / "bin").symlink_to("usr/bin")
    (source / "out").symlink_to("/etc/passwd")
    os.mkfifo(source / "pipe")
    (tmp_path / "tree").mkdir()
    with Tree(tmp_path / "tree") as tree:
        copy_directory(source, tree)
    copy = tmp_path / "tree"
    assert sorted(os.listdir(copy)) == ["b", "bin", "out", "usr"]
    assert os.readlink(copy / "bin") == "usr/bin"
    assert os.readlink(copy / "out") == "/etc/passwd"
    assert (copy / "b").stat().st_ino == (copy / "usr/bin/a").stat().st_ino
    assert stat.S_IMODE((copy / "b").stat().st_mode) == 0o755


_RENAME = "import os\nwhile os.getppid() == {parent}: os.rename('one', 'two'), os.rename('two', 'one')"


def test_links_with_dots_are_followed_while_others_rename(tmp_path: Path) -> None:
    """The kernel gives such a lookup up whenever something is renamed anywhere, for fear of being led out."""
    (tmp_path / "one").touch()
    (tmp_path / "tree/a").mkdir(parents=True)
    (tmp_path / "tree/a/file").write_text("text")
    (tmp_path / "tree/b").mkdir()
    (tmp_path / "tree/b/link").symlink_to("../b/../a/../b/../a/file")
    renaming = subprocess.Popen([sys.executable, "-c", _RENAME.format(parent=os.getpid())], cwd=tmp_path)
    try:
        with Tree(tmp_path / "tree") as tree:
            assert all(tree.stat("b/link") for _ in range(20_000))
    finally:
        renaming.kill()
        renaming.wait()
