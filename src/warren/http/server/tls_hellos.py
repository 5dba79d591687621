"""Clients that speak TLS to a port that speaks plain HTTP.

Nothing that a server answers there reaches the person who made the mistake: TLS libraries report a "wrong version
number". So the log says it, and the names that such clients asked for are remembered for a while, for routes that can
tell (E2B's, whose SDKs speak TLS to a sandbox as long as nobody names its address).
"""

import time
from typing import Final

from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.logs import get_log
from warren.sandboxes.egress.hello import may_be_tls, read_server_name
from warren.sandboxes.egress.http_syntax import Malformed

TLS_HELLOS: Final = "tls_hellos"
"""Where the state of the server's app has them."""
_MAX_LABELS: Final = 1000
_LOG_S: Final = 60.0
_log = get_log(__name__)


class TlsHellos:
    """The first labels of the names, in lower case, with the address of the client that asked for it last: the last
    thousand, whoever asked."""

    def __init__(self) -> None:
        self._labels = BoundedDict[str, str](_MAX_LABELS)
        self._logged_at = -_LOG_S

    def has(self, label: str, client: str) -> bool:
        return bool(client) and self._labels.get(label) == client

    def note(self, data: bytes, client: str) -> bool:
        """Returns whether these first bytes of a connection begin a handshake of TLS."""
        if len(data) < 3 or not may_be_tls(data):
            return False
        try:
            name = read_server_name(data) or ""
        except Malformed:
            name = ""
        if name:
            self._labels[name.partition(".")[0]] = client
        if (now := time.monotonic()) >= self._logged_at + _LOG_S:
            self._logged_at = now
            _log.warning(
                "tls_on_plain_port",
                name=name,
                remedy="use http:// in the client's address; E2B's SDKs need E2B_SANDBOX_URL beside E2B_API_URL",
            )
        return True
