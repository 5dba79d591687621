"""How a client finds its server and its key when the program does not name them.

The server is WARREN_URL, else this machine, at the port that WARREN_PORT gives a server here. The key is
WARREN_API_KEY, else the one that a server of the same user left in the credentials file: JSON,
`{"http://localhost:8000": "wk_…"}`, at WARREN_CREDENTIALS or ~/.config/warren/credentials.json, readable by this user
only. A server writes its first key there.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from warren.sdk.protocol import parse_address

DEFAULT_URL: Final = "http://localhost:8000"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})


def find_url() -> str:
    """Returns the URL of the server.

    A WARREN_PORT that is no number is ignored: Kubernetes puts an address there for a service called warren.
    """
    port = os.environ.get("WARREN_PORT", "")
    here = f"http://localhost:{port}" if port.isascii() and port.isdecimal() else DEFAULT_URL
    return os.environ.get("WARREN_URL") or here


def find_key(url: str) -> str:
    if key := os.environ.get("WARREN_API_KEY"):
        return key
    path = credentials_path()
    return read_key(path, url) if path is not None else ""


def credentials_path() -> Path | None:
    """Returns the path of the credentials file; None for a user without a home directory."""
    if path := os.environ.get("WARREN_CREDENTIALS"):
        return Path(path)
    try:
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    except RuntimeError:
        return None
    return config / "warren" / "credentials.json"


def read_key(path: Path, url: str) -> str:
    """Returns the key for a server, or an empty text. A file that other users can write to is ignored."""
    try:
        status = path.stat()
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
            return ""
        key = json.loads(path.read_text()).get(server_name(url), "")
    except (OSError, ValueError, AttributeError):
        return ""
    return key if isinstance(key, str) else ""


def write_key(path: Path, url: str, key: str) -> None:
    """Adds or replaces the key of one server, whole or not at all. Raises OSError."""
    import tempfile

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path):
        keys = {**_read_all(path), server_name(url): key}
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=".credentials-")  # mkstemp uses mode 0600
        try:
            with os.fdopen(fd, "w") as file:
                json.dump(keys, file, indent=1)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise


def server_name(url: str) -> str:
    """Returns the name of a server in the file: the same for every address of this machine."""
    address = parse_address(url)
    host = "localhost" if address.host in _LOOPBACK else address.host.rstrip(".")
    return f"{address.scheme}://{host}:{address.port}"


def _read_all(path: Path) -> dict[str, str]:
    try:
        keys = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return keys if isinstance(keys, dict) else {}


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    fd = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
