"""Where a client finds its server and its key when nobody says.

The server: WARREN_URL, else this machine. The key: WARREN_API_KEY, else what the server left for its own user.
"""

import os
from pathlib import Path
from typing import Final

DEFAULT_URL: Final = "http://localhost:8000"


def find_url() -> str:
    return os.environ.get("WARREN_URL") or DEFAULT_URL


def find_key(url: str) -> str:
    if key := os.environ.get("WARREN_API_KEY"):
        return key
    from warren.sdk.credentials import read_key

    path = credentials_path()
    return read_key(path, url) if path is not None else ""


def credentials_path() -> Path | None:
    """None: this user has no place for such things."""
    if named := os.environ.get("WARREN_CREDENTIALS"):
        return Path(named)
    try:
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    except RuntimeError:
        return None
    return config / "warren" / "credentials.json"
