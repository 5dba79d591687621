"""No address that is not public is ever called, however it is written: tables, then every spelling of any of them."""

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.governance.webhooks.destinations import (
    DENIED_PORTS,
    MAX_URL,
    check_address,
    read_address,
    read_url,
)
from warren.governance.webhooks.sender import new_socket
from warren.model.addresses import read_networks, why_refused
from warren.model.errors import InvalidRequest

# Written down here once more, from the registries of special addresses and not from the code.
FORBIDDEN_4 = [
    IPv4Network(text)
    for text in [
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    ]
]
FORBIDDEN_6 = [
    IPv6Network(text)
    for text in [
        "::/128",
        "::1/128",
        "::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    ]
]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("0.0.0.0", "an unspecified address"),
        ("10.1.2.3", "a private address"),
        ("100.100.100.200", "an address behind a carrier's NAT"),
        ("127.0.0.1", "a loopback address"),
        ("127.255.255.255", "a loopback address"),
        ("168.63.129.16", "a cloud's own service"),
        ("169.254.169.254", "a link-local address"),
        ("172.17.0.1", "a private address"),
        ("192.0.0.192", "a reserved address"),
        ("192.0.2.1", "an address for documentation"),
        ("192.168.0.1", "a private address"),
        ("198.19.255.255", "an address for benchmarks"),
        ("224.0.0.1", "a multicast address"),
        ("250.0.0.1", "a reserved address"),
        ("255.255.255.255", "the broadcast address"),
        ("::", "an unspecified address"),
        ("::1", "a loopback address"),
        ("::7f00:1", "an IPv4-compatible address"),
        ("::ffff:127.0.0.1", "a loopback address"),
        ("::ffff:169.254.169.254", "a link-local address"),
        ("64:ff9b::7f00:1", "a loopback address"),
        ("64:ff9b::a9fe:a9fe", "a link-local address"),
        ("64:ff9b:1::808:808", "an address behind a local NAT64"),
        ("2002:7f00:1::", "a 6to4 address"),
        ("2001:0:4136:e378:8000:63bf:80ff:fffe", "a Teredo address"),
        ("2001:db8::1", "an address for documentation"),
        ("3fff::1", "an address for documentation"),
        ("fd00:ec2::254", "a unique local address"),
        ("fe80::1", "a link-local address"),
        ("fe80::1%eth0", "an address of one network interface"),
        ("2606:4700::1111%eth0", "an address of one network interface"),
        ("fec0::1", "a reserved address"),
        ("ff02::1", "a multicast address"),
        ("4000::1", "a reserved address"),
        ("8.8.8.8", ""),
        ("172.15.255.255", ""),
        ("172.32.0.0", ""),
        ("100.63.255.255", ""),
        ("223.255.255.255", ""),
        ("2606:4700::1111", ""),
        ("::ffff:8.8.8.8", ""),
        ("64:ff9b::808:808", ""),
    ],
)
def test_what_is_refused(text: str, kind: str) -> None:
    assert why_refused(ip_address(text)) == kind


@pytest.mark.parametrize(
    ("text", "networks", "passes"),
    [
        ("10.20.0.1", ["10.20.0.0/16"], True),
        ("10.21.0.1", ["10.20.0.0/16"], False),
        ("::ffff:10.20.0.1", ["10.20.0.0/16"], True),
        ("64:ff9b::10.20.0.1", ["10.20.0.0/16"], True),
        ("2002:a14:1::", ["10.20.0.0/16"], False),
        ("fd00:1::5", ["10.0.0.0/8", "fd00:1::/64"], True),
        ("fd00:2::5", ["10.0.0.0/8", "fd00:1::/64"], False),
        ("fe80::1%eth0", ["fe80::/10"], False),
        ("127.0.0.1", ["127.0.0.1"], True),
        ("8.8.8.8", ["10.0.0.0/8"], True),
    ],
)
def test_the_operator_allows_networks(text: str, networks: list[str], passes: bool) -> None:
    assert (why_refused(ip_address(text), read_networks(networks)) == "") == passes


@pytest.mark.parametrize("text", ["", "10.0.0.1/8", "localhost", "10.0.0.0/33", "10.0.0"])
def test_a_network_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a network"):
        read_networks(["10.0.0.0/8", text])


def test_the_refusal_of_a_name_does_not_say_where_it_leads() -> None:
    with pytest.raises(InvalidRequest, match=r"not sent to db\.internal: it leads to a private address") as caught:
        check_address("10.11.12.13", (), "db.internal")
    assert "10.11" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "localhost", "0x7f.1", "0177.0.0.1", "127.1", "2130706433", "8.8.8.8 "])
def test_what_a_resolver_must_not_answer_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        check_address(text, read_networks(["0.0.0.0/0", "::/0"]), "hooks.example.com")


@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, ("127.0.0.1", 80)),
        (socket.AF_INET, ("localhost", 80)),
        (socket.AF_INET, ("127.1", 80)),
        (socket.AF_INET6, ("::1", 80, 0, 0)),
        (socket.AF_INET6, ("2606:4700::1111", 80, 0, 2)),
        (socket.AF_INET6, ("::ffff:7f00:1", 80, 0, 0)),
    ],
)
def test_no_socket_is_made_for_what_is_refused(family: socket.AddressFamily, address: tuple[object, ...]) -> None:
    with pytest.raises(PermissionError):
        new_socket((family, socket.SOCK_STREAM, 0, "", address), ())


# -- URLs


@pytest.mark.parametrize(
    "url",
    [
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0x7f000001/",
        "http://0X7F.0.0.1/",
        "http://0177.0.0.1/",
        "http://017700000001/",
        "http://127.1/",
        "http://127.0.1/",
        "http://127.0.0.1/",
        "http://127.0.0.1./",
        "http://127.0.0.1../",
        "http://0/",
        "http://0.0.0.0/",
        "http://8.8.8/",
        "http://8.8.8.08/",
        "http://８.８.８.８.1/",
        "http://１２７.0.0.1/",
        "http://127。0。0。1/",
        "http://①②⑦.0.0.1/",
        "http://[::1]/",
        "http://[::]/",
        "http://[0:0:0:0:0:0:0:1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::FFFF:7F00:1]/",
        "http://[::127.0.0.1]/",
        "http://[64:ff9b::127.0.0.1]/",
        "http://[fe80::1%25eth0]/",
        "http://[fe80::1%eth0]/",
        "http://[2606:4700::1111%25eth0]/",
        "http://[127.0.0.1]/",
        "http://[v1.x]:80:80/",
        "http://169.254.169.254/latest/meta-data/",
        "http://%31%32%37.0.0.1/",
        "http://127.0.0.1%00.example.com/",
        "http://example.com%2f@127.0.0.1/",
        "http://user@example.com/",
        "http://user:word@example.com/",
        "http://:word@example.com/",
        "http://example.com\\@127.0.0.1/",
        "http://127.0.0.1\t.example.com/",
        "http://exam\nple.com/",
        " http://example.com/",
        "http://example.com/ ",
        "http://example.com\u2003/",
        "http://exam ple.com/",
        "http://example..com/",
        "http://.example.com/",
        "http://example.com../",
        "http://-example.com/",
        f"http://{'a' * 64}.com/",
        f"http://{'a.' * 127}com/",
        "http:///path",
        "http://",
        "http:example.com",
        "//example.com/",
        "example.com",
        "",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "unix:///run/docker.sock",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://example.com:-1/",
        "http://example.com:x/",
        *(f"http://example.com:{port}/" for port in sorted(DENIED_PORTS)),
        f"http://example.com/{'a' * MAX_URL}",
    ],
)
def test_a_url_that_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        read_url(url)


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("https://hooks.example.com/a?b=c", "hooks.example.com", 443),
        ("HTTP://Hooks.Example.COM:8080", "hooks.example.com", 8080),
        ("https://hooks.example.com./", "hooks.example.com.", 443),
        ("https://bücher.example/", "xn--bcher-kva.example", 443),
        ("https://my_hook.example.com/", "my_hook.example.com", 443),
        ("http://8.8.8.8:65535/", "8.8.8.8", 65535),
        ("http://[2606:4700::1111]/", "2606:4700::1111", 80),
        ("http://localhost/", "localhost", 80),  # a name: it is looked up, and what it leads to is checked then
        ("http://7f000001.example.com/", "7f000001.example.com", 80),
    ],
)
def test_a_url_that_is_taken(url: str, host: str, port: int) -> None:
    read = read_url(url)
    assert (read.raw_host, read.port) == (host, port)


def test_the_longest_url_is_taken_and_loses_its_fragment() -> None:
    url = "https://example.com/".ljust(MAX_URL - 2, "a")
    assert str(read_url(f"{url}#b")) == url


def test_an_allowed_network_lets_its_addresses_pass() -> None:
    allowed = read_networks(["127.0.0.0/8"])
    assert read_url("http://127.0.0.1:9000/", allowed).port == 9000
    with pytest.raises(InvalidRequest):
        read_url("http://127.1:9000/", allowed)


# -- whatever the spelling


def within(networks: list[IPv4Network]) -> st.SearchStrategy[IPv4Address]:
    return st.sampled_from(networks).flatmap(lambda network: st.ip_addresses(network=network)).map(IPv4Address)


def within_6(networks: list[IPv6Network]) -> st.SearchStrategy[IPv6Address]:
    return st.sampled_from(networks).flatmap(lambda network: st.ip_addresses(network=network)).map(IPv6Address)


def carried(address: IPv4Address) -> st.SearchStrategy[IPv6Address]:
    """IPv6 addresses that have this one in them."""
    number = int(address)
    teredo = (0x20010000 << 96) | (number ^ 0xFFFFFFFF)
    return st.sampled_from(
        [
            IPv6Address(number),
            IPv6Address((0xFFFF << 32) | number),
            IPv6Address((0x64FF9B << 96) | number),
            IPv6Address((0x64FF9B0001 << 80) | number),
            IPv6Address((0x2002 << 112) | (number << 80)),
            IPv6Address(teredo),
        ]
    )


def written_4(address: IPv4Address) -> st.SearchStrategy[str]:
    """Every way a system reads this address: one to four parts, each in one of three bases."""
    number = int(address)

    def parts(count: int) -> list[int]:
        leading = [number >> (24 - 8 * place) & 0xFF for place in range(count - 1)]
        return [*leading, number & (1 << (32 - 8 * (count - 1))) - 1]

    def spelled(part: int) -> st.SearchStrategy[str]:
        return st.sampled_from([str(part), hex(part), hex(part).upper(), f"0{part:o}", f"000{part:o}", f"0x00{part:x}"])

    counted = st.integers(1, 4).flatmap(lambda count: st.tuples(*(spelled(part) for part in parts(count))))
    return counted.map(".".join).flatmap(disguised)


def disguised(host: str) -> st.SearchStrategy[str]:
    wide = str.maketrans("0123456789.", "０１２３４５６７８９。")
    return st.sampled_from(
        [host, f"{host}.", host.translate(wide), host.upper(), "".join(f"%{ord(c):x}" for c in host)]
    )


def written_6(address: IPv6Address) -> st.SearchStrategy[str]:
    tail = f"{':'.join(address.exploded.split(':')[:6])}:{IPv4Address(int(address) & 0xFFFFFFFF)}"
    forms = [str(address), address.exploded, address.exploded.upper(), tail, f"{address}%25eth0", f"{address}%1"]
    return st.sampled_from(forms).map(lambda form: f"[{form}]")


forbidden_6 = st.one_of(within(FORBIDDEN_4).flatmap(carried), within_6(FORBIDDEN_6))
hosts = st.one_of(within(FORBIDDEN_4).flatmap(written_4), forbidden_6.flatmap(written_6))


@given(host=hosts, scheme=st.sampled_from(["http", "https", "HTTP"]), port=st.sampled_from(["", ":80", ":8443"]))
def test_no_spelling_of_a_forbidden_address_passes(host: str, scheme: str, port: str) -> None:
    with pytest.raises(InvalidRequest):
        read_url(f"{scheme}://{host}{port}/hook")


@given(address=st.one_of(within(FORBIDDEN_4), forbidden_6))
def test_no_forbidden_address_passes_once_it_is_looked_up(address: IPv4Address | IPv6Address) -> None:
    for text in (str(address), address.exploded):
        with pytest.raises(InvalidRequest):
            check_address(text, (), "hooks.example.com")


@given(address=st.ip_addresses())
def test_what_passes_is_global_unicast(address: IPv4Address | IPv6Address) -> None:
    if not why_refused(address):
        carries = isinstance(address, IPv6Address) and address not in IPv6Network("2000::/3")
        meant = IPv4Address(int(address) & 0xFFFFFFFF) if carries else address
        assert meant.is_global
        assert not meant.is_multicast


@given(host=st.text("0123456789abcdefxABCDEFX.", min_size=1, max_size=18))
def test_what_the_system_takes_for_an_address_is_taken_for_the_same_or_refused(host: str) -> None:
    try:
        meant = IPv4Address(socket.inet_aton(host))
    except OSError:
        return
    try:
        assert read_address(host) == meant
    except InvalidRequest:
        return


@given(text=st.text(max_size=60))
def test_any_text_is_a_url_or_is_refused(text: str) -> None:
    for url in (text, f"http://{text}", f"http://{text}/", f"http://[{text}]/", f"http://example.com{text}"):
        try:
            assert read_url(url).raw_host
        except InvalidRequest:
            continue
