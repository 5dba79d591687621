"""`warren keys`: make, list, revoke and rotate keys, on a server or in a state directory of this machine.

A key is shown once, when it is made. It is never an argument: every user of the machine can read those.

`StoredKeys` is for an operator who has lost every key: the right to read the server's files takes the place of a key.
It works beside a running server, which follows within two seconds; the server's audit record does not show it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import quote

import click

from warren.cli.main import CommandGroup, report
from warren.cli.options import Duration, drop_empty, server_options
from warren.cli.output import format_age, format_seconds, print_json, print_table, seconds_since
from warren.cli.remote import RemoteServer
from warren.cli.tenants import format_quota, parse_quota, quota_option
from warren.model.errors import NotFound, Unavailable, WarrenError

if TYPE_CHECKING:
    from warren.access.keys import Keys
    from warren.interfaces.store import SessionStore
    from warren.model.access import ApiKey

T = TypeVar("T")
Values = dict[str, Any]

_KEYS: Final = "/api/admin/keys"
_TITLES: Final = ("KEY", "NAME", "TENANT", "SCOPES", "AGE", "EXPIRES IN", "USED", "OLD SECRET", "QUOTA")

_state_option = click.option(
    "--state-dir", default="", metavar="DIR", help="Instead of asking a server: work on its files on this machine."
)
_quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print the key alone.")
_e2b_option = click.option("--e2b", is_flag=True, help="Print it as E2B's clients take it: e2b_…")


def _backend_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return server_options(_state_option(command))


def complete_key(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    url, state_dir = ctx.params.get("url") or "", ctx.params.get("state_dir") or ""
    with contextlib.suppress(WarrenError, OSError, click.UsageError), _open_backend(url, state_dir) as backend:
        return [each["id"] for each in backend.list("") if each["id"].startswith(incomplete)]
    return []


@click.group(cls=CommandGroup)
def keys() -> None:
    """Make, list, revoke and rotate API keys.

    Needs a key with the scope admin, or --state-dir and the right to read the server's files.

    Example: warren keys create ci --scopes read,exec --expires 30d
    """


@keys.command()
@click.argument("name")
@click.option("--tenant", metavar="T", help="The tenant it belongs to.  [default]")
@click.option(
    "--scopes",
    metavar="S,S",
    help="Of read, exec, files, sessions, audit, metrics, admin.  [the first four]",
)
@click.option("--expires", "expires_in_s", type=Duration(), metavar="D", help="Refuse it after so long: 30d.")
@quota_option
@_e2b_option
@_quiet_option
@_backend_options
def create(
    name: str,
    tenant: str | None,
    scopes: str | None,
    expires_in_s: float | None,
    quotas: tuple[str, ...],
    e2b: bool,
    quiet: bool,
    url: str,
    state_dir: str,
    as_json: bool,
) -> None:
    """Make a key called NAME and show it, this once.

    With --e2b it is spelled for E2B's clients; the server takes both spellings everywhere.

    Example: KEY=$(warren keys create ci --tenant acme -q)
    """
    wanted = None if scopes is None else scopes.replace(",", " ").split()
    # A variable that somebody forgot to fill must not stand for the defaults, which may be more than was meant.
    if wanted == []:
        raise click.UsageError("--scopes is empty: name some, or leave it out for read, exec, files and sessions")
    if tenant == "":
        raise click.UsageError("--tenant is empty: name one, or leave it out for the tenant `default`")
    values = {
        "name": name,
        "tenant": tenant,
        "scopes": wanted,
        "expires_in_s": expires_in_s,
        "quota": {name: value for name, value in parse_quota(quotas).items() if value is not None},
    }
    with _open_backend(url, state_dir) as backend:
        key = backend.create(drop_empty(values))
    _print_new(key, e2b, quiet, as_json)


@keys.command("list")
@click.option("--tenant", default="", metavar="T", help="Only those of this tenant.")
@click.option("-q", "--quiet", is_flag=True, help="Only the ids.")
@_backend_options
def list_keys(tenant: str, quiet: bool, url: str, state_dir: str, as_json: bool) -> None:
    """List keys, the oldest first.

    The keys themselves are stored nowhere.

    Example: warren keys list --tenant acme
    """
    with _open_backend(url, state_dir) as backend:
        found = backend.list(tenant)
    if as_json:
        print_json({"keys": found})
    elif quiet:
        for key in found:
            click.echo(key["id"])
    else:
        print_table(_TITLES, [_row(key) for key in found])


@keys.command()
@click.argument("key_id", metavar="ID", shell_complete=complete_key)
@_backend_options
def revoke(key_id: str, url: str, state_dir: str, as_json: bool) -> None:
    """Revoke a key: the server refuses it from then on.

    Example: warren keys revoke key_0123456789abcdef
    """
    with _open_backend(url, state_dir) as backend:
        backend.revoke(key_id)
    print_json({"revoked": key_id}) if as_json else click.echo(f"revoked {key_id}")


@keys.command()
@click.argument("key_id", metavar="ID", shell_complete=complete_key)
@click.option("--overlap", "overlap_s", type=Duration(7), default="0", metavar="D", help="Take the old one, too: 1h.")
@_e2b_option
@_quiet_option
@_backend_options
def rotate(key_id: str, overlap_s: float, e2b: bool, quiet: bool, url: str, state_dir: str, as_json: bool) -> None:
    """Give a key a new secret and show it, this once.

    The server refuses the old one from then on, or after --overlap, which is 7d at most. If your own commands use that
    key from the credentials file, the file gets the new one.

    Example: KEY=$(warren keys rotate key_0123456789abcdef --overlap 1h -q)
    """
    with _open_backend(url, state_dir) as backend:
        key = backend.rotate(key_id, overlap_s)
    if isinstance(backend, ServerKeys):
        _keep_own(backend.used, key["key"], quiet=quiet)
    _print_new(key, e2b, quiet, as_json)


def _keep_own(used: str, new: str, *, quiet: bool) -> None:
    """Replaces the key that this command has used where the next one looks for it, if `new` is its new secret. Says
    what it could not replace."""
    from warren.cli.left_keys import replace_key
    from warren.sdk.discovery import key_of_shell

    if used.rpartition("_")[0] != new.rpartition("_")[0]:
        return
    try:
        path = replace_key(used, new)
    except OSError as exc:
        report(f"the new key could not be kept for your own commands: {exc}")
        return
    if path is not None and not quiet:
        report(f"your own commands find the new key in {path}")
    if key_of_shell():
        report("WARREN_API_KEY of this shell still has the old one: set it to the new one")


def _print_new(key: Values, e2b: bool, quiet: bool, as_json: bool) -> None:
    if e2b:
        from warren.access.keys import e2b_spelling

        key["key"] = e2b_spelling(key["key"])
    if as_json:
        print_json(key)
        return
    if not quiet:
        scopes = ", ".join(key["scopes"])
        click.echo(f"{key['id']} of the tenant {key['tenant']}, for {scopes}. It is shown this once:", err=True)
        if key["old_until"]:
            click.echo(f"(the old one is taken for another {_time_left(key['old_until'])})", err=True)
    click.echo(key["key"])


def _row(key: Values) -> tuple[object, ...]:
    return (
        key["id"],
        key["name"],
        key["tenant"],
        ",".join(key["scopes"]),
        format_age(key["created_at"]),
        _time_left(key["expires_at"]),
        f"{format_age(key['used_at'])} ago" if key["used_at"] else "never",
        _time_left(key["old_until"]),
        format_quota(key["quota"]),
    )


def _time_left(expires_at: str | None) -> str | None:
    if expires_at is None:
        return None
    left_s = -seconds_since(expires_at)
    return format_seconds(left_s) if left_s > 0 else "expired"


# -- where the keys are


class _KeyBackend(Protocol):
    """Returns keys as the API shows them; a new key has its text under `key`. Raises the errors of the API."""

    def create(self, values: Values) -> Values: ...
    def list(self, tenant: str) -> list[Values]: ...
    def revoke(self, key_id: str) -> None: ...
    def rotate(self, key_id: str, overlap_s: float) -> Values: ...


@contextlib.contextmanager
def _open_backend(url: str, state_dir: str) -> Iterator[_KeyBackend]:
    if url and state_dir:
        raise click.UsageError("--url is about a server, --state-dir goes without one: give one of them")
    if state_dir:
        yield StoredKeys(Path(state_dir))
        return
    with RemoteServer(url) as server:
        yield ServerKeys(server)


class ServerKeys:
    """The keys of a server, over its API."""

    def __init__(self, server: RemoteServer) -> None:
        self._call, self.used = server.call, server.key

    def create(self, values: Values) -> Values:
        key: Values = self._call("POST", _KEYS, values=values)
        return key

    def list(self, tenant: str) -> list[Values]:
        found: list[Values] = self._call("GET", _KEYS, {"of": tenant or None})["keys"]
        return found

    def revoke(self, key_id: str) -> None:
        self._call("DELETE", f"{_KEYS}/{quote(key_id, safe='')}")

    def rotate(self, key_id: str, overlap_s: float) -> Values:
        path = f"{_KEYS}/{quote(key_id, safe='')}/rotate"
        key: Values = self._call("POST", path, {"keep_old_s": overlap_s or None})
        return key


class StoredKeys:
    """The keys in a state directory. Each method opens the store and closes it again."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def create(self, values: Values) -> Values:
        from warren.app.wiring import build_clock
        from warren.model.access import USUAL_SCOPES, Quota, read_scopes
        from warren.model.session import DEFAULT_TENANT

        scopes = read_scopes(values["scopes"]) if "scopes" in values else USUAL_SCOPES
        lifetime_s = values.get("expires_in_s")
        expires_at = None if lifetime_s is None else build_clock().wall() + lifetime_s
        quota = Quota.from_mapping(values.get("quota", {}))
        tenant = values.get("tenant", DEFAULT_TENANT)
        key, text = self._run(lambda keys: keys.create(values["name"], tenant, scopes, expires_at, quota))
        return {**_key_values(key), "key": text}

    def list(self, tenant: str) -> list[Values]:
        return [_key_values(key) for key in self._run(lambda keys: keys.list(tenant))]

    def revoke(self, key_id: str) -> None:
        self._run(lambda keys: keys.revoke(key_id))

    def rotate(self, key_id: str, overlap_s: float) -> Values:
        key, text = self._run(lambda keys: keys.rotate(key_id, overlap_s))
        return {**_key_values(key), "key": text}

    def check_admin_key(self, text: str) -> None:
        """Raises InvalidRequest as `Keys.check_admin_key` does. A directory in which no server has run has no keys."""
        with contextlib.suppress(NotFound):
            self._run(lambda keys: keys.check_admin_key(text))

    def _run(self, work: "Callable[[Keys], Awaitable[T]]") -> T:
        return asyncio.run(self._with_store(work))

    async def _with_store(self, work: "Callable[[Keys], Awaitable[T]]") -> T:
        """Opens the store for `work`, without its sealing key: keys are stored as hashes, not as sealed secrets."""
        from warren.access.keys import Keys
        from warren.app.one_machine import has_rows_in_redis
        from warren.app.wiring import build_clock

        store = await (self._store_of_unit() if has_rows_in_redis(self._state_dir) else self._store_of_server())
        try:
            return await work(Keys(store.records, build_clock()))
        finally:
            await store.close()

    async def _store_of_server(self) -> "SessionStore":
        from warren.stores.sqlite import SqliteStore

        return await SqliteStore.open(self._find_database())

    async def _store_of_unit(self) -> "SessionStore":
        """Several workers have it in their Redis, which runs while they do."""
        from warren.app.turning import REDIS
        from warren.cli.processes import is_redis_up, redis_socket, redis_url
        from warren.config.settings import read_settings
        from warren.stores.redis_link import connect
        from warren.stores.redis_store import RedisStore

        place = self._state_dir.absolute() / REDIS
        if not is_redis_up(redis_socket(place)):
            raise Unavailable("the keys are in the Redis of `warren serve`, which does not run", remedy="start it")
        return RedisStore(connect(redis_url(place), namespace=read_settings().redis_namespace))

    def _find_database(self) -> Path:
        """Returns the file of the store. Raises NotFound if there is none: a mistyped directory must not become a new
        store."""
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


def _key_values(key: "ApiKey") -> Values:
    from warren.access.keys import key_view
    from warren.sessions.schemas import timestamp

    values = key_view(key)
    for name in ("created_at", "expires_at", "used_at", "old_until"):
        values[name] = None if values[name] is None else timestamp(values[name])
    return values
