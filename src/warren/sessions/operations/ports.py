"""Ports on which servers inside a sandbox listen, and links to previews of them."""

import asyncio
import math
from dataclasses import asdict, replace
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from warren.model.errors import Conflict, Forbidden, InvalidRequest, PortClosed
from warren.model.preview import MAX_PORTS, PreviewRules, read_port
from warren.sessions.operations.call import Call, Handler, Values
from warren.sessions.preview_links import LONGEST_LINK_S, Link, PreviewLinks
from warren.sessions.schemas import Body, timestamp

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.25
_RESOLVER_PORT: Final = 53  # where a network is open, this is the resolver that Warren puts there
PortNumber = Annotated[int, Field(ge=1, le=65535)]


class PortsQuery(BaseModel):
    wait_for: PortNumber | None = Field(None, description="Answer when something listens on this port")
    timeout_s: Annotated[float, Field(ge=0, le=300, allow_inf_nan=False, description="Wait at most so long")] = 30.0


class PortBody(Body):
    public: bool | None = Field(None, description="Whether everybody may open its preview, without a link or a key")
    host_header: Literal["", "localhost"] | None = Field(
        None, description="`localhost`: the server inside sees this as the host of every request; empty: the real one"
    )


class LinkBody(Body):
    port: PortNumber = Field(description="The port of the sandbox that the link opens", examples=[3000])
    expires_s: Annotated[float, Field(gt=0, le=LONGEST_LINK_S, allow_inf_nan=False)] = Field(
        3600.0, description="The link opens for so long"
    )
    host_header: Literal["", "localhost"] = Field("", description="The same as of a port, for this link alone")
    by_path: bool = Field(
        False, description="A path of the server instead of a host, for programs that cannot resolve the host"
    )


class PortView(BaseModel):
    port: int
    address: str = Field(description="What it is bound to; `0.0.0.0` and `::` are all addresses")
    public: bool = False


class PortList(BaseModel):
    ports: list[PortView]


class PortRulesView(BaseModel):
    port: int
    public: bool
    host_header: str


class PreviewLinkView(BaseModel):
    url: str = Field(
        description="Opens the preview in a browser, and by the header `X-Warren-Preview-Token` with `token`"
    )
    token: str
    port: int
    expires_at: str


class RevokedView(BaseModel):
    generation: int = Field(description="Links of earlier generations open nothing any more")


async def list_ports(call: Call, query: PortsQuery) -> Values:
    """What listens on TCP inside the sandbox. With `wait_for` the answer comes when that port is among them, or after
    `timeout_s` as the error `port_closed`."""
    loop = asyncio.get_running_loop()
    deadline, pause_s = loop.time() + query.timeout_s, _FIRST_PAUSE_S
    while True:
        found = await call.sandbox.ports()
        if call.session.opens_network:
            found = [each for each in found if each.port != _RESOLVER_PORT]
        if query.wait_for is None or any(each.port == query.wait_for for each in found):
            rules = call.session.previews
            return {"ports": [{**asdict(each), "public": rules.is_public(each.port)} for each in found]}
        if loop.time() >= deadline:
            raise PortClosed(
                f"nothing listened on port {query.wait_for} of the sandbox within {query.timeout_s:g} s",
                remedy="look at the output of its server",
            )
        await asyncio.sleep(min(pause_s, max(0.0, deadline - loop.time())))
        pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.5)


async def change_port(call: Call, body: PortBody) -> Values:
    """What is left out stays as it is. Only a server whose operator allows it has public ports (`preview_public`)."""
    port, links = read_port(call.port), _links(call)
    if body.public and not links.public_allowed:
        raise Forbidden("this server has no public previews", remedy="make a link: POST /api/sessions/{id}/links")

    def change(rules: PreviewRules) -> PreviewRules:
        if rules.everything and body.public is False:
            raise Conflict(
                "all ports of this sandbox are public: a client of E2B made it so",
                remedy="create it with network.allowPublicTraffic false",
            )
        local = None if body.host_header is None else body.host_header == "localhost"
        return replace(
            rules,
            public=_with_port(rules.public, port, body.public),
            local_host=_with_port(rules.local_host, port, local),
        )

    session = await call.sessions.change_previews(call.tenant, call.session_id, change)
    rules = session.previews
    host_header = "localhost" if port in rules.local_host else ""
    return {"port": port, "public": rules.is_public(port), "host_header": host_header}


def _with_port(ports: tuple[int, ...], port: int, wanted: bool | None) -> tuple[int, ...]:
    if wanted is None or wanted == (port in ports):
        return ports
    if len(ports) >= MAX_PORTS and wanted:
        raise InvalidRequest(f"a session can have at most {MAX_PORTS} such ports")
    return (*ports, port) if wanted else tuple(each for each in ports if each != port)


async def create_link(call: Call, body: LinkBody) -> Values:
    """A link that opens the preview of one port, without a key, until it expires or the session's links are revoked."""
    links = _links(call)
    session = await call.sessions.get(call.tenant, call.session_id)
    expires_at = math.ceil(call.sessions.clock.wall() + body.expires_s)
    local_host = body.host_header == "localhost"
    link = Link(call.tenant, session.id, body.port, expires_at, session.previews.generation, local_host)
    url = links.url(link, call.base_url(), by_path=body.by_path)
    return {"url": url, "token": links.sign(link), "port": body.port, "expires_at": timestamp(expires_at)}


async def revoke_links(call: Call) -> Values:
    """Closes every link to previews of this session. Ports that are public stay so."""

    def raise_generation(rules: PreviewRules) -> PreviewRules:
        return replace(rules, generation=rules.generation + 1)

    session = await call.sessions.change_previews(call.tenant, call.session_id, raise_generation)
    return {"generation": session.previews.generation}


def _links(call: Call) -> PreviewLinks:
    if call.context.links is None:
        raise InvalidRequest("previews need a server", remedy="start one with `warren serve`, and use its address")
    return call.context.links


HANDLERS = (
    Handler("list_ports", list_ports, query=PortsQuery, result=PortList),
    Handler("change_port", change_port, body=PortBody, result=PortRulesView),
    Handler("create_link", create_link, body=LinkBody, result=PreviewLinkView),
    Handler("revoke_links", revoke_links, result=RevokedView),
)
