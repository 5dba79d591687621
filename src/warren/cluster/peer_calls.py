"""What processes of a cluster ask each other beside handing on requests."""

import json
from typing import Any, Final
from urllib.parse import urlencode

from warren.cluster.auth import ClusterAuth
from warren.cluster.http_client.client import WorkerClient
from warren.cluster.http_client.failures import ForwardingFailed
from warren.cluster.members import Peer
from warren.cluster.middleware import LEASE_PATH, WORKER_PATH
from warren.cluster.roster import Pulse
from warren.interfaces.worker import WorkerStats
from warren.model.errors import Unavailable

_ANSWER_S: Final = 2.0
_RENEWING_S: Final = 4.0  # who is asked may have to find out that Redis does not answer
_LONGEST: Final = 64 * 1024


class PeerCalls:
    def __init__(self, worker_client: WorkerClient, auth: ClusterAuth) -> None:
        self._worker_client = worker_client
        self._auth = auth

    async def renew(self, peer: Peer, worker_id: str, epoch: int) -> Pulse | None:
        """Has a coordinator renew a worker's lease; None if it has lost Redis too."""
        query = urlencode({"worker": worker_id, "epoch": epoch})
        pulse = (await self._ask(peer.address, "POST", f"{LEASE_PATH}?{query}", _RENEWING_S))["pulse"]
        return None if pulse is None else Pulse(pulse)

    async def who(self, address: str) -> str:
        """The name of the worker at an address."""
        return str((await self._ask(address, "GET", WORKER_PATH))["id"])

    async def stats(self, address: str) -> WorkerStats:
        """What the worker at an address says of itself now."""
        return WorkerStats.from_json((await self._ask(address, "GET", WORKER_PATH))["stats"])

    async def _ask(self, address: str, method: str, target: str, within_s: float = _ANSWER_S) -> Any:
        headers = [(b"host", address.rpartition("//")[2].encode()), *self._auth.headers()]
        try:
            async with self._worker_client.asked(
                address, method, target.encode(), headers, head_timeout_s=within_s
            ) as answer:
                text = await answer.all(_LONGEST)
        except ForwardingFailed as exc:
            raise Unavailable(f"{address} does not answer: {exc.why}") from exc
        if answer.status != 200:
            raise Unavailable(f"{address} refuses: {_detail(text)}")
        return json.loads(text)


def _detail(text: bytes) -> str:
    try:
        return str(json.loads(text)["detail"])
    except (ValueError, KeyError, TypeError):
        return "it does not say why"
