"""Says what the network has refused to a step of a build, and which option would let the step reach it."""

import asyncio
import json
import socket
from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from typing import Final

from warren.kernel.own_addresses import why_not_reached
from warren.model.addresses import Address
from warren.model.network import Refusal

_SHOWN: Final = 3


def explain_refusals(refusals: Iterable[Refusal]) -> str:
    """Returns a part of a sentence about the last few destinations, "" if there are none: programs tell only that a
    connection was refused."""
    return "; ".join(map(_explain, _last(refusals)))


async def suggest_networks(refusals: Iterable[Refusal]) -> str:
    """Returns lines to copy that open the addresses which are not public, "" if there are none.

    It looks names up again: what the network reports has no address of a name, because tenants read it. For the
    operator only.
    """
    private = [each for each in _last(refusals) if each.is_special]
    found = [await _networks(each.address or each.name) for each in private]
    networks = list(dict.fromkeys(network for each in found for network in each))
    if not networks:
        return ""
    in_file = f"egress_networks = {json.dumps(networks)}"  # a list of texts is written in TOML as in JSON
    option = f"WARREN_EGRESS_NETWORKS={','.join(networks)}, or `{in_file}` in the configuration file"
    return f"{option}, opens it; a server needs it too, and a restart"


async def _networks(host: str) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    addresses = [ip_address(each[4][0]) for each in found if "%" not in str(each[4][0])]
    return [str(ip_network(each)) for each in addresses if why_not_reached(each) and not _is_of_machine(each)]


def _is_of_machine(address: Address) -> bool:
    """Returns whether the address means this machine or its cloud's own services: nobody is advised to open these."""
    return address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast


def _last(refusals: Iterable[Refusal]) -> list[Refusal]:
    last = {(each.name or each.address, each.port): each for each in refusals}
    return list(last.values())[-_SHOWN:]


def _explain(refusal: Refusal) -> str:
    where = refusal.name or refusal.address
    place = f"{where}:{refusal.port}" if refusal.port else where
    address = f" ({refusal.address})" if refusal.address not in ("", where) else ""
    return f"the network refused {place}{address}, because {refusal.reason}{_remedy(refusal)}"


def _remedy(refusal: Refusal) -> str:
    if refusal.rule:
        return f": image_network would have to allow {refusal.rule}"
    return ": egress_networks would have to have its network" if refusal.is_special else ""
