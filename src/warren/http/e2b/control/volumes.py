"""Volumes on the control plane: make, list, show and delete them. What is in one is `volume_contents`' business."""

import time
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from warren.http.context import answer_json
from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.control.bodies import read_text
from warren.http.e2b.control.sandboxes import domain_of
from warren.http.e2b.tokens import VolumeGrant
from warren.kernel.pacing import Pace
from warren.model.access import Scope
from warren.model.volume import Volume
from warren.sessions.volumes.service import Volumes

_TOKEN_S: Final = 24 * 3600
_PAGE: Final = 1000


async def create_volume(call: E2bCall) -> Response:
    name = read_text(await call.json(), "name") or ""
    return answer_json(_show(call, await volumes_of(call).create(call.tenant, name)), 201)


async def list_volumes(call: E2bCall) -> Response:
    shown: list[dict[str, Any]] = []
    after: str | None = ""
    pace = Pace()
    while after is not None:
        found, after = await volumes_of(call).list(call.tenant, after, _PAGE)
        shown += [_view(volume) for volume in found]
        await pace.give_way()
    return answer_json(shown)


async def get_volume(call: E2bCall) -> Response:
    return answer_json(_show(call, await volumes_of(call).get(call.tenant, call.params["volume"])))


async def delete_volume(call: E2bCall) -> Response:
    await volumes_of(call).delete(call.tenant, call.params["volume"])
    return Response(status_code=204)


def volumes_of(call: E2bCall) -> Volumes:
    return call.sessions.lifecycle.volumes


def _view(volume: Volume) -> dict[str, Any]:
    return {"volumeID": volume.id, "name": volume.name}


def _show(call: E2bCall, volume: Volume) -> dict[str, Any]:
    """With `domain`: a client that was not told E2B_VOLUME_API_URL would else send the token to E2B's servers."""
    writes = call.caller.may(Scope.EXEC)
    grant = VolumeGrant(int(time.time()) + _TOKEN_S, volume.tenant, call.caller.key_id, volume.id, writes)
    return {**_view(volume), "token": call.tokens.sign_volume(grant), "domain": domain_of(call)}


HANDLERS: Mapping[str, Run] = {
    "e2b_create_volume": create_volume,
    "e2b_list_volumes": list_volumes,
    "e2b_get_volume": get_volume,
    "e2b_delete_volume": delete_volume,
}
