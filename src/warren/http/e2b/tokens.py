"""Tokens with which E2B's clients use one sandbox: they say which, and are signed with the installation's key.

The access token opens commands and files (envd), the traffic token the code interpreter and ports that are not public.
They are valid as long as the sandbox lives. Nothing is stored. The address to which files of a template are uploaded is
signed in the same way, for a while, and so is the token that opens what is in one volume.
"""

import hmac
import json
import re
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from warren.kernel.signing import Signer, from_text, to_text
from warren.model.e2b import sandbox_id_of, session_id_of
from warren.model.errors import Unauthorized

_PURPOSE: Final = b"warren e2b tokens"
_MAC_BYTES: Final = 20
VOLUME_PREFIX: Final = "wvt_"
_TOKEN: Final = re.compile(r"(wet|wtt)_([0-9a-f]{32})_([0-9a-f]{40})", re.ASCII)


class Opens(StrEnum):
    """What a token opens; it begins with this."""

    ACCESS = "wet"
    TRAFFIC = "wtt"


class Upload(NamedTuple):
    """Who may upload which files. `files_hash` names the archive, and `expires` is in seconds since the epoch."""

    expires: int
    tenant: str
    key_id: str
    files_hash: str


class VolumeGrant(NamedTuple):
    """Who may read what is in which volume, and write it if `writes`. `expires` as for an Upload."""

    expires: int
    tenant: str
    key_id: str
    volume: str
    writes: bool


class SandboxTokens:
    """`secrets` are keys of the installation: the first signs, and all are accepted."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._signer = Signer(secrets, _PURPOSE, _MAC_BYTES)

    def __repr__(self) -> str:
        return "<SandboxTokens>"

    def sign(self, opens: Opens, session_id: str) -> str:
        return self.accepted(opens, session_id)[0]

    def check(self, text: str, opens: Opens, session_id: str) -> None:
        """Raises Unauthorized for a token that does not open this sandbox."""
        if not self.opens(text, opens, session_id):
            raise Unauthorized("this token does not open this sandbox", remedy="connect to the sandbox again")

    def opens(self, text: str, opens: Opens, session_id: str) -> bool:
        given = text.encode(errors="replace")
        return any(hmac.compare_digest(given, one.encode()) for one in self.accepted(opens, session_id))

    def accepted(self, opens: Opens, session_id: str) -> list[str]:
        """Returns all tokens that open this sandbox, first the one that is given out."""
        sandbox_id = sandbox_id_of(session_id)
        macs = self._signer.macs(f"{opens} {sandbox_id}".encode())
        return [f"{opens}_{sandbox_id}_{mac.hex()}" for mac in macs]

    def sign_upload(self, upload: Upload) -> str:
        return self._sign("upload", upload)

    def read_upload(self, text: str) -> Upload:
        """Raises Unauthorized for what was not signed, or has expired."""
        if (values := self._read("upload", text)) is None:
            raise Unauthorized("this address for uploads is not valid (any more)", remedy="build the template again")
        return Upload(*values)

    def sign_volume(self, grant: VolumeGrant) -> str:
        return VOLUME_PREFIX + self._sign("volume", grant)

    def read_volume(self, text: str) -> VolumeGrant:
        """Raises Unauthorized for what was not signed, or has expired."""
        values = self._read("volume", text[len(VOLUME_PREFIX) :]) if text.startswith(VOLUME_PREFIX) else None
        if values is None:
            raise Unauthorized("this token opens no volume (any more)", remedy="connect to the volume again")
        return VolumeGrant(*values)

    def _sign(self, kind: str, values: Upload | VolumeGrant) -> str:
        text = to_text(json.dumps(values).encode())
        return f"{text}.{self._macs(kind, text)[0]}"

    def _read(self, kind: str, text: str) -> list[Any] | None:
        """Returns values, of which the first says when they expire; None if they were not signed, or have expired."""
        body, _, mac = text.partition(".")
        given = mac.encode(errors="replace")
        if not any(hmac.compare_digest(given, right.encode()) for right in self._macs(kind, body)):
            return None
        values: list[Any] = json.loads(from_text(body))
        return values if values[0] > time.time() else None

    def _macs(self, kind: str, text: str) -> list[str]:
        return [mac.hex() for mac in self._signer.macs(f"{kind} {text}".encode(errors="replace"))]


def session_named_in(token: str) -> str:
    """Returns the id of the session that a token says it opens, unchecked; "" if it is no token of ours."""
    match = _TOKEN.fullmatch(token)
    return session_id_of(match[2]) if match else ""
