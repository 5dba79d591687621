"""Keys of this user's servers, in a file that only this user can read.

A server writes the key it made at its first start there; clients of the same user find it by the server's address. The
file is JSON, `{"http://localhost:8000": "wk_…"}`, at WARREN_CREDENTIALS or ~/.config/warren/credentials.json.
"""

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from yarl import URL

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})


def read_key(path: Path, url: str) -> str:
    """The key for a server; empty if there is none. A file that others could write to is not believed."""
    try:
        status = path.stat()
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
            return ""
        found = json.loads(path.read_text()).get(server_name(url), "")
    except (OSError, ValueError, AttributeError):
        return ""
    return found if isinstance(found, str) else ""


def write_key(path: Path, url: str, key: str) -> None:
    """Adds or replaces the key of one server, whole or not at all. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(path):
        keys = {**_read_all(path), server_name(url): key}
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=".credentials-")  # made with mode 0600
        try:
            with os.fdopen(fd, "w") as file:
                json.dump(keys, file, indent=1)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise


def server_name(url: str) -> str:
    """One spelling for every way to say this machine."""
    parsed = URL(url)
    host = "localhost" if parsed.host in _LOOPBACK else (parsed.host or "").rstrip(".")
    return f"{parsed.scheme}://{host}:{parsed.port}"


def _read_all(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    fd = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
