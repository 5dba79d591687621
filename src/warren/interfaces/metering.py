"""What sessions need from tenancy: metering of sandboxes, and counts of new sessions."""

from collections.abc import Coroutine
from typing import Any, Protocol

from warren.interfaces.sandbox import Sandbox
from warren.model.access import Caller
from warren.model.session import Session


class Metering(Protocol):
    """Every method is called only with the caller whose request is being served."""

    def sandbox(self, session: Session, sandbox: Sandbox) -> Sandbox:
        """Wraps the sandbox for the session's caller: policies, quotas and turns apply to its commands."""
        ...

    async def count_create(self, caller: Caller) -> None:
        """Counts a new session. Raises RateLimited if the caller has made too many recently."""
        ...

    async def check_network(self, caller: Caller) -> None:
        """Raises QuotaExceeded if the caller's sandboxes have used up the bytes that they may exchange today."""
        ...

    def report_limit(self, caller: Caller, quota: str) -> None:
        """Publishes that the caller was refused because of this quota."""
        ...

    async def take_over(self, session: Session, sandbox: Sandbox) -> None:
        """Meters the commands that still run in the session after a restart."""
        ...

    def follow(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Runs `work` until it ends or metering is closed."""
        ...
