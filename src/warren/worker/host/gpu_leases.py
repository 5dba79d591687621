"""Who has which graphics processor, host-wide: one sandbox at a time has it for itself.

A lease is a symbolic link `<directory>/<id>` that points to the sandbox's directory, as a claim of uids is (uids.py).
It is made in one step, whatever processes with whatever state directories ask at the same time. It ends when the
sandbox is destroyed. The lease of a sandbox that has died, or whose directory is gone, is taken over, under a lock.
Nobody waits for the lock: without it one counts as taken, and a lease that could not be dropped is taken over once the
directory is gone. Leases do not outlive a boot, and neither do sandboxes.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from warren.model.errors import InvalidRequest, NoCapacity
from warren.model.gpus import ANY
from warren.worker.host.gpus import Gpu

DIRECTORY: Final = Path("/run/warren/gpus")
_RETRY_S: Final = 5.0


class GpuLeases:
    """`is_over` tells of a sandbox's directory whether its sandbox has died, so that nothing of it can run any more."""

    def __init__(self, is_over: Callable[[Path], bool], directory: Path = DIRECTORY) -> None:
        self._is_over = is_over
        self._directory = directory

    def claim(self, gpus: Sequence[Gpu], wanted: Sequence[str], owner: Path) -> list[Gpu]:
        """Leases those that are wanted to `owner`, an existing directory: all of them, or none. Raises InvalidRequest
        for one that is not among `gpus`, and NoCapacity at once if too few are free."""
        named = [_find(gpus, name) for name in wanted if name != ANY]
        taken = list[Gpu]()
        try:
            for gpu in named:
                if gpu in taken:
                    raise InvalidRequest(f"the GPU {gpu.id} is named twice")
                if not self._take(gpu, owner):
                    raise self._none_free(f"the GPU {gpu.id} belongs to another sandbox", gpus)
                taken.append(gpu)
            for gpu in gpus:
                if len(taken) < len(wanted) and gpu not in taken and self._take(gpu, owner):
                    taken.append(gpu)
            if len(taken) < len(wanted):
                raise self._none_free(f"{len(wanted)} asked for", gpus)
        except BaseException:
            for gpu in taken:
                self._drop(gpu.id, owner)
            raise
        return taken

    def release(self, owner: Path) -> None:
        """Idempotent; leaves leases that others have taken over."""
        for name in self._names():
            self._drop(name, owner)

    def free(self, gpus: Sequence[Gpu]) -> list[str]:
        """The ids of those that a sandbox could have now."""
        return [gpu.id for gpu in gpus if self.owner(gpu.id) is None or self._is_stale(gpu.id)]

    def owner(self, gpu_id: str) -> Path | None:
        try:
            return Path(os.readlink(self._link(gpu_id)))
        except FileNotFoundError:
            return None

    def _take(self, gpu: Gpu, owner: Path) -> bool:
        if self._take_free(gpu.id, owner):
            return True
        if not self._is_stale(gpu.id):
            return False
        with self._locked() as locked:
            if not locked or not self._is_stale(gpu.id):
                return False
            with suppress(FileNotFoundError):
                os.unlink(self._link(gpu.id))
            return self._take_free(gpu.id, owner)

    def _take_free(self, gpu_id: str, owner: Path) -> bool:
        try:
            os.symlink(owner, self._link(gpu_id))
        except FileExistsError:
            return False
        except FileNotFoundError:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return self._take_free(gpu_id, owner)
        return True

    def _drop(self, gpu_id: str, owner: Path) -> None:
        if self.owner(gpu_id) == owner:
            with self._locked() as locked:
                if locked and self.owner(gpu_id) == owner:
                    os.unlink(self._link(gpu_id))

    def _is_stale(self, gpu_id: str) -> bool:
        holder = self.owner(gpu_id)
        return holder is not None and (not holder.is_dir() or self._is_over(holder))

    def _none_free(self, why: str, gpus: Sequence[Gpu]) -> NoCapacity:
        free = len(self.free(gpus))
        return NoCapacity(
            f"no free GPU: {why}, {free} of {len(gpus)} {'is' if free == 1 else 'are'} free",
            remedy="end a session that has one, or try again later",
            retry_after_s=_RETRY_S,
        )

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._directory) if not name.startswith(".")]
        except FileNotFoundError:
            return []

    def _link(self, gpu_id: str) -> str:
        return f"{self._directory}/{gpu_id}"

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._directory / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)


def _find(gpus: Sequence[Gpu], name: str) -> Gpu:
    for gpu in gpus:
        if name in gpu.names:
            return gpu
    ids = ", ".join(gpu.id for gpu in gpus)
    raise InvalidRequest(f"there is no GPU {name!r} for sandboxes here", remedy=f"there are: {ids or 'none'}")
