"""What sandboxes may take of this machine: each by its cgroup, and all together by the one above."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warren.kernel.logs import get_log
from warren.model.errors import ProviderUnavailable
from warren.model.spec import MIB, IoLimits
from warren.sandboxes.host.cgroups import CgroupLimits, Hierarchies, SandboxCgroup
from warren.sandboxes.host.disk_room import OVERCOMMIT, find_disk
from warren.sandboxes.host.machine_size import default_reserve_of, memory_total_mb, most_processes
from warren.sandboxes.host.record import SandboxRecord
from warren.sandboxes.providers.oci_bundle import PARENT

SOCKETS_SHARE: Final = 8  # of the memory limit, what socket buffers may take: with v1 beside it, with v2 those of UDP
_IO_DEVICE: Final = "io-device"
_LEAST_SOCKETS: Final = 8 * MIB
_log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class HostRoom:
    """What sandboxes may take of this machine in all. None: what suits the machine."""

    min_free_disk_mb: int | None = None
    disk_overcommit: float = OVERCOMMIT
    total_memory_mb: int | None = None
    total_cpus: float | None = None
    total_pids: int | None = None
    min_free_memory_mb: int | None = None

    @property
    def is_explicit(self) -> bool:
        return any(value is not None for value in (self.total_memory_mb, self.total_cpus, self.total_pids))

    def totals(self, memory_total_mb: int, processes: int) -> CgroupLimits:
        """Returns the limits of all sandboxes together, on a machine with this much memory and this many possible
        processes."""
        reserve = default_reserve_of(memory_total_mb) if self.min_free_memory_mb is None else self.min_free_memory_mb
        memory_mb = self.total_memory_mb or max(memory_total_mb - reserve, memory_total_mb // 2)
        return CgroupLimits(
            memory=memory_mb * MIB,
            cpus=self.total_cpus,
            pids=self.total_pids or processes * 3 // 4,
            sockets=memory_mb * MIB // SOCKETS_SHARE,
        )


class HostLimits:
    def __init__(self, hierarchies: Hierarchies, room: HostRoom) -> None:
        self._hierarchies = hierarchies
        self._room = room
        self._totals: CgroupLimits | None = None

    def limit_all(self) -> None:
        """Limits what all sandboxes of this machine use together. Call it while `parent_in_use`."""
        if self._totals is None:
            self._totals = self._room.totals(memory_total_mb(), most_processes())
        try:
            self._hierarchies.limit_parent(PARENT, self._totals)
        except OSError as exc:
            if self._room.is_explicit:
                raise ProviderUnavailable(
                    f"the limits of all sandboxes together cannot be set: {exc.strerror}",
                    remedy="leave out total_memory_mb, total_cpus and total_pids, or raise them",
                ) from exc
            _log.warning("total_limits_not_set", error=exc)

    def limit_sockets(self, cgroup: SandboxCgroup, record: SandboxRecord, *, is_new: bool) -> None:
        """Limits the buffers of TCP and UDP sockets. `is_new`: no command has run in the sandbox yet."""
        size = max(_LEAST_SOCKETS, record.spec.limits.memory_mb * MIB // SOCKETS_SHARE)
        try:
            cgroup.limit_sockets(size)
            if is_new:
                cgroup.limit_datagrams(size)
        except OSError as exc:
            _log.warning("socket_buffers_not_limited", sandbox=record.sandbox_id, error=exc)

    def limit_io(self, cgroup: SandboxCgroup, record: SandboxRecord, directory: Path) -> None:
        """Limits the throughput of the sandbox's disk, and notes its device in the sandbox's directory, for
        `limited_device`."""
        try:
            disk = find_disk(Path(f"/proc/{record.pid}/mountinfo").read_text())
            if disk is not None:  # what is in memory has no device
                _, device = disk
                (directory / _IO_DEVICE).write_text(str(device))
                cgroup.limit_io(device, record.spec.io)
                self._hierarchies.limit_writeback(device, record.spec.io)
        except OSError as exc:
            raise ProviderUnavailable(
                f"the disk throughput of a sandbox cannot be limited: {exc.strerror}",
                remedy="enable the cgroup controller io (blkio), or leave io_mbps, io_iops and `io` out",
            ) from exc

    def limited_device(self, directory: Path) -> int | None:
        """The device that `limit_io` has limited for the sandbox of this directory."""
        with suppress(OSError, ValueError):
            return int((directory / _IO_DEVICE).read_text())
        return None

    def lift_io(self, device: int) -> None:
        with suppress(OSError):
            self._hierarchies.limit_writeback(device, IoLimits())
