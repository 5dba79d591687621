"""What parts of a process report for /metrics (warren.governance.metrics). By default nobody listens."""

from typing import Final, Protocol

from warren.model.network import NetworkUse


class Recorder(Protocol):
    """No method waits or raises, and each costs microseconds. Times are in seconds.

    `creation_ended`: an attempt to give a new session its sandbox ended; `source` is pool, cold or none, `outcome`
    created, no_capacity, cancelled or failed. `sandbox_claimed`: the time of a successful claim. `sandbox_made`,
    `sandbox_destroyed`: the time that the provider took. `sandbox_lost`: the reason that the session shows.
    `machine_full`: what was lacking for one more sandbox. `queue_left`: the time that a claim, served or not, waited in
    a pool's queue. `command_ended`: `overhead_s` is what Warren added to the command's own time; None if nobody waited
    for the result. `request_ended`: `route` as in the log. `network_used`: one sandbox's use since the last report.
    """

    def creation_ended(self, environment: str, source: str, outcome: str) -> None: ...
    def sandbox_claimed(self, seconds: float) -> None: ...
    def sandbox_made(self, provider: str, seconds: float) -> None: ...
    def sandbox_destroyed(self, seconds: float) -> None: ...
    def sandbox_lost(self, why: str) -> None: ...
    def machine_full(self, what: str) -> None: ...
    def pool_hit(self, environment: str) -> None: ...
    def pool_missed(self, environment: str) -> None: ...
    def queue_left(self, waited_s: float) -> None: ...
    def command_ended(self, environment: str, reason: str, seconds: float, overhead_s: float | None) -> None: ...
    def request_ended(self, route: str, method: str, status: int, seconds: float) -> None: ...
    def network_used(self, use: NetworkUse) -> None: ...


class NoRecorder:
    def creation_ended(self, environment: str, source: str, outcome: str) -> None:
        pass

    def sandbox_claimed(self, seconds: float) -> None:
        pass

    def sandbox_made(self, provider: str, seconds: float) -> None:
        pass

    def sandbox_destroyed(self, seconds: float) -> None:
        pass

    def sandbox_lost(self, why: str) -> None:
        pass

    def machine_full(self, what: str) -> None:
        pass

    def pool_hit(self, environment: str) -> None:
        pass

    def pool_missed(self, environment: str) -> None:
        pass

    def queue_left(self, waited_s: float) -> None:
        pass

    def command_ended(self, environment: str, reason: str, seconds: float, overhead_s: float | None) -> None:
        pass

    def request_ended(self, route: str, method: str, status: int, seconds: float) -> None:
        pass

    def network_used(self, use: NetworkUse) -> None:
        pass


NO_RECORDER: Final[Recorder] = NoRecorder()
