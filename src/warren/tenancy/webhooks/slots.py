"""How many deliveries go on at once: a slow receiver holds up neither other receivers nor other tenants."""

from collections import Counter
from typing import Final

AT_ONCE: Final = 16
OF_A_TENANT: Final = 4
OF_A_WEBHOOK: Final = 2


class DeliverySlots:
    def __init__(self) -> None:
        self._tenants: Counter[str] = Counter()
        self._hooks: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Places: {self._hooks.total()} of {AT_ONCE} taken>"

    def free(self, tenant: str, hook_id: str) -> bool:
        taken = self._hooks.total(), self._tenants[tenant], self._hooks[hook_id]
        return all(count < most for count, most in zip(taken, (AT_ONCE, OF_A_TENANT, OF_A_WEBHOOK), strict=True))

    @property
    def full(self) -> bool:
        return self._hooks.total() >= AT_ONCE

    def take(self, tenant: str, hook_id: str) -> None:
        self._tenants[tenant] += 1
        self._hooks[hook_id] += 1

    def give_back(self, tenant: str, hook_id: str) -> None:
        self._tenants -= Counter((tenant,))
        self._hooks -= Counter((hook_id,))
