"""The contract of artifacts' contents: in memory, in a directory, and on an S3-compatible server (moto)."""

import asyncio
import fcntl
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from contract.artifact_contract import ArtifactContract, kept, new_id, parts_of, read

from warren.interfaces.artifacts import SNAPSHOTS, ArtifactStore
from warren.model.errors import NoSpace, NotFound, Unavailable
from warren.model.snapshot import new_snapshot_id
from warren.stores.artifact_directory import DirectoryArtifacts
from warren.stores.artifact_s3 import open_s3
from warren.testing.fake_artifacts import FakeArtifacts


class TestFake(ArtifactContract):
    @pytest.fixture
    def store(self) -> ArtifactStore:
        return FakeArtifacts()


class TestDirectory(ArtifactContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ArtifactStore]:
        yield await DirectoryArtifacts(tmp_path / "artifacts").open()
        assert list((tmp_path / "artifacts/.saving").iterdir()) == []

    async def test_of_snapshots_it_sees_these_alone(self, tmp_path: Path) -> None:
        store = await DirectoryArtifacts(tmp_path, kind=SNAPSHOTS).open()
        await store.put("a", name := new_snapshot_id(time.time()), parts_of(b"disk"))
        (tmp_path / "a" / new_id()).write_bytes(b"an artifact")
        assert (await kept(store), await read(store, "a", name, 0, 4)) == ({("a", name)}, b"disk")
        await store.delete("a", name)
        with pytest.raises(NotFound, match="the content of the snapshot is gone"):
            await read(store, "a", name, 0, 4)

    async def test_opening_removes_what_a_crash_left_and_nothing_else(self, tmp_path: Path) -> None:
        store = await DirectoryArtifacts(tmp_path).open()
        await store.put("a", name := new_id(), parts_of(b"kept"))
        (tmp_path / ".saving" / new_id()).write_bytes(b"half")
        busy = tmp_path / ".saving" / new_id()
        with busy.open("wb") as file:  # another process of a shared directory is writing it
            fcntl.flock(file, fcntl.LOCK_EX)
            await store.open()
            assert list((tmp_path / ".saving").iterdir()) == [busy]
        assert await read(store, "a", name, 0, 4) == b"kept"
        busy.unlink()

    async def test_a_part_of_the_disk_stays_free(self, tmp_path: Path) -> None:
        disk = os.statvfs(tmp_path)
        store = await DirectoryArtifacts(tmp_path, min_free_mb=disk.f_blocks * disk.f_frsize >> 20).open()
        with pytest.raises(NoSpace):
            await store.put("a", new_id(), parts_of(b"x"))
        assert await kept(store) == set()

    async def test_only_the_server_can_read_them(self, tmp_path: Path) -> None:
        store = await DirectoryArtifacts(tmp_path / "artifacts").open()
        await store.put("a", name := new_id(), parts_of(b"x"))
        assert (tmp_path / "artifacts/a").stat().st_mode & 0o077 == 0
        assert (tmp_path / "artifacts/a" / name).stat().st_mode & 0o077 == 0


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    program = (sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port))
    with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 60
            while True:
                try:
                    urllib.request.urlopen(urllib.request.Request(f"{url}/artifacts", method="PUT"), timeout=5).close()
                    break
                except OSError:
                    assert server.poll() is None, "moto ended"
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            yield url
        finally:
            server.kill()


class TestS3(ArtifactContract):
    @pytest.fixture
    async def store(self, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ArtifactStore]:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        store = open_s3("s3://artifacts/below/this", s3_url)
        yield store
        async for one in store.list():
            await store.delete(one.tenant, one.artifact_id)

    async def test_of_snapshots_it_sees_these_alone(self, store: ArtifactStore, s3_url: str) -> None:
        disks = open_s3("s3://artifacts/below/this", s3_url, SNAPSHOTS)
        await store.put("a", new_id(), parts_of(b"an artifact"))
        await disks.put("a", name := new_snapshot_id(time.time()), parts_of(b"disk"))
        assert (await kept(disks), await read(disks, "a", name, 0, 4)) == ({("a", name)}, b"disk")
        await disks.delete("a", name)
        with pytest.raises(NotFound, match="the content of the snapshot is gone"):
            await read(disks, "a", name, 0, 4)

    async def test_what_others_have_in_the_bucket_is_not_seen(self, store: ArtifactStore, s3_url: str) -> None:
        for path in ("a/art_of_others", "below/this/not-an-artifact", f"below/{new_id()}"):
            put = urllib.request.Request(f"{s3_url}/artifacts/{path}", b"x", method="PUT")
            await asyncio.to_thread(lambda put=put: urllib.request.urlopen(put, timeout=5).close())
        assert await kept(store) == set()

    async def test_a_server_that_is_away_is_unavailable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        away = open_s3("s3://artifacts", "http://127.0.0.1:9")
        with pytest.raises(Unavailable, match="did not answer properly") as caught:
            await read(away, "a", new_id(), 0, 1)
        assert "127.0.0.1" not in str(caught.value)
