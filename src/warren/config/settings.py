"""Reads the settings from a file, the environment and flags: no other module does.

warren.config.options has the options. Later sources win: the defaults, a TOML file, the environment (a
WARREN_… name wins over the name of an older system), flags. A wrong value raises InvalidRequest, whose message names
the source; what is odd but harmless is in `Settings.warnings`.
"""

import difflib
import itertools
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warren.config.option_kinds import PROVIDERS, OptionKind, check_provider
from warren.config.options import CONFIG_VARIABLE, OPTIONS, WORKER_PORT, Option, Settings
from warren.model.errors import InvalidRequest

__all__ = [
    "PROVIDERS",
    "WORKER_PORT",
    "Settings",
    "as_variables",
    "check_provider",
    "environment_with",
    "given_variables",
    "read_settings",
    "sudo_caller",
]

_SYSTEM_FILE = Path("/etc/warren/warren.toml")
_SYSTEM_STATE = Path("/var/lib/warren")
_SHOWN_LENGTH = 100
_CLIENT_VARIABLES = ("WARREN_URL", "WARREN_CREDENTIALS", "WARREN_MCP_KEY", "WARREN_MCP_THREAD")

# Values that must rise in this order. A default gives way to the values that were given.
_ASCENDING = (("pool_min", "pool_size", "pool_max"), ("command_timeout_s", "max_command_timeout_s"))


@dataclass(frozen=True, slots=True)
class _Given:
    """A value as it was given. `source` says in a table where it comes from, `subject` in a sentence."""

    value: object
    source: str
    subject: str
    kind: OptionKind


def read_settings(
    environ: Mapping[str, str] | None = None,
    *,
    uid: int | None = None,
    flags: Mapping[str, object] | None = None,
    config_file: Path | None = None,
) -> Settings:
    """Reads all sources. `flags` are by the option's name; None stands for a flag that was not given, and `config`
    names the file. Raises InvalidRequest."""
    values = os.environ if environ is None else environ
    user = os.geteuid() if uid is None else uid
    given_flags = {name: value for name, value in (flags or {}).items() if value is not None}
    flagged_file = given_flags.pop("config", None)
    chosen = config_file or flagged_file or values.get(CONFIG_VARIABLE)
    file = Path(str(chosen)) if chosen else _default_file(values, user)
    content = _read_file(file, may_be_missing=not chosen)
    given = {**_from_file(file, content), **_from_environment(values), **_from_flags(given_flags)}
    return _build_settings(given, values, user)


def environment_with(more: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of this process with additions, for a child process."""
    return {**os.environ, **more}


def sudo_caller() -> int | None:
    """Returns the id of the user who runs this process by sudo; None if nobody does."""
    uid = os.environ.get("SUDO_UID", "")
    return int(uid) if os.geteuid() == 0 and uid.isascii() and uid.isdecimal() else None


def wants_colour() -> bool:
    """Returns whether the user's terminal has colours, and NO_COLOR does not say otherwise."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def as_variables(settings: Settings, names: Iterable[str]) -> dict[str, str]:
    """Returns the options whose names begin with one of `names`, as variables for a child process. Empty values are
    left out."""
    names, found = tuple(names), dict[str, str]()
    for name in (each for each in OPTIONS if each.startswith(names)):
        value = getattr(settings, OPTIONS[name].attribute)
        if value not in (None, "", ()):
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            found[f"WARREN_{name.upper()}"] = text.lower() if isinstance(value, bool) else text
    return found


def given_variables(settings: Settings) -> dict[str, str]:
    """Returns the variables of this process that the settings were read from, for a process that starts elsewhere."""
    names = {source.removeprefix("environment ") for source in settings.sources.values()} | {CONFIG_VARIABLE}
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}


def _build_settings(given: Mapping[str, _Given], values: Mapping[str, str], uid: int) -> Settings:
    resolved = {
        name: _parse(option, given[name]) if name in given else _default(option, values, uid)
        for name, option in OPTIONS.items()
    }
    sources = {name: given[name].source if name in given else "default" for name in OPTIONS}
    for names in _ASCENDING:
        _check_ascending(names, resolved, sources, given)
    by_attribute = {option.attribute: resolved[name] for name, option in OPTIONS.items()}
    return Settings(**by_attribute, sources=sources, warnings=tuple(_unknown_variables(values)))


def _default(option: Option, values: Mapping[str, str], uid: int) -> Any:
    if option.name == "bin_dir":
        return Path(__file__).parents[1] / "bin"
    if option.name == "state_dir":
        return _SYSTEM_STATE if uid == 0 else _user_directory(values, "XDG_STATE_HOME", ".local/state") / "warren"
    return option.default


def _default_file(values: Mapping[str, str], uid: int) -> Path:
    return _SYSTEM_FILE if uid == 0 else _user_directory(values, "XDG_CONFIG_HOME", ".config") / "warren/warren.toml"


def _user_directory(values: Mapping[str, str], variable: str, default: str) -> Path:
    if Path(directory := values.get(variable, "")).is_absolute():
        return Path(directory)
    try:
        return Path(values.get("HOME") or Path.home()) / default
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
        problem, _, position = str(exc).rpartition(" (at ")
        match = re.search(r"line ([0-9]+)", position)
        line = int(match[1]) if match else text.rstrip().count(b"\n") + 1
        raise InvalidRequest(f"{path}, line {line}: this is not TOML: {problem}") from exc


def _from_file(path: Path, content: Mapping[str, object]) -> dict[str, _Given]:
    for name in content:
        if name not in OPTIONS:
            raise InvalidRequest(
                f"{path}: there is no option {name!r}", remedy=f"did you mean {_closest_option(name)}?"
            )
    return {
        name: _Given(value, f"file {path}", f"{name} in {path}", OPTIONS[name].kind) for name, value in content.items()
    }


def _closest(word: str, words: Iterable[str]) -> str:
    return difflib.get_close_matches(word, list(words), n=1, cutoff=0.0)[0]


def _closest_option(name: str) -> str:
    """Returns the option whose name is closest, also by its name in Settings or in an older system."""
    names = {known: option.name for option in OPTIONS.values() for known in (option.attribute, *option.aliases)}
    every = {**{known.lower(): name for known, name in names.items()}, **{name: name for name in OPTIONS}}
    return every[_closest(name.lower(), every)]


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
            raise InvalidRequest(f"there is no option {name!r}", remedy=f"did you mean {_closest_option(name)}?")
        flag = OPTIONS[name].flag or f"--{name.replace('_', '-')}"
        given[name] = _Given(value, f"flag {flag}", f"the flag {flag}", OPTIONS[name].kind)
    return given


def _parse(option: Option, given: _Given) -> Any:
    try:
        return option.parse(_as_text(given.value, given.kind.separator), given.kind)
    except ValueError as exc:
        shown = "" if option.secret else f" is {str(given.value)[:_SHOWN_LENGTH]!r}"
        raise InvalidRequest(f"{given.subject}{shown}: {given.kind.takes} is expected") from exc
    except InvalidRequest as exc:
        raise InvalidRequest(exc.message, remedy=f"{given.subject} says so; {exc.remedy}") from exc


def _as_text(value: object, separator: str) -> str:
    """Returns a value of a file or a caller as text: only texts are parsed, so that a value means the same wherever it
    is given."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float | Path):
        return str(value).strip()
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return separator.join(value)
    raise ValueError


def _check_ascending(
    names: tuple[str, ...], resolved: dict[str, Any], sources: dict[str, str], given: Mapping[str, _Given]
) -> None:
    explicit = [name for name in names if name in given]
    for lower, higher in itertools.pairwise(explicit):
        if resolved[lower] > resolved[higher]:
            raise InvalidRequest(
                f"{lower} is {OPTIONS[lower].show(resolved[lower])} ({sources[lower]}), "
                f"but {higher} is {OPTIONS[higher].show(resolved[higher])} ({sources[higher]})",
                remedy=f"{lower} must not be more than {higher}",
            )
    for name in (name for name in names if name not in given):
        position = names.index(name)
        for other in explicit:
            bound = max if names.index(other) < position else min
            if (moved := bound(resolved[name], resolved[other])) != resolved[name]:
                resolved[name], sources[name] = moved, f"follows {other}"


def _unknown_variables(values: Mapping[str, str]) -> Iterable[str]:
    known = {CONFIG_VARIABLE, *_CLIENT_VARIABLES, *(option.variable for option in OPTIONS.values())}
    for name in sorted(values):
        if name.startswith("WARREN_") and name not in known:
            close = _closest(name, known)
            yield f"the environment variable {name} is no option and does nothing; did you mean {close}?"
