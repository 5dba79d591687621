"""Keeps what is known of sessions in JSON files, one for each session: `storage/sessions/ID.json`.

A file is written as a whole or not at all, and read and changed under a lock, so programs may share a directory.
"""

import contextlib
import fcntl
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

_SUFFIX: Final = ".json"
_LONGEST_NAME: Final = 200


class JsonFiles:
    """A directory with one JSON object for each name. It holds the newest `most`."""

    def __init__(self, directory: str | os.PathLike[str], most: int = 1000) -> None:
        self.directory = Path(directory)
        self._most = most

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.directory}>"

    def path_of(self, name: str) -> Path:
        """Where the object is, or would be. No name leads out of the directory."""
        safe = re.sub(r"^\.", "%2E", quote(name, safe=""))
        if not name or len(safe) > _LONGEST_NAME:
            raise ValueError(f"{name[:80]!r} cannot be the name of a file")
        return self.directory / f"{safe}{_SUFFIX}"

    def load(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self.path_of(name).read_text())
        except FileNotFoundError:
            return None
        return found

    def save(self, name: str, values: dict[str, Any]) -> None:
        with self._locked():
            self._write(name, values)

    def change(self, name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Saves what `change` makes of the object, or of an empty one, and returns it."""
        with self._locked():
            values = change(self.load(name) or {})
            self._write(name, values)
        return values

    def delete(self, name: str) -> bool:
        """Says whether there was one."""
        try:
            self.path_of(name).unlink()
        except FileNotFoundError:
            return False
        return True

    def names(self) -> list[str]:
        """Those that there are, newest first."""
        return [unquote(path.name.removesuffix(_SUFFIX)) for path in self._files()]

    def _write(self, name: str, values: dict[str, Any]) -> None:
        path = self.path_of(name)
        fd, temporary = tempfile.mkstemp(dir=self.directory, prefix=".new-")  # mkstemp uses mode 0600
        try:
            with os.fdopen(fd, "w") as file:
                json.dump(values, file, indent=1)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        for old in self._files()[self._most :]:
            old.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        found = []
        for path in self.directory.glob(f"[!.]*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(found, reverse=True)]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


class StateManager(JsonFiles):
    """The sessions that this storage knows: what the server said of each when it was started, looked at or stopped."""

    def __init__(self, storage_path: str | os.PathLike[str] = "./storage") -> None:
        super().__init__(Path(storage_path) / "sessions")
