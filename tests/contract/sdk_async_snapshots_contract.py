"""What every AsyncSandboxClient does with snapshots and forks, over HTTP and on this machine alike."""

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from warren.model.errors import InvalidRequest, NotFound
from warren.sdk.aio.client import AsyncSandboxClient

New = Callable[..., AsyncSandboxClient]


class AsyncSnapshotsContract:
    pytestmark = pytest.mark.anyio

    async def test_a_client_starts_with_the_files_of_a_snapshot(self, new: New) -> None:
        async with new() as client:
            await client.write_file("a.txt", "as it was")
            made = await client.snapshots.create("sdk-ready", metadata={"k": "v"}, expires_in_s=0)
            assert (made.name, made.metadata, made.expires_at) == ("sdk-ready", {"k": "v"}, None)
            assert await client.snapshots.get("sdk-ready") == made
            assert made in await client.snapshots.list(session_id=client.session_id)
            await client.write_file("a.txt", "later")
        async with new(snapshot="sdk-ready") as other:
            assert await other.read_text("a.txt") == "as it was"
            assert (await other.info()).snapshot == made.snapshot_id
            await other.snapshots.delete(made)
            assert made not in await other.snapshots.list()
            with pytest.raises(NotFound):
                await other.snapshots.get("sdk-ready")
            assert await other.read_text("a.txt") == "as it was"

    async def test_a_snapshot_goes_down_and_comes_back(self, new: New, tmp_path: Path) -> None:
        seen: list[int] = []
        async with new() as client:
            await client.write_file("a.txt", "carried")
            made = await client.snapshots.create("sdk-file")
            path = await client.snapshots.download(made, tmp_path)
            assert path == tmp_path / "sdk-file.warren-snapshot"
            await client.snapshots.delete("sdk-file")
            back = await client.snapshots.upload(path, progress=lambda done, total: seen.append(done))
            assert (back.name, back.sha256, seen[-1]) == ("sdk-file", made.sha256, path.stat().st_size)
            (tmp_path / "bad").write_bytes(path.read_bytes()[:-1])
            with pytest.raises(InvalidRequest):
                await client.snapshots.upload(tmp_path / "bad")
            with tarfile.open(tmp_path / "tree.tar.gz", "w:gz") as tar:
                tar.add(path, "deep/file")
            await client.snapshots.upload(tmp_path / "tree.tar.gz", "sdk-tar", remote_path="/workspace/below")
        async with new(snapshot="sdk-tar") as other:
            assert await other.read_file("below/deep/file") == path.read_bytes()
            for name in ("sdk-tar", "sdk-file"):
                await other.snapshots.delete(name)

    async def test_forks_have_clients_of_their_own(self, new: New) -> None:
        async with new() as client:
            await client.write_file("a.txt", "common")
            forks = await client.fork(3, metadata={"n": "1"})
            assert len({fork.session_id for fork in forks} | {client.session_id}) == 4
            for number, fork in enumerate(forks):
                assert (await fork.info()).forked_from == client.session_id
                await fork.write_file("a.txt", str(number))
            assert [await fork.read_text("a.txt") for fork in forks] == ["0", "1", "2"]
            for fork in forks:
                session_id = fork.session_id
                await fork.leave()
                async with new(session_id=session_id) as ended:
                    assert (await ended.info()).state == "ended"
            assert await client.read_text("a.txt") == "common"
