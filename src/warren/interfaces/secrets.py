"""The source of the secrets that sessions name."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from warren.model.secrets import BoundSecret

SecretChanged = Callable[[str, str], Awaitable[None]]
"""Called with the tenant and the name of a secret."""


class SecretSource(Protocol):
    """`find` returns the tenant's secrets with these names, in the same order. It leaves out those that do not exist,
    have expired, or cannot be decrypted with this server's key. `versions` maps the name of each existing secret to a
    text that changes whenever the secret changes. Both raise Unavailable while the store cannot be reached.
    `when_changed` subscribes to the secrets that this process sets or deletes."""

    async def find(self, tenant: str, names: Sequence[str]) -> Sequence[BoundSecret]: ...
    async def versions(self, tenant: str, names: Sequence[str]) -> dict[str, str]: ...
    def when_changed(self, call: SecretChanged) -> None: ...


class NoSecrets:
    """The source of a server without secrets."""

    async def find(self, tenant: str, names: Sequence[str]) -> Sequence[BoundSecret]:
        return ()

    async def versions(self, tenant: str, names: Sequence[str]) -> dict[str, str]:
        return {}

    def when_changed(self, call: SecretChanged) -> None:
        pass
