"""The client of Warren under the name that the first version of its interface had: that of the second, at port 5000."""

from typing import Any, Final

import sandbox_client_v2

from warren.sdk.discovery import find_url

__all__ = ["SandboxClient"]

_URL: Final = "http://localhost:5000"
_PORT_NAMES: Final = ("WARREN_PORT", "PORT")


class SandboxClient(sandbox_client_v2.SandboxClient):
    """Without an address it takes WARREN_URL, else this machine at the port WARREN_PORT, PORT or 5000."""

    def __init__(self, server_url: str = "", thread_id: str = "", **options: Any) -> None:
        super().__init__(server_url or find_url(_PORT_NAMES, _URL), thread_id, **options)
