"""E2B's network settings as the rules of a session, and back.

At E2B a sandbox reaches everything unless `denyOut` says otherwise, and `allowOut` wins over `denyOut`. So denying
`0.0.0.0/0` makes a list of what is allowed.
"""

from collections.abc import Mapping
from functools import partial
from ipaddress import ip_network
from typing import Any, Final

from warren.http.e2b.control.bodies import bad, read_flag, read_list
from warren.http.e2b.errors import E2bError
from warren.kernel.fair_thread import fair_thread
from warren.model.network import FEW_RULES, MAX_RULES, NetworkRules
from warren.model.session import Session
from warren.sessions.request_context import current_caller

ALL_TRAFFIC: Final = "0.0.0.0/0"
_REFUSED: Final = ("rules", "egressProxy", "dnsServers", "maskRequestHost", "httpsPorts")


def check_supported(values: Mapping[str, Any]) -> None:
    """Refuses by name what sandboxes of this server cannot have."""
    for name in _REFUSED:
        if values.get(name):
            raise E2bError(501, f"network.{name} is not supported by this server")


def read_network(values: Mapping[str, Any], internet: bool | None) -> NetworkRules | None:
    """Returns the rules that a client asks for, or None if it leaves the choice to the server. `internet` is what it
    says about the Internet beside them. Raises E2bError and InvalidRequest."""
    check_supported(values)
    allow = [_network(text) for text in read_list(values, "allowOut", MAX_RULES)]
    deny = [_network(text) for text in read_list(values, "denyOut", MAX_RULES)]
    for text in deny:
        if not _is_network(text):
            raise bad(f"denyOut has {text[:80]!a}, it can have addresses and networks only")
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
