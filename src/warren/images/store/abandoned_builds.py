"""Removes what the sandboxes of a builder have left that was killed."""

import asyncio
from pathlib import Path
from typing import Final

from warren.interfaces.images import RootFs

STATE: Final = "state"  # below a builder's temporary directory: the state directory of its provider


class StepImages:
    """The root filesystem of the next step, as the provider's images. It keeps the contract of interfaces/images.py."""

    def __init__(self) -> None:
        self.next: RootFs | None = None

    def version(self, name: str) -> str:
        return name

    def rootfs(self, name: str) -> RootFs:
        assert self.next is not None
        return self.next

    def hold(self, name: str, user: Path) -> RootFs:
        return self.rootfs(name)

    def keep(self, name: str, user: Path) -> None:
        """Does nothing: the builder holds it."""

    def release(self, user: Path) -> None:
        """Does nothing: the builder holds it."""

    def prune(self) -> None:
        """Does nothing: the builder has none to remove."""


def clear_abandoned(making: Path) -> None:
    """Removes what the sandboxes of a dead builder have left on this machine, before its directory is deleted. Call it
    in a thread without an event loop."""
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
