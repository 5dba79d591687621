"""Signatures by which a receiver knows that a webhook is ours, fresh and unchanged: those of Standard Webhooks.

While a secret is being changed, a message carries a signature for the old one and one for the new one, and the receiver
needs to know either. docs/webhooks.md shows how a receiver checks them.
"""

import base64
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from standardwebhooks import Webhook

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
_IDS: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")  # no dot: it separates the id from the timestamp


def new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def sign(keys: Sequence[str], message_id: str, timestamp: int, body: str) -> dict[str, str]:
    """Returns the headers of a message, with a signature for each of the secrets, the newest first."""
    if not _IDS.fullmatch(message_id) or timestamp < 0 or not keys:
        raise ValueError("signing needs an id of letters, digits, _ and -, a time after 1970 and a secret")
    at = datetime.fromtimestamp(timestamp, UTC)
    signatures = [Webhook(key).sign(message_id, at, body) for key in keys]
    return {ID: message_id, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(signatures)}
