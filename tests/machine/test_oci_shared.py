"""What sandboxes of the oci provider share to be made faster, and what is left for later when one is destroyed."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import warren
from warren.images.store.store import ImageStore
from warren.model.errors import IsolationUnavailable
from warren.model.spec import Layer, SandboxSpec
from warren.sandboxes.host.disk_images import DiskImage, FreedImages, handle_of
from warren.sandboxes.host.seccomp_program import read_programs
from warren.sandboxes.providers.oci import OciProvider
from warren.sandboxes.providers.oci_runtime import SealedProgram

BIN = Path(warren.__file__).parent / "bin"
SPEC = SandboxSpec(image="host")
ALLOW_ALL = bytes.fromhex("060000000000ff7f")

pytestmark = pytest.mark.anyio


@pytest.fixture
async def provider(state_dir: Path, image_store: ImageStore) -> AsyncIterator[OciProvider]:
    provider = OciProvider(state_dir, image_store, BIN, "crun")
    yield provider
    for sandbox_id in await provider.list_ids():
        await provider.destroy(sandbox_id)
    await provider.close()


async def programs_of(provider: OciProvider, sandbox_id: str) -> tuple[bytes, ...]:
    record = provider.load_record(sandbox_id)
    assert record is not None
    return await read_programs(record.pid)


async def test_later_sandboxes_load_the_filter_that_was_compiled_for_the_first(provider: OciProvider) -> None:
    first, second = await provider.create(SPEC), await provider.create(SPEC)
    tracing = await provider.create(SandboxSpec(image="host", ptrace=True))
    programs = await programs_of(provider, first.id)
    assert provider._launcher._filters == {False: programs[0], True: (await programs_of(provider, tracing.id))[0]}
    assert await programs_of(provider, second.id) == programs
    assert second.isolation.layers[Layer.SYSTEM_CALLS] == first.isolation.layers[Layer.SYSTEM_CALLS]
    assert programs != await programs_of(provider, tracing.id)


async def test_a_compiled_filter_that_allows_more_is_found(provider: OciProvider) -> None:
    provider._launcher._filters[False] = ALLOW_ALL
    with pytest.raises(IsolationUnavailable, match=rf"\b{Layer.SYSTEM_CALLS}: "):
        await provider.create(SPEC)
    assert await provider.list_ids() == []


async def test_the_state_directory_has_nothing_of_the_runtime(provider: OciProvider, state_dir: Path) -> None:
    box = await provider.create(SPEC)
    assert sorted(os.listdir(state_dir / "sandboxes" / box.id)) == ["agent.sock", "pid", "record.json"]
    assert not (state_dir / "runtime").exists()


async def test_nobody_can_change_the_program_that_is_started(tmp_path: Path) -> None:
    source = tmp_path / "true"
    shutil.copy(shutil.which("true") or "", source)
    program = SealedProgram(str(source))
    source.write_bytes(b"#!/bin/false\n")
    writing = os.open(program.path, os.O_RDWR | os.O_CLOEXEC)
    for change in (lambda: os.pwrite(writing, b"changed", 0), lambda: os.ftruncate(writing, 0)):
        with pytest.raises(PermissionError):
            change()
    os.close(writing)
    assert (await asyncio.to_thread(subprocess.run, [program.path], check=False)).returncode == 0


def open_images(directory: Path) -> int:
    links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return sum(str(directory) in os.readlink(link) for link in links if link.is_symlink())


def nameless(directory: Path, size: int) -> int:
    fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC)
    os.write(fd, bytes(size))
    return fd


async def test_small_images_are_freed_later_and_large_ones_at_once(tmp_path: Path) -> None:
    freed = FreedImages()
    for size in (1 << 20, 8 << 20):
        async with freed.keeping(DiskImage(tmp_path, "", fd=nameless(tmp_path, size))):
            pass
    async with freed.keeping(DiskImage(tmp_path, "")):
        pass
    assert open_images(tmp_path) == 1
    assert freed.waiting_bytes >= 1 << 20
    await freed.close()
    assert open_images(tmp_path) == 0
    assert freed.waiting_bytes == 0


def test_an_image_without_a_name_is_found_again_for_as_long_as_somebody_has_it(tmp_path: Path) -> None:
    fd = nameless(tmp_path, 1 << 20)
    image = DiskImage(tmp_path, handle_of(fd))
    assert (image.held() or 0) >= 1 << 20
    image.empty()
    assert image.held() == 0
    os.close(fd)
    assert image.held() is None
    assert image.take() == -1
