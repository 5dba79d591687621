"""What every SandboxClient does with snapshots and forks, over HTTP and on this machine alike."""

# Made from tests/contract/sdk_async_snapshots_contract.py by scripts/generate_sync.py: edit that one.

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from warren.model.errors import InvalidRequest, NotFound
from warren.sdk.blocking.client import SandboxClient

New = Callable[..., SandboxClient]


class SnapshotsContract:
    def test_a_client_starts_with_the_files_of_a_snapshot(self, new: New) -> None:
        with new() as client:
            client.write_file("a.txt", "as it was")
            made = client.snapshots.create("sdk-ready", metadata={"k": "v"}, expires_in_s=0)
            assert (made.name, made.metadata, made.expires_at) == ("sdk-ready", {"k": "v"}, None)
            assert client.snapshots.get("sdk-ready") == made
            assert made in client.snapshots.list(session_id=client.session_id)
            client.write_file("a.txt", "later")
        with new(snapshot="sdk-ready") as other:
            assert other.read_text("a.txt") == "as it was"
            assert (other.info()).snapshot == made.snapshot_id
            other.snapshots.delete(made)
            assert made not in other.snapshots.list()
            with pytest.raises(NotFound):
                other.snapshots.get("sdk-ready")
            assert other.read_text("a.txt") == "as it was"

    def test_a_snapshot_goes_down_and_comes_back(self, new: New, tmp_path: Path) -> None:
        seen: list[int] = []
        with new() as client:
            client.write_file("a.txt", "carried")
            made = client.snapshots.create("sdk-file")
            path = client.snapshots.download(made, tmp_path)
            assert path == tmp_path / "sdk-file.warren-snapshot"
            client.snapshots.delete("sdk-file")
            back = client.snapshots.upload(path, progress=lambda done, total: seen.append(done))
            assert (back.name, back.sha256, seen[-1]) == ("sdk-file", made.sha256, path.stat().st_size)
            (tmp_path / "bad").write_bytes(path.read_bytes()[:-1])
            with pytest.raises(InvalidRequest):
                client.snapshots.upload(tmp_path / "bad")
            with tarfile.open(tmp_path / "tree.tar.gz", "w:gz") as tar:
                tar.add(path, "deep/file")
            client.snapshots.upload(tmp_path / "tree.tar.gz", "sdk-tar", remote_path="/workspace/below")
        with new(snapshot="sdk-tar") as other:
            assert other.read_file("below/deep/file") == path.read_bytes()
            for name in ("sdk-tar", "sdk-file"):
                other.snapshots.delete(name)

    def test_forks_have_clients_of_their_own(self, new: New) -> None:
        with new() as client:
            client.write_file("a.txt", "common")
            forks = client.fork(3, metadata={"n": "1"})
            assert len({fork.session_id for fork in forks} | {client.session_id}) == 4
            for number, fork in enumerate(forks):
                assert (fork.info()).forked_from == client.session_id
                fork.write_file("a.txt", str(number))
            assert [fork.read_text("a.txt") for fork in forks] == ["0", "1", "2"]
            for fork in forks:
                session_id = fork.session_id
                fork.leave()
                with new(session_id=session_id) as ended:
                    assert (ended.info()).state == "ended"
            assert client.read_text("a.txt") == "common"
