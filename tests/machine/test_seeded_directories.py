"""Images with files in directories that a sandbox can write to: they are there, and can be changed."""

import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import warren
from warren.images.store.store import ImageStore
from warren.images.trees.prepare import prepare
from warren.images.trees.tree import Tree
from warren.interfaces.images import RootFs
from warren.interfaces.sandbox import Sandbox
from warren.model.operations import Command
from warren.model.spec import MIB, USER_UID, Layer, Limits, SandboxSpec
from warren.sandboxes.providers.oci import OciProvider

BIN = Path(warren.__file__).parent / "bin"
SPEC = SandboxSpec(image="host", limits=Limits(cpus=2, disk_mb=32))

pytestmark = pytest.mark.anyio


@dataclass
class SeededImages:
    """The images of a store, in each of which somebody has left files."""

    store: ImageStore
    path: Path
    seeded: tuple[str, ...]

    def hold(self, name: str, user: Path) -> RootFs:
        return replace(self.store.hold(name, user), path=self.path, seeded=self.seeded)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@pytest.fixture
def images(image_store: ImageStore, tmp_path: Path) -> SeededImages:
    path = tmp_path / "rootfs"
    subprocess.run(["cp", "-a", image_store.rootfs("host").path, path], check=True)
    with Tree(path) as tree:
        tree.put_file("/workspace/project/main.py", "print('seeded')\n")
        tree.put_file("/workspace/README", "of root\n")
        tree.put_file("/home/user/.profile", "seeded=yes\n")
        for name in ("/workspace/project", "/workspace/project/main.py"):
            tree.set_owner(name, USER_UID, USER_UID)
        return SeededImages(image_store, path, prepare(tree, "/bin/bash").seeded)


@pytest.fixture(params=["loop", "tmpfs"])
async def provider(request: pytest.FixtureRequest, state_dir: Path, images: SeededImages) -> AsyncIterator[OciProvider]:
    provider = OciProvider(state_dir, images, BIN)
    await provider.runtime_report()
    if request.param == "tmpfs":
        provider.disks.why_not_loop = "the test says so"
    yield provider
    for sandbox_id in await provider.list_ids():
        await provider.destroy(sandbox_id)
    await provider.close()


async def say(sandbox: Sandbox, script: str) -> str:
    return (await sandbox.exec(Command(argv=("/bin/sh", "-c", script)))).output.strip()


async def test_the_files_of_the_image_can_be_seen_and_changed(provider: OciProvider, images: SeededImages) -> None:
    sandbox, other = await provider.create(SPEC), await provider.create(SPEC)
    assert images.seeded == ("/workspace", "/home/user")
    assert await say(sandbox, "cat /workspace/project/main.py /workspace/README /home/user/.profile") == "\n".join(
        ("print('seeded')", "of root", "seeded=yes")
    )
    assert await say(sandbox, "stat -c '%U %a' /workspace /workspace/project /workspace/README") == "\n".join(
        ("sandboxuser 755", "sandboxuser 755", "root 644")
    )
    assert (
        await say(sandbox, "echo mine > /workspace/project/main.py; rm /workspace/README; ls /workspace") == "project"
    )
    assert await say(other, "cat /workspace/project/main.py; ls /workspace") == "print('seeded')\nREADME\nproject"
    assert "Read-only" in await say(sandbox, "mkdir /elsewhere")
    assert {Layer.READ_ONLY_ROOT, Layer.DISK_LIMIT, Layer.MOUNT_FLAGS} <= sandbox.isolation.layers.keys()


async def test_what_is_written_there_counts_as_the_disk(provider: OciProvider) -> None:
    sandbox = await provider.create(SPEC)
    fill = "for place in /workspace /home/user; do head -c 24000000 /dev/zero > $place/big; done"
    assert "No space left" in await say(sandbox, fill)
    assert int(await say(sandbox, "stat -c %s /workspace/big /home/user/big | awk '{s+=$1} END {print s}'")) <= 32 * MIB
    assert "No space left" in await say(sandbox, "head -c 9000000 /dev/zero > /tmp/big")


async def test_a_later_process_adopts_it(provider: OciProvider, state_dir: Path, images: SeededImages) -> None:
    sandbox = await provider.create(SPEC)
    await sandbox.close()
    later = OciProvider(state_dir, images, BIN)
    adopted = await later.adopt(sandbox.id)
    assert await say(adopted, "cat /workspace/README") == "of root"
    await later.destroy(sandbox.id)
    await later.close()
