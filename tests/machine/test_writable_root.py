"""Sandboxes whose root can be written to: the changes are on the sandbox's disk, and nothing else gets weaker."""

import asyncio
import os
import stat
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import warren
from warren.images.store.store import ImageStore
from warren.interfaces.images import RootFs
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import InvalidRequest, IsolationUnavailable, ProviderUnavailable, SandboxNotFound
from warren.model.operations import Command
from warren.model.spec import MIB, WRITABLE, Layer, Limits, SandboxSpec
from warren.sandboxes.providers.docker import DockerProvider
from warren.sandboxes.providers.oci import OciProvider

BIN = Path(warren.__file__).parent / "bin"
SPEC = SandboxSpec(writable_root=True, limits=Limits(cpus=2))
OPAQUE = "trusted.overlay.opaque"
INSTALL = """set -e
printf '#!/bin/sh\\necho installed\\n' > /usr/local/bin/tool; chmod 755 /usr/local/bin/tool
echo setting >> /etc/hosts; chown 1000:1000 /etc/hostname
rm /etc/issue; rm -r /etc/skel; mkdir /etc/skel; echo new > /etc/skel/only
mv /etc/alternatives /etc/moved; ln /etc/passwd /etc/linked
ln -s /etc/passwd /usr/local/link; mkdir -p /opt/tool/lib; touch /opt/tool/lib/file
"""

pytestmark = pytest.mark.anyio


@dataclass
class LayeredImages:
    """The images of a store, each with layers above it."""

    store: ImageStore
    layers: tuple[Path, ...]

    def hold(self, name: str, user: Path) -> RootFs:
        return replace(self.store.hold(name, user), layers=self.layers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@pytest.fixture(params=["loop", "tmpfs"])
async def provider(
    request: pytest.FixtureRequest, state_dir: Path, image_store: ImageStore
) -> AsyncIterator[OciProvider]:
    provider = OciProvider(state_dir, image_store, BIN, keep_changes=True)
    await provider.runtime_report()
    if request.param == "tmpfs":
        provider.disks.why_not_loop = "the test says so"
    yield provider
    await end(provider)


async def end(provider: OciProvider) -> None:
    for sandbox_id in await provider.list_ids():
        await provider.destroy(sandbox_id)
    await provider.close()


async def as_root(provider: OciProvider, sandbox: Sandbox, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script as the root of the sandbox's user namespace, with more rights than anything inside ever has."""
    record = provider.load_record(sandbox.id)
    assert record is not None
    argv = ["nsenter", "-t", str(record.pid), "-U", "-m", "-S", "0", "-G", "0", "sh", "-c", script]
    return await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, check=False, timeout=30)


async def say(sandbox: Sandbox, script: str) -> str:
    return (await sandbox.exec(Command(argv=("sh", "-c", script)))).output.strip()


async def test_programs_can_be_installed_and_parts_of_the_image_removed(provider: OciProvider) -> None:
    sandbox, other = await provider.create(SPEC), await provider.create(SPEC)
    done = await as_root(provider, sandbox, INSTALL)
    assert (done.returncode, done.stderr) == (0, "")
    assert await say(sandbox, "tool; cat /etc/skel/only; ls /etc/skel; tail -1 /etc/hosts") == "\n".join(
        ("installed", "new", "only", "setting")
    )
    assert await say(sandbox, "stat -c %U /etc/hostname /etc/hosts /opt/tool") == "sandboxuser\nroot\nroot"
    assert await say(sandbox, "ls -d /etc/issue /etc/alternatives 2>&1 | grep -c 'No such'") == "2"
    assert await say(other, "ls -d /etc/issue /etc/alternatives; tool 2>&1 | tail -c 10") == "\n".join(
        ("/etc/alternatives", "/etc/issue", "not found")
    )
    assert await say(sandbox, "touch /etc/mine; echo x > /usr/mine") != ""  # the user is no root


async def test_the_users_directories_are_plain_directories(provider: OciProvider) -> None:
    sandbox = await provider.create(SPEC)
    for path, mode in WRITABLE.items():
        assert await say(sandbox, f"touch {path}/mine; stat -c '%U %a' {path}") == f"sandboxuser {mode:o}"
    assert await say(sandbox, "ln /tmp/mine /workspace/link && mv /tmp/mine /home/user/there && echo one disk") == (
        "one disk"
    )


async def test_what_was_changed_can_be_had_after_the_sandbox_is_gone(provider: OciProvider) -> None:
    sandbox = await provider.create(SPEC)
    assert (await as_root(provider, sandbox, INSTALL)).returncode == 0
    upper, base = provider.changes(sandbox.id), provider.uid_base(sandbox.id)
    await provider.destroy(sandbox.id)
    try:
        gone = os.stat("etc/issue", dir_fd=upper, follow_symlinks=False)
        assert stat.S_ISCHR(gone.st_mode)
        assert gone.st_rdev == 0
        assert os.stat("etc/hostname", dir_fd=upper).st_uid == base + 1000
        assert os.stat("usr/local/bin/tool", dir_fd=upper).st_uid == base
        assert os.readlink("usr/local/link", dir_fd=upper) == "/etc/passwd"
        assert not {".warren", "proc", "dev"} & {*os.listdir(upper)}
        assert OPAQUE in os.listxattr(f"/proc/self/fd/{upper}/etc/skel")
        names = set()
        for path, directories, files, _ in os.fwalk(".", dir_fd=upper, follow_symlinks=False):
            for name in (*directories, *files):
                names |= {*os.listxattr(f"/proc/self/fd/{upper}/{path}/{name}", follow_symlinks=False)}
        assert names <= {OPAQUE, "trusted.overlay.origin", "trusted.overlay.impure"}
    finally:
        os.close(upper)
    with pytest.raises(SandboxNotFound):
        provider.changes(sandbox.id)


def kept_changes() -> list[str]:
    links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return [link for link in links if link.endswith("root.upper")]


async def test_changes_that_nobody_takes_are_dropped(provider: OciProvider) -> None:
    sandbox = await provider.create(SPEC)
    assert len(kept_changes()) == 1
    await provider.destroy(sandbox.id)
    assert kept_changes() == []
    plain = await provider.create(replace(SPEC, writable_root=False))
    with pytest.raises(SandboxNotFound):
        provider.changes(plain.id)


@pytest.mark.parametrize("step", ["launch", "launched", "started", "dialled", "checked"])
async def test_a_create_that_is_cut_short_keeps_nothing(step: str, state_dir: Path, image_store: ImageStore) -> None:
    def fault(now: str) -> None:
        if now == step:
            raise InvalidRequest("stop")

    provider = OciProvider(state_dir, image_store, BIN, keep_changes=True, fault=fault)
    with pytest.raises(InvalidRequest, match="stop"):
        await provider.create(SPEC)
    assert (kept_changes(), await provider.list_ids()) == ([], [])
    await provider.close()


async def test_no_privilege_comes_from_a_file(provider: OciProvider) -> None:
    sandbox = await provider.create(SPEC)
    await as_root(provider, sandbox, "cp /usr/bin/id /usr/local/bin/id; chmod 4755 /usr/local/bin/id")
    assert await say(sandbox, "stat -c %a /usr/local/bin/id; /usr/local/bin/id -u") == "4755\n1000"
    node = await as_root(provider, sandbox, "mknod /opt/null c 1 3 || mknod /opt/loop b 7 0 || mknod /opt/white c 0 0")
    assert (node.returncode, node.stderr.count("not permitted")) == (1, 3)
    for path in ("/.warren/agent", "/.warren/disk", "/.warren"):
        gone = await as_root(provider, sandbox, f"rm -rf {path} || mv {path} /opt/ || touch {path}/x")
        assert gone.returncode != 0, path


async def test_the_mount_table_shows_no_path_of_the_host(provider: OciProvider, state_dir: Path) -> None:
    sandbox = await provider.create(SPEC)
    table = await say(sandbox, "cat /proc/self/mountinfo")
    assert "upperdir=disk/root.upper" in table
    assert all(str(path) not in table for path in (state_dir, BIN, "/run/warren"))


async def test_the_root_counts_as_the_disk(provider: OciProvider) -> None:
    # 18 MiB are no standard size: the image is larger, and what is beyond belongs to nobody.
    sandbox = await provider.create(replace(SPEC, limits=Limits(disk_mb=18, cpus=2)))
    assert {Layer.DISK_LIMIT, Layer.INODE_LIMIT, Layer.MOUNT_FLAGS} <= sandbox.isolation.layers.keys()
    full = "head -c 12000000 /dev/zero > /usr/big; head -c 30000000 /dev/zero > {}/big; stat -c %s /usr/big {}/big"
    done = await as_root(provider, sandbox, full.format("/var/tmp", "/var/tmp"))
    assert "No space left" in done.stderr
    assert 14 * MIB < sum(map(int, done.stdout.split())) <= 18 * MIB
    files = "i=0; while true > /usr/many$i; do i=$((i+1)); done 2>/dev/null; echo $i"
    assert int((await as_root(provider, sandbox, f"rm -f /var/tmp/big; {files}")).stdout) < 18 * MIB / 4096


async def test_the_isolation_says_that_the_root_is_writable(provider: OciProvider) -> None:
    sandbox = await provider.create(SPEC)
    assert "asked for with a writable root" in sandbox.isolation.missing[Layer.READ_ONLY_ROOT]
    plain = await provider.create(replace(SPEC, writable_root=False))
    assert sandbox.isolation.missing.keys() == plain.isolation.missing.keys() | {Layer.READ_ONLY_ROOT}
    await provider.destroy(plain.id)
    with pytest.raises(IsolationUnavailable, match="read_only_root"):
        await provider.create(replace(SPEC, require=frozenset({Layer.READ_ONLY_ROOT})))
    assert await provider.list_ids() == [sandbox.id]


async def test_a_later_process_adopts_it(provider: OciProvider, state_dir: Path, image_store: ImageStore) -> None:
    sandbox = await provider.create(SPEC)
    await as_root(provider, sandbox, "echo kept > /etc/kept; rm -rf /home /mnt /usr/share; ln -s /etc /home")
    await sandbox.close()
    later = OciProvider(state_dir, image_store, BIN)
    adopted = await later.adopt(sandbox.id)
    assert await say(adopted, "cat /etc/kept") == "kept"
    assert Layer.DISK_LIMIT in adopted.isolation.layers
    await later.destroy(sandbox.id)
    await later.close()


async def test_the_programs_of_the_host_can_be_changed_too(provider: OciProvider) -> None:
    sandbox = await provider.create(replace(SPEC, image="host"))
    assert (await as_root(provider, sandbox, "rm /usr/bin/env; echo x > /usr/mine")).returncode == 0
    assert await say(sandbox, "cat /usr/mine; ls /usr/bin/env 2>/dev/null || echo gone") == "x\ngone"
    assert Path("/usr/bin/env").exists()
    assert not Path("/usr/mine").exists()


@pytest.mark.parametrize("writable", [True, False])
async def test_layers_lie_above_the_image(
    writable: bool, state_dir: Path, image_store: ImageStore, tmp_path: Path
) -> None:
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    for tree in (upper, lower):
        (tree / "etc/skel").mkdir(parents=True)
        (tree / "etc/which").write_text(f"{tree.name}\n")
        for path in (tree, tree / "etc", tree / "etc/skel"):
            path.chmod(0o755)
    (lower / "etc/both").write_text("lower")
    os.mknod(upper / "etc/both", stat.S_IFCHR, 0)
    os.mknod(upper / "etc/issue", stat.S_IFCHR, 0)
    os.setxattr(lower / "etc/skel", OPAQUE, b"y")
    provider = OciProvider(state_dir, LayeredImages(image_store, (upper, lower)), BIN)
    try:
        sandbox = await provider.create(replace(SPEC, writable_root=writable))
        look = "cat /etc/which; ls /etc/both /etc/issue 2>/dev/null; ls -A /etc/skel; stat -c %U /etc/which; id -un"
        assert await say(sandbox, look) == "upper\nroot\nsandboxuser"
    finally:
        await end(provider)


async def test_a_tree_whose_ids_cannot_be_mapped_is_no_writable_root(state_dir: Path, image_store: ImageStore) -> None:
    provider = OciProvider(state_dir, LayeredImages(image_store, (Path("/proc/self"),)), BIN)
    try:
        with pytest.raises(ProviderUnavailable, match="mapping the ids"):
            await provider.create(SPEC)
    finally:
        await end(provider)


async def test_docker_refuses_what_it_cannot_limit(state_dir: Path, image_store: ImageStore) -> None:
    provider = DockerProvider(state_dir, image_store, BIN, "unix:///no/such/engine.sock")
    with pytest.raises(InvalidRequest, match="disk_mb does not limit it"):
        await provider.create(SPEC)
    await provider.close()
