"""What parts of a process report as it happens, for /metrics (warren.governance.metrics). By default nobody listens."""

from typing import Final, Protocol

from warren.model.network import NetworkUse


class Recorder(Protocol):
    """Nothing here waits or raises, and all of it costs microseconds. Times are in seconds.

    `creation_ended`: an attempt to give a new session its sandbox; `source` is pool, cold or none, `outcome` created,
    no_capacity, cancelled or failed. `sandbox_claimed`: how long a claim took that got one. `sandbox_made` and
    `sandbox_destroyed`: how long the provider took. `sandbox_lost`: the reason as the session tells it. `machine_full`:
    what there was too little of for one more sandbox. `queue_left`: how long a claim stood in a pool's queue, whether
    it got a sandbox or not. `command_ended`: with `overhead_s`, what Warren added to the command's own time; None
    where nobody waited for the result. `request_ended`: `route` as in the log. `network_used`: what is new of one
    sandbox.
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
