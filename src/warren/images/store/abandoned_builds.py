"""Removes what is left of the sandboxes of a builder that was killed."""

import asyncio
from pathlib import Path
from typing import Final

from warren.interfaces.images import RootFs

STATE: Final = "state"  # the state directory of a builder's provider, below the builder's temporary directory


class StepImages:
    """Implements interfaces/images.py for a builder's provider: every name means the next step's root filesystem."""

    def __init__(self) -> None:
        self.next: RootFs | None = None

    def version(self, name: str) -> str:
        return name

    def rootfs(self, name: str) -> RootFs:
        assert self.next is not None
        return self.next

    def hold(self, name: str, user: Path) -> RootFs:
        return self.rootfs(name)

    def release(self, user: Path) -> None:
        """Does nothing: the builder itself keeps the images that its steps use."""

    def prune(self) -> None:
        """Does nothing: a builder's provider owns no images."""


def clear_abandoned(making: Path) -> None:
    """Destroys the sandboxes that a dead builder left on this machine, before its directory is deleted. Call it in a
    thread without an event loop."""
    state = making / STATE
    if not (state / "sandboxes").is_dir():
        return
    from warren.sandboxes.providers.oci import OciProvider

    async def clear() -> None:
        provider = OciProvider(state, StepImages(), Path())
        try:
            for sandbox_id in await provider.list_ids():
                await provider.destroy(sandbox_id)
        finally:
            await provider.close()

    asyncio.run(clear())
