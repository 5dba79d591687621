"""Signatures by which a receiver knows that a webhook is ours, fresh and unchanged: those of Standard Webhooks.

Signed is `id.timestamp.body` with HMAC-SHA256. While a secret is being changed, a message carries a signature
for the old one and one for the new one, and the receiver needs to know either.
"""

import base64
import binascii
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from warren.model.errors import InvalidRequest, Unauthorized

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
TOLERANCE_S: Final = 300
_PREFIX: Final = "whsec_"
_VERSION: Final = "v1,"
_NEW_BYTES, _FEWEST_BYTES, _MOST_BYTES = 32, 24, 64
_IDS: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")  # no dot: it separates the id from the timestamp
_SECONDS: Final = re.compile(r"[0-9]{1,12}")


def new_secret() -> str:
    return _PREFIX + base64.b64encode(secrets.token_bytes(_NEW_BYTES)).decode()


def read_secret(text: str) -> bytes:
    """The key that a secret stands for. The error does not repeat the secret."""
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(_PREFIX) or not _FEWEST_BYTES <= len(key) <= _MOST_BYTES:
        raise InvalidRequest(
            f"the secret of a webhook is {_PREFIX} and the base64 of {_FEWEST_BYTES} to {_MOST_BYTES} bytes",
            remedy="leave it out, and one is made",
        )
    return key


def sign(keys: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a message: signed once with each of the secrets, the newest first."""
    if not _IDS.fullmatch(message_id) or timestamp < 0 or not keys:
        raise ValueError("signing needs an id of letters, digits, _ and -, a time after 1970 and a secret")
    signatures = [_signature(read_secret(key), message_id, str(timestamp), body) for key in keys]
    return {ID: message_id, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(signatures)}


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float, tolerance_s: float = TOLERANCE_S) -> None:
    """Raises Unauthorized unless one of the signatures is right and the message is of now, give or take.

    A message that was recorded and is sent again within the tolerance passes: remember ids for that long.
    """
    given = {name.lower(): value for name, value in headers.items()}
    message_id, timestamp = given.get(ID, ""), given.get(TIMESTAMP, "")
    if not _IDS.fullmatch(message_id) or not _SECONDS.fullmatch(timestamp):
        raise Unauthorized(f"a webhook has the headers {ID}, {TIMESTAMP} and {SIGNATURE}")
    expected = _signature(read_secret(secret), message_id, timestamp, body).encode()
    right = [hmac.compare_digest(expected, one.encode(errors="replace")) for one in given.get(SIGNATURE, "").split(" ")]
    if not any(right):
        raise Unauthorized("the signature of the webhook is not right", remedy="compare the secrets of both sides")
    if abs(now - int(timestamp)) > tolerance_s:
        raise Unauthorized(f"the webhook is not of the last {tolerance_s:g} s", remedy="compare the clocks")


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    content = b".".join((message_id.encode(), timestamp.encode(), body))
    return _VERSION + base64.b64encode(hmac.digest(key, content, "sha256")).decode()
