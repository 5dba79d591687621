"""Root filesystems by name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RootFs:
    """A prepared root filesystem. With `host_usr` its /usr is empty and the host's is mounted there, read-only."""

    path: Path
    host_usr: bool


class Images(Protocol):
    """`rootfs` returns the image of that name; it raises ImageNotFound, with the remedy, if there is none."""

    def rootfs(self, name: str) -> RootFs: ...
