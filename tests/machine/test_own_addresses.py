"""This machine's own addresses, public ones among them, are reached neither by egress nor by webhooks nor by pulls."""

from collections.abc import Iterator
from ipaddress import ip_address

import pytest
from networks import Network, Place

from warren.governance.webhooks.destinations import read_url
from warren.kernel.own_addresses import OWN, why_not_reached
from warren.model.addresses import read_networks
from warren.model.errors import InvalidRequest
from warren.model.network import EgressPolicy, NetworkRules
from warren.sandboxes.egress.judge import Destination, DestinationRefused, Judge

PUBLIC, OTHER = "93.184.216.34", "93.184.216.35"
SPELLINGS = (PUBLIC, f"::ffff:{PUBLIC}", f"64:ff9b::{PUBLIC}")


@pytest.fixture(scope="module")
def machine() -> Iterator[tuple[Network, Place]]:
    network = Network()
    try:
        place = network.place("machine")
        network.give_address(place, PUBLIC)
        yield network, place
    finally:
        network.close()


@pytest.mark.parametrize("address", SPELLINGS)
def test_no_spelling_of_an_own_public_address_is_reached(machine: tuple[Network, Place], address: str) -> None:
    network, place = machine
    allowed = read_networks([f"{PUBLIC}/32"])
    with network.inside(place):
        assert why_not_reached(ip_address(address)) == OWN
        assert why_not_reached(ip_address(address), allowed) == ""
        with pytest.raises(InvalidRequest, match=OWN):
            read_url(f"http://[{address}]/" if ":" in address else f"http://{address}/")
        to = Destination("a.example", ip_address(address), 80)
        with pytest.raises(DestinationRefused, match=OWN):
            Judge(EgressPolicy()).check(NetworkRules(allow=("a.example",)).indexed, to)
        assert why_not_reached(ip_address(OTHER)) == ""
    assert why_not_reached(ip_address(PUBLIC)) == ""
