"""The records of the sandboxes of one provider of this host, and the directories that they are in."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypeVar

from warren.model.errors import SandboxLost, SandboxNotFound
from warren.sandboxes.host.cgroups import SandboxCgroup
from warren.sandboxes.host.kernel_queues import WatchedSandbox
from warren.sandboxes.host.record import SandboxRecord

_ID: Final = re.compile(r"[0-9a-f]{32}")
R = TypeVar("R", bound=SandboxRecord)


def is_sandbox_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


class SandboxRecords(Generic[R]):
    """`made` are the records of sandboxes that this process has made or adopted, by sandbox id."""

    def __init__(self, folder: Path, record_class: type[R]) -> None:
        self.folder = folder
        self._class = record_class
        self.made: dict[str, R] = {}

    def directory(self, sandbox_id: str) -> Path:
        """Raises SandboxNotFound for what cannot be an id."""
        if not is_sandbox_id(sandbox_id):
            raise SandboxNotFound(f"there is no sandbox {sandbox_id!r}")
        return self.folder / sandbox_id

    def load(self, sandbox_id: str) -> R | None:
        return self._class.load(self.directory(sandbox_id))

    def known(self, sandbox_id: str) -> R | None:
        """Returns the record as it is remembered, or loads it: it does not change any more once its sandbox is made."""
        return self.made.get(sandbox_id) or self.load(sandbox_id)

    def names(self) -> list[str]:
        """The ids of all sandboxes that have a directory, also of other processes."""
        try:
            return [name for name in os.listdir(self.folder) if is_sandbox_id(name)]
        except FileNotFoundError:
            return []

    def with_labels(self, sandbox_ids: Sequence[str], labels: Mapping[str, str]) -> Sequence[str]:
        records = {name: self.known(name) for name in sandbox_ids}
        return [name for name, record in records.items() if record and labels.items() <= record.spec.labels.items()]

    def is_over(self, directory: Path) -> bool:
        """Whether the sandbox of a directory has died, or will never be finished."""
        record = self._class.load(directory)
        return record is not None and (record.abandoned or (record.pid > 0 and not record.alive()))

    def others_have_gpus(self, sandbox_id: str) -> bool:
        """Whether another sandbox than this one has a graphics processor."""
        records = (self.load(name) for name in self.names() if name != sandbox_id)
        return any(record is not None and record.spec.gpus for record in records)

    def watched(self, cgroup_of: Callable[[R], SandboxCgroup]) -> Iterator[WatchedSandbox]:
        """Yields the sandboxes of this folder, also those of other processes. Called in a thread."""
        for name in self.names():
            record = self.known(name)
            if record is not None and record.pid:
                yield WatchedSandbox(record.pid, partial(_pids, record, cgroup_of))


def _pids(record: R, cgroup_of: Callable[[R], SandboxCgroup]) -> Sequence[int]:
    try:
        return tuple(cgroup_of(record).pids()) if record.alive() else ()
    except SandboxLost:
        return ()
