"""`client.snapshots`: disks that sessions start from. Only `create` needs a session; the others make none."""

# Made from src/warren/sdk/aio/snapshots.py by scripts/generate_sync.py: edit that one.

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from warren.sdk.blocking.backend import Backend, list_all
from warren.sdk.blocking.files import Progress, read_parts, save_parts
from warren.sdk.blocking.platform import in_thread
from warren.sdk.local_files import open_local
from warren.sdk.results import SnapshotInfo

SNAPSHOT_S: Final = 600.0
_SUFFIX: Final = ".warren-snapshot"


class Snapshots:
    """The snapshots of the caller's tenant. `perform` calls an operation in the client's session. A snapshot is named
    by its id or its name."""

    def __init__(self, backend: Backend, perform: Callable[..., Any]) -> None:
        self._backend, self._perform = backend, perform

    def create(
        self,
        name: str = "",
        *,
        expires_in_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
        public: bool = False,
    ) -> SnapshotInfo:
        """Saves the files of the session as they are now. A name that another snapshot has moves to this one.

        `expires_in_s`: 0 keeps it for ever; by default it is kept as long as the server says, 30 days unless changed.
        """
        given: dict[str, Any] = {"name": name, "metadata": dict(metadata or {}), "public": public}
        if expires_in_s is not None:
            given["expires_in_s"] = expires_in_s
        return SnapshotInfo.of(self._perform("create_snapshot", work_s=SNAPSHOT_S, **given))

    def list(self, *, session_id: str = "") -> list[SnapshotInfo]:
        """Returns the snapshots, newest first; with `session_id` only those of that session."""
        found = list_all(self._backend, "snapshots", session_id=session_id)
        return [SnapshotInfo.of(each) for each in found]

    def get(self, snapshot: str) -> SnapshotInfo:
        """Returns what is known about a snapshot. Raises NotFound."""
        return SnapshotInfo.of(self._backend.call("get_snapshot", snapshot=snapshot))

    def delete(self, snapshot: SnapshotInfo | str) -> None:
        """Deletes a snapshot. Sessions that started from it have copies."""
        self._backend.call("delete_snapshot", snapshot=_id(snapshot))

    def download(
        self,
        snapshot: SnapshotInfo | str,
        local_path: str | os.PathLike[str] = "",
        *,
        progress: Progress | None = None,
    ) -> Path:
        """Copies a snapshot to a file that `upload` takes back: by default NAME.warren-snapshot; returns the path."""
        target = Path(local_path).expanduser()
        if not local_path or target.is_dir():
            info = snapshot if isinstance(snapshot, SnapshotInfo) else self.get(snapshot)
            target = target / f"{info.name or info.snapshot_id}{_SUFFIX}"
        content = self._backend.download("read_snapshot", "", snapshot=_id(snapshot))
        with content as (size, parts), contextlib.closing(parts):
            save_parts(target, size, parts, progress)
        return target

    def upload(
        self,
        local_path: str | os.PathLike[str],
        name: str = "",
        *,
        environment: str = "",
        image: str = "",
        disk_mb: int | None = None,
        remote_path: str = "",
        expires_in_s: float | None = None,
        progress: Progress | None = None,
    ) -> SnapshotInfo:
        """Makes a snapshot of a file: what `download` has written, or a tar, also compressed by gzip or zstd.

        A tar is unpacked at `remote_path` (/workspace) in a sandbox of the environment and the image.
        """
        asked = {"name": name, "environment": environment, "image": image, "path": remote_path}
        query: dict[str, Any] = {key: value for key, value in asked.items() if value}
        file = in_thread(open_local, Path(local_path).expanduser())
        try:
            data = read_parts(file, os.fstat(file.fileno()).st_size, progress)
            made = self._backend.upload(
                "upload_snapshot", "", data, disk_mb=disk_mb, expires_in_s=expires_in_s, **query
            )
        finally:
            file.close()
        return SnapshotInfo.of(made)


def _id(snapshot: SnapshotInfo | str) -> str:
    return snapshot if isinstance(snapshot, str) else snapshot.snapshot_id
