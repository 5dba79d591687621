"""What the parts of a worker share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from warren.images.building.on_demand import ImageBuilds
from warren.interfaces.recorder import NO_RECORDER, Recorder
from warren.kernel.clock import Clock
from warren.kernel.tracing import OFF, Tracing
from warren.model.environment import PoolSize
from warren.sandboxes.host.machine_size import usable_cores
from warren.worker.guard import MachineGuard

LABELS: Final = {"owner": "worker"}
STEPS: Final = ("claimed-from-pool", "cold-created", "before-destroy", "destroyed")


def _default_parallel() -> int:
    return min(32, 2 * usable_cores())  # a runtime waits for the kernel half of the time


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """`parallel`: how many sandboxes are made at once. Without `builds` no image is built on demand. Tests pass
    `fault`, which is called with the name of each of STEPS."""

    clock: Clock
    guard: MachineGuard
    default_environment: str
    default_pool: PoolSize = field(default_factory=PoolSize)
    parallel: int = field(default_factory=_default_parallel)
    builds: ImageBuilds | None = None
    tracing: Tracing = OFF
    recorder: Recorder = NO_RECORDER
    fault: Callable[[str], None] = lambda step: None
