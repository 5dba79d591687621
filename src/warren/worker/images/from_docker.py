"""A Docker image as a tar stream, through the engine's API: a container is created, exported and removed.

The container never runs. It carries a label with the directory the import works in: if that directory
is gone, its importer has died, and the next import removes the container.
"""

import contextlib
import http.client
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import quote, urlsplit

from warren.model.errors import ImageNotFound, InvalidRequest, ProviderUnavailable

DEFAULT_DOCKER_URL = "unix:///var/run/docker.sock"
_LABEL = "warren.image-import"
_TIMEOUT_S = 120.0


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(self._path)


@contextlib.contextmanager
def exported(docker_url: str, reference: str, owner: Path) -> Iterator[IO[bytes]]:
    """The image's files as an uncompressed tar; whatever happens, the container is gone afterwards."""
    with _docker_errors(docker_url):
        _remove_abandoned(docker_url)
        container = _create(docker_url, reference, owner)
    try:
        with contextlib.closing(_connection(docker_url)) as connection:
            with _docker_errors(docker_url):
                connection.request("GET", f"/containers/{container}/export")
                response = connection.getresponse()
                _check(response, f"exporting {reference}")
            yield cast(IO[bytes], response)
    finally:
        with _docker_errors(docker_url):
            _call(docker_url, "DELETE", f"/containers/{container}?force=1&v=1")


def _create(docker_url: str, reference: str, owner: Path) -> str:
    body = {
        "Image": reference,
        "Cmd": ["/never-run"],
        "NetworkDisabled": True,
        "Labels": {_LABEL: f"{os.uname().nodename}:{owner}"},
        "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "none"}},
    }
    return str(_call(docker_url, "POST", "/containers/create", body, what=f"taking the image {reference}")["Id"])


def _remove_abandoned(docker_url: str) -> None:
    filters = quote(json.dumps({"label": [_LABEL]}))
    for container in _call(docker_url, "GET", f"/containers/json?all=1&filters={filters}"):
        machine, _, path = container["Labels"][_LABEL].partition(":")
        if machine == os.uname().nodename and not Path(path).exists():
            _call(docker_url, "DELETE", f"/containers/{container['Id']}?force=1&v=1")


def _call(docker_url: str, method: str, path: str, body: object = None, *, what: str = "") -> Any:
    with contextlib.closing(_connection(docker_url)) as connection:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        _check(response, what or f"{method} {path.partition('?')[0]}")
        text = response.read()
        return json.loads(text) if text else None


def _check(response: http.client.HTTPResponse, what: str) -> None:
    if response.status < 400:
        return
    text = response.read(65536).decode(errors="replace")
    with contextlib.suppress(ValueError, AttributeError):
        text = json.loads(text).get("message", text)
    if response.status == 404 and "image" in text.lower():
        raise ImageNotFound(f"{what}: {text.strip()}", remedy="docker pull it first; `docker images` shows the rest")
    kind = InvalidRequest if response.status == 400 else ProviderUnavailable
    raise kind(f"docker, {what}: {text.strip()}")


def _connection(docker_url: str) -> http.client.HTTPConnection:
    parts = urlsplit(docker_url or DEFAULT_DOCKER_URL)
    if parts.scheme == "unix":
        return _UnixConnection(parts.path)
    if parts.scheme in ("tcp", "http") and parts.hostname:
        return http.client.HTTPConnection(parts.hostname, parts.port or 2375, timeout=_TIMEOUT_S)
    raise InvalidRequest(
        f"the Docker address {docker_url!r} cannot be used here", remedy="set DOCKER_HOST to unix://… or tcp://…"
    )


@contextlib.contextmanager
def _docker_errors(docker_url: str) -> Iterator[None]:
    try:
        yield
    except (ConnectionError, FileNotFoundError, PermissionError, TimeoutError, http.client.HTTPException) as exc:
        raise ProviderUnavailable(
            f"the Docker engine at {docker_url or DEFAULT_DOCKER_URL} does not answer: {exc}",
            remedy="start it (systemctl start docker), or set DOCKER_HOST",
        ) from exc
