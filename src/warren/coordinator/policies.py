"""Which command policies hold for a session: its environment's and its tenant's; both must allow a command."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from warren.coordinator.asking import note
from warren.model.environment import Environment
from warren.model.errors import WarrenError
from warren.model.operations import Command, ExecResult
from warren.model.policy import Policy, PolicyMode
from warren.model.session import Session

_AT_ONCE: Final = 8 * 1024  # longer command lines are judged in a thread

PolicyOfTenant = Callable[[str], Awaitable[Policy]]


class Policies:
    def __init__(self, environments: Callable[[str], Environment], of_tenant: PolicyOfTenant) -> None:
        self._environments = environments
        self._of_tenant = of_tenant
        self._known: dict[str, Policy] = {}

    async def refused(self, session: Session, command: Command) -> ExecResult | None:
        """The result of a command that may not be run. In the mode `audit` it is only noted."""
        policies = [self._of_environment(session.environment), await self._of_tenant(session.tenant)]
        for policy in _in_force(policies):
            from warren.coordinator.policy import judge, refusal

            if len(command.shell) > _AT_ONCE:
                verdict = await asyncio.to_thread(judge, policy, command)
            else:
                verdict = judge(policy, command)
            if verdict.rule:
                note(policy="would refuse" if verdict.allowed else "refused", rule=verdict.rule)
            if not verdict.allowed:
                return refusal(verdict)
        return None

    def _of_environment(self, name: str) -> Policy:
        """Of an environment that is gone from the registry, or cannot be read, what it said last still holds."""
        try:
            policy = self._known[name] = self._environments(name).policy
        except WarrenError:
            if name not in self._known:
                raise
            policy = self._known[name]
        return policy


def _in_force(policies: list[Policy]) -> Iterator[Policy]:
    return (policy for policy in policies if policy.mode is not PolicyMode.OFF)
