"""Signed URLs of files: `/files?path=…&signature=…`, as E2B's clients make them from the access token of a sandbox.

A signature is a hash of path, operation, user, token and time of expiry. If the address does not say which sandbox is
meant, the signature is tried with the tokens of all running ones. One search runs at a time, in turns with everything
else; only a few of one client wait for it, and one that finds nothing is followed by a pause, so forged signatures
cannot take more than a quarter of the time. A signature that was found is remembered.
"""

import asyncio
import base64
import hashlib
import hmac
import re
import time
import urllib.parse
from collections.abc import Iterable
from typing import Final, NamedTuple

from warren.http.e2b.tokens import Opens, SandboxTokens
from warren.interfaces.store import SessionStore
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.clock import Clock
from warren.kernel.fair_share import FairShare
from warren.kernel.pacing import Pace
from warren.model.errors import RateLimited, Unauthorized

PATH: Final = "/files"
_OPERATIONS: Final = {"GET": "read", "HEAD": "read", "POST": "write"}
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_MAX_REMEMBERED: Final = 10_000
_MAX_TOKENS: Final = 50_000
_MAX_WAITING: Final = 200
_MAX_OF_CLIENT: Final = 8
_REST: Final = 3
"""A search that finds nothing is followed by a pause that is this many times as long."""
_STEP: Final = 64
_MAX_PARAMETERS: Final = 64


class SignedRequest(NamedTuple):
    """What a URL allows to whom, and its signature. `expires_at` is "" for a URL that lasts as long as its sandbox."""

    path: str
    operation: str
    user: str
    expires_at: str
    signature: str

    def is_signed_with(self, token: str) -> bool:
        parts = [self.path, self.operation, self.user, token]
        text = ":".join([*parts, self.expires_at] if self.expires_at else parts)
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
        expected = b"v1_" + base64.b64encode(digest).rstrip(b"=")
        return hmac.compare_digest(expected, self.signature.encode("utf-8", "surrogateescape"))


def read_signed(method: str, query: bytes) -> SignedRequest | None:
    """Returns None for a request without a signature. Raises Unauthorized for one that no signature can allow."""
    if b"signature=" not in query:
        return None
    if query.count(b"&") >= _MAX_PARAMETERS:  # the caller is not known yet, and reading them takes time
        raise _invalid()
    values = dict(urllib.parse.parse_qsl(query.decode("latin-1"), keep_blank_values=True, errors="surrogateescape"))
    if not values.get("signature"):
        return None
    operation, expires_at = _OPERATIONS.get(method), values.get("signature_expiration", "")
    if operation is None or (expires_at and not _NUMBER.fullmatch(expires_at)):
        raise _invalid()
    expires_at = str(int(expires_at)) if expires_at else ""
    return SignedRequest(values.get("path", ""), operation, values.get("username", ""), expires_at, values["signature"])


class SignedUrls:
    def __init__(self, tokens: SandboxTokens, store: SessionStore, clock: Clock) -> None:
        self._tokens = tokens
        self._store = store
        self._clock = clock
        self._found = BoundedDict[str, str](_MAX_REMEMBERED)  # session ids by signature: paths may be long
        self._known = BoundedDict[str, list[str]](_MAX_TOKENS)  # access tokens by session id
        self._one_at_a_time = asyncio.Lock()
        self._waiting = FairShare(_MAX_WAITING, each=_MAX_OF_CLIENT)

    def check(self, asked: SignedRequest, session_id: str) -> None:
        """Raises Unauthorized for a signature that does not open this sandbox, or does not any more."""
        if not any(asked.is_signed_with(token) for token in self._tokens.accepted(Opens.ACCESS, session_id)):
            raise _invalid()
        if asked.expires_at and int(asked.expires_at) < self._clock.wall():
            raise Unauthorized("signature is already expired")  # in E2B's words, and nothing else

    async def find(self, asked: SignedRequest, client: str) -> str:
        """Returns the id of the session whose token signed the request. Raises Unauthorized, and RateLimited for a
        `client` that tries too many."""
        session_id = self._found.get(asked.signature)
        if session_id is None:
            session_id = await self._search(asked, client)
            self._found[asked.signature] = session_id
        self.check(asked, session_id)
        return session_id

    async def _search(self, asked: SignedRequest, client: str) -> str:
        if not self._waiting.try_take(client):
            raise RateLimited(
                "too many signed URLs are looked up at the same time",
                remedy="try again, or name the sandbox in the header E2b-Sandbox-Id",
                retry_after_s=1,
            )
        try:
            async with self._one_at_a_time:
                began = time.perf_counter()
                found = await self._first_that_fits(asked, await self._store.active_ids())
                if not found:
                    await asyncio.sleep(_REST * (time.perf_counter() - began))
        finally:
            self._waiting.give_back(client)
        if not found:
            raise _invalid()
        return found

    async def _first_that_fits(self, asked: SignedRequest, session_ids: Iterable[str]) -> str:
        pace = Pace()
        for number, session_id in enumerate(session_ids, 1):
            if any(asked.is_signed_with(token) for token in self._tokens_of(session_id)):
                return session_id
            if number % _STEP == 0:
                await pace.give_way()
        return ""

    def _tokens_of(self, session_id: str) -> list[str]:
        tokens = self._known.get(session_id)
        if tokens is None:
            tokens = self._known[session_id] = self._tokens.accepted(Opens.ACCESS, session_id)
        return tokens


def _invalid() -> Unauthorized:
    return Unauthorized("invalid signature", remedy="make the URL with the SDK, for this path, operation and user")
