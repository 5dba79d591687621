"""A range of host uids for every sandbox, host-wide.

A claim is a symbolic link `<directory>/<n>` that points to the sandbox's directory. It is made and read in one step, so
no claim is without an owner. A claim whose owner's directory is gone is stale and may be taken over, unless a process
still has one of its uids: then somebody has removed the directory of a live sandbox. Several processes, with several
state directories, share the ranges. A free range is taken in one step; only taking over a stale one needs a
file lock. Nobody waits for the lock, because its holder may be suspended: there are other ranges. Claims do not outlive
a boot, and neither do sandboxes.
"""

import fcntl
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from warren.model.errors import ProviderUnavailable

DIRECTORY: Final = Path("/run/warren/uids")
RANGE: Final = 65536
COUNT: Final = 32768
FIRST: Final = 0x78000000  # above what distributions, systemd and container engines give out


def uid_base(index: int) -> int:
    if not 0 <= index < COUNT:
        raise ValueError(f"{index} is not the number of a uid range")
    return FIRST + index * RANGE


class UidRanges:
    def __init__(self, directory: Path = DIRECTORY, *, count: int = COUNT) -> None:
        self._directory = directory
        self._count = count

    def claim(self, owner: Path) -> int:
        """Claims a range for `owner`, an existing directory, and returns its index."""
        start = random.randrange(self._count)  # at random, so that a range rests before it is used again
        for step in range(self._count):
            index = (start + step) % self._count
            if self._take_free(index, owner) or self._take_over(index, owner):
                return index
        raise ProviderUnavailable(f"all {self._count} uid ranges are in use", remedy="destroy some sandboxes")

    def release(self, index: int, owner: Path) -> None:
        """Idempotent; leaves a claim that another owner has taken over. Nobody takes it over while the owner exists."""
        with nullcontext() if owner.is_dir() else self._locked(fcntl.LOCK_EX):
            if self.owner(index) == owner:
                with suppress(FileNotFoundError):
                    os.unlink(self._link(index))

    def release_all(self, owner: Path) -> None:
        """Releases the claims of an owner that died before it recorded them."""
        for link in self._directory.glob("[0-9]*"):
            self.release(int(link.name), owner)

    def owner(self, index: int) -> Path | None:
        try:
            return Path(os.readlink(self._link(index)))
        except FileNotFoundError:
            return None

    def _take_free(self, index: int, owner: Path) -> bool:
        """Returns False if the range is not free."""
        try:
            os.symlink(owner, self._link(index))
        except FileExistsError:
            return False
        except FileNotFoundError:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return self._take_free(index, owner)
        return True

    def _take_over(self, index: int, owner: Path) -> bool:
        if not self._is_stale(index):
            return False
        with self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB) as locked:
            if not locked or not self._is_stale(index):
                return False
            with suppress(FileNotFoundError):
                os.unlink(self._link(index))
            return self._take_free(index, owner)

    def _is_stale(self, index: int) -> bool:
        holder = self.owner(index)
        if holder is None or holder.is_dir():
            return False
        return not _is_used(range(uid_base(index), uid_base(index) + RANGE))

    def _link(self, index: int) -> str:
        return f"{self._directory}/{index}"

    @contextmanager
    def _locked(self, operation: int) -> Iterator[bool]:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._directory / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, operation)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)


def _is_used(uids: range) -> bool:
    """Whether any process has one of these uids. The owner of /proc/PID does not tell: it may be root for others."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:
            continue
        if int(text.partition("\nUid:")[2].split(None, 1)[0]) in uids:
            return True
    return False
