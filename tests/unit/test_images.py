"""The image store: whole or not at all, safe with hostile trees, clear about what is wrong."""

import contextlib
import io
import os
import stat
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from warren.images.store.store import ImageStore
from warren.images.store.versions import VERSIONS
from warren.images.trees.own_images import copy_public_etc, host_suite
from warren.images.trees.prepare import group_with_user, passwd_with_user
from warren.images.trees.tree import Tree
from warren.model.errors import Conflict, ImageNotFound, InvalidRequest, WarrenError
from warren.model.image import ImageConfig
from warren.model.spec import WRITABLE


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "state")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    (path / "bin").mkdir(parents=True)
    (path / "bin/sh").write_text("#!")
    os.chmod(path / "bin/sh", 0o755)
    return path


def images_dir(tmp_path: Path) -> list[str]:
    """The names, and what is being made."""
    return sorted(name for name in os.listdir(tmp_path / "state/images") if name != VERSIONS)


def versions_dir(tmp_path: Path) -> list[str]:
    return sorted(os.listdir(tmp_path / "state/images" / VERSIONS))


def new_user(tmp_path: Path, name: str = "user") -> Path:
    """A directory such as a sandbox has."""
    path = tmp_path / "users" / name
    path.mkdir(parents=True)
    return path


def test_an_imported_directory_is_prepared(store: ImageStore, source: Path) -> None:
    store.import_directory("mine", source)
    root = store.rootfs("mine").path
    for path, mode in WRITABLE.items():
        assert stat.S_IMODE((root / path[1:]).lstat().st_mode) == mode, path
    for name in ("proc", "dev", "sys", ".warren"):
        assert (root / name).is_dir()
    assert (root / ".warren/agent").read_bytes() == b""
    first = (root / "etc/passwd").read_text().splitlines()[0]
    assert first == "sandboxuser:x:1000:1000:sandboxuser:/home/sandboxuser:/bin/sh"
    assert "tty:x:5:" in (root / "etc/group").read_text().splitlines()
    assert (root / "etc/hostname").read_text() == "sandbox\n"
    assert (root / "etc/resolv.conf").read_text() == ""


def test_writable_directories_with_files_are_noted(store: ImageStore, source: Path, tmp_path: Path) -> None:
    for name in ("workspace/project", "home/user"):
        (source / name).mkdir(parents=True)
    store.import_directory("mine", source)
    assert ImageStore(tmp_path / "state").rootfs("mine").seeded == ("/workspace",)
    assert (store.rootfs("mine").path / "workspace").stat().st_uid == 1000


def test_a_private_umask_or_a_private_source_does_not_lock_the_image(store: ImageStore, source: Path) -> None:
    os.chmod(source, 0o700)
    before = os.umask(0o077)
    try:
        store.import_directory("mine", source)
    finally:
        os.umask(before)
    root = store.rootfs("mine").path
    for path in (root, root / "home", root / "etc", root / "var", root / "mnt"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o755, path


def test_an_images_own_user_of_that_uid_stays_behind_ours() -> None:
    lines = passwd_with_user(
        "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n", "/bin/bash"
    ).splitlines()
    assert [line.split(":")[0] for line in lines] == ["sandboxuser", "root", "node"]


def test_preparing_twice_changes_nothing() -> None:
    once = passwd_with_user("root:x:0:0::/root:/bin/sh\n", "/bin/sh")
    assert passwd_with_user(once, "/bin/sh") == once
    assert group_with_user(group_with_user("")) == group_with_user("")


HOSTILE_LINKS = [
    *("etc", "etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf"),
    *("proc", "dev", "sys", ".warren", ".warren/agent"),
]


@pytest.mark.parametrize("link", [*HOSTILE_LINKS, "tmp", "home", "home/sandboxuser", "workspace", "var", "var/tmp"])
def test_preparing_never_writes_through_a_link(link: str, store: ImageStore, source: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    for name in ("passwd", "group", "hosts", "agent", "sandboxuser", "tmp"):
        (victim / name).write_text("untouched")
    os.chmod(victim, 0o700)
    is_file = link in ("etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf", ".warren/agent")
    (source / link).parent.mkdir(parents=True, exist_ok=True)
    (source / link).symlink_to(victim / "passwd" if is_file else victim)
    store.import_directory("mine", source)
    assert {path.read_text() for path in victim.iterdir()} == {"untouched"}
    assert stat.S_IMODE(victim.stat().st_mode) == 0o700
    assert not (store.rootfs("mine").path / link).is_symlink()


def test_links_to_the_shell_are_followed_inside_the_image(store: ImageStore, source: Path) -> None:
    (source / "bin/bash").symlink_to("/bin/sh")
    store.import_directory("mine", source)
    assert (store.rootfs("mine").path / "etc/passwd").read_text().splitlines()[0].endswith(":/bin/bash")


def test_a_shell_outside_the_image_is_none(store: ImageStore, tmp_path: Path) -> None:
    source = tmp_path / "none"
    (source / "bin").mkdir(parents=True)
    (source / "bin/sh").symlink_to("/usr/bin/dash")
    with pytest.raises(InvalidRequest, match="is not a root filesystem"):
        store.import_directory("mine", source)


@pytest.mark.parametrize("kind", ["directory", "tar"])
def test_what_is_no_root_filesystem_leaves_nothing(kind: str, store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "none/etc").mkdir(parents=True)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.add(tmp_path / "none", ".")
    stream.seek(0)
    attempts = {
        "tar": lambda: store.import_tar("mine", stream),
        "directory": lambda: store.import_directory("mine", tmp_path / "none"),
    }
    with pytest.raises(InvalidRequest, match="is not a root filesystem") as caught:
        attempts[kind]()
    assert "--no-shell" in caught.value.remedy
    assert not (tmp_path / "state/images").exists() or images_dir(tmp_path) == []


def test_an_image_without_a_shell_is_taken_if_asked_for(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "static").mkdir()
    store.import_directory("static", tmp_path / "static", shell_needed=False)
    assert [info.name for info in store.list()] == ["static"]


def test_set_id_bits_and_pip_markers_are_gone(store: ImageStore, source: Path) -> None:
    (source / "usr/lib/python3.11").mkdir(parents=True)
    (source / "usr/lib/python3.11/EXTERNALLY-MANAGED").write_text("no")
    store.import_directory("mine", source)
    assert os.listdir(store.rootfs("mine").path / "usr/lib/python3.11") == []


def test_an_image_is_replaced_and_removed_whole(store: ImageStore, source: Path, tmp_path: Path) -> None:
    store.import_directory("mine", source)
    (source / "new").write_text("new")
    store.import_directory("mine", source)
    assert (store.rootfs("mine").path / "new").exists()
    assert images_dir(tmp_path) == ["mine"]
    assert len(versions_dir(tmp_path)) == 1
    store.remove("mine")
    assert images_dir(tmp_path) == versions_dir(tmp_path) == []
    with pytest.raises(ImageNotFound):
        store.remove("mine")


def test_names_of_docker_images_work(store: ImageStore, source: Path, tmp_path: Path) -> None:
    store.import_directory("registry.example/a/b:22.04", source)
    assert images_dir(tmp_path) == ["registry.example%2Fa%2Fb%3A22.04"]
    assert [info.name for info in store.list()] == ["registry.example/a/b:22.04"]
    assert store.rootfs("registry.example/a/b:22.04").path.is_dir()


@pytest.mark.parametrize("name", ["", "..", "../x", "/x", ".hidden", "a b", "x" * 300, "a/../b", "-x"])
def test_a_bad_name_is_refused(name: str, store: ImageStore, source: Path) -> None:
    with pytest.raises(InvalidRequest, match="not an image name"):
        store.import_directory(name, source)
    with pytest.raises(InvalidRequest, match="not an image name"):
        store.rootfs(name)


def test_a_missing_image_names_the_remedy(store: ImageStore) -> None:
    with pytest.raises(ImageNotFound) as caught:
        store.rootfs("base")
    assert caught.value.remedy == "warren image build base"


def test_images_cannot_hold_the_images(store: ImageStore, source: Path, tmp_path: Path) -> None:
    store.import_directory("mine", source)
    with pytest.raises(InvalidRequest, match="own images"):
        store.import_directory("other", tmp_path)


def test_a_version_that_is_used_stays_as_it_is_until_its_last_user_ends(
    store: ImageStore, source: Path, tmp_path: Path
) -> None:
    first, second = new_user(tmp_path, "first"), new_user(tmp_path, "second")
    old = store.import_directory("mine", source).version
    held = store.hold("mine", first)
    assert held.version == old == store.hold("mine", second).version
    (source / "new").write_text("new")
    new = store.import_directory("mine", source).version
    assert store.version("mine") == new
    assert store.hold("mine", new_user(tmp_path, "third")).version == new
    assert (held.path / "bin/sh").exists()
    assert not (held.path / "new").exists()
    shown = {one.version: (one.current, one.sandboxes) for one in store.list()}
    assert shown == {old: (False, 2), new: (True, 1)}
    assert store.prune() == []
    store.release(first)
    assert old in versions_dir(tmp_path)
    store.release(second)
    assert versions_dir(tmp_path) == [new]


def test_a_user_that_was_killed_counts_no_more(store: ImageStore, source: Path, tmp_path: Path) -> None:
    user = new_user(tmp_path)
    old = store.import_directory("mine", source).version
    store.hold("mine", user)
    store.import_directory("mine", source)
    user.rmdir()
    (removed,) = ImageStore(tmp_path / "state").prune()
    assert (removed.version, removed.sandboxes) == (old, 0)
    assert len(versions_dir(tmp_path)) == 1


def test_a_use_counts_wherever_the_state_directory_is_mounted(store: ImageStore, source: Path, tmp_path: Path) -> None:
    sandbox = tmp_path / "state/sandboxes/one"
    sandbox.mkdir(parents=True)
    store.import_directory("mine", source)
    store.hold("mine", sandbox)
    (tmp_path / "state").rename(tmp_path / "elsewhere")
    assert [one.sandboxes for one in ImageStore(tmp_path / "elsewhere").list()] == [1]


def test_a_use_counts_where_the_sandboxes_cannot_be_seen(store: ImageStore, source: Path, tmp_path: Path) -> None:
    """Their folder is in the memory of a container, or of an earlier boot."""
    memory = tmp_path / "memory"
    (memory / "one").mkdir(parents=True)
    (tmp_path / "state").mkdir(exist_ok=True)
    (tmp_path / "state/sandboxes").symlink_to(memory)
    store.import_directory("mine", source)
    store.hold("mine", tmp_path / "state/sandboxes/one")
    memory.rename(tmp_path / "unseen")
    assert [one.sandboxes for one in store.list()] == [1]
    memory.mkdir()
    assert [one.sandboxes for one in store.list()] == [0]


def test_uses_from_one_folder_are_one_file_and_count_apart(store: ImageStore, source: Path, tmp_path: Path) -> None:
    version = store.import_directory("mine", source).version
    users = [new_user(tmp_path, name) for name in ("first", "second", "third")]
    for user in users:
        store.hold("mine", user)
    uses = tmp_path / "state/images/.versions" / version / "uses"
    (way,) = (tmp_path / "state/images/.ways").iterdir()
    assert {path.lstat().st_ino for path in uses.iterdir()} == {way.lstat().st_ino}
    users[0].rmdir()
    store.release(users[1])
    assert [one.sandboxes for one in store.list()] == [1]
    store.import_directory("mine", source)
    assert version in versions_dir(tmp_path)
    assert way.is_symlink()
    store.release(users[2])
    store.prune()
    assert versions_dir(tmp_path) == [store.version("mine")]
    store.import_directory("mine", source)
    assert not way.is_symlink()


def test_a_use_begins_without_a_way(store: ImageStore, source: Path, tmp_path: Path) -> None:
    store.import_directory("mine", source)
    store.hold("mine", new_user(tmp_path, "first"))
    (way,) = (tmp_path / "state/images/.ways").iterdir()
    way.unlink()
    second = new_user(tmp_path, "second")
    version = store.hold("mine", second).version
    use = tmp_path / "state/images/.versions" / version / "uses/second"
    assert os.readlink(use).endswith("/second")
    assert [one.sandboxes for one in store.list()] == [2]
    second.rmdir()
    assert [one.sandboxes for one in store.list()] == [1]
    store.hold("mine", new_user(tmp_path, "third"))
    assert [one.sandboxes for one in store.list()] == [2]
    assert way.is_symlink()


def test_removing_what_is_used_is_refused_or_put_off(store: ImageStore, source: Path, tmp_path: Path) -> None:
    user = new_user(tmp_path)
    version = store.import_directory("mine", source).version
    root = store.hold("mine", user).path
    with pytest.raises(Conflict, match=f"1 sandboxes use the image mine, version {version}") as caught:
        store.remove("mine")
    assert "--when-unused" in caught.value.remedy
    store.hold("mine", new_user(tmp_path, "other"))  # a refusal changes nothing
    store.release(tmp_path / "users/other")
    store.remove("mine", when_unused=True)
    with pytest.raises(ImageNotFound):
        store.hold("mine", new_user(tmp_path, "late"))
    assert (root / "bin/sh").exists()
    store.release(user)
    assert versions_dir(tmp_path) == []


def test_a_version_can_be_removed_by_its_id(store: ImageStore, source: Path, tmp_path: Path) -> None:
    user = new_user(tmp_path)
    old = store.import_directory("mine", source).version
    store.hold("mine", user)
    new = store.import_directory("mine", source).version
    with pytest.raises(Conflict):
        store.remove(old)
    user.rmdir()
    store.remove(old)
    assert versions_dir(tmp_path) == [new]
    assert store.version("mine") == new


REPLACE = """
import sys
from pathlib import Path
from warren.images.store.store import ImageStore
store = ImageStore(Path(sys.argv[1]))
for _ in range(40):
    store.import_directory("mine", Path(sys.argv[2]))
"""


def test_no_use_is_lost_while_another_process_replaces_the_image(
    store: ImageStore, source: Path, tmp_path: Path
) -> None:
    store.import_directory("mine", source)
    argv = [sys.executable, "-c", REPLACE, str(tmp_path / "state"), str(source)]
    seen, count = set(), 0
    with subprocess.Popen(argv, env={"PYTHONPATH": ":".join(sys.path)}) as replacing:
        while replacing.poll() is None:
            user = new_user(tmp_path, str(count := count + 1))
            held = store.hold("mine", user)
            assert (held.path / "bin/sh").read_text() == "#!"
            seen.add(held.version)
            store.release(user)
    assert replacing.returncode == 0
    assert len(seen) > 1
    assert len(versions_dir(tmp_path)) == 1


def test_makers_that_come_and_go_hold_nobody_up(store: ImageStore, source: Path, tmp_path: Path) -> None:
    store.import_directory("mine", source)
    making, done = tmp_path / "state/images/.making-other", threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            making.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                making.rmdir()

    with ThreadPoolExecutor(1) as other:
        coming = other.submit(come_and_go)
        try:
            for _ in range(300):
                with store.temporary():
                    pass
        finally:
            done.set()
        coming.result()


def test_a_damaged_image_can_be_removed(store: ImageStore, source: Path, tmp_path: Path) -> None:
    version = store.import_directory("mine", source).version
    (tmp_path / "state/images/mine/image.json").write_text("{")
    with pytest.raises(WarrenError, match="damaged") as caught:
        ImageStore(tmp_path / "state").rootfs("mine")
    assert str(tmp_path) not in str(caught.value)
    assert [(one.name, one.version) for one in store.list()] == [("mine", version)]
    store.remove("mine")
    assert images_dir(tmp_path) == versions_dir(tmp_path) == []


KILLED_IMPORT = """
import os, signal, sys
from pathlib import Path
from warren.images.store.store import ImageStore
class Endless:
    def read(self, count):
        os.kill(os.getpid(), signal.SIGKILL)
ImageStore(Path(sys.argv[1])).import_tar("mine", Endless())
"""


def test_what_a_killed_import_leaves_is_swept_by_the_next(store: ImageStore, source: Path, tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    killed = subprocess.run([sys.executable, "-c", KILLED_IMPORT, state], env={"PYTHONPATH": ":".join(sys.path)})
    assert killed.returncode == -9
    assert store.list() == []
    assert len(images_dir(tmp_path)) == 1
    store.import_directory("mine", source)
    assert images_dir(tmp_path) == ["mine"]


def test_an_import_at_work_is_not_swept(store: ImageStore, source: Path, tmp_path: Path) -> None:
    class Nested(io.RawIOBase):
        def read(self, count: int = -1) -> bytes:
            store.import_directory("inner", source)
            assert len(images_dir(tmp_path)) == 2
            return b""

    with pytest.raises(InvalidRequest, match="not a tar archive"):
        store.import_tar("outer", Nested())  # type: ignore[arg-type]
    assert images_dir(tmp_path) == ["inner"]


def test_the_host_image_is_made_at_once_and_takes_no_secret(store: ImageStore) -> None:
    info = store.build("host")
    root = store.rootfs("host")
    assert root.host_usr
    assert info.host_usr
    assert os.listdir(root.path / "usr") == []
    assert os.readlink(root.path / "bin") == "usr/bin"
    names = {name for _, directories, files in os.walk(root.path) for name in (*directories, *files)}
    assert not names & {"shadow", "gshadow", "private", "ssh", "sudoers"}


def test_of_etc_only_what_everybody_may_read_is_taken(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    for name, mode in {"ssl/certs/ca.pem": 0o644, "ssl/private/x.pem": 0o644, "ssl/certs/my.key": 0o644}.items():
        (etc / name).parent.mkdir(parents=True, exist_ok=True)
        (etc / name).write_text("x")
        os.chmod(etc / name, mode)
    (etc / "services").write_text("x")
    os.chmod(etc / "services", 0o640)
    (etc / "shadow").write_text("x")
    (tmp_path / "tree").mkdir()
    with Tree(tmp_path / "tree") as tree:
        copy_public_etc(etc, tree)
    found = [str(path.relative_to(tmp_path / "tree")) for path in (tmp_path / "tree").rglob("*") if path.is_file()]
    assert found == ["etc/ssl/certs/ca.pem"]


@pytest.mark.parametrize(
    ("text", "suite"),
    [
        ("ID=debian\nVERSION_CODENAME=trixie\n", "trixie"),
        ('ID=ubuntu\nVERSION_CODENAME="noble"\n', "noble"),
        ("ID=fedora\nVERSION_CODENAME=x\n", "bookworm"),
        ("", "bookworm"),
    ],
)
def test_the_suite_is_the_hosts_if_it_has_one(text: str, suite: str, tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text(text)
    assert host_suite(tmp_path / "os-release") == suite


@pytest.mark.parametrize(
    ("user", "complaint"),
    [
        ("nobody-knows", "whom its /etc/passwd does not have"),
        ("5:nobody-knows", "a group that its /etc/group does not have"),
        ("65535", "ids 65535:65535"),
        ("70000", "ids 70000:70000"),
        ("5:4294967295", "ids 5:4294967295"),
    ],
)
def test_a_user_that_no_sandbox_can_have_is_refused(store: ImageStore, source: Path, user: str, complaint: str) -> None:
    def fill(path: Path) -> ImageConfig:
        path.mkdir()
        (path / "bin").mkdir()
        (path / "bin/sh").write_text("#!")
        (path / "bin/sh").chmod(0o755)
        return ImageConfig(user=user)

    with pytest.raises(InvalidRequest, match=complaint):
        store.make("mine", "test", fill, lambda step, fraction: None)
    assert store.list() == []


def test_a_working_directory_is_made_inside_whatever_links_there_are(store: ImageStore, tmp_path: Path) -> None:
    def fill(path: Path) -> ImageConfig:
        path.mkdir()
        (path / "bin").mkdir()
        (path / "bin/sh").write_text("#!")
        (path / "bin/sh").chmod(0o755)
        (path / "app").symlink_to(tmp_path)
        return ImageConfig(workdir="/app/evil")

    with pytest.raises(InvalidRequest, match="no directory"):
        store.make("mine", "test", fill, lambda step, fraction: None)
    assert not (tmp_path / "evil").exists()
