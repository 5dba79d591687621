"""What an address of a machine tells: whether it can only be reached from this machine."""

from ipaddress import IPv4Address, IPv6Address, ip_address


def is_loopback(host: str | IPv4Address | IPv6Address) -> bool:
    """`localhost` and the names below it, and the addresses of loopback, IPv6 with or without its brackets."""
    if isinstance(host, str):
        name = host.lower().removesuffix(".")
        if name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            host = ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
    mapped = host.ipv4_mapped if isinstance(host, IPv6Address) else None
    return (mapped or host).is_loopback
