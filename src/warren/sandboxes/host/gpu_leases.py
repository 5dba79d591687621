"""Host-wide leases of graphics processors: each belongs to one sandbox at a time.

A lease is a claim (claim_links.py) that ends when the sandbox is destroyed. The lease of a sandbox that has died, or
whose directory is gone, may be taken over. Nobody waits for the lock: a lease that could not be released is taken over
once the directory is gone.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from warren.model.errors import InvalidRequest, NoCapacity
from warren.model.gpus import ANY
from warren.sandboxes.host.claim_links import ClaimLinks
from warren.sandboxes.host.gpus import Gpu

DIRECTORY: Final = Path("/run/warren/gpus")
_RETRY_S: Final = 5.0


class GpuLeases:
    """The leases. `is_over` is called with a sandbox's directory, and returns whether all its processes are dead."""

    def __init__(self, is_over: Callable[[Path], bool], directory: Path = DIRECTORY) -> None:
        self._links = ClaimLinks(directory, lambda _, holder: not holder.is_dir() or is_over(holder))

    def claim(self, gpus: Sequence[Gpu], wanted: Sequence[str], owner: Path) -> list[Gpu]:
        """Leases the wanted GPUs to `owner`, an existing directory: all of them, or none. Raises InvalidRequest for one
        that is not among `gpus`, and NoCapacity at once if too few are free."""
        named = [_find(gpus, name) for name in wanted if name != ANY]
        taken = list[Gpu]()
        try:
            for gpu in named:
                if gpu in taken:
                    raise InvalidRequest(f"the GPU {gpu.id} is named twice")
                if not self._links.take(gpu.id, owner):
                    raise self._none_free(f"the GPU {gpu.id} belongs to another sandbox", gpus)
                taken.append(gpu)
            for gpu in gpus:
                if len(taken) < len(wanted) and gpu not in taken and self._links.take(gpu.id, owner):
                    taken.append(gpu)
            if len(taken) < len(wanted):
                raise self._none_free(f"{len(wanted)} asked for", gpus)
        except BaseException:
            for gpu in taken:
                self._drop(gpu.id, owner)
            raise
        return taken

    def release(self, owner: Path) -> None:
        """Ends the leases of `owner`. Idempotent; leaves leases that others have taken over."""
        for name in self._links.names():
            self._drop(name, owner)

    def free(self, gpus: Sequence[Gpu]) -> list[str]:
        """Returns the ids of the GPUs that a sandbox could have now."""
        return [gpu.id for gpu in gpus if self.owner(gpu.id) is None or self._links.is_stale(gpu.id)]

    def owner(self, gpu_id: str) -> Path | None:
        return self._links.owner(gpu_id)

    def _drop(self, gpu_id: str, owner: Path) -> None:
        if self.owner(gpu_id) == owner:
            with self._links.locked(wait=False) as locked:
                if locked and self.owner(gpu_id) == owner:
                    self._links.remove(gpu_id)

    def _none_free(self, why: str, gpus: Sequence[Gpu]) -> NoCapacity:
        free = len(self.free(gpus))
        return NoCapacity(
            f"no free GPU: {why}, {free} of {len(gpus)} {'is' if free == 1 else 'are'} free",
            remedy="end a session that has one, or try again later",
            retry_after_s=_RETRY_S,
        )


def _find(gpus: Sequence[Gpu], name: str) -> Gpu:
    for gpu in gpus:
        if name in gpu.names:
            return gpu
    ids = ", ".join(gpu.id for gpu in gpus)
    raise InvalidRequest(f"there is no GPU {name!r} for sandboxes here", remedy=f"there are: {ids or 'none'}")
