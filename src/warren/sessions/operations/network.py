"""Shows and changes what a sandbox may reach."""

from dataclasses import asdict
from typing import Final

from pydantic import BaseModel, Field

from warren.model.errors import SessionPaused
from warren.model.network import NO_NETWORK, NetworkRules, NetworkUse
from warren.sessions.operations.call import Call, Handler, Values
from warren.sessions.schemas import NetworkBody, NetworkView, timestamp

_NO_USE: Final = NetworkUse()


class RefusalView(BaseModel):
    at: str
    name: str = Field(description="Empty if the destination was given as an address")
    address: str
    port: int
    reason: str
    rule: str = Field(description="The rule that would allow it; empty if no rule of a session can")
    count: int = Field(1, description="It came so often in a row, the last time then")


class NetworkUseView(NetworkView):
    """The rules, and what they were used for since the sandbox was made or its worker restarted."""

    bytes_sent: int
    bytes_received: int
    connections: int
    open_connections: int
    refused: int
    refusals: list[RefusalView] = Field(description="The last ones, newest last")


async def get_network(call: Call) -> Values:
    """The rules of the session, what went through them, and the last refusals, each with the rule that would allow it.
    Looking does not count as use, and resumes no paused session."""
    try:
        async with call.using(counts=False, wakes=False) as (session, sandbox):
            reaches = session.opens_network or session.network != NO_NETWORK
            return network_view(session.network, await sandbox.network_use() if reaches else _NO_USE)
    except SessionPaused:  # by an earlier process
        return network_view((await call.sessions.get(call.tenant, call.session_id)).network, _NO_USE)


async def set_network(call: Call, body: NetworkBody) -> Values:
    """Replaces all rules at once; an empty body closes the network. When this answers, the new rules hold: open
    connections that they do not allow are cut. If it fails the sandbox reaches nothing, and the server tries to apply
    the rules again."""
    await call.sessions.set_network(call.tenant, call.session_id, await body.to_rules(), keep_headers=True)
    return await get_network(call)


def network_view(rules: NetworkRules, use: NetworkUse) -> Values:
    return {
        **rules.as_mapping(),
        "bytes_sent": use.bytes_sent,
        "bytes_received": use.bytes_received,
        "connections": use.connections,
        "open_connections": use.open_connections,
        "refused": use.refused,
        "refusals": [{**asdict(refusal), "at": timestamp(refusal.at)} for refusal in use.refusals],
    }


HANDLERS = (
    Handler("get_network", get_network, result=NetworkUseView),
    Handler(
        "set_network",
        set_network,
        body=NetworkBody,
        result=NetworkUseView,
        body_examples={"packages": {"value": {"allow": ["python-packages", "api.example.com:443"]}}},
    ),
)
