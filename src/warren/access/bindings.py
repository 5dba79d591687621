"""What a page session or a ticket stands on: the credential with which somebody made it.

A binding is kept with what was made. It contains no credential, only what tells whether the credential is still valid:
for a key the stored hash of its secret, for a token its claims. So whatever was made with a credential ends with it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from warren.model.access import Caller


class BoundBy(StrEnum):
    """What a binding rests on. NOTHING: the server asks nobody for credentials. ADMIN: the key that the configuration
    names."""

    KEY = "key"
    TOKEN = "token"
    ADMIN = "admin"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Binding:
    """The credential that a page session, code or ticket was made with. `proof` changes when a key gets another secret.
    `claims` and `scopes` are those of a token."""

    by: BoundBy
    tenant: str
    key_id: str
    proof: str = ""
    scopes: tuple[str, ...] = ()
    claims: Mapping[str, Any] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """Returns one name for everything that was made with one key, or with the tokens of one subject."""
        return f"{self.tenant} {self.key_id}"

    @property
    def expires_at(self) -> float | None:
        """Returns when the token expires; None for a key, whose expiry is checked at each use."""
        return self.claims.get("exp")

    def as_mapping(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Binding":
        return cls(**{**values, "by": BoundBy(values["by"]), "scopes": tuple(values["scopes"])})


@dataclass(frozen=True, slots=True)
class Grant:
    """Lets a request in as `caller`. `check_again` raises Unauthorized once the credential is not valid any more.
    `is_page`: the request comes from a signed-in page of this server."""

    caller: Caller
    binding: Binding
    check_again: Callable[[], Awaitable[None]]
    is_page: bool = False
    expires_at: float | None = None
