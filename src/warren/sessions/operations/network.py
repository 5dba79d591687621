"""Shows and changes what a sandbox may reach."""

from typing import Final

from warren.model.network import NO_NETWORK, NetworkUse
from warren.sessions.operations.call import Call, Handler, Values
from warren.sessions.schemas import NetworkBody, NetworkUseView, network_view

_NO_USE: Final = NetworkUse()


async def get_network(call: Call) -> Values:
    """The rules of the session, what went through them, and the last refusals, each with the rule that would allow it.
    Looking does not count as use."""
    session = call.session
    use = await call.sandbox.network_use() if session.opens_network or session.network != NO_NETWORK else _NO_USE
    return network_view(session.network, use)


async def set_network(call: Call, body: NetworkBody) -> Values:
    """Replaces all rules at once; an empty body closes the network. When this answers, the new rules hold: open
    connections that they do not allow are cut. If it fails the sandbox reaches nothing, and the server tries to apply
    the rules again."""
    await call.sessions.set_network(call.tenant, call.session_id, await body.to_rules())
    async with call.using():
        return await get_network(call)


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
