"""Headers that requests of a sandbox get on their way to a host: `network.rules` of E2B's clients.

The broker, outside of the sandbox, sets them as it adds secrets: in requests over TLS to port 443 of the host. A rule
opens nothing; the session's network rules decide whether the host is reached. A value may be a credential, so it is
treated as that of a secret: stores encrypt it, nobody is shown it, and the broker removes it from answers.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from warren.model.errors import InvalidRequest
from warren.model.secrets import MIN_VALUE, check_header, is_one_line, read_host, spellings

MAX_HEADER_RULES: Final = 40  # of a session
MAX_OF_HOST: Final = 8
MAX_VALUE: Final = 4096
MAX_VALUES: Final = 32 * 1024  # characters of all values of a session
MAX_PARTS: Final = 32  # of the values for a host: each is looked for in all of its answers
# Headers that say what a client is or wants. Their values are no credentials, and occur in ordinary answers.
_DESCRIBING: Final = frozenset(
    {"accept", "accept-language", "cache-control", "origin", "prefer", "referer", "user-agent"}
)
_PIECE: Final = re.compile(rf"[^;, ][^;,]{{{MIN_VALUE - 1},}}")
_WHAT: Final = "a header"


@dataclass(frozen=True, slots=True)
class HeaderRule:
    """Sets a header in requests for a host, in place of the client's own. `new_header_rules` checks what callers give;
    what was stored is not checked again, so that a version with other checks can read it."""

    host: str
    header: str
    value: str = field(repr=False)  # keeps it out of logs and tracebacks

    query = ""  # a secret may be carried by a query parameter, a rule never

    @property
    def carried(self) -> str:
        return self.value

    @property
    def scrub(self) -> bool:
        return len(self.value) >= MIN_VALUE and self.header.lower() not in _DESCRIBING

    @property
    def traces(self) -> tuple[bytes, ...]:
        """The spellings of the value that are removed from answers, longest first: of the whole, of what follows a word
        such as Bearer, of what that encodes after Basic, and of the parts. Of a short text none: it would occur by
        chance."""
        if not self.scrub:
            return ()
        scheme, _, credential = self.value.partition(" ")
        decoded = _decoded(credential) if scheme.lower() == "basic" else ()
        texts = {self.value}
        for text in (credential or self.value, *decoded, *self.parts):
            if len(text) >= MIN_VALUE:
                texts |= spellings(text)
        return tuple(sorted((text.encode() for text in texts if len(text) >= MIN_VALUE), key=len, reverse=True))

    @property
    def parts(self) -> tuple[str, ...]:
        """What a host may take out of the value and repeat alone, such as a cookie. Parts end at `;` and `,`; of
        `name=text` it is the text, unless that is short."""
        found: list[str] = []
        for piece in _PIECE.findall(self.value) if self.scrub else ():
            text = (piece.partition("=")[2] or piece.partition(" ")[2]).strip(' "')
            if len(text) >= MIN_VALUE or piece != self.value:
                found.append(text if len(text) >= MIN_VALUE else piece)
        return tuple(found)

    def is_expired(self, wall: float) -> bool:
        return False


def new_header_rules(host: str, headers: Sequence[tuple[str, str]]) -> list[HeaderRule]:
    """Makes rules from what a caller gave, names of headers with their values; the host may be in any case. Raises
    InvalidRequest, without a value."""
    host = read_host(host, _WHAT)  # once: an international name takes a millisecond
    for header, value in headers:
        check_header(header, "be set by a rule")
        if len(value) > MAX_VALUE or not is_one_line(value):
            raise InvalidRequest(
                f"the value of the header {header} is not one line of at most {MAX_VALUE} printable ASCII "
                "characters, without spaces at its ends"
            )
    return [HeaderRule(host, header, value) for header, value in headers]


def check_header_rules(rules: Iterable[HeaderRule]) -> tuple[HeaderRule, ...]:
    """Returns the rules of a session: of several for one header of one host, the last. Raises InvalidRequest if there
    are too many."""
    last = {(rule.host, rule.header.lower().replace("_", "-")): rule for rule in rules}
    hosts = [host for host, _ in last]
    if len(last) > MAX_HEADER_RULES:
        raise InvalidRequest(f"there are {len(last)} headers to set, a session has at most {MAX_HEADER_RULES}")
    if crowded := [host for host in hosts if hosts.count(host) > MAX_OF_HOST]:
        raise InvalidRequest(f"there are more than {MAX_OF_HOST} headers to set for {crowded[0]}")
    for host in dict.fromkeys(hosts):
        if sum(len(rule.parts) for rule in last.values() if rule.host == host) > MAX_PARTS:
            raise InvalidRequest(f"the headers to set for {host} have more than {MAX_PARTS} parts that may be secrets")
    if sum(len(rule.value) for rule in last.values()) > MAX_VALUES:
        raise InvalidRequest(f"the values of all headers to set have more than {MAX_VALUES} characters together")
    return tuple(last.values())


def _decoded(credential: str) -> tuple[str, ...]:
    """Returns what a credential of Basic encodes, and the password alone."""
    try:
        text = base64.b64decode(credential, validate=True).decode()
    except (binascii.Error, ValueError):
        return ()
    return text, text.partition(":")[2]
