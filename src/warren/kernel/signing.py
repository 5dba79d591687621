"""Signatures of the installation: links to previews, tokens of E2B's clients, addresses to upload to.

A `Signer` serves one purpose and derives keys of its own for it: what was signed for one purpose is worth nothing for
another. Each kind of token has its own format, in its own module. Tokens that were given out stay valid, so formats do
not change; that is why this is not `itsdangerous`, whose signatures are other ones (docs/adr/0039).
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence


class Signer:
    """`secrets` are keys of the installation: the first signs, and all are accepted. A signature is the first
    `mac_bytes` bytes of an HMAC-SHA-256."""

    def __init__(self, secrets: Sequence[bytes], purpose: bytes, mac_bytes: int) -> None:
        self._keys = [hmac.digest(secret, purpose, hashlib.sha256) for secret in secrets]
        self._mac_bytes = mac_bytes

    def macs(self, message: bytes) -> list[bytes]:
        """Returns all accepted signatures of the message. The first is the one to give out."""
        return [hmac.digest(key, message, hashlib.sha256)[: self._mac_bytes] for key in self._keys]

    def accepts(self, mac: bytes, message: bytes) -> bool:
        return any(hmac.compare_digest(mac, right) for right in self.macs(message))


def to_text(data: bytes) -> str:
    """Returns the bytes as base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def from_text(text: str) -> bytes:
    """Reads the one spelling that `to_text` writes. Raises ValueError for any other."""
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if to_text(data) != text:
        raise ValueError("this is not how the bytes are written")
    return data
