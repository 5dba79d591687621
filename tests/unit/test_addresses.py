"""Which hosts are this machine alone."""

from ipaddress import ip_address

import pytest

from warren.model.addresses import is_loopback


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("LocalHost.", True),
        ("api.localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("", False),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("::ffff:192.0.2.1", False),
        ("notlocalhost", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("127.1", False),
        ("2130706433", False),
    ],
)
def test_loopback_is_known_by_name_and_by_address(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_an_address_that_is_read_already_is_taken() -> None:
    assert is_loopback(ip_address("127.0.0.1"))
    assert is_loopback(ip_address("::ffff:127.0.0.1"))
    assert not is_loopback(ip_address("10.0.0.1"))
