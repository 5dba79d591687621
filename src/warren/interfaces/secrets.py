"""Where sessions get the secrets that they name."""

from collections.abc import Sequence
from typing import Protocol

from warren.model.secrets import BoundSecret


class SecretSource(Protocol):
    """`find` gives the secrets of a tenant that have these names, in the same order; those that do not exist, have
    expired or cannot be read with this server's key are left out. `versions` gives of each that exists a text that
    changes whenever the secret does. Both raise Unavailable while the store is away.
    """

    async def find(self, tenant: str, names: Sequence[str]) -> Sequence[BoundSecret]: ...
    async def versions(self, tenant: str, names: Sequence[str]) -> dict[str, str]: ...


class NoSecrets:
    """For a server that keeps none."""

    async def find(self, tenant: str, names: Sequence[str]) -> Sequence[BoundSecret]:
        return ()

    async def versions(self, tenant: str, names: Sequence[str]) -> dict[str, str]:
        return {}
