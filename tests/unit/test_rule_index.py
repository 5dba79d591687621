"""Rules are found by an index: it says what comparing with each rule would say, and costs the same with 1,000 rules."""

import json
import time
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.model.errors import InvalidRequest
from warren.model.network import Address, IndexedRules, NetworkRule, NetworkRules, RuleIndex, parse_rule
from warren.sandboxes.egress.messages import pack_rules, unpack_rules

_LABELS = st.sampled_from(["a", "b", "ab", "example"])
_NAMES = st.lists(_LABELS, min_size=1, max_size=5).map(".".join)
_PORTS = st.sampled_from([0, 80, 443])
_ADDRESSES = st.sampled_from(["10.0.0.1", "10.0.1.1", "11.0.0.1", "2001:db8::1", "2001:db8:1::", "::", "::a00:1"])
_NETWORKS = st.one_of(
    st.builds(lambda bits: IPv4Network(("10.0.0.1", bits), strict=False), st.integers(0, 32)),
    st.builds(lambda bits: IPv6Network(("2001:db8::1", bits), strict=False), st.integers(0, 128)),
)
_RULES = st.one_of(
    st.builds(NetworkRule, name=_NAMES, is_wildcard=st.booleans(), port=_PORTS),
    st.builds(NetworkRule, network=_NETWORKS, port=_PORTS),
)


def covers(rule: NetworkRule, name: str, address: Address | None, port: int) -> bool:
    if rule.port not in (0, port):
        return False
    return address is not None and address in rule.network if rule.network is not None else rule.covers_name(name)


def through_a_message(rules: IndexedRules) -> IndexedRules:
    return unpack_rules(json.loads(json.dumps(pack_rules(rules))))


@given(st.lists(_RULES, max_size=8), st.just("") | _NAMES, st.none() | _ADDRESSES, st.sampled_from([80, 443, 22]))
def test_an_index_says_what_comparing_with_each_rule_would_say(
    rules: Sequence[NetworkRule], name: str, text: str | None, port: int
) -> None:
    address = None if text is None else ip_address(text)
    index = through_a_message(IndexedRules(False, RuleIndex(rules), RuleIndex())).allow
    assert index.covers(name, address, port) == any(covers(rule, name, address, port) for rule in rules)
    assert index.covers_name(name) == any(rule.covers_name(name) for rule in rules)
    assert index.covers_name(name, 0) == any(rule.covers_name(name) and not rule.port for rule in rules)
    assert index.has_networks == any(rule.network is not None for rule in rules)


def _thousand(first: str) -> tuple[str, ...]:
    names = tuple(f"{first}{number}.example.com" for number in range(600))
    return (*names, *(f"10.{number % 256}.{number // 256}.0/{24 + number % 8}" for number in range(400)))


@pytest.mark.parametrize("to", ["a.b.c.example.net", ".".join("a" * 127), "x.a599.example.com"])
def test_a_question_costs_the_same_with_a_thousand_rules(to: str) -> None:
    few = NetworkRules(True, ("*.a0.example.com", "10.0.0.0/8"), ("b0.example.com", "10.0.0.0/8")).indexed
    many = through_a_message(NetworkRules(True, _thousand("*.a"), _thousand("b")).indexed)

    def cost(rules: IndexedRules) -> float:
        def once() -> float:
            begun = time.thread_time()
            for _ in range(200):
                rules.knows_name(to)
                rules.allows(to, None, 443)
            return time.thread_time() - begun

        return min(once() for _ in range(5))

    assert cost(many) < 5 * cost(few)  # some 100 times, if it grew with the rules


def test_names_with_ports_are_known_and_only_these_ports_are_allowed() -> None:
    rules = NetworkRules(True, ("*.a.example:443",), ("b.example:25", "c.example")).indexed
    assert all(rules.knows_name(name) for name in ("x.a.example", "b.example", "other.example"))
    assert not rules.knows_name("c.example")
    assert not rules.allows("b.example", None, 25)
    assert rules.allows("b.example", None, 26)


def test_presets_and_rules_in_any_spelling_are_indexed() -> None:
    rules = NetworkRules(allow=("python-packages", "BÜCHER.example", "[2001:DB8::1]:443")).indexed
    assert rules.knows_name("xn--bcher-kva.example")
    assert rules.allows("", ip_address("2001:db8::1"), 443)
    assert str(parse_rule("BÜCHER.example")) == "xn--bcher-kva.example"


@pytest.mark.parametrize("url", ["https://a.example", "http://a.example:80/b", "https://u:p@a.example/"])
def test_a_url_is_no_rule(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"neither a scheme nor a path: write 'a\.example(:80)?'"):
        NetworkRules(allow=(url,))
