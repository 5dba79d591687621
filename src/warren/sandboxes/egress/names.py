"""The addresses that names have inside a sandbox: invented, one for each name, from a network reserved for tests."""

from collections import OrderedDict
from ipaddress import IPv4Address, IPv4Network
from typing import Final

NETWORK: Final = IPv4Network("198.18.0.0/15")
MAX_NAMES: Final = 1024
_FIRST: Final = 2


class NameTable:
    """Maps names to addresses. A name keeps its address while it is among the last MAX_NAMES used. A freed address is
    reused only after all others, so that an address a program remembers does not come to mean another host."""

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, IPv4Address] = OrderedDict()
        self._names: dict[IPv4Address, str] = {}
        self._next = _FIRST

    def address_of(self, name: str) -> IPv4Address:
        address = self._addresses.get(name)
        if address is None:
            if len(self._addresses) >= MAX_NAMES:
                del self._names[self._addresses.popitem(last=False)[1]]
            address = self._free_address()
            self._addresses[name], self._names[address] = address, name
        self._addresses.move_to_end(name)
        return address

    def name_of(self, address: IPv4Address) -> str:
        """Returns the name of an address; "" if it has none."""
        name = self._names.get(address, "")
        if name:
            self._addresses.move_to_end(name)
        return name

    def _free_address(self) -> IPv4Address:
        while True:
            address = NETWORK[self._next]
            self._next = self._next + 1 if self._next < NETWORK.num_addresses - 2 else _FIRST
            if address not in self._names:
                return address
