"""Files: every kind of content, of path and of user; folders, links, big ones; what does not exist."""

import datetime
import hashlib
import io
import random

from checks import done, refused, since
from e2b import AuthenticationException, FileType, InvalidArgumentException, NotFoundException, Sandbox

HOME = "/home/user"


def contents(sandbox: Sandbox) -> None:
    files = sandbox.files
    info = files.write("note.txt", "first")
    assert (info.name, info.path) == ("note.txt", f"{HOME}/note.txt")
    assert info.type in (FileType.FILE, "file")  # the oldest passes the word on
    assert files.read("note.txt") == "first"
    files.write("note.txt", "2nd")
    assert files.read(f"{HOME}/note.txt") == "2nd"
    files.write("empty", "")
    assert files.read("empty") == ""
    assert files.read("empty", format="bytes") == b""
    data = random.Random(1).randbytes(300_000)
    files.write("data.bin", data)
    assert files.read("data.bin", format="bytes") == data
    assert b"".join(files.read("data.bin", format="stream")) == data
    files.write("from.io", io.BytesIO(data))
    assert files.read("from.io", format="bytes") == data
    files.write("text.io", io.StringIO("řádek\n" * 1000))
    assert files.read("text.io") == "řádek\n" * 1000
    files.write("a/b/c/deep.txt", "parents are made")
    assert files.read("a/b/c/deep.txt") == "parents are made"
    assert files.get_info("a/b").owner == "user"
    for name in ("with space & more.txt", "žluťoučký.txt", "per%20cent#hash?.txt", 'quo"te.txt', "semi;colon,.txt"):
        files.write(name, name)
        assert files.read(name) == name, name
        assert name in [entry.name for entry in files.list(HOME)]
    assert files.read("~/note.txt") == "2nd"
    assert sandbox.commands.run("cat note.txt").stdout == "2nd"


def newer_ways(sandbox: Sandbox) -> None:
    files = sandbox.files
    if since(2, 20):
        text = "compress me " * 10_000
        files.write("packed", text, gzip=True)
        assert files.read("packed") == text
        assert files.read("packed", gzip=True) == text
        files.write("octets", b"\x00\x01", use_octet_stream=True)
        assert files.read("octets", format="bytes") == b"\x00\x01"
    if since(2, 34):
        files.write("described", "x", metadata={"Author": "me", "kind": "report"})
        assert files.get_info("described").metadata == {"author": "me", "kind": "report"}
        files.write("described", "y", metadata={"kind": "draft"})
        assert files.get_info("described").metadata == {"kind": "draft"}
        assert files.get_info("note.txt").metadata in (None, {})
    if since(2, 63):
        files.write("pieces", (bytes([number]) * 1000 for number in range(100)))
        assert files.get_info("pieces").size == 100_000


def many(sandbox: Sandbox) -> None:
    files = sandbox.files
    assert files.write_files([]) == []
    infos = files.write_files([{"path": f"many/{number}.txt", "data": f"{number}"} for number in range(30)])
    assert [info.path for info in infos] == [f"{HOME}/many/{number}.txt" for number in range(30)]
    assert len(files.list("many")) == 30
    assert files.read("many/17.txt") == "17"
    mixed = [{"path": "/tmp/mixed/one", "data": b"\xff"}, {"path": "mixed two", "data": io.BytesIO(b"two")}]
    assert [info.name for info in files.write_files(mixed)] == ["one", "mixed two"]
    assert files.read("/tmp/mixed/one", format="bytes") == b"\xff"


def folders(sandbox: Sandbox) -> None:
    files = sandbox.files
    assert files.make_dir("folder/inner") is True
    assert files.make_dir("folder/inner") is False
    assert files.exists("folder") is True
    assert files.exists("folder/none") is False
    files.write("folder/inner/leaf", "1234")
    names = [(entry.name, entry.type, entry.path) for entry in files.list("folder")]
    assert names == [("inner", FileType.DIR, f"{HOME}/folder/inner")]
    paths = [entry.path for entry in files.list("folder", depth=2)]
    assert paths == [f"{HOME}/folder/inner", f"{HOME}/folder/inner/leaf"], paths
    assert "user" in [entry.name for entry in files.list("/home")]
    with refused(InvalidArgumentException):
        files.list("folder", depth=0)
    with refused(InvalidArgumentException):
        files.make_dir("folder/inner/leaf")
    with refused(InvalidArgumentException):
        files.list("folder/inner/leaf")
    moved = files.rename("folder/inner/leaf", "folder/renamed")
    assert (moved.name, moved.path, moved.size) == ("renamed", f"{HOME}/folder/renamed", 4)
    assert files.rename("folder", "elsewhere").type is FileType.DIR
    assert not files.exists("folder")
    assert files.read("elsewhere/renamed") == "1234"
    files.remove("elsewhere/renamed")
    assert not files.exists("elsewhere/renamed")
    files.remove("elsewhere")
    assert not files.exists("elsewhere")


def infos(sandbox: Sandbox) -> None:
    files = sandbox.files
    files.write("facts", "12345")
    info = files.get_info("facts")
    assert (info.name, info.path, info.size) == ("facts", f"{HOME}/facts", 5)
    assert info.type is FileType.FILE
    assert (info.owner, info.group) == ("user", "user")
    assert (info.mode, info.permissions) == (0o644, "-rw-r--r--")
    changed = info.modified_time.replace(tzinfo=datetime.UTC)  # older ones give it without a zone
    assert abs((datetime.datetime.now(datetime.UTC) - changed).total_seconds()) < 60
    assert info.symlink_target is None
    sandbox.commands.run("chmod 750 facts; ln -s facts link; mkdir -m 700 private")
    assert files.get_info("facts").permissions == "-rwxr-x---"
    link = files.get_info("link")
    assert link.symlink_target == f"{HOME}/facts"
    assert link.name == "link"
    assert files.read("link") == "12345"
    folder = files.get_info("private")
    assert (folder.type, folder.permissions) == (FileType.DIR, "drwx------")
    if since(2, 63):
        assert link.type is FileType.SYMLINK
    by_name = {entry.name: entry for entry in files.list(HOME)}
    assert by_name["link"].symlink_target == f"{HOME}/facts"
    assert by_name["facts"] == files.get_info("facts")


def users(sandbox: Sandbox) -> None:
    files = sandbox.files
    files.write("/etc/made-by-root", "secret", user="root")
    assert files.get_info("/etc/made-by-root").owner == "root"
    assert files.read("/etc/made-by-root", user="root") == "secret"
    files.write("of-root", "x", user="root")
    assert files.exists("/root/of-root", user="root")
    assert files.make_dir("/opt/of-root", user="root")
    assert files.get_info("/opt/of-root", user="root").owner == "root"
    assert sandbox.commands.run("stat -c %U /opt/of-root").stdout == "root\n"
    for call in (lambda: files.read("note.txt", user="stranger"), lambda: files.list("/", user="stranger")):
        with refused(AuthenticationException):
            call()


def missing(sandbox: Sandbox) -> None:
    files = sandbox.files
    for call in (
        lambda: files.read("none"),
        lambda: files.read("none", format="bytes"),
        lambda: files.list("none"),
        lambda: files.get_info("none"),
        lambda: files.rename("none", "other"),
    ):
        with refused(NotFoundException):
            call()
    files.remove("none")  # there is nothing to do
    with refused(InvalidArgumentException):
        files.read("/home/user")
    with refused(InvalidArgumentException):
        files.write("/home/user", "a folder is there")


def big(sandbox: Sandbox) -> None:
    size = 96 << 20
    block = random.Random(2).randbytes(1 << 20)
    data = block * (size >> 20)
    expected = hashlib.sha256(data).hexdigest()
    sandbox.files.write("big", io.BytesIO(data))
    assert sandbox.files.get_info("big").size == size
    assert sandbox.commands.run("sha256sum big").stdout.split()[0] == expected
    digest = hashlib.sha256()
    for piece in sandbox.files.read("big", format="stream"):
        digest.update(piece)
    assert digest.hexdigest() == expected
    assert hashlib.sha256(sandbox.files.read("big", format="bytes")).hexdigest() == expected


with Sandbox.create(timeout=300) as sandbox:
    contents(sandbox)
    newer_ways(sandbox)
    many(sandbox)
    folders(sandbox)
    infos(sandbox)
    users(sandbox)
    missing(sandbox)
    big(sandbox)
done()
