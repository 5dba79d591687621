"""The addresses that names have inside of a sandbox: made up, one for each name, of a network that nobody has."""

from collections import OrderedDict
from ipaddress import IPv4Address, IPv4Network
from typing import Final

NETWORK: Final = IPv4Network("198.18.0.0/15")
MOST_NAMES: Final = 1024
_FIRST: Final = 2


class NameTable:
    """A name keeps its address as long as it is among the last MOST_NAMES that were used; an address that was given up
    is used again only after all others, so that what a program remembers does not become another host."""

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, IPv4Address] = OrderedDict()
        self._names: dict[IPv4Address, str] = {}
        self._next = _FIRST

    def address_of(self, name: str) -> IPv4Address:
        address = self._addresses.get(name)
        if address is None:
            if len(self._addresses) >= MOST_NAMES:
                del self._names[self._addresses.popitem(last=False)[1]]
            address = self._free_address()
            self._addresses[name], self._names[address] = address, name
        self._addresses.move_to_end(name)
        return address

    def name_of(self, address: IPv4Address) -> str:
        """Empty if no name has it."""
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
