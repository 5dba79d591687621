"""The password for a registry, from the files that `docker login`, `podman login` and `skopeo login` write."""

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from warren.model.errors import InvalidRequest
from warren.model.image_reference import HUB_HOSTS

_MAX_FILE: Final = 1024 * 1024


class Credentials:
    """Finds passwords of registries. `environ` holds the variables that name the files, and HOME."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def find(self, host: str, path: str) -> tuple[str, str] | None:
        """Returns the user and password for the image `path` of a registry; the longest matching prefix in a file wins.
        Raises InvalidRequest if the file refers to a credential helper or an identity token (not supported)."""
        hosts = HUB_HOSTS if host in HUB_HOSTS else (host,)
        for file in self._files():
            values = _read(file)
            entries = (_entry(values.get("auths"), name, path) for name in hosts)
            found = next((entry for entry in entries if entry is not None), None)
            if found is not None and isinstance(found.get("auth"), str) and found["auth"]:
                if found.get("identitytoken"):
                    raise _unsupported(file, host, "an identity token")
                return _decoded(found["auth"], file)
            helpers = values.get("credHelpers")
            if isinstance(helpers, dict) and not helpers.keys().isdisjoint(hosts):
                raise _unsupported(file, host, "a credential helper (credHelpers)")
            if found is not None and values.get("credsStore"):
                raise _unsupported(file, host, "a credential helper (credsStore)")
        return None

    def _files(self) -> Iterator[Path]:
        environ = self._environ
        if environ.get("REGISTRY_AUTH_FILE"):
            yield Path(environ["REGISTRY_AUTH_FILE"])
        if environ.get("XDG_RUNTIME_DIR"):
            yield Path(environ["XDG_RUNTIME_DIR"], "containers/auth.json")
        docker = environ.get("DOCKER_CONFIG") or (f"{environ['HOME']}/.docker" if environ.get("HOME") else "")
        if docker:
            yield Path(docker, "config.json")


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            values = json.loads(stream.read(_MAX_FILE))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    except (OSError, ValueError) as exc:
        raise InvalidRequest(f"the file of passwords {file} cannot be read: it is not JSON") from exc
    return values if isinstance(values, dict) else {}


def _entry(entries: Any, host: str, path: str) -> dict[str, Any] | None:
    if not isinstance(entries, dict):
        return None
    wanted = f"{host}/{path}"
    best, length = None, 0
    for key, value in entries.items():
        name = key.removeprefix("https://").removeprefix("http://").rstrip("/")
        name = name.removesuffix("/v1").removesuffix("/v2")
        if isinstance(value, dict) and f"{wanted}/".startswith(f"{name}/") and len(name) > length:
            best, length = value, len(name)
    return best


def _decoded(text: str, file: Path) -> tuple[str, str]:
    try:
        user, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
    except ValueError:
        user = colon = password = ""
    if not colon:
        raise InvalidRequest(f"an `auth` in the file of passwords {file} is not base64 of USER:PASSWORD")
    return user, password.rstrip("\0\n")


def _unsupported(file: Path, host: str, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"the password for {host} is kept by {what}, named in {file}, which Warren does not support",
        remedy="log in with a file of its own: DOCKER_CONFIG=$(mktemp -d) docker login …, and pull with that variable",
    )
