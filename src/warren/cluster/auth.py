"""How coordinators and workers authenticate each other, and how a coordinator tells a worker who the caller is.

Every request between them carries the cluster's secret. Over TLS with a common authority both also show certificates;
the secret is required even then.
"""

import hashlib
import hmac
import json
from functools import lru_cache
from typing import Final

from warren.access.identity import Headers
from warren.access.keys import looks_like_key
from warren.cluster.roster import PROTOCOL
from warren.model.access import Caller, Quota, Scope
from warren.model.errors import Conflict, Unauthorized

SECRET_HEADER: Final = b"x-warren-cluster"
PROTOCOL_HEADER: Final = b"x-warren-protocol"
CALLER_HEADER: Final = b"x-warren-caller"
CLIENT_HEADER: Final = b"x-warren-client"
SCHEME_HEADER: Final = b"x-warren-scheme"
SESSION_HEADER: Final = b"x-warren-session"
PATIENCE_HEADER: Final = b"x-warren-patience"
PAGE_HEADER: Final = b"x-warren-page-mark"


def sealing_key(secret: str) -> str:
    """Returns the key that a cluster without WARREN_SECRETS_KEY encrypts secrets with: 64 hexadecimal digits."""
    return hashlib.sha256(b"warren sealing:" + secret.encode()).hexdigest()


class ClusterAuth:
    """Sends the cluster's secret, and checks it. During a change of the secret, `others` are accepted as well."""

    def __init__(self, secret: str, *others: str) -> None:
        self._secret = secret.encode()
        self._accepted = [one.encode() for one in (secret, *others)]

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(SECRET_HEADER, self._secret), (PROTOCOL_HEADER, b"%d" % PROTOCOL)]

    def check(self, headers: Headers) -> None:
        """Raises Unauthorized if the secret is wrong, Conflict if the protocol is another."""
        values = dict(headers)
        given = values.get(SECRET_HEADER, b"")
        if not any(hmac.compare_digest(given, secret) for secret in self._accepted):
            raise Unauthorized(
                "this is a worker: it serves the coordinators of its cluster, who know the cluster's secret",
                remedy="ask a coordinator; between them, give both the same WARREN_CLUSTER_SECRET",
            )
        protocol = values.get(PROTOCOL_HEADER, b"none")
        if protocol != b"%d" % PROTOCOL:
            raise Conflict(
                f"the request uses protocol {protocol[:20].decode('latin-1')}, this process uses protocol {PROTOCOL}",
                remedy="run the same version of Warren on all machines of the cluster",
            )


class CoordinatorIdentity:
    """The Identity of a worker: the coordinator has authenticated the caller, and names it in a header."""

    def __init__(self, auth: ClusterAuth) -> None:
        self._auth = auth

    async def caller(self, headers: Headers) -> Caller:
        self._auth.check(headers)
        text = dict(headers).get(CALLER_HEADER)
        if text is None:
            raise Unauthorized("the request does not name its caller")
        return decode_caller(text)

    async def check_again(self, headers: Headers) -> None:
        """Does nothing: the coordinator checks again, and ends the request if the caller is no longer valid."""

    def is_credential(self, text: str) -> bool:
        """The coordinator has taken out what else is a credential."""
        return looks_like_key(text)


def encode_caller(caller: Caller) -> bytes:
    return caller.as_json


@lru_cache(maxsize=4096)
def decode_caller(text: bytes) -> Caller:
    values = json.loads(text)
    return Caller(
        values["tenant"],
        values["key_id"],
        frozenset(map(Scope, values["scopes"])),
        Quota.from_mapping(values.get("quota", {})),
        Quota.from_mapping(values.get("key_quota", {})),
    )
