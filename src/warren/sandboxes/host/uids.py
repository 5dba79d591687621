"""A range of host uids for every sandbox, host-wide.

A sandbox claims a range by the range's number (claim_links.py). A claim whose owner's directory is gone is stale and
may be taken over, unless a process still has one of the uids: then somebody removed the directory of a live sandbox.
"""

import random
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from warren.model.errors import ProviderUnavailable
from warren.sandboxes.host.claim_links import ClaimLinks

DIRECTORY: Final = Path("/run/warren/uids")
RANGE: Final = 65536
COUNT: Final = 32768
_NAMESPACES: Final = Path("/proc/sys/user/max_user_namespaces")
FIRST: Final = 0x78000000  # above the uids that distributions, systemd and container engines assign


def uid_base(index: int) -> int:
    if not 0 <= index < COUNT:
        raise ValueError(f"{index} is not the number of a uid range")
    return FIRST + index * RANGE


def can_map_ids() -> bool:
    """Whether this machine allows user namespaces, by which ids on disks are mapped to a range."""
    try:
        return _NAMESPACES.read_text().strip() != "0"
    except OSError:
        return False


class UidRanges:
    def __init__(self, directory: Path = DIRECTORY, *, count: int = COUNT) -> None:
        self._links = ClaimLinks(directory, _is_stale)
        self._count = count

    def claim(self, owner: Path) -> int:
        """Claims a range for `owner`, an existing directory, and returns its index. Raises ProviderUnavailable."""
        start = random.randrange(self._count)  # random, so that a range rests before it is used again
        for step in range(self._count):
            index = (start + step) % self._count
            if self._links.take(str(index), owner):
                return index
        raise ProviderUnavailable(f"all {self._count} uid ranges are in use", remedy="destroy some sandboxes")

    def release(self, index: int, owner: Path) -> None:
        """Ends the claim of `owner`. Idempotent; leaves a claim that another owner has taken over."""
        # While the owner's directory exists nobody else can take the claim over; afterwards the lock prevents it.
        with nullcontext() if owner.is_dir() else self._links.locked(wait=True):
            if self.owner(index) == owner:
                self._links.remove(str(index))

    def release_all(self, owner: Path) -> None:
        """Releases all claims of an owner that died before it recorded them."""
        for name in filter(str.isdigit, self._links.names()):
            self.release(int(name), owner)

    def owner(self, index: int) -> Path | None:
        return self._links.owner(str(index))


def _is_stale(name: str, holder: Path) -> bool:
    first = uid_base(int(name))
    return not holder.is_dir() and not _is_used(range(first, first + RANGE))


def _is_used(uids: range) -> bool:
    """Returns whether any process has one of these uids. The owner of /proc/PID does not tell: it may be root."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:
            continue
        if int(text.partition("\nUid:")[2].split(None, 1)[0]) in uids:
            return True
    return False
