"""Encrypts the secrets in a store with a key that is kept elsewhere.

AES-256-GCM, with a new nonce each time. A text encrypted for one purpose (a session's id) is decrypted only for it.
While a key is being changed there are several: one encrypts, and all decrypt.
"""

import base64
import os
import secrets
from pathlib import Path
from typing import Final

from warren.model.errors import InvalidRequest, Unavailable

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_REMEDY: Final = "start it with the key they were sealed with (WARREN_SECRETS_KEY, or the file in the state directory)"


class Encryption:
    def __init__(self, key: bytes, *others: bytes) -> None:
        """Encrypts with `key`, and decrypts with the others as well."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(key)
        self._all = (self._cipher, *map(AESGCM, others))

    def __repr__(self) -> str:
        return "<Encryption>"

    def encrypt(self, text: str, purpose: str) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        encrypted = self._cipher.encrypt(nonce, text.encode(errors="surrogatepass"), purpose.encode())
        return base64.b64encode(nonce + encrypted).decode()

    def decrypt(self, encrypted: str, purpose: str) -> str:
        """Returns the text. Raises Unavailable if it was encrypted with another key, or for another purpose."""
        from cryptography.exceptions import InvalidTag

        raw = base64.b64decode(encrypted)
        for cipher in self._all:
            try:
                text = cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], purpose.encode())
            except InvalidTag:
                continue
            return text.decode(errors="surrogatepass")
        raise Unavailable("stored secrets cannot be read with this server's key", remedy=_REMEDY)

    def renew(self, encrypted: str, purpose: str) -> str:
        """Returns the text as the first key encrypts it: unchanged if it was encrypted with that key."""
        from cryptography.exceptions import InvalidTag

        raw = base64.b64decode(encrypted)
        try:
            self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], purpose.encode())
        except InvalidTag:
            return self.encrypt(self.decrypt(encrypted, purpose), purpose)
        return encrypted


def decrypt(encryption: Encryption | None, encrypted: str, purpose: str) -> str:
    if encryption is None:
        raise Unavailable("stored secrets are sealed, and this server has no key for them", remedy=_REMEDY)
    return encryption.decrypt(encrypted, purpose)


def read_key(text: str) -> bytes:
    """Parses a key as it is configured: 64 hexadecimal digits. Raises InvalidRequest."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidRequest("the secrets key is not right", remedy="make one: openssl rand -hex 32")
    return key


def key_in(path: Path) -> bytes:
    """Reads the key from a file that only this user can read; makes the file if there is none."""
    try:
        # O_EXCL: of two processes that start at once only one makes the key; the other reads it.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return read_key(path.read_text().strip())
    with os.fdopen(fd, "w") as file:
        file.write(secrets.token_hex(KEY_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return read_key(path.read_text().strip())
