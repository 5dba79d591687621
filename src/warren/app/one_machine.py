"""What the processes of a cluster on one machine share when nobody has given them a secret: their state directory.

    cluster-secret    how they know each other
    worker            the name of the worker whose state directory this is: the first one that was started here
    workers/NAME      the state directories of all other workers, which have the images of this one

`cluster_wiring` asks here when it completes the settings of a coordinator or worker.
"""

import contextlib
import os
import re
import secrets
import socket
import tempfile
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from warren.kernel.file_locks import is_locked
from warren.kernel.own_addresses import is_own_address
from warren.model.addresses import is_loopback
from warren.model.errors import InvalidRequest, Unavailable

_SECRET: Final = "cluster-secret"
_OWNER: Final = "worker"
WORKERS: Final = "workers"
UNIT: Final = "unit"  # the files of `warren serve --workers`
_ROWS: Final = "unit/rows"
TRIAL: Final = "cluster"  # the files of `warren cluster up`
TRIAL_REDIS: Final = "redis/redis.sock"  # in its directory
COPIES_FILE: Final = "cluster.db"  # of a worker: its own rows, as Redis has them


def has_rows_in_redis(state_dir: Path) -> bool:
    """Whether the directory is that of several workers, whose sessions are in their Redis (app/turning.py)."""
    return rows_mark(state_dir).exists()


def rows_mark(state_dir: Path) -> Path:
    return state_dir / _ROWS


def secret_path(state_dir: Path) -> Path:
    return state_dir / _SECRET


def make_secret(state_dir: Path, hosts: Iterable[str]) -> str:
    """Returns the secret of a cluster whose Redis and workers are on `hosts`. Raises InvalidRequest if one of them is
    another machine, which does not have the secret."""
    for host in hosts:
        if not _is_here(host):
            raise InvalidRequest(
                f"coordinators and workers need a secret to know each other by: {host} is not this machine",
                remedy="give all of them the same WARREN_CLUSTER_SECRET, such as `openssl rand -hex 32` prints",
            )
    return read_or_make_secret(secret_path(state_dir))


def _is_here(host: str) -> bool:
    """Whether the host is this machine, by its name or by all the addresses of its name."""
    if is_loopback(host):
        return True
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return False
    addresses = [ip_address(str(each).partition("%")[0]) for each in found]
    return bool(addresses) and all(is_loopback(each) or is_own_address(each) for each in addresses)


def read_or_make_secret(path: Path) -> str:
    """Reads the secret from a file, or makes one there. Several processes that do this at once get the same secret.
    Raises Unavailable."""
    try:
        path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        return _read_or_make(path, secrets.token_hex(32))
    except OSError as exc:
        raise Unavailable(
            f"the cluster's secret cannot be kept in {path}: {exc.strerror or exc}",
            remedy="give all processes the same WARREN_CLUSTER_SECRET, or WARREN_STATE_DIR, a directory of this user",
        ) from exc


def worker_directory(state_dir: Path, worker_id: str) -> Path:
    """Returns the state directory of a worker, made at its first start. It stays the same however many workers are
    started here, and in which order. Raises Unavailable."""
    from warren.app.service import state_dir_errors  # coordinators do without it

    own = state_dir / WORKERS / re.sub(r"^\.", "%2E", worker_id)
    with state_dir_errors(state_dir):
        if not own.is_dir() and _owner(state_dir, worker_id) == worker_id:
            return state_dir
        for each in (own.parent, own):
            each.mkdir(mode=0o711, exist_ok=True)
        share_images(state_dir, own)
    return own


def share_images(state_dir: Path, own: Path) -> None:
    """Links the images of the machine into the state directory of a worker: all workers share them."""
    images = state_dir.absolute() / "images"
    images.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (own / "images").symlink_to(images)


def _owner(state_dir: Path, worker_id: str) -> str:
    """Returns the name of the worker that the state directory belongs to: this one, if nobody has it yet."""
    from warren.app.service import LOCK

    path = state_dir / _OWNER
    if not path.exists() and is_locked(state_dir / LOCK):
        return ""  # a server has it
    return _read_or_make(path, worker_id)


def _read_or_make(path: Path, text: str) -> str:
    """Returns the content of a file that is made with `text`, whole or not at all, if there is none."""
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mkstemp uses mode 0600
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
        with contextlib.suppress(FileExistsError):
            os.link(name, path)  # unlike a rename, it does not replace the file of a process that was first
    finally:
        os.unlink(name)
    return path.read_text().strip()
