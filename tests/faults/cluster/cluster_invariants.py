"""What must hold after any fault, when the cluster has recovered."""

from collections.abc import Collection
from typing import Final

from faults.cluster.cluster_caller import ClusterCaller
from faults.cluster.cluster_clients import Acknowledged, ClusterLedger
from faults.cluster.cluster_world import ClusterWorld
from faults.world import until

_HELD: Final = ("creating", "running", "stopping")


async def check_cluster(
    world: ClusterWorld, caller: ClusterCaller, ledger: ClusterLedger, may_lose: Collection[str], most: int
) -> None:
    """`may_lose`: workers that were away for so long that their sessions may have been given up. `most`: the quota."""
    await world.recovered(caller)
    await world.settled(caller)
    assert not ledger.wrong, "\n".join(ledger.wrong)
    sessions = await caller.sessions()
    assert sum(session["state"] in _HELD for session in sessions) <= most
    for held in list(ledger.held.values()):
        await _check_held(caller, ledger, held, may_lose)
    for held in ledger.gone.values():
        await _check_gone(caller, ledger, held, may_lose)
    await _check_deleted(caller, ledger)
    await _tidy(caller, ledger)


async def _check_held(
    caller: ClusterCaller, ledger: ClusterLedger, held: Acknowledged, may_lose: Collection[str]
) -> None:
    shown = (await caller.show(held.id)).good()
    if shown["state"] != "running":
        ledger.gone[held.id] = ledger.held.pop(held.id)
        return
    for path, contents in held.files.items():
        found = (await caller.output(held.id, f"cat /workspace/{path} 2>/dev/null; true")).encode()
        assert found in contents, f"{path} of {held} holds {found!r}"
        held.files[path] = {found}


async def _check_gone(
    caller: ClusterCaller, ledger: ClusterLedger, held: Acknowledged, may_lose: Collection[str]
) -> None:
    """It is said to be lost, by every coordinator; and there was a reason for it."""
    assert held.worker in may_lose, f"{held} is gone: {(await caller.show(held.id)).body}"
    for number in range(len(caller.urls)):
        shown = await caller.through(number).show(held.id)
        assert shown.ok, f"{held} is not known any more: {shown}"
        assert shown.body["reason"] == "lost", f"{held} is {shown.body}"
        refused = await caller.through(number).exec(held.id, "true")
        assert refused.status == 410, f"{held} is lost, and answers {refused}"


async def _check_deleted(caller: ClusterCaller, ledger: ClusterLedger) -> None:
    for session_id in ledger.deleted:
        shown = await caller.show(session_id)
        if shown.status == 404 and ledger.data_lost:
            continue
        assert shown.good()["state"] == "ended", f"session {session_id} was deleted, and is {shown.body['state']}"
    ledger.deleted.clear()


async def _tidy(caller: ClusterCaller, ledger: ClusterLedger) -> None:
    """Ends what nobody knows of: the answer that named it was cut off. And what is lost."""
    ledger.doubted.clear()
    ledger.gone.clear()
    for session in await caller.sessions():
        if session["session_id"] not in ledger.held:
            await ended(caller, session["session_id"])


async def ended(caller: ClusterCaller, session_id: str) -> None:
    """An end that was cut off may have to be found out about first."""

    async def is_deleted() -> bool:
        answer = await caller.delete(session_id)
        assert answer.ok or answer.status == 503, answer
        return answer.ok

    await until(is_deleted, f"session {session_id} is deleted")
