"""Builds whose steps attack: the machine, the image's own tree, the layer that is made of what they wrote."""

import json
import os
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest
import this_run
from build_world import BuildWorld, copy, run
from copied_image import add_image

from warren.images.store.store import ImageStore
from warren.images.trees.layers import LayerCaps
from warren.model.errors import BuildFailed, InvalidRequest, NoSpace
from warren.model.image import Run, Stage


@pytest.fixture(scope="module")
def world(image_cache: Path) -> Iterator[BuildWorld]:
    state = this_run.new_state_dir()
    yield BuildWorld.new(state, image_cache)
    subprocess.run(["rm", "-rf", str(state)], check=True)


@pytest.fixture(autouse=True)
def nothing_is_left(world: BuildWorld) -> Iterator[None]:
    yield
    assert world.left() == []
    check_contained(world.images.folder / ".layers")
    check_contained(world.images.folder / ".versions")


def check_contained(folder: Path) -> None:
    """No device but whiteouts, no set-id bits and no attributes but opaque, in all that builds have made."""
    for base, directories, names in os.walk(folder):
        for name in (*directories, *names):
            path = os.path.join(base, name)
            found = os.lstat(path)
            is_whiteout = stat.S_ISCHR(found.st_mode) and found.st_rdev == 0
            ordinary = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)
            assert ordinary or is_whiteout, path
            assert stat.S_ISLNK(found.st_mode) or not found.st_mode & (stat.S_ISUID | stat.S_ISGID), path
            assert set(os.listxattr(path, follow_symlinks=False)) <= {"trusted.overlay.opaque"}, path


def python(text: str) -> Run:
    return Run(("/usr/bin/python3", "-c", text), "RUN python3")


_TRIES = """
import ctypes, json, os, socket, stat
libc = ctypes.CDLL(None, use_errno=True)
marker, port, addresses = {marker!r}, {port}, {addresses!r}
done = {{}}
def attempt(name, act):
    try:
        done[name] = repr(act())
    except (OSError, ValueError) as exc:
        pass
def call(function, *arguments):
    if getattr(libc, function)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), function)
attempt("mount", lambda: call("mount", b"none", b"/mnt", b"tmpfs", 0, None))
attempt("remount", lambda: call("mount", b"none", b"/proc", None, 32 | 4096, None))
attempt("bind", lambda: call("mount", b"/", b"/mnt", None, 4096, None))
attempt("unmount", lambda: call("umount2", b"/proc", 2))
attempt("unshare", lambda: call("unshare", 0x10000000 | 0x20000))
attempt("chroot out", lambda: os.listdir("/proc/1/root" + os.path.dirname(marker)))
attempt("marker", lambda: os.stat(marker))
attempt("disk", lambda: os.mknod("/opt/disk", stat.S_IFBLK | 0o666, os.makedev(254, 0)))
attempt("memory", lambda: os.mknod("/opt/mem", stat.S_IFCHR | 0o666, os.makedev(1, 1)))
attempt("whiteout", lambda: os.mknod("/opt/whiteout", stat.S_IFCHR, 0))
attempt("cgroup", lambda: os.listdir("/sys/fs/cgroup"))
attempt("sysrq", lambda: open("/proc/sysrq-trigger", "w").write("h"))
attempt("core pattern", lambda: open("/proc/sys/kernel/core_pattern", "w").write("|/x"))
attempt("trusted", lambda: os.setxattr("/opt", "trusted.overlay.opaque", b"y"))
value = bytes.fromhex("0100000200000020000000000000000000000000")
attempt("capability", lambda: os.setxattr("/usr/bin/cat", "security.capability", value))
attempt("reboot", lambda: call("reboot", 0x01234567))
attempt("module", lambda: call("syscall", 105 if os.uname().machine == "aarch64" else 175, b"", 0, b""))
attempt("terabyte", lambda: os.truncate(open("/opt/terabyte", "w").name, 1 << 40))
def dial(address):  # egress takes a connection before it decides: what counts is whether the machine's server answers
    with socket.create_connection((address, port), 3) as made:
        if not (said := made.recv(4)):
            raise ValueError("closed")
        return said
for address in addresses:
    attempt("dial " + address, lambda: dial(address))
open("/opt/done.json", "w").write(json.dumps(done))
"""


class Greeting(BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(b"host")


def test_a_step_reaches_nothing_of_the_machine(world: BuildWorld, tmp_path: Path) -> None:
    (tmp_path / "marker").write_text("host")
    with ThreadingTCPServer(("", 0), Greeting) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            own = probe.getsockname()[0]
        port = server.server_address[1]
        with socket.create_connection((own, port), 3) as made:
            assert made.recv(4) == b"host"
        tries = _TRIES.format(marker=str(tmp_path / "marker"), port=port, addresses=["127.0.0.1", own, "localhost"])
        rules = f"example.com,{own},127.0.0.1"
        world.build("tries", Stage("base", (python(tries),)), image_network=tuple(rules.split(",")))
        server.shutdown()
    # In a namespace of its own a root may set a file's capabilities; the layer does not have them.
    done = json.loads(world.text("tries", "opt/done.json"))
    done.pop("capability", None)
    assert done == {}


def test_what_a_step_plants_stays_in_the_tree(world: BuildWorld, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "file").write_text("file")
    (tmp_path / "outside/kept").write_text("kept")
    world.build(
        "planted",
        run(
            f"cp -a /etc /etc.real; rm -rf /etc; ln -s / /etc; mkdir -p {outside}; ln -s {outside} /opt/out;"
            f"rm -rf /proc/1/x; ln -s {outside} /var; ln -s /proc/self/root /opt/self; ln -s / /home/user/root;"
            "cp /usr/bin/cat /opt/setid; chmod 6755 /opt/setid; mkdir -m 2777 /opt/group; touch /opt/.wh.cat;"
            "mkdir /opt/wh; touch /opt/wh/.wh..wh..opq; ln /opt/setid /opt/again; mkfifo /opt/pipe;"
            "printf x > \"/opt/$(printf 'a\\nb \\377 -rf')\"; echo bad > /.warren/agent || rm -rf /.warren || true"
        ),
        run("echo second > /opt/second; cat /opt/out/kept && exit 1; true"),
        copy("file", "/opt/out/kept"),
        copy("file", "/opt/self/opt/through"),
        context=tmp_path,
    )
    root = world.root("planted")
    assert (outside / "kept").read_text() == "kept"
    assert os.listdir(outside) == ["kept"]
    assert not (root / "etc").is_symlink()
    assert "sandboxuser:x:1000" in (root / "etc/passwd").read_text()
    assert (root / "opt/second").read_text() == "second\n"
    assert (root / ".warren/agent").read_bytes() == b""
    assert stat.S_IMODE((root / "opt/setid").stat().st_mode) == 0o755
    assert (root / "opt/again").stat().st_ino == (root / "opt/setid").stat().st_ino
    assert (root / "opt/.wh.cat").exists()
    assert b"/opt/a\nb \xff -rf" in {b"/opt/" + name for name in os.listdir(os.fsencode(root / "opt"))}
    assert not (root / "opt/pipe").exists()
    assert Path("/etc/passwd").exists()


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (run("mkdir /opt/many; cd /opt/many; seq 600 | xargs touch"), InvalidRequest, "more than 500 files"),
        (run("i=0; while [ $i -lt 60 ]; do mkdir d; cd d; i=$((i+1)); done"), InvalidRequest, "more than 50 deep"),
        (run("head -c 9000000 /dev/urandom > /opt/large"), InvalidRequest, "more than 8000000 bytes"),
        (run("cat /dev/zero > /opt/all"), NoSpace, "No space left on device"),
        # A shell that cannot fork ends with 2; it has said so, unless it was in the loop by then.
        (run("f() { f | f & }; f; while :; do f; done 2>/dev/null"), BuildFailed, "Cannot fork|longer|exit code 2"),
        (run("trap '' TERM INT HUP; while :; do :; done"), BuildFailed, "longer than 5 s"),
        (run("(setsid sh -c 'while :; do sleep 1; done' &); exec cat /dev/zero | tr '\\0' x"), BuildFailed, "longer"),
    ],
)
def test_a_step_that_takes_too_much_fails_alone(
    world: BuildWorld, step: Run, error: type[Exception], message: str
) -> None:
    before = time.monotonic()
    with pytest.raises(error, match=message):
        world.build("greedy", step, caps=LayerCaps(500, 8_000_000, 50), image_build_timeout_s=5, image_build_disk_mb=64)
    assert time.monotonic() - before < 60
    assert len(world.recorder.text) < 6 << 20
    assert list((world.state / "images").glob("greedy")) == []


def test_no_step_is_root_beside_the_machines_own_usr(world: BuildWorld, image_cache: Path) -> None:
    """Steps run as root, whom files of /usr would belong to that only the machine's root may read."""
    add_image(world.state, "host", ImageStore(image_cache).rootfs("host").path.parent)
    with pytest.raises(InvalidRequest, match="only the machine's root may read"):
        world.build("exposed", Stage("host", (run("true"),)))
    assert list((world.state / "images").glob("exposed")) == []


def test_an_archive_cannot_climb_out(world: BuildWorld, tmp_path: Path) -> None:
    import io
    import tarfile

    for number, (name, target) in enumerate((("../out", ""), ("/out", ""), ("link", "../../../out"))):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as tar:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = (tarfile.SYMTYPE, target) if target else (tarfile.REGTYPE, "")
            tar.addfile(member, io.BytesIO(b""))
        with pytest.raises(InvalidRequest, match=r"leads out|absolute"):
            world.build("archive", copy(f"{number}.tar", "/opt/", unpack=True), context=tmp_path)
