"""The logs of sessions, as those see them who read and delete them."""

from collections.abc import Collection
from typing import Protocol

from warren.model.session_log import LogPage


class SessionLogs(Protocol):
    """What sessions did, by tenant and session id, also of sessions that are forgotten.

    `read` returns entries after the number `after`, at most `limit` of them and fewer if they are long; with `last` the
    newest so many instead. It raises SessionNotFound if there is neither such a session nor a log of one, and
    Unavailable if another worker keeps the log. A log that is off has an empty page.
    `wait` returns when the log has entries after `after`, its session has ended, or the time is over.
    `delete` removes what was logged so far, and does nothing for a session without a log; it raises SessionNotFound as
    `read` does. A session that runs goes on with an empty log.
    """

    async def read(
        self,
        tenant: str,
        session_id: str,
        *,
        after: int = 0,
        limit: int = 100,
        kinds: Collection[str] = (),
        last: int | None = None,
    ) -> LogPage: ...
    async def wait(self, tenant: str, session_id: str, after: int, timeout_s: float) -> None: ...
    async def delete(self, tenant: str, session_id: str) -> None: ...
    async def used_bytes(self, tenant: str | None) -> int: ...
