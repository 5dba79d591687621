"""Where keys are made and found: over a server, or in the state directory of one on this machine.

The second is for whoever has lost every key: the right to read the server's files takes the place of a key. It works
beside a server that runs, which follows within two seconds, and is not in its audit record.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

import click

from warren.cli.remote import Server
from warren.model.errors import NotFound, Unavailable
from warren.sdk.protocol import Request

if TYPE_CHECKING:
    from warren.model.access import ApiKey
    from warren.tenancy.keys import Keys

T = TypeVar("T")
Values = dict[str, Any]
_KEYS = "/api/admin/keys"


class KeyBackend(Protocol):
    """What it gives is as the API shows it; a new key has its text under `key`. Raises what the API answers."""

    def create(self, wanted: Values) -> Values: ...
    def list(self, tenant: str) -> list[Values]: ...
    def revoke(self, key_id: str) -> None: ...
    def rotate(self, key_id: str) -> Values: ...


@contextlib.contextmanager
def key_place(url: str, state_dir: str) -> Iterator[KeyBackend]:
    if url and state_dir:
        raise click.UsageError("--url is about a server, --state-dir goes without one: give one of them")
    if state_dir:
        yield StoredKeys(Path(state_dir))
        return
    with Server(url) as server:
        yield ServerKeys(server)


class ServerKeys:
    def __init__(self, server: Server) -> None:
        self._call = server.transport.call

    def create(self, wanted: Values) -> Values:
        made: Values = self._call(Request("POST", _KEYS, values=wanted))
        return made

    def list(self, tenant: str) -> list[Values]:
        found: list[Values] = self._call(Request("GET", _KEYS, {"of": tenant or None}))["keys"]
        return found

    def revoke(self, key_id: str) -> None:
        self._call(Request("DELETE", f"{_KEYS}/{quote(key_id, safe='')}"))

    def rotate(self, key_id: str) -> Values:
        made: Values = self._call(Request("POST", f"{_KEYS}/{quote(key_id, safe='')}/rotate"))
        return made


class StoredKeys:
    """Each verb opens the store and closes it again."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def create(self, wanted: Values) -> Values:
        from warren.app.wiring import build_clock
        from warren.model.access import USUAL_SCOPES, Quota, read_scopes
        from warren.model.session import DEFAULT_TENANT

        scopes = read_scopes(wanted["scopes"]) if "scopes" in wanted else USUAL_SCOPES
        lasts_s = wanted.get("expires_in_s")
        expires_at = None if lasts_s is None else build_clock().wall() + lasts_s
        quota = Quota.from_mapping(wanted.get("quota", {}))
        tenant = wanted.get("tenant", DEFAULT_TENANT)
        key, text = self._done(lambda keys: keys.create(wanted["name"], tenant, scopes, expires_at, quota))
        return {**_view(key), "key": text}

    def list(self, tenant: str) -> list[Values]:
        return [_view(key) for key in self._done(lambda keys: keys.list(tenant))]

    def revoke(self, key_id: str) -> None:
        self._done(lambda keys: keys.revoke(key_id))

    def rotate(self, key_id: str) -> Values:
        key, text = self._done(lambda keys: keys.rotate(key_id))
        return {**_view(key), "key": text}

    def _done(self, work: "Callable[[Keys], Awaitable[T]]") -> T:
        return asyncio.run(self._with_store(work))

    async def _with_store(self, work: "Callable[[Keys], Awaitable[T]]") -> T:
        """Keys are hashes, not sealed secrets: the key that seals those is not needed, and not made."""
        from warren.app.wiring import build_clock
        from warren.stores.sqlite import SqliteStore
        from warren.tenancy.keys import Keys

        store = await SqliteStore.open(self._database())
        try:
            return await work(Keys(store.records, build_clock()))
        finally:
            await store.close()

    def _database(self) -> Path:
        """There must be one: a mistyped directory should not become a new store."""
        from warren.app.wiring import DATABASE

        path = self._state_dir / DATABASE
        try:
            path.stat()
        except FileNotFoundError:
            raise NotFound(
                f"{self._state_dir} is not the state directory of a server: there is no {DATABASE} in it",
                remedy="`warren config` shows where it is; a server that has never been started has none",
            ) from None
        except OSError as exc:
            raise Unavailable(f"{path} cannot be read: {exc.strerror}", remedy="do it as the server's user") from exc
        return path


def _view(key: "ApiKey") -> Values:
    from warren.sessions.schemas import timestamp
    from warren.tenancy.keys import key_view

    view = key_view(key)
    for name in ("created_at", "expires_at", "used_at"):
        view[name] = None if view[name] is None else timestamp(view[name])
    return view
