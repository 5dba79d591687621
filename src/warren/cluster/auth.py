"""How coordinators and workers know each other, and how a coordinator says for whom it asks.

Every request between them carries the cluster's secret. Over TLS with a common authority both also show certificates;
the secret is asked for all the same.
"""

import hashlib
import hmac
import json
from functools import lru_cache
from typing import Any, Final

from warren.cluster.members import PROTOCOL
from warren.model.access import Caller, Quota, Scope
from warren.model.errors import Conflict, Unauthorized
from warren.tenancy.identity import Headers

SECRET: Final = b"x-warren-cluster"
CALLER: Final = b"x-warren-caller"
CLIENT: Final = b"x-warren-client"
SCHEME: Final = b"x-warren-scheme"
SESSION: Final = b"x-warren-session"
PATIENCE: Final = b"x-warren-patience"
SPOKEN: Final = b"x-warren-protocol"


def sealing_key(secret: str) -> str:
    """What a cluster seals secrets with, if it was not given a key for that: 64 hexadecimal digits."""
    return hashlib.sha256(b"warren sealing:" + secret.encode()).hexdigest()


class ClusterAuth:
    """The cluster's secret, to show and to check."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(SECRET, self._secret), (SPOKEN, b"%d" % PROTOCOL)]

    def check(self, headers: Headers) -> None:
        """Raises Unauthorized, or Conflict for somebody who is of the cluster and of another time."""
        given = dict(headers)
        if not hmac.compare_digest(given.get(SECRET, b""), self._secret):
            raise Unauthorized(
                "this is a worker: it serves the coordinators of its cluster, who know the cluster's secret",
                remedy="ask a coordinator; between them, give both the same WARREN_CLUSTER_SECRET",
            )
        if given.get(SPOKEN) != b"%d" % PROTOCOL:
            spoken = given.get(SPOKEN, b"none")[:20].decode("latin-1")
            raise Conflict(
                f"protocol {spoken} was spoken, and protocol {PROTOCOL} is understood here",
                remedy="run the same version of Warren on all machines of the cluster",
            )


class Trusted:
    """Identity on a worker: a coordinator has found out who the caller is, and says so."""

    def __init__(self, auth: ClusterAuth) -> None:
        self._auth = auth

    async def caller(self, headers: Headers) -> Caller:
        self._auth.check(headers)
        text = dict(headers).get(CALLER)
        if text is None:
            raise Unauthorized("it is not said for whom this is asked")
        return read_caller(text)


def written_caller(caller: Caller) -> bytes:
    values: dict[str, Any] = {"tenant": caller.tenant, "key_id": caller.key_id, "scopes": sorted(caller.scopes)}
    for name, quota in (("quota", caller.quota), ("key_quota", caller.key_quota)):
        if mapping := quota.as_mapping():
            values[name] = mapping
    return json.dumps(values, separators=(",", ":")).encode()


@lru_cache(maxsize=4096)
def read_caller(text: bytes) -> Caller:
    values = json.loads(text)
    return Caller(
        values["tenant"],
        values["key_id"],
        frozenset(map(Scope, values["scopes"])),
        _quota(values.get("quota")),
        _quota(values.get("key_quota")),
    )


def _quota(values: Any) -> Quota:
    return Caller().quota if values is None else Quota.from_mapping(values)
