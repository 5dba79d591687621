"""Browsers that are signed in, and the one-time codes with which `warren ui` signs them in.

A page session is bound to the key or token that it was made with: it ends when that is revoked, rotated or expires, at
the latest after LASTS_S, and when it was not used for IDLE_S. Its token is a cookie of the browser.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from warren.access.bindings import Binding, Grant
from warren.access.identity import BindingIdentity
from warren.access.opaque_tokens import OpaqueTokens
from warren.interfaces.records import RecordStore
from warren.kernel.clock import Clock
from warren.model.access import Caller
from warren.model.errors import Unauthorized, WarrenError

LASTS_S: Final = 12 * 3600.0
IDLE_S: Final = 2 * 3600.0
CODE_S: Final = 300.0
MAX_OF_KEY: Final = 50
MAX_CODES: Final = 20
_USED_AT_S: Final = 300.0  # the precision of `used_at`
_SIGNED_OUT: Final = "you are not signed in any more"
_REMEDY: Final = "sign in again: with a key, or with a link that `warren ui` prints"


@dataclass(frozen=True, slots=True)
class PageSession:
    binding: Binding
    used_at: float
    expires_at: float

    def as_mapping(self) -> dict[str, Any]:
        return {"binding": self.binding.as_mapping(), "used_at": self.used_at, "expires_at": self.expires_at}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "PageSession":
        return cls(Binding.from_mapping(values["binding"]), values["used_at"], values["expires_at"])


class PageSessions:
    def __init__(self, records: RecordStore, clock: Clock, identity: BindingIdentity) -> None:
        self._clock = clock
        self._identity = identity
        self._sessions = OpaqueTokens(records, clock, "page_session", "wps_", MAX_OF_KEY)
        self._codes = OpaqueTokens(records, clock, "sign_in_code", "wsc_", MAX_CODES)

    def __repr__(self) -> str:
        return f"<PageSessions {self._sessions!r}>"

    async def sign_in(self, binding: Binding, old_token: str = "") -> tuple[str, PageSession]:
        """Returns a new token with its page session, and ends that of the token that the browser had before. Raises
        Unauthorized."""
        await self._identity.bound_caller(binding)
        if old_token:
            await self._sessions.withdraw(old_token)
        now = self._clock.wall()
        expires_at = now + LASTS_S
        if binding.expires_at is not None:
            expires_at = min(expires_at, binding.expires_at)
        session = PageSession(binding, now, expires_at)
        return await self._sessions.issue(session.as_mapping(), expires_at, binding.owner), session

    async def grant(self, token: str) -> Grant:
        """Lets in a request of a signed-in page. Raises Unauthorized."""
        session = await self._find(token)
        caller = await self._caller(session)
        now = self._clock.wall()
        if now - session.used_at >= _USED_AT_S:
            await self._note_use(token, PageSession(session.binding, now, session.expires_at))
        check = partial(self._check_again, token)
        return Grant(caller, session.binding, check, is_page=True, expires_at=session.expires_at)

    async def sign_out(self, token: str) -> None:
        await self._sessions.withdraw(token)

    async def sign_out_everywhere(self, binding: Binding) -> None:
        """Ends every page session of this key, or of the tokens of this subject, and the codes that would make more."""
        # The codes first, so that none is left to sign in with after the sessions have ended.
        await self._codes.withdraw_all(binding.owner)
        await self._sessions.withdraw_all(binding.owner)

    async def make_code(self, binding: Binding) -> tuple[str, float]:
        expires_at = self._clock.wall() + CODE_S
        return await self._codes.issue({"binding": binding.as_mapping()}, expires_at, binding.owner), expires_at

    async def use_code(self, code: str) -> Binding:
        """Returns the binding of a code, which then is used up. Raises Unauthorized, with the same message for every
        code that is not valid, or not any more."""
        value = await self._codes.take(code)
        if value is None:
            raise Unauthorized(
                "this sign-in link is not valid: it works once, for five minutes", remedy="make a new one: `warren ui`"
            )
        return Binding.from_mapping(value["binding"])

    async def _find(self, token: str) -> PageSession:
        value = await self._sessions.look_up(token)
        session = None if value is None else PageSession.from_mapping(value)
        if session is None or self._clock.wall() - session.used_at >= IDLE_S:
            raise Unauthorized(_SIGNED_OUT, remedy=_REMEDY)
        return session

    async def _caller(self, session: PageSession, *, expired: bool = False) -> Caller:
        try:
            return await self._identity.bound_caller(session.binding, expired=expired)
        except Unauthorized:
            raise Unauthorized(_SIGNED_OUT, remedy=_REMEDY) from None

    async def _check_again(self, token: str) -> None:
        await self._caller(await self._find(token), expired=True)

    async def _note_use(self, token: str, session: PageSession) -> None:
        try:
            await self._sessions.change(token, session.as_mapping())
        except WarrenError:
            return
