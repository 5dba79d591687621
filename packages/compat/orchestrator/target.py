"""Finds whose sandboxes a program works on: those of a server, or those of this machine and of E2B (local mode)."""

import os
import warnings
from dataclasses import dataclass
from typing import Final

from warren.model.errors import WarrenError
from warren.sdk.blocking.transport import Transport
from warren.sdk.discovery import find_url, server_name
from warren.sdk.protocol import ClientRequest, TransportOptions

_KEY: Final = "wk_"  # how keys of Warren begin
_LOOK: Final = TransportOptions(retries=0, connect_timeout_s=1.0, answer_timeout_s=5.0)


@dataclass(frozen=True, slots=True)
class Target:
    """`mode` is that of the client, "remote" or "local", and `api_key` the server's, if the program has named it.
    `e2b_api_key` is for E2B, or a far Warren that takes its place; a server has one of its own. `is_e2b`: the program
    gave the server's key as E2B's, so the server is its E2B, whatever makes the sandboxes there."""

    mode: str
    api_key: str | None = None
    e2b_api_key: str = ""
    is_e2b: bool = False


def choose_target(e2b_api_key: str | None) -> Target:
    """The server is that of WARREN_URL or WARREN_API_KEY, that of a Warren's key, or the one that runs here."""
    key = e2b_api_key or ""
    if key.startswith(_KEY) and not _is_far_key(key):
        return Target("remote", key, is_e2b=True)
    if os.environ.get("WARREN_URL") or os.environ.get("WARREN_API_KEY") or _runs_here():
        if key:
            warnings.warn(
                "e2b_api_key is not used: a server has its own key for E2B, if it has the provider", stacklevel=5
            )
        return Target("remote")
    return Target("local", e2b_api_key=key)


def _is_far_key(key: str) -> bool:
    """Whether a key of Warren's is for the far side of the provider e2b, and not for the server."""
    from warren.config.settings import read_settings

    if (os.environ.get("WARREN_API_KEY") or key) != key:
        return True
    far = read_settings()
    return bool(far.e2b_domain) or (bool(far.e2b_api_url) and server_name(far.e2b_api_url) != server_name(find_url()))


def _runs_here() -> bool:
    """Whether Warren answers where clients look for it when nobody says where it is. No key is sent."""
    transport = Transport(find_url(), options=_LOOK)
    try:
        found = transport.call(ClientRequest("GET", "/version"))
    except WarrenError:
        return False
    finally:
        transport.close()
    return isinstance(found, dict) and found.get("name") == "warren"
