"""Judges the addresses that Warren connects to for tenants: egress, webhooks and image pulls ask here.

`why_refused` knows what is public. A public address may still be this machine's own, where services listen that only
its neighbours, or nobody, should reach.
"""

import socket
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address
from typing import Final

from warren.model.addresses import Address, Network, contained_ipv4, why_refused

OWN: Final = "an address of this machine"


def why_not_reached(address: Address, allowed: Iterable[Network] = ()) -> str:
    """Returns why Warren does not connect from this machine to this address for a tenant; empty if it does."""
    networks = tuple(allowed)
    if kind := why_refused(address, networks):
        return kind
    plain = contained_ipv4(address) or address
    is_allowed = any(each in network for each in (address, plain) for network in networks)
    return "" if is_allowed or not is_own_address(plain) else OWN


def is_own_address(address: Address) -> bool:
    """Returns whether the address belongs to this machine: the kernel then sends from the address it sends to."""
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((str(address), 9))
            return ip_address(sock.getsockname()[0]) == address
        except OSError:
            return False  # there is no route to it
