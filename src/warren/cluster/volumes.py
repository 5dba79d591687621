"""Volumes on their way between the workers of a cluster (sessions/volumes/moving.py).

    worker that wants it     VolumeFetcher.fetch    GET VOLUME_PATH of a coordinator
    coordinator              pass_volume_on         passes on what the worker that has it answers
    worker that has it       send_volume

A worker that is drained keeps its volumes as long as somebody uses them. Coordinators look for the others again
and again, and have them moved (`DrainedVolumes`, POST VOLUME_PATH of the worker that is to have one).
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import parse_qs, urlencode

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from warren.cluster.auth import ClusterAuth
from warren.cluster.fleet import Fleet
from warren.cluster.placement import Requirements
from warren.cluster.roster import Peer
from warren.http.client.client import WorkerClient
from warren.http.client.errors import ForwardingFailed, Unreachable
from warren.interfaces.records import RecordStore
from warren.kernel.logs import get_log
from warren.model.capability import Capability
from warren.model.errors import InvalidRequest, NotFound, Unavailable, WarrenError
from warren.model.volume import Volume, VolumeState
from warren.sessions.volumes.moving import MOVE_S, VolumeMoves
from warren.sessions.volumes.records import VolumeRecords

VOLUME_PATH: Final = "/internal/volume"
_HEAD_TIMEOUT_S: Final = 120.0  # the sender reads the volume twice, first for its hash
_MAX_PROBLEM: Final = 64 * 1024
_LOOK_S: Final = 3.0
_FIRST_LOOKS: Final = 40
_FIRST_LOOK_S: Final = 0.25
_log = get_log(__name__)


async def answer_volume(moves: VolumeMoves, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers VOLUME_PATH on a worker: sends a volume, or brings one here."""
    tenant, volume = _names_in(scope)
    if scope["method"] == "POST":
        moved = await moves.bring(tenant, volume)
        await JSONResponse({"worker": moved.place})(scope, receive, send)
        return
    async with aclosing(moves.send(tenant, volume)) as pieces:
        first = await anext(pieces)  # raises what is wrong before the answer begins
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def pass_volume_on(
    fleet: Fleet, client: WorkerClient, auth: ClusterAuth, records: RecordStore, scope: Scope, send: Send
) -> None:
    """Answers VOLUME_PATH on a coordinator with what the worker that has the volume answers."""
    tenant, volume = _names_in(scope)
    row = await VolumeRecords(records).find(tenant, volume)
    if row is None:
        raise NotFound("there is no such volume")
    member = await fleet.find_reachable(row.volume.place)
    async with _asking(client, auth, member.address, "GET", tenant, volume) as response:
        if response.status != 200:
            raise _error_in(await response.read_all(_MAX_PROBLEM))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while part := await response.read():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class VolumeFetcher:
    """Gets volumes for a worker. `coordinators` returns the coordinators that it knows."""

    def __init__(self, client: WorkerClient, auth: ClusterAuth, coordinators: Callable[[], Sequence[Peer]]) -> None:
        self._client, self._auth, self._coordinators = client, auth, coordinators

    async def fetch(self, tenant: str, volume: str) -> AsyncGenerator[bytes, None]:
        failure = Unavailable("this worker knows no coordinator to ask for the volume", retry_after_s=2)
        for _ in range(_FIRST_LOOKS):  # it learns of them with its heartbeat, and may have been asked by one before
            if self._coordinators():
                break
            await asyncio.sleep(_FIRST_LOOK_S)
        for peer in self._coordinators():
            try:
                async with _asking(self._client, self._auth, peer.address, "GET", tenant, volume) as response:
                    if response.status != 200:
                        raise _error_in(await response.read_all(_MAX_PROBLEM))
                    while part := await response.read():
                        yield part
                    return
            except Unreachable as exc:
                failure = Unavailable(f"no coordinator can be reached: {exc.reason}", retry_after_s=2)
            except ForwardingFailed as exc:
                raise Unavailable(f"the volume could not be moved: {exc.reason}", retry_after_s=2) from exc
        raise failure


class DrainedVolumes:
    """Has the volumes of drained workers moved to others, one after the other. Every coordinator runs it: of two that
    move the same volume one is refused."""

    def __init__(
        self, fleet: Fleet, client: WorkerClient, auth: ClusterAuth, records: RecordStore, environment: str
    ) -> None:
        self._fleet, self._client, self._auth, self._environment = fleet, client, auth, environment
        self._records = VolumeRecords(records)
        self._told: dict[str, str] = {}  # why a volume stays, by its id

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._move_all()
            except WarrenError as exc:
                _log.info("drained_volumes_not_listed", error=exc)

    async def _move_all(self) -> None:
        members = self._fleet.members.values()
        drained = {each.id for each in members if each.draining and each.alive and not each.comes_back}
        if not drained:
            self._told.clear()
            return
        async for row in self._records.rows():
            if row.volume.place in drained and row.volume.state is VolumeState.READY:
                await self._move(row.volume)

    async def _move(self, volume: Volume) -> None:
        needs = frozenset({Capability.VOLUMES})
        try:
            member = self._fleet.choose_workers(Requirements(self._environment, volume.tenant, needs=needs))[0]
            async with _asking(
                self._client, self._auth, member.address, "POST", volume.tenant, volume.id, MOVE_S
            ) as response:
                answer = await response.read_all(_MAX_PROBLEM)
                if response.status != 200:
                    raise _error_in(answer)
        except (WarrenError, ForwardingFailed) as exc:
            if self._told.get(volume.id) != str(exc):
                _log.info("drained_volume_stays", volume=volume.id, worker=volume.place, error=exc)
            self._told[volume.id] = str(exc)


def _asking(
    client: WorkerClient,
    auth: ClusterAuth,
    address: str,
    method: str,
    tenant: str,
    volume: str,
    timeout_s: float = _HEAD_TIMEOUT_S,
) -> Any:
    headers = [(b"host", address.rpartition("//")[2].encode()), *auth.headers()]
    target = f"{VOLUME_PATH}?{urlencode({'tenant': tenant, 'volume': volume})}".encode()
    return client.request(address, method, target, headers, head_timeout_s=timeout_s)


def _names_in(scope: Scope) -> tuple[str, str]:
    query = parse_qs(scope["query_string"].decode("latin-1"))
    try:
        return query["tenant"][0], query["volume"][0]
    except KeyError as exc:
        raise InvalidRequest("the query must name a `tenant` and its `volume`") from exc


def _error_in(answer: bytes) -> WarrenError:
    try:
        values = json.loads(answer)
        return WarrenError.by_code[values["code"]](str(values["detail"]), remedy=str(values.get("remedy", "")))
    except (ValueError, KeyError, TypeError):
        return Unavailable("the other machine did not say why it does not send the volume", retry_after_s=2)
