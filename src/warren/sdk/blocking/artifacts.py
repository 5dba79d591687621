"""`client.artifacts`: files that outlive the sandbox. Only `save` needs a session; the others make none."""

# Made from src/warren/sdk/aio/artifacts.py by scripts/generate_sync.py: edit that one.

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from warren.sdk.blocking.backend import Backend, list_all
from warren.sdk.blocking.files import Progress, save_parts
from warren.sdk.results import ArtifactInfo, SavedArtifacts

_SAVE_S: Final = 90.0


class Artifacts:
    """The artifacts of a client. `perform` calls an operation in its session; `owner` filters what `list` returns."""

    def __init__(
        self,
        backend: Backend,
        perform: Callable[..., Any],
        owner: dict[str, Any],
    ) -> None:
        self._backend, self._perform, self._owner = backend, perform, owner

    def save(self, paths: str | Sequence[str]) -> SavedArtifacts:
        """Saves files of the sandbox now: paths, directories and globs such as `*.png`. What lies below
        /workspace/artifacts is saved when the session ends, without being asked for."""
        wanted = [paths] if isinstance(paths, str) else list(paths)
        return SavedArtifacts.of(self._perform("save_artifacts", paths=wanted, work_s=_SAVE_S))

    def list(self, *, name: str = "", everywhere: bool = False) -> list[ArtifactInfo]:
        """Those of this client's thread, or of its session if it has none, newest first; with `everywhere` those of all
        sessions. `name` is a glob."""
        which: dict[str, Any] = {} if everywhere else self._owner
        if not which and not everywhere:
            return []  # there was no session yet
        found = list_all(self._backend, "artifacts", name=name, **which)
        return [ArtifactInfo.of(each) for each in found]

    def get(self, artifact_id: str) -> ArtifactInfo:
        """Returns what is known about an artifact of any session. Raises NotFound."""
        return ArtifactInfo.of(self._backend.call("get_artifact", artifact_id=artifact_id))

    def read(self, artifact: ArtifactInfo | str) -> bytes:
        """Returns all bytes of an artifact."""
        content = self._backend.download("read_artifact", "", artifact_id=_id(artifact))
        with content as (_, parts), contextlib.closing(parts):
            return b"".join(list(parts))

    def download(
        self,
        artifact: ArtifactInfo | str,
        local_path: str | os.PathLike[str] = "",
        *,
        progress: Progress | None = None,
    ) -> Path:
        """Copies an artifact to this machine, by default under its own name without directories; returns the path."""
        target = Path(local_path).expanduser() if local_path else Path()
        if target.is_dir():
            info = artifact if isinstance(artifact, ArtifactInfo) else self.get(artifact)
            target = target / info.name.rsplit("/", 1)[-1]
        content = self._backend.download("read_artifact", "", artifact_id=_id(artifact))
        with content as (size, parts), contextlib.closing(parts):
            save_parts(target, size, parts, progress)
        return target

    def delete(self, artifact: ArtifactInfo | str) -> None:
        """Deletes an artifact now instead of when it expires."""
        self._backend.call("delete_artifact", artifact_id=_id(artifact))


def _id(artifact: ArtifactInfo | str) -> str:
    return artifact if isinstance(artifact, str) else artifact.artifact_id
