"""Host-wide claims on things of this machine: symbolic links that point to the directory of the owning sandbox.

A symbolic link is made, and read, in one step, so every claim has an owner, however many processes and state
directories compete. Only taking over a stale claim needs a file lock. Claims do not outlive a boot, and neither do
sandboxes.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class ClaimLinks:
    """The claims in a directory. `is_stale` is called with the name of a thing and its owner, and returns whether the
    claim may be taken over."""

    def __init__(self, directory: Path, is_stale: Callable[[str, Path], bool]) -> None:
        self._directory = directory
        self._is_stale = is_stale

    def names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._directory) if not name.startswith(".")]
        except FileNotFoundError:
            return []

    def owner(self, name: str) -> Path | None:
        try:
            return Path(os.readlink(self._link(name)))
        except FileNotFoundError:
            return None

    def is_stale(self, name: str) -> bool:
        holder = self.owner(name)
        return holder is not None and self._is_stale(name, holder)

    def take(self, name: str, owner: Path) -> bool:
        """Claims a thing for `owner`, an existing directory, if it is free or its claim is stale. Does not wait for the
        lock, whose holder may be suspended: the thing then counts as taken."""
        if self._take_free(name, owner):
            return True
        if not self.is_stale(name):
            return False
        with self.locked(wait=False) as locked:
            # Checked again under the lock: another process may have taken it over meanwhile.
            if not locked or not self.is_stale(name):
                return False
            self.remove(name)
            return self._take_free(name, owner)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._link(name))

    @contextmanager
    def locked(self, *, wait: bool) -> Iterator[bool]:
        """Yields whether the lock is held; with `wait` it always is."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._directory / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)

    def _take_free(self, name: str, owner: Path) -> bool:
        try:
            # Of several processes exactly one makes the link.
            os.symlink(owner, self._link(name))
        except FileExistsError:
            return False
        except FileNotFoundError:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return self._take_free(name, owner)
        return True

    def _link(self, name: str) -> str:
        return f"{self._directory}/{name}"
