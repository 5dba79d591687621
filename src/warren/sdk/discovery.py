"""How a client finds its server and its key when the program does not name them.

The server is WARREN_URL, else this machine, at the port that WARREN_PORT gives a server here. The key is
WARREN_API_KEY; if that is set and empty there is no key, because a variable that somebody forgot to fill must not stand
for the key of an administrator. Else it is the one that a server of the same user left in the credentials file: JSON,
`{"http://localhost:8000": "wk_…"}`, at WARREN_CREDENTIALS or ~/.config/warren/credentials.json, readable by this user
only. A server writes its first key there.
"""

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from warren.sdk.addresses import parse_address

DEFAULT_URL: Final = "http://localhost:8000"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})


def find_url(port_names: Sequence[str] = ("WARREN_PORT",), usual: str = DEFAULT_URL) -> str:
    """Returns the URL of the server. `port_names` are the variables that may have its port on this machine, by their
    precedence; `usual` is its URL if none has.

    A port that is no number is ignored: Kubernetes puts an address there for a service called warren.
    """
    given = (os.environ.get(name, "") for name in port_names)
    here = next((f"http://localhost:{port}" for port in given if port.isascii() and port.isdecimal()), usual)
    return os.environ.get("WARREN_URL") or here


def key_of_shell() -> str | None:
    return os.environ.get("WARREN_API_KEY")


def find_key(url: str) -> str:
    """Returns the key for a server, or an empty text."""
    if (key := key_of_shell()) is not None:
        return key
    path = credentials_path()
    return read_key(path, url) if path is not None else ""


def key_remedy(api_key: str) -> str:
    """Returns what to do when a server refuses this key, or the lack of one; empty if it is not WARREN_API_KEY's."""
    if api_key != key_of_shell():
        return ""
    if not api_key:
        return "WARREN_API_KEY is empty, which means no key: set it, or unset it to use the stored one"
    return "set WARREN_API_KEY to a key of this server, or unset it to use the stored one"


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
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path):
        _write_all(path, {**read_keys(path), server_name(url): key})


def remove_keys(path: Path, keys: Collection[str]) -> None:
    """Removes these keys, and the file if none is left in it. Raises OSError."""
    with _locked(path):
        if left := {url: key for url, key in read_keys(path).items() if key not in keys}:
            _write_all(path, left)
            return
        path.unlink(missing_ok=True)
        _lock_file(path).unlink(missing_ok=True)


def server_name(url: str) -> str:
    """Returns the name of a server in the file: the same for every address of this machine."""
    address = parse_address(url)
    host = "localhost" if address.host in _LOOPBACK else address.host.rstrip(".")
    return f"{address.scheme}://{host}:{address.port}"


def read_keys(path: Path) -> dict[str, str]:
    """Returns all keys of the file by their servers; none if it cannot be read."""
    try:
        keys = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return keys if isinstance(keys, dict) else {}


def _write_all(path: Path, keys: Mapping[str, str]) -> None:
    import tempfile

    fd, name = tempfile.mkstemp(dir=path.parent, prefix=".credentials-")  # mkstemp uses mode 0600
    try:
        with os.fdopen(fd, "w") as file:
            json.dump(keys, file, indent=1)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _lock_file(path: Path) -> Path:
    return path.with_suffix(".lock")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    fd = os.open(_lock_file(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
