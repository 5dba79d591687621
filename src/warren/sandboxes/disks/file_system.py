"""Checks and grows the file system of an image that nobody has mounted, by e2fsprogs."""

import os
from typing import Final

from warren.model.errors import ProviderUnavailable
from warren.model.spec import MIB
from warren.sandboxes.host.disks import DISK_FD, reserve_blocks, standard_size_mb
from warren.sandboxes.host.processes import run

_TIMEOUT_S: Final = 900.0
_REPAIRED: Final = 1
_ITSELF: Final = f"/proc/self/fd/{DISK_FD}"


async def check(image: int) -> None:
    """Makes a copied file system clean: frees files that were deleted and still open, and counts blocks again. Raises
    ProviderUnavailable if it is damaged."""
    outcome = await run(["e2fsck", "-f", "-y", _ITSELF], pass_fds={image: DISK_FD}, timeout_s=_TIMEOUT_S)
    if outcome.code not in (0, _REPAIRED):
        raise ProviderUnavailable(f"checking a saved disk: {outcome.last_line}", remedy="install e2fsprogs")


async def grow(image: int, disk_mb: int) -> None:
    """Makes room for `disk_mb`, which is at least what there is; the rest of the image is reserved."""
    size = os.fstat(image).st_size
    if (wanted := standard_size_mb(disk_mb) * MIB) > size:
        os.ftruncate(image, wanted)
        outcome = await run(["resize2fs", "-f", _ITSELF], pass_fds={image: DISK_FD}, timeout_s=_TIMEOUT_S)
        if outcome.code != 0:
            raise ProviderUnavailable(f"enlarging a disk: {outcome.last_line}", remedy="install e2fsprogs")
        size = wanted
    reserve_blocks(image, size - disk_mb * MIB)
