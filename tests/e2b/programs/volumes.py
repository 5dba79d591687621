"""Volumes as E2B's documents show them: made, found and destroyed, mounted, and read and written from outside."""

import io
import tempfile
import uuid
from pathlib import Path

from checks import done, refused, since
from e2b import NotFoundException, Sandbox

if not since(2, 20):
    done()
    raise SystemExit

from e2b import Volume

name = f"my-volume-{uuid.uuid4().hex[:8]}"

# -- managing them

volume = Volume.create(name)
assert volume.name == name
assert volume.volume_id
other = Volume.connect(volume.volume_id)
assert (other.volume_id, other.name) == (volume.volume_id, name)
assert (volume.volume_id, name) in [(each.volume_id, each.name) for each in Volume.list()]
info = Volume.get_info(volume.volume_id)
assert (info.volume_id, info.name) == (volume.volume_id, name)
assert info.token
with refused(Exception, says="409"):
    Volume.create(name)
with refused(Exception, says="400"):
    Volume.create("no such/name")
with refused(NotFoundException):
    Volume.get_info("vol")
assert Volume.destroy("vol") is False

# -- reading and writing

with refused(NotFoundException):
    volume.read_file("/path/to/file")
written = volume.write_file("/path/to/file", "file content")
assert (written.name, str(written.type), written.path, written.size) == ("file", "file", "/path/to/file", 12)
assert [(each.uid, each.gid) for each in (written, volume.get_info("/path"))] == [(1000, 1000)] * 2
assert volume.read_file("/path/to/file") == "file content"
assert volume.read_file("/path/to/file", format="bytes") == b"file content"
assert b"".join(volume.read_file("/path/to/file", format="stream")) == b"file content"
volume.make_dir("/path/to/dir")
with refused(NotFoundException):
    volume.make_dir("/path/to/nested/dir")
volume.make_dir("/path/to/nested/dir", force=True)
volume.make_dir("/path/to/nested/dir", force=True)
with refused(Exception, says="409"):
    volume.make_dir("/path/to/dir")
volume.write_file("/path/to/dir/file.txt", "Hello, world!")
volume.make_dir("/path/to/dir/subdir")
listed = volume.list("/path/to/dir")
assert [(each.name, str(each.type), each.path) for each in listed] == [
    ("file.txt", "file", "/path/to/dir/file.txt"),
    ("subdir", "directory", "/path/to/dir/subdir"),
]
assert [each.path for each in volume.list("/", depth=2)] == ["/path", "/path/to"]
with refused(NotFoundException):
    volume.list("/none")
with refused(Exception, says="400"):
    volume.list("/path/to/file")
with refused(Exception, says="400"):
    volume.read_file("/path/to/dir")
volume.remove("/path/to/file")
volume.remove("/path/to/dir")
with refused(NotFoundException):
    volume.remove("/path/to/file")

# -- information about files and directories

volume.write_file("/test_file.txt", "Hello, world!")
stat = volume.get_info("/test_file.txt")
assert (stat.name, str(stat.type), stat.path, stat.size, stat.mode) == (
    *("test_file.txt", "file", "/test_file.txt"),
    *(13, 0o644),
)
assert None not in (stat.atime.tzinfo, stat.mtime.tzinfo, stat.ctime.tzinfo)
volume.make_dir("/test_dir")
stat = volume.get_info("/test_dir")
assert (stat.name, str(stat.type), stat.path, stat.mode) == ("test_dir", "directory", "/test_dir", 0o755)
assert volume.exists("/test_file.txt") is True
assert volume.exists("/none.txt") is False
updated = volume.update_metadata("/test_file.txt", uid=1000, gid=1000, mode=0o600)
assert (updated.uid, updated.gid, updated.mode) == (1000, 1000, 0o600)
owned = volume.write_file("/root.txt", "of root", uid=0, gid=0, mode=0o640)
assert (owned.uid, owned.gid, owned.mode) == (0, 0, 0o640)
assert volume.read_file("/root.txt") == "of root"
with refused(NotFoundException):
    volume.update_metadata("/none.txt", mode=0o600)

# -- uploads and downloads

with tempfile.TemporaryDirectory() as folder:
    content = bytes(range(256)) * 40_000
    (Path(folder) / "local").write_bytes(content)
    with open(Path(folder) / "local", "rb") as file:
        assert volume.write_file("/path/in/volume", file).size == len(content)
    volume.write_file("/upload/text", io.StringIO("text, as a stream"))
    assert volume.read_file("/path/in/volume", format="bytes") == content
    assert volume.read_file("/upload/text") == "text, as a stream"

# -- what no path may do

assert volume.read_file("/../../test_file.txt") == "Hello, world!"  # there is nothing above the top
with refused(Exception, says="400"):
    volume.remove("/")
with refused(Exception, says="40"):
    other.write_file("/x", "y", mode=0o17777)

# -- mounted in sandboxes

with Sandbox.create(volume_mounts={"/mnt/my-data": volume}, timeout=120) as sandbox:
    with Sandbox.create(volume_mounts={"/mnt/my-data": name}, timeout=120) as second:
        sandbox.files.write("/mnt/my-data/hello.txt", "Hello, world!")
        assert second.files.read("/mnt/my-data/hello.txt") == "Hello, world!"
        assert second.commands.run("cat /mnt/my-data/test_file.txt", user="root").stdout == "Hello, world!"
    assert sandbox.commands.run("id -u; echo more >> /mnt/my-data/hello.txt").exit_code == 0
    assert volume.read_file("/hello.txt") == "Hello, world!more\n"  # while a sandbox has it
    mounts = sandbox.get_info().volume_mounts if hasattr(sandbox.get_info(), "volume_mounts") else None
    assert mounts in (None, [{"name": name, "path": "/mnt/my-data"}])
    with refused(Exception, says="409"):
        Volume.destroy(volume.volume_id)
    sandbox.commands.run("ln -s /etc/hostname /mnt/my-data/out; ln -s hello.txt /mnt/my-data/in")
link = volume.get_info("/in")
assert (str(link.type), link.target) == ("symlink", "hello.txt")
assert volume.read_file("/in") == "Hello, world!more\n"
with refused(Exception, says="404"):
    Sandbox.create(timeout=60, volume_mounts={"/data": "none"})
with refused(Exception, says="400"):
    Sandbox.create(timeout=60, volume_mounts={"/proc": name})

# -- the token

elsewhere = Volume.create(f"{name}-2")
stolen = Volume(volume.volume_id, name, token=elsewhere.token, domain=volume._domain)
with refused(Exception, says="401"):
    stolen.read_file("/hello.txt")
forged = Volume(volume.volume_id, name, token=(volume.token or "")[:-1] + "x", domain=volume._domain)
with refused(Exception, says="401"):
    forged.list("/")
assert Volume.destroy(elsewhere.volume_id) is True
assert Volume.destroy(volume.volume_id) is True
assert Volume.destroy(volume.volume_id) is False
with refused(NotFoundException):
    volume.read_file("/hello.txt")
assert volume.volume_id not in [each.volume_id for each in Volume.list()]
done()
