"""The settings: read from a file, the environment and flags, here and nowhere else.

What options there are is in warren.config.options. Later sources win: the defaults, a TOML file, the environment (where
a name of an older system stands below the WARREN_… name), flags. A value that cannot be is an InvalidRequest
whose message says where it was given; what is odd but harmless is in `Settings.warnings`.
"""

import difflib
import itertools
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warren.config.option_kinds import PROVIDERS, Kind, check_provider
from warren.config.options import CONFIG_VARIABLE, OPTIONS, Option
from warren.model.errors import InvalidRequest

__all__ = ["PROVIDERS", "Settings", "check_provider", "environment_with", "read_settings"]

_SYSTEM_FILE = Path("/etc/warren/warren.toml")
_SYSTEM_STATE = Path("/var/lib/warren")
_LONGEST_SHOWN = 100
_OF_CLIENTS = ("WARREN_URL", "WARREN_CREDENTIALS", "WARREN_MCP_KEY", "WARREN_MCP_THREAD")

# Values that must rise in this order. One that nobody gave moves out of the way of those that were given.
_RISING = (("pool_min", "pool_size", "pool_max"), ("command_timeout_s", "max_command_timeout_s"))


@dataclass(frozen=True, slots=True)
class Settings:
    """Every option's value. `sources` says of each option where its value came from."""

    state_dir: Path
    bin_dir: Path
    providers: tuple[str, ...]
    runtime: str
    registry_dir: Path | None
    docker_url: str
    terminal: str
    debug: bool
    host: str
    port: int
    worker_id: str
    store: str
    default_environment: str
    container_image: str
    pool_size: int
    pool_min: int
    pool_max: int
    idle_timeout_s: float
    max_lifetime_s: float
    memory_mb: int | None
    cpus: float | None
    claim_timeout_s: float
    command_timeout_s: float
    max_command_timeout_s: float
    min_free_memory_mb: int
    min_free_disk_mb: int
    max_sandboxes: int
    max_body_mb: int
    header_timeout_s: float
    body_timeout_s: float
    send_timeout_s: float
    keep_alive_s: float
    max_connections: int
    stream_keepalive_s: float
    stop_grace_s: float
    on_stop: str
    key_retention_s: float
    allowed_hosts: tuple[str, ...]
    auth: bool
    api_key: str = field(repr=False)
    jwt_jwks: str
    jwt_issuer: str
    jwt_audience: str
    jwt_tenant_claim: str
    jwt_scopes_claim: str
    secrets_key: str = field(repr=False)
    audit: bool
    audit_commands: str
    audit_mb: int
    webhook_networks: tuple[str, ...]
    tls_cert: Path | None
    tls_key: Path | None
    trusted_proxies: tuple[str, ...]
    redis_url: str = field(repr=False)
    redis_host: str
    redis_port: int
    redis_password: str = field(repr=False)
    redis_namespace: str
    cluster_secret: str = field(repr=False)
    cluster_ca: Path | None
    cluster_cert: Path | None
    cluster_key: Path | None
    advertise: str
    workers: tuple[str, ...]
    labels: tuple[str, ...]
    log_level: str
    log_format: str
    sources: Mapping[str, str] = field(repr=False)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Given:
    """A value as it was given; `source` says where in a table, `subject` in a sentence."""

    value: object
    source: str
    subject: str
    kind: Kind


def read_settings(
    environ: Mapping[str, str] | None = None,
    *,
    uid: int | None = None,
    flags: Mapping[str, object] | None = None,
    config_file: Path | None = None,
) -> Settings:
    """`flags` are by the option's name; None is a flag that was not given, "config" names the file."""
    values = os.environ if environ is None else environ
    user = os.geteuid() if uid is None else uid
    wanted = {name: value for name, value in (flags or {}).items() if value is not None}
    flagged_file = wanted.pop("config", None)
    named = config_file or flagged_file or values.get(CONFIG_VARIABLE)
    file = Path(str(named)) if named else _usual_file(values, user)
    content = _read_file(file, may_be_missing=not named)
    given = {**_from_file(file, content), **_from_environment(values), **_from_flags(wanted)}
    return _settle(given, values, user)


def environment_with(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process, for another one, and more."""
    return {**os.environ, **more}


def _settle(given: Mapping[str, _Given], values: Mapping[str, str], uid: int) -> Settings:
    settled = {
        name: _parse(option, given[name]) if name in given else _default(option, values, uid)
        for name, option in OPTIONS.items()
    }
    sources = {name: given[name].source if name in given else "default" for name in OPTIONS}
    for names in _RISING:
        _let_rise(names, settled, sources, given)
    by_attribute = {option.attribute: settled[name] for name, option in OPTIONS.items()}
    return Settings(**by_attribute, sources=sources, warnings=tuple(_unknown_variables(values)))


def _default(option: Option, values: Mapping[str, str], uid: int) -> Any:
    if option.name == "bin_dir":
        return Path(__file__).parents[1] / "bin"
    if option.name == "state_dir":
        return _SYSTEM_STATE if uid == 0 else _user_directory(values, "XDG_STATE_HOME", ".local/state") / "warren"
    return option.default


def _usual_file(values: Mapping[str, str], uid: int) -> Path:
    return _SYSTEM_FILE if uid == 0 else _user_directory(values, "XDG_CONFIG_HOME", ".config") / "warren/warren.toml"


def _user_directory(values: Mapping[str, str], variable: str, usual: str) -> Path:
    if Path(chosen := values.get(variable, "")).is_absolute():
        return Path(chosen)
    try:
        return Path(values.get("HOME") or Path.home()) / usual
    except RuntimeError as exc:
        raise InvalidRequest("it is not known where your home directory is", remedy="set HOME") from exc


def _read_file(path: Path, *, may_be_missing: bool) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            text, mode = stream.read(), os.fstat(stream.fileno()).st_mode
    except (FileNotFoundError, NotADirectoryError) as exc:
        if may_be_missing:
            return {}
        raise InvalidRequest(
            f"there is no file {path}", remedy=f"--config or {CONFIG_VARIABLE} names it as the file with the options"
        ) from exc
    except OSError as exc:
        raise InvalidRequest(f"{path} cannot be read: {exc.strerror}") from exc
    content = _read_toml(path, text)
    if mode & stat.S_IROTH and any(content.get(name) for name, option in OPTIONS.items() if option.secret):
        raise InvalidRequest(f"{path} holds a secret and everybody can read it", remedy=f"chmod 600 {path}")
    return content


def _read_toml(path: Path, text: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(text.decode())
    except UnicodeDecodeError as exc:
        line = text[: exc.start].count(b"\n") + 1
        raise InvalidRequest(f"{path}, line {line}: this is not UTF-8") from exc
    except tomllib.TOMLDecodeError as exc:
        problem, _, place = str(exc).rpartition(" (at ")
        found = re.search(r"line ([0-9]+)", place)
        line = int(found[1]) if found else text.rstrip().count(b"\n") + 1
        raise InvalidRequest(f"{path}, line {line}: this is not TOML: {problem}") from exc


def _from_file(path: Path, content: Mapping[str, object]) -> dict[str, _Given]:
    for name in content:
        if name not in OPTIONS:
            raise InvalidRequest(f"{path}: there is no option {name!r}", remedy=f"did you mean {_near(name)}?")
    return {
        name: _Given(value, f"file {path}", f"{name} in {path}", OPTIONS[name].kind) for name, value in content.items()
    }


def _nearest(word: str, words: Iterable[str]) -> str:
    return difflib.get_close_matches(word, list(words), n=1, cutoff=0.0)[0]


def _near(name: str) -> str:
    """The option meant, also if its name in Settings or in an older system was used."""
    names = {known: option.name for option in OPTIONS.values() for known in (option.attribute, *option.aliases)}
    every = {**{known.lower(): name for known, name in names.items()}, **{name: name for name in OPTIONS}}
    return every[_nearest(name.lower(), every)]


def _from_environment(values: Mapping[str, str]) -> dict[str, _Given]:
    given = {}
    for name, option in OPTIONS.items():
        for variable, kind in option.variables.items():
            if values.get(variable, "").strip():
                subject = f"the environment variable {variable}"
                given[name] = _Given(values[variable], f"environment {variable}", subject, kind)
                break
    return given


def _from_flags(flags: Mapping[str, object]) -> dict[str, _Given]:
    given = {}
    for name, value in flags.items():
        if name not in OPTIONS:
            raise InvalidRequest(f"there is no option {name!r}", remedy=f"did you mean {_near(name)}?")
        flag = OPTIONS[name].flag or f"--{name.replace('_', '-')}"
        given[name] = _Given(value, f"flag {flag}", f"the flag {flag}", OPTIONS[name].kind)
    return given


def _parse(option: Option, given: _Given) -> Any:
    try:
        return option.parse(_as_text(given.value), given.kind)
    except ValueError as exc:
        shown = "" if option.secret else f" is {str(given.value)[:_LONGEST_SHOWN]!r}"
        raise InvalidRequest(f"{given.subject}{shown}: {given.kind.takes} is expected") from exc
    except InvalidRequest as exc:
        raise InvalidRequest(exc.message, remedy=f"{given.subject} says so; {exc.remedy}") from exc


def _as_text(value: object) -> str:
    """Files and callers have values of several types; what they mean is decided in one place, from the text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float | Path):
        return str(value).strip()
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return ",".join(value)
    raise ValueError


def _let_rise(
    names: tuple[str, ...], settled: dict[str, Any], sources: dict[str, str], given: Mapping[str, _Given]
) -> None:
    explicit = [name for name in names if name in given]
    for lower, higher in itertools.pairwise(explicit):
        if settled[lower] > settled[higher]:
            raise InvalidRequest(
                f"{lower} is {OPTIONS[lower].show(settled[lower])} ({sources[lower]}), "
                f"but {higher} is {OPTIONS[higher].show(settled[higher])} ({sources[higher]})",
                remedy=f"{lower} must not be more than {higher}",
            )
    for name in (name for name in names if name not in given):
        place = names.index(name)
        for other in explicit:
            bound = max if names.index(other) < place else min
            if (moved := bound(settled[name], settled[other])) != settled[name]:
                settled[name], sources[name] = moved, f"follows {other}"


def _unknown_variables(values: Mapping[str, str]) -> Iterable[str]:
    known = {CONFIG_VARIABLE, *_OF_CLIENTS, *(option.variable for option in OPTIONS.values())}
    for name in sorted(values):
        if name.startswith("WARREN_") and name not in known:
            near = _nearest(name, known)
            yield f"the environment variable {name} is no option and does nothing; did you mean {near}?"
