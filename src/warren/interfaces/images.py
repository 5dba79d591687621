"""Root filesystems by name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RootFs:
    """A prepared root filesystem. `host_usr`: its /usr is empty, the host's is mounted there, read-only."""

    path: Path
    host_usr: bool


class Images(Protocol):
    """`rootfs` finds the image of that name and raises ImageNotFound, with the remedy, if there is none."""

    def rootfs(self, name: str) -> RootFs: ...
