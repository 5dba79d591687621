"""Messages between the worker and `warren-egress`: JSON objects, each after its length, with descriptors beside.

The worker sends one request at a time for each sandbox, and gets an answer with the same `number`. Descriptors arrive
with the first bytes of their message, so they are there when the message is complete.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from warren.model.network import EgressBound, EndedConnection, IndexedRules, NetworkUse, Refusal, RuleIndex

MAX_MESSAGE: Final = 8 << 20
MAX_ANSWER: Final = 1 << 20
LENGTH: Final = struct.Struct(">I")
KEPT: Final = 50
"""How many refusals and ended connections of a sandbox are kept."""

Message = Mapping[str, Any]


class BrokenMessage(Exception):
    """The other side sent something that violates the protocol."""


def pack(message: Message) -> tuple[bytes, bytes]:
    body = json.dumps(message, separators=(",", ":")).encode()
    return LENGTH.pack(len(body)), body


class MessageReader:
    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yields the messages that are complete now. Raises BrokenMessage."""
        self._bytes += data
        while len(self._bytes) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._bytes)
            if length > self._most:
                raise BrokenMessage(f"a message of {length} bytes")
            if len(self._bytes) < LENGTH.size + length:
                return
            try:
                message = json.loads(self._bytes[LENGTH.size : LENGTH.size + length])
            except (ValueError, RecursionError) as exc:
                raise BrokenMessage("a message that is not JSON") from exc
            if not isinstance(message, dict):
                raise BrokenMessage("a message that is no object")
            del self._bytes[: LENGTH.size + length]
            yield message


def pack_rules(rules: IndexedRules) -> Message:
    return {"internet": rules.internet, "allow": rules.allow.as_lists(), "deny": rules.deny.as_lists()}


def unpack_rules(message: Message) -> IndexedRules:
    """Reads rules that the worker has checked and indexed: that may take seconds, and all sandboxes wait meanwhile."""
    allow, deny = (RuleIndex.from_lists(message[name]) for name in ("allow", "deny"))
    return IndexedRules(bool(message["internet"]), allow, deny)


def unpack_bounds(message: Message) -> tuple[EgressBound, ...]:
    """Returns the bounds of a message. Their owners are names of groups, which reveal nothing."""
    return tuple(EgressBound(owner, connections, mbps) for owner, connections, mbps in message["bounds"])


def pack_use(use: NetworkUse) -> Message:
    counts = {name: getattr(use, name) for name in _COUNTS}
    refusals = [[getattr(each, name) for name in _REFUSAL] for each in use.refusals]
    ended = [[getattr(each, name) for name in _ENDED] for each in use.ended]
    return {**counts, "refusals": refusals, "ended": ended}


def unpack_use(message: Message) -> NetworkUse:
    """Reads a sandbox's counts and trusts none: the sender reads what attackers send. Raises BrokenMessage."""
    try:
        sent, received, connections, are_open, refused = (_count(message[name]) for name in _COUNTS)
        refusals = tuple(map(_refusal, message["refusals"][-KEPT:]))
        ended = tuple(map(_ended, message["ended"][-KEPT:]))
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise BrokenMessage(f"counts that cannot be read: {exc!r}") from exc
    return NetworkUse(sent, received, connections, are_open, refused, refusals, ended)


_COUNTS: Final = ("bytes_sent", "bytes_received", "connections", "open_connections", "refused")
_REFUSAL: Final = ("at", "name", "address", "port", "reason", "rule", "count")
_ENDED: Final = ("at", "name", "address", "port", "bytes_sent", "bytes_received")
_MAX_TEXT: Final = 400


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.100} is no count")
    return value


def _refusal(values: Any) -> Refusal:
    at, name, address, port, reason, rule, count = values
    to = (_text(name), _text(address), _count(port) & 0xFFFF)
    return Refusal(float(at), *to, _text(reason), _text(rule), _count(count))


def _ended(values: Any) -> EndedConnection:
    at, name, address, port, sent, received = values
    return EndedConnection(
        float(at), _text(name), _text(address), _count(port) & 0xFFFF, _count(sent), _count(received)
    )


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > _MAX_TEXT or not value.isprintable():
        raise ValueError("a text that none should be")
    return value
