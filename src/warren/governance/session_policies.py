"""Applies the command policies of a session: its environment's and its tenant's, both of which must allow a command."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from warren.access.tenants import Tenant
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.logs import get_log
from warren.model.environment import Environment
from warren.model.errors import WarrenError
from warren.model.operations import Command, ExecResult
from warren.model.policy import Policy, PolicyMode
from warren.model.session import Session
from warren.sessions.request_context import note

if TYPE_CHECKING:
    from warren.governance.policy import PolicyVerdict

_SHORT: Final = 128  # characters; judging a longer command may take a good part of a second and needs a thread
_THREADS: Final = 2
_CACHED: Final = 1024
_CACHED_S: Final = 1.0

_log = get_log(__name__)


class Policies:
    def __init__(
        self, environments: Callable[[str], Environment], tenant_of: Callable[[str], Awaitable[Tenant]]
    ) -> None:
        self._environments = environments
        self._tenant_of = tenant_of
        self._judging = asyncio.Semaphore(_THREADS)
        self._known: dict[str, tuple[Policy, float]] = {}  # by environment: its policy, and until when that is fresh
        self._verdicts = BoundedDict[tuple[Policy, tuple[str, ...], str], "PolicyVerdict"](_CACHED)

    async def refused(self, session: Session, command: Command) -> ExecResult | None:
        """Returns the result of a command that may not run, else None. In the mode `audit` it only notes the rule."""
        for policy in (self._of_environment(session.environment), (await self._tenant_of(session.tenant)).policy):
            if policy.mode is PolicyMode.OFF:
                continue
            verdict = await self._verdict(policy, command.as_judged())
            if verdict.rule:
                note(policy="would refuse" if verdict.allowed else "refused", rule=verdict.rule)
            if not verdict.allowed:
                from warren.governance.policy import refusal

                return refusal(verdict)
        return None

    async def _verdict(self, policy: Policy, command: Command) -> "PolicyVerdict":
        """Returns a verdict from the cache or judges the command. Verdicts about commands with variables are not
        cached: the variables matter too, and may be secrets."""
        if command.env or command.base_env or _length(command) > _SHORT:
            return await self._judge(policy, command)
        asked = policy, command.argv, command.shell
        verdict = self._verdicts.get(asked)
        if verdict is None:
            verdict = self._verdicts[asked] = await self._judge(policy, command)
        else:
            self._verdicts.move_to_end(asked)
        return verdict

    async def _judge(self, policy: Policy, command: Command) -> "PolicyVerdict":
        """Judges a command. If that fails the command is refused, unless the policy only audits."""
        from warren.governance.policy import PolicyVerdict, judge

        try:
            if _length(command) > _SHORT:
                async with self._judging:
                    return await asyncio.to_thread(judge, policy, command)
            return judge(policy, command)
        except Exception as exc:
            _log.error("command_not_judged", exc=exc)
            allowed = policy.mode is PolicyMode.AUDIT
            return PolicyVerdict(
                allowed, "cannot be judged", "the command could not be judged; the server's log says why"
            )

    def _of_environment(self, name: str) -> Policy:
        """Returns an environment's policy. If the environment is no longer in the registry, or cannot be read, its last
        policy still holds."""
        known, now = self._known.get(name), time.monotonic()
        if known is not None and now < known[1]:
            return known[0]
        try:
            policy = self._environments(name).policy
        except WarrenError:
            if known is None:
                raise
            policy = known[0]
        self._known[name] = policy, now + _CACHED_S
        return policy


def _length(command: Command) -> int:
    return len(command.shell) + sum(len(word) + 1 for word in command.argv)
