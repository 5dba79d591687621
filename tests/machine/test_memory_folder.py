"""The folder of sandboxes' directories in memory: made, taken over from an older version, gone with its last user."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import warren
from warren.images.store.store import ImageStore
from warren.model.operations import Command
from warren.model.spec import SandboxSpec
from warren.sandboxes.host.memory_folder import MemoryFolder
from warren.sandboxes.providers.oci import OciProvider

BIN = Path(warren.__file__).parent / "bin"


def mounts(root: Path) -> int:
    return Path("/proc/self/mountinfo").read_text().count(f" {root} ")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "run" / "sandboxes"
    yield path
    assert not path.exists()
    assert mounts(path) == 0


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir()
    return path


def test_a_directory_is_made_although_others_remove_the_folder_all_the_time(state: Path, root: Path) -> None:
    ours, others = MemoryFolder(state / "sandboxes", root), MemoryFolder(state / "sandboxes", root)
    with ThreadPoolExecutor(1) as removing:
        done = threading.Event()

        def remove() -> None:
            while not done.is_set():
                others.remove()

        removed = removing.submit(remove)
        try:
            for number in range(300):
                ours.make(f"{number}")
                assert ours.remove_directory(f"{number}")
        finally:
            done.set()
        removed.result()
    ours.remove()


def test_the_folder_is_in_memory_for_as_long_as_somebody_has_something_in_it(state: Path, root: Path) -> None:
    ours, same = (MemoryFolder(state / "sandboxes", root) for _ in range(2))
    other_state = state.with_name("other")
    other_state.mkdir()
    other = MemoryFolder(other_state / "sandboxes", root)
    for folder in (ours, same, other):
        folder.make()
    assert mounts(root) == 1
    (state / "sandboxes/one").mkdir()
    ours.remove()
    other.remove()
    assert (state / "sandboxes/one").is_dir()
    same.remove_directory("one")
    same.remove()
    assert mounts(root) == 0
    assert os.readlink(state / "sandboxes").startswith(str(root))
    ours.make()  # as after a reboot
    assert os.listdir(state / "sandboxes") == []
    ours.remove()


def test_what_an_older_version_has_made_is_taken_over_where_it_is(state: Path, root: Path) -> None:
    old = state / "sandboxes"
    for name in ("one", "two"):
        (old / name).mkdir(parents=True)
        (old / name / "record.json").write_text(name)
    folder = MemoryFolder(old, root)
    folder.make()
    (old / "three").mkdir()
    assert sorted(os.listdir(old)) == ["one", "three", "two"]
    assert (old / "one/record.json").read_text() == "one"
    assert folder.directory("one") == state / "sandboxes.old/one"
    folder.remove_directory("one")
    # The machine was restarted: what was in memory is gone.
    folder.remove_directory("three")
    (old / "two").unlink()
    folder.remove()
    assert mounts(root) == 0
    again = MemoryFolder(old, root)
    again.make()
    assert os.listdir(old) == ["two"]
    again.remove_directory("two")
    assert not (state / "sandboxes.old").exists()
    again.remove()


def test_state_directories_at_the_same_path_have_their_own(state: Path, root: Path) -> None:
    """In containers that share /run; and a copy of a state directory."""
    folder = MemoryFolder(state / "sandboxes", root)
    folder.make()
    (state / "sandboxes/one").mkdir()
    first = state.rename(state.with_name("first"))
    shutil.copytree(first, state, symlinks=True)
    folder.make()
    assert os.listdir(state / "sandboxes") == []
    folder.remove()
    assert os.listdir(first / "sandboxes") == ["one"]
    theirs = MemoryFolder(first / "sandboxes", root)
    theirs.remove_directory("one")
    folder.remove()
    assert os.listdir(first / "sandboxes") == []  # somebody may just be about to use it
    theirs.remove()


def test_a_new_state_directory_with_the_inode_of_a_deleted_one_does_not_get_its_sandboxes(
    state: Path, root: Path
) -> None:
    deleted = MemoryFolder(state / "sandboxes", root)
    deleted.make("one")
    left = Path(os.readlink(state / "sandboxes"))
    (state / "sandboxes").unlink()
    new = MemoryFolder(state / "sandboxes", root)
    new.make()
    assert os.listdir(state / "sandboxes") == []
    assert os.listdir(left) == ["one"]
    shutil.rmtree(left)
    new.remove()


def test_the_folder_of_a_server_that_was_killed_is_removed_some_time_later(state: Path, root: Path) -> None:
    MemoryFolder(state / "sandboxes", root).make()
    os.utime(state / "sandboxes", (0, 0))
    other = state.with_name("other")
    other.mkdir()
    MemoryFolder(other / "sandboxes", root).remove()


APART = """
import sys
from pathlib import Path
from warren.sandboxes.host.memory_folder import MemoryFolder

MemoryFolder(Path(sys.argv[1]) / "sandboxes", Path(sys.argv[2])).make()
"""


def test_in_a_container_the_folder_is_where_it_outlives_the_container(state: Path, root: Path) -> None:
    argv = ["unshare", "--mount", sys.executable, "-c", APART, str(state), str(root)]
    environment = {**os.environ, "PYTHONPATH": str(BIN.parents[1])}
    subprocess.run(argv, env=environment, check=True)
    assert (state / "sandboxes").is_dir()
    assert not (state / "sandboxes").is_symlink()


UNSEEN = """
import subprocess, sys
from pathlib import Path
from warren.sandboxes.host.memory_folder import MemoryFolder

state, root = map(Path, sys.argv[1:])
subprocess.run(["umount", root], check=True)  # as in a namespace that was made before the tmpfs
MemoryFolder(state / "sandboxes", root).remove()
"""


def test_who_does_not_see_the_folder_of_others_does_not_take_it_away(state: Path, root: Path, tmp_path: Path) -> None:
    ours = MemoryFolder(state / "sandboxes", root)
    ours.make("one")
    other = tmp_path / "other"
    other.mkdir()
    argv = ["unshare", "--mount", sys.executable, "-c", UNSEEN, str(other), str(root)]
    subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(BIN.parents[1])}, check=True)
    assert mounts(root) == 1
    assert os.listdir(state / "sandboxes") == ["one"]
    ours.remove_directory("one")
    ours.remove()


class OldFolder(MemoryFolder):
    """As an older version had it: in the state directory."""

    def make(self, name: str = "") -> None:
        if self._link.is_symlink():
            self._link.unlink()
        self._link.mkdir(exist_ok=True)


@pytest.mark.anyio
async def test_sandboxes_of_an_older_version_go_on(state_dir: Path, image_store: ImageStore) -> None:
    older, newer = (OciProvider(state_dir, image_store, BIN) for _ in range(2))
    older._folder = OldFolder(state_dir / "sandboxes")
    spec = SandboxSpec(image="host")
    ids = [(await older.create(spec)).id for _ in range(2)]
    await older.close()
    ids.append((await newer.create(spec)).id)
    assert (state_dir / "sandboxes").is_symlink()
    assert sorted(await newer.list_ids()) == sorted(ids)
    for sandbox_id in ids:
        box = await newer.adopt(sandbox_id)
        assert (await box.exec(Command(shell="echo here"))).stdout == "here\n"
    for sandbox_id in ids:
        await newer.destroy(sandbox_id)
    await newer.close()
    assert {path.name for path in state_dir.glob("sandboxes*")} - {"sandboxes.making"} == {"sandboxes"}  # a lock
    claims = [os.readlink(path) for path in Path("/run/warren/uids").glob("[0-9]*")]
    assert not [claim for claim in claims if claim.startswith(str(state_dir))]
