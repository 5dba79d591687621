"""Where a client finds its server and its key when nobody says: WARREN_URL and WARREN_API_KEY."""

import os
from typing import Final

DEFAULT_URL: Final = "http://localhost:8000"


def find_url() -> str:
    return os.environ.get("WARREN_URL") or DEFAULT_URL


def find_key(url: str) -> str:
    return os.environ.get("WARREN_API_KEY", "")
