"""The calls that coordinators and workers make to each other besides forwarding; `entrance` answers them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from warren.cluster.auth import ClusterAuth
from warren.cluster.entrance import FIGURES_PATH, LEASE_PATH, WORKER_PATH
from warren.cluster.roster import LeaseStatus, Peer
from warren.http.client.client import WorkerClient
from warren.http.client.errors import ForwardingFailed
from warren.interfaces.worker import WorkerStats
from warren.model.errors import Unavailable
from warren.model.metrics import LatestMetrics

_TIMEOUT_S: Final = 2.0
_RENEW_TIMEOUT_S: Final = 4.0  # long enough for the coordinator to find out that Redis does not respond
_UNAUTHORIZED: Final = 401
_MAX_RESPONSE: Final = 64 * 1024


class PeerCalls:
    """Every call raises Unavailable if the other process does not respond, or refuses."""

    def __init__(self, worker_client: WorkerClient, auth: ClusterAuth) -> None:
        self._worker_client = worker_client
        self._auth = auth

    async def renew_lease(self, peer: Peer, worker_id: str, epoch: int) -> LeaseStatus | None:
        """Asks a coordinator to renew a worker's lease. Returns None if the coordinator has lost Redis too."""
        query = urlencode({"worker": worker_id, "epoch": epoch})
        values = await self._call(peer.address, "POST", f"{LEASE_PATH}?{query}", _RENEW_TIMEOUT_S)
        return None if values["pulse"] is None else LeaseStatus(values["pulse"])

    async def worker_id(self, address: str) -> str:
        """Returns the id of the worker at an address."""
        return str((await self._call(address, "GET", WORKER_PATH))["id"])

    async def is_accepted_by(self, address: str) -> bool:
        """Returns whether the worker at an address takes this cluster's secret."""
        return (await self._ask(address, "GET", WORKER_PATH, _TIMEOUT_S))[0] != _UNAUTHORIZED

    async def worker_stats(self, address: str) -> WorkerStats:
        """Returns the current figures of the worker at an address."""
        return WorkerStats.from_json((await self._call(address, "GET", WORKER_PATH))["stats"])

    async def session_metrics(
        self, address: str, tenant: str, session_ids: Sequence[str]
    ) -> Mapping[str, LatestMetrics]:
        """Returns the latest metrics of those sessions that the worker at an address has."""
        query = urlencode({"tenant": tenant, "sessions": ",".join(session_ids)})
        found = await self._call(address, "GET", f"{FIGURES_PATH}?{query}")
        return {name: LatestMetrics.from_mapping(values) for name, values in found["figures"].items()}

    async def _call(self, address: str, method: str, target: str, timeout_s: float = _TIMEOUT_S) -> Any:
        status, text = await self._ask(address, method, target, timeout_s)
        if status != 200:
            raise Unavailable(f"{address} refuses: {_problem_detail(text)}")
        return json.loads(text)

    async def _ask(self, address: str, method: str, target: str, timeout_s: float) -> tuple[int, bytes]:
        headers = [(b"host", address.rpartition("//")[2].encode()), *self._auth.headers()]
        try:
            async with self._worker_client.request(
                address, method, target.encode(), headers, head_timeout_s=timeout_s
            ) as response:
                return response.status, await response.read_all(_MAX_RESPONSE)
        except ForwardingFailed as exc:
            raise Unavailable(f"{address} does not answer: {exc.reason}") from exc


def _problem_detail(text: bytes) -> str:
    try:
        return str(json.loads(text)["detail"])
    except (ValueError, KeyError, TypeError):
        return "it does not say why"
