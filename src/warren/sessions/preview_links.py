"""Links that open one port of one session for a time, without a key of the API.

The token of a link says what it opens and until when, and is signed with a key that all processes of an installation
derive from the key of their secrets. Raising the session's generation revokes all of its links.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from warren.kernel.signing import Signer, from_text, to_text
from warren.model.addresses import is_loopback
from warren.model.errors import Unauthorized
from warren.model.preview import LOCALHOST, TOKEN_PARAMETER, Preview, preview_host

LONGEST_LINK_S: Final = 30 * 86400
_PURPOSE: Final = b"warren preview links"
_MAC_BYTES: Final = 24
_MAX_TOKEN: Final = 512


@dataclass(frozen=True, slots=True)
class Link:
    tenant: str
    session_id: str
    port: int
    expires_at: int
    generation: int
    local_host: bool = False

    def opens(self, preview: Preview) -> bool:
        return (self.session_id, self.port) == (preview.session_id, preview.port)


class PreviewLinks:
    """`secrets` are keys of the installation: the first signs, and all are accepted. `domain` is that of previews;
    without one, links use `localhost` where the server is reached so, and the path form elsewhere."""

    def __init__(self, secrets: Sequence[bytes], domain: str = "", *, public_allowed: bool = False) -> None:
        self._signer = Signer(secrets, _PURPOSE, _MAC_BYTES)
        self.domain = domain
        self.public_allowed = public_allowed

    def __repr__(self) -> str:
        return f"<PreviewLinks {self.domain or LOCALHOST}>"

    def sign(self, link: Link) -> str:
        values = link.expires_at, link.generation, link.port, int(link.local_host), link.session_id, link.tenant
        payload = " ".join(map(str, values)).encode()
        return f"{to_text(payload)}.{to_text(self._signer.macs(payload)[0])}"

    def read(self, token: str, now: float) -> Link:
        """Raises Unauthorized, with the same words for everything but a link that has expired."""
        payload, _, mac = token.partition(".")
        try:
            if len(token) > _MAX_TOKEN or not token.isascii():
                raise ValueError
            signed = from_text(payload)
            if not self._signer.accepts(from_text(mac), signed):
                raise ValueError
            expires_at, generation, port, local_host, session_id, tenant = signed.decode().split(" ")
            link = Link(tenant, session_id, int(port), int(expires_at), int(generation), local_host == "1")
        except ValueError:
            raise Unauthorized("this link to a preview is not valid", remedy="make a new one: warren open") from None
        if link.expires_at <= now:
            raise Unauthorized("this link to a preview has expired", remedy="make a new one: warren open")
        return link

    def url(self, link: Link, base_url: str, *, by_path: bool = False) -> str:
        """The link as a URL, for a caller who reaches the server at `base_url`. With `by_path` it has the path form,
        which needs no name but the server's own."""
        base = urlsplit(base_url)
        token = f"{TOKEN_PARAMETER.decode()}={self.sign(link)}"
        domain = self.domain or (LOCALHOST if base.hostname and is_loopback(base.hostname) else "")
        if by_path or not domain:
            preview = Preview(link.session_id, link.port)
            return f"{base_url.rstrip('/')}{preview.prefix.decode()}/?{token}"
        port = f":{base.port}" if base.port else ""
        return f"{base.scheme}://{preview_host(link.session_id, link.port, domain)}{port}/?{token}"
