"""What sessions ask of tenancy: to meter what a sandbox is used for, and to count new sessions."""

from collections.abc import Coroutine
from typing import Any, Protocol

from warren.interfaces.sandbox import Sandbox
from warren.model.access import Caller
from warren.model.session import Session


class Metering(Protocol):
    """Nothing here is called with a caller other than the one whose request is being served."""

    def sandbox(self, session: Session, sandbox: Sandbox) -> Sandbox:
        """The sandbox as the session's caller may use it: policies, quotas and turns apply to its commands."""
        ...

    async def count_create(self, caller: Caller) -> None:
        """Raises RateLimited when the caller has made too many sessions of late."""
        ...

    async def check_network(self, caller: Caller) -> None:
        """Raises QuotaExceeded when the bytes that the caller's sandboxes may exchange on this day are used up."""
        ...

    def report_limit(self, caller: Caller, quota: str) -> None:
        """The caller was refused because of this quota."""
        ...

    async def take_over(self, session: Session, sandbox: Sandbox) -> None:
        """After a restart: meters the commands that still run in the session."""
        ...

    def follow(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Runs `work` until it ends or metering is closed."""
        ...
