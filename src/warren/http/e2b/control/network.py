"""E2B's network settings as the rules of a session, and back.

At E2B a sandbox reaches everything unless `denyOut` says otherwise, and `allowOut` wins over `denyOut`. So denying
`0.0.0.0/0` makes a list of what is allowed. `rules` set headers in requests for a host, and open nothing; their values
are never shown.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from ipaddress import ip_network
from typing import Any, Final

from warren.http.e2b.control.bodies import bad, read_flag, read_list, read_object, read_text, read_texts
from warren.http.e2b.errors import E2bError
from warren.kernel.fair_thread import fair_thread
from warren.model.errors import InvalidRequest
from warren.model.header_rules import (
    MAX_HEADER_RULES,
    MAX_OF_HOST,
    HeaderRule,
    check_header_rules,
    new_header_rules,
)
from warren.model.network import FEW_RULES, MAX_RULES, NetworkRules
from warren.model.preview import check_host_mask
from warren.model.session import Session
from warren.sessions.request_context import current_caller, keep_secret

ALL_TRAFFIC: Final = "0.0.0.0/0"
_SHOWN: Final = 80
_REFUSED: Final = {
    "egressProxy": ": it checks every address and connects to it itself, which it cannot do behind another proxy",
    "dnsServers": ": it answers look-ups of sandboxes itself",
    "httpsPorts": ": it speaks HTTP to servers inside sandboxes",
}
_NOT_SHOWN: Final = "***"
_IDENTITY: Final = "${e2b."


def check_supported(values: Mapping[str, Any]) -> None:
    """Refuses by name what sandboxes of this server cannot have."""
    for name, why in _REFUSED.items():
        if values.get(name):
            raise E2bError(501, f"network.{name} is not supported by this server{why}")


def read_network(values: Mapping[str, Any], internet: bool | None) -> NetworkRules | None:
    """Returns the rules that a client asks for, or None if it leaves the choice to the server. `internet` is what it
    says about the Internet beside them. Raises E2bError and InvalidRequest."""
    check_supported(values)
    allow = [_network(text) for text in read_list(values, "allowOut", MAX_RULES)]
    deny = [_network(text) for text in read_list(values, "denyOut", MAX_RULES)]
    for text in deny:
        if not _is_network(text):
            raise bad(f"denyOut has {text[:_SHOWN]!a}, it can have addresses and networks only")
    if not allow and not deny:
        return NetworkRules() if internet is False else None
    is_closed = internet is False or ALL_TRAFFIC in deny
    if not is_closed and not all(map(_is_network, allow)):
        raise bad(f"allowOut has names, and so denyOut must have {ALL_TRAFFIC}: everything else is open otherwise")
    if ALL_TRAFFIC in allow:  # what is named beside it may be private, which the Internet is not
        return NetworkRules(True, tuple(dict.fromkeys(each for each in allow if each != ALL_TRAFFIC)))
    return NetworkRules(not is_closed, tuple(dict.fromkeys(allow)), tuple(dict.fromkeys(deny)))


async def read_network_apart(values: Mapping[str, Any], internet: bool | None) -> NetworkRules | None:
    """Does what `read_network` does, in a thread if there are many rules."""
    lists = (values.get("allowOut"), values.get("denyOut"))
    if sum(len(texts) for texts in lists if isinstance(texts, list)) > FEW_RULES:
        return await fair_thread().run(current_caller().tenant, partial(read_network, values, internet))
    return read_network(values, internet)


async def read_header_rules(values: Mapping[str, Any]) -> tuple[HeaderRule, ...]:
    """Returns what `rules` says. Raises E2bError, whose text never has a value. The hosts are read in a thread: forty
    international names take many milliseconds."""
    given = _read_headers(values)
    if not given:
        return ()
    return await fair_thread().run(current_caller().tenant, partial(_new_rules, given))


def _read_headers(values: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Returns the headers that are to be set, by host, and keeps their values secret. Too many are refused before
    anything else is done with them."""
    found: dict[str, list[tuple[str, str]]] = {}
    hosts, total = read_object(values, "rules") or {}, 0
    if len(hosts) > MAX_HEADER_RULES:
        raise bad(f"rules has {len(hosts)} hosts, at most {MAX_HEADER_RULES} are taken")
    for host, rules in hosts.items():
        where = _where(host)
        if host.startswith("*."):
            raise E2bError(501, f"{where}: wildcards are not supported by this server, name each host")
        if not isinstance(rules, list) or not all(isinstance(each, dict) for each in rules):
            raise bad(f"{where}: they must be a list of objects")
        if len(rules) > MAX_HEADER_RULES:
            raise bad(f"{where}: there are {len(rules)}, at most {MAX_HEADER_RULES} are taken")
        for each in rules:
            headers = _read_transform(each, where)
            keep_secret(headers.values())
            total += len(headers)
            if total > MAX_HEADER_RULES:
                raise bad(f"rules: there are more than {MAX_HEADER_RULES} headers to set")
            if headers:
                found.setdefault(host, []).extend(headers.items())
    return found


def _new_rules(given: Mapping[str, Sequence[tuple[str, str]]]) -> tuple[HeaderRule, ...]:
    found: list[HeaderRule] = []
    for host, headers in given.items():
        for name, value in headers:
            _check_value(name, value)
        try:
            found += new_header_rules(host, headers)
        except InvalidRequest as exc:
            raise bad(f"{_where(host)}: {exc.message}{'; ' if exc.remedy else ''}{exc.remedy}") from None
    try:
        return check_header_rules(found)
    except InvalidRequest as exc:
        raise bad(f"rules: {exc.message}") from None


def _where(host: str) -> str:
    return f"rules for {host[:_SHOWN]!a}"


def _read_transform(rule: Mapping[str, Any], where: str) -> dict[str, str]:
    transform = read_object(rule, "transform") or {}
    for unknown in (*(rule.keys() - {"transform"}), *(transform.keys() - {"headers"})):
        raise E2bError(501, f"{where}: {unknown[:_SHOWN]!a} is not supported by this server, only headers are set")
    return read_texts(transform, "headers", MAX_OF_HOST)


def _check_value(header: str, value: str) -> None:
    if _IDENTITY in value:
        raise E2bError(501, f"the header {header[:_SHOWN]!a} has a token of iam, which this server does not support")
    if value == _NOT_SHOWN:
        raise bad(f"the header {header[:_SHOWN]!a} has the value that is shown in place of the real one")


def read_host_mask(values: Mapping[str, Any]) -> str:
    """Returns the host that servers in the sandbox are to see, empty for the real one. Raises InvalidRequest."""
    mask = read_text(values, "maskRequestHost")
    return check_host_mask(mask) if mask else ""


def show_network(session: Session) -> dict[str, Any]:
    rules = session.network
    deny = list(rules.deny)
    if not rules.internet and ALL_TRAFFIC not in deny:
        deny.insert(0, ALL_TRAFFIC)
    shown: dict[str, Any] = {"allowPublicTraffic": session.previews.everything}
    if rules.allow:
        shown["allowOut"] = list(rules.allow)
    if deny:
        shown["denyOut"] = deny
    headers: dict[str, dict[str, str]] = {}
    for rule in rules.headers:
        headers.setdefault(rule.host, {})[rule.header] = _NOT_SHOWN
    if headers:
        shown["rules"] = {host: [{"transform": {"headers": each}}] for host, each in headers.items()}
    if session.previews.host_mask:
        shown["maskRequestHost"] = session.previews.host_mask
    return shown


def wants_public_traffic(values: Mapping[str, Any]) -> bool:
    return read_flag(values, "allowPublicTraffic") is not False


def _network(text: str) -> str:
    """Returns a network as rules spell it: `10.1.2.3/8` is `10.0.0.0/8`."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return text
    return str(network) if "/" in text else text


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True
