"""Tickets: they open the terminal of one session to a page that has no key.

Whoever has a key makes a ticket and gives its URL to a browser. The page there redeems the ticket, once and within
TICKET_S, for a token that it keeps in its memory. The token is good for the terminals of that session, or for one
process of it, until it expires or the key that made the ticket is no longer valid, and for nothing else.
"""

import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from warren.access.bindings import Binding, Grant
from warren.access.identity import BindingIdentity
from warren.access.opaque_tokens import OpaqueTokens
from warren.interfaces.records import RecordStore
from warren.kernel.clock import Clock
from warren.model.access import Scope
from warren.model.api import OperationFinder
from warren.model.errors import Forbidden, InvalidRequest, Unauthorized

TICKET_S: Final = 60.0
LONGEST_S: Final = 12 * 3600
TOKEN_PREFIX: Final = "wst_"
MAX_TICKETS: Final = 200
MAX_TOKENS: Final = 1000
_WATCHING: Final = frozenset({"get_process", "read_output", "attach_socket"})
_TYPING: Final = frozenset({"terminal_socket", "resize_terminal"})  # the socket may start a terminal, and resizes it
_SCOPES: Final = frozenset({Scope.READ, Scope.EXEC})
_REMEDY: Final = "ask for another one: POST /api/sessions/{session_id}/tickets"
_FINDER: Final = OperationFinder()


@dataclass(frozen=True, slots=True)
class TerminalTicket:
    """Opens the terminals of a session, or only one process of it; with `read_only` only to watch that. `origins` are
    the sites that may show the page of this ticket in a frame. `expires_at` is when the token of the ticket expires."""

    binding: Binding
    session_id: str
    process_id: str
    read_only: bool
    expires_at: float
    origins: tuple[str, ...] = ()

    def as_mapping(self) -> dict[str, Any]:
        return {
            "binding": self.binding.as_mapping(),
            "session_id": self.session_id,
            "process_id": self.process_id,
            "read_only": self.read_only,
            "expires_at": self.expires_at,
            "origins": self.origins,
        }

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "TerminalTicket":
        binding = Binding.from_mapping(values["binding"])
        return cls(**{**values, "binding": binding, "origins": tuple(values["origins"])})

    def opens(self, method: str, path: str, query: bytes) -> bool:
        """Whether a token of this ticket is good for a request. A WebSocket's method is WEBSOCKET."""
        found = _FINDER.find(method, path)
        if found is None:
            return False
        operation, named = found
        allowed = _WATCHING if self.read_only else _WATCHING | _TYPING
        if operation.name not in allowed or named["session_id"] != self.session_id:
            return False
        if not self.process_id:
            return True
        return _processes(named, query) == {self.process_id}


def _processes(named: Mapping[str, str], query: bytes) -> set[str]:
    """Returns every process that the request names: in its path, or anywhere in the query of `…/terminal`. A second
    name in the query must not get past the check."""
    if "process_id" in named:
        return {named["process_id"]}
    pairs = urllib.parse.parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    return {value for name, value in pairs if name == "process_id"}


class Tickets:
    def __init__(self, records: RecordStore, clock: Clock, identity: BindingIdentity) -> None:
        self._clock = clock
        self._identity = identity
        self._tickets = OpaqueTokens(records, clock, "ticket", "wtk_", MAX_TICKETS)
        self._tokens = OpaqueTokens(records, clock, "ticket_token", TOKEN_PREFIX, MAX_TOKENS)

    def __repr__(self) -> str:
        return f"<Tickets {self._tokens!r}>"

    async def create(
        self,
        binding: Binding,
        session_id: str,
        process_id: str,
        *,
        read_only: bool,
        lasts_s: float,
        origins: Sequence[str],
    ) -> tuple[str, TerminalTicket]:
        """Returns the text of a new ticket, and what it opens."""
        if read_only and not process_id:
            raise InvalidRequest(
                "a ticket to watch must name the process to be watched", remedy='give its "process_id"'
            )
        expires_at = self._clock.wall() + lasts_s
        if binding.expires_at is not None:
            expires_at = min(expires_at, binding.expires_at)
        ticket = TerminalTicket(binding, session_id, process_id, read_only, expires_at, tuple(origins))
        text = await self._tickets.issue(ticket.as_mapping(), self._clock.wall() + TICKET_S, binding.tenant)
        return text, ticket

    async def look_up(self, text: str) -> TerminalTicket | None:
        """Returns what a ticket opens; None if it was redeemed, has expired or never existed."""
        value = await self._tickets.look_up(text)
        return None if value is None else TerminalTicket.from_mapping(value)

    async def redeem(self, text: str) -> tuple[str, TerminalTicket]:
        """Exchanges a ticket for a token: of several callers that ask at once, one gets it. Raises Unauthorized, with
        the same message for every other ticket."""
        value = await self._tickets.take(text)
        if value is None:
            raise Unauthorized("this ticket is not valid: it works once, for a minute", remedy=_REMEDY)
        ticket = TerminalTicket.from_mapping(value)
        await self._identity.bound_caller(ticket.binding)
        return await self._tokens.issue(value, ticket.expires_at, ticket.binding.tenant), ticket

    async def grant(self, token: str, method: str, path: str, query: bytes) -> tuple[Grant, TerminalTicket]:
        """Lets in a request that the ticket opens. Raises Unauthorized, or Forbidden for any other request."""
        ticket = await self._find(token)
        caller = await self._identity.bound_caller(ticket.binding)
        if not caller.may(Scope.EXEC) or not ticket.opens(method, path, query):
            raise Forbidden("the ticket of this page does not open that", remedy=_REMEDY)
        check = partial(self._check_again, token)
        limited = replace(caller, scopes=frozenset(scope for scope in _SCOPES if caller.may(scope)))
        return Grant(limited, ticket.binding, check, expires_at=ticket.expires_at), ticket

    async def _find(self, token: str) -> TerminalTicket:
        value = await self._tokens.look_up(token)
        if value is None:
            raise Unauthorized("this token of a ticket is not valid, or has expired", remedy=_REMEDY)
        return TerminalTicket.from_mapping(value)

    async def _check_again(self, token: str) -> None:
        await self._identity.bound_caller((await self._find(token)).binding, expired=True)
