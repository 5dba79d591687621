"""Reads the registry: YAML files that describe environments and hold no logic.

The package brings its own; a directory of the operator may add to them or replace them by name. A mistake in one file
does not affect the others.
"""

import difflib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from warren.config.yaml_files import read_yaml
from warren.model.capability import Capability
from warren.model.environment import Environment, PoolSize
from warren.model.errors import InvalidRequest, Unavailable, UnknownEnvironment
from warren.model.gpus import read_gpus
from warren.model.network import NO_NETWORK, NetworkRules
from warren.model.policy import Policy
from warren.model.spec import IoLimits, Limits

_PACKAGED = Path(__file__).parents[1] / "registry_data"
_CHECKOUT = Path(__file__).parents[3] / "registry"
_Type = tuple[tuple[type, ...], str]
_TEXT: _Type = (str,), "a text"
_MAPPING: _Type = (dict,), "keys and values"
_NUMBER: _Type = (int, float), "a number"
_LIST: _Type = (list,), "a list"
_KEYS = {
    "name": _TEXT,
    "description": _TEXT,
    "image": _TEXT,
    "limits": _MAPPING,
    "io": _MAPPING,
    "env": _MAPPING,
    "pool": _MAPPING,
    "policy": _MAPPING,
    "idle_timeout_s": _NUMBER,
    "max_lifetime_s": _NUMBER,
    "provider": _TEXT,
    "needs": _LIST,
    "network": _MAPPING,
    "secrets": _LIST,
    "gpus": ((int, list), "a number or a list of ids"),
}
_REQUIRED = ("name", "image")


def packaged_registry() -> Path:
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


@dataclass(frozen=True, slots=True)
class Change:
    """`kept`: the file has a mistake, and the environment stays as it was read before."""

    name: str
    problem: str = ""
    removed: bool = False
    kept: bool = False


@dataclass(frozen=True, slots=True)
class _Reading:
    """A file as it was read; `stamp` tells whether it has changed since. `environment` is None until it was right."""

    path: Path
    stamp: tuple[int, ...]
    environment: Environment | None
    problem: str = ""


class Registry:
    """Environments by name. Later directories win over earlier ones.

    A file that has changed is read again when its environment is next used. If it has a mistake then, the environment
    stays as it was; one that was never right cannot be used.
    """

    def __init__(self, *directories: Path) -> None:
        self._directories = directories
        self._files = self._scan()
        self._readings: dict[str, _Reading] = {}
        self._reported: dict[str, _Reading] = {}

    @property
    def names(self) -> list[str]:
        self._files = self._scan()
        return sorted(self._files, key=lambda name: (name.casefold(), name))

    def environment(self, name: str) -> Environment:
        """Raises UnknownEnvironment, and Unavailable if there is a mistake in its file. The message does not say which:
        callers of the server get it."""
        reading = self._look_at(name)
        if reading is None:
            raise UnknownEnvironment(f"there is no environment {name!r}", remedy=self._remedy(name))
        if reading.environment is None:
            raise Unavailable(
                f"the environment {name!r} cannot be used: its file on the server has a mistake",
                remedy="the operator finds it in the server's log, or with `warren environments validate`",
            )
        return reading.environment

    def read(self, name: str) -> Environment:
        """For the operator: raises InvalidRequest, with the file and what is wrong in it."""
        if self._look_at(name) is None:
            raise UnknownEnvironment(f"there is no environment {name!r}", remedy=self._remedy(name))
        return read_environment(self._files[name])

    def problems(self) -> dict[str, str]:
        """By name, what is wrong with an environment's file; empty if nothing is."""
        readings = {name: self._look_at(name) for name in self.names}
        return {name: reading.problem if reading else "" for name, reading in readings.items()}

    def changes(self) -> list[Change]:
        """Since the last call; at first, all environments that there are."""
        readings = {name: reading for name in self.names if (reading := self._look_at(name))}
        before, self._reported = self._reported, readings
        found = [Change(name, removed=True) for name in before if name not in readings]
        for name, reading in readings.items():
            if before.get(name) is not reading:
                found.append(Change(name, reading.problem, kept=bool(reading.problem and reading.environment)))
        return found

    def _scan(self) -> dict[str, Path]:
        return {
            path.stem: path
            for directory in self._directories
            for path in sorted((directory / "environments").glob("*.yaml"))
        }

    def _look_at(self, name: str) -> _Reading | None:
        """Costs one stat if nothing has changed. None: there is no such environment, or none any more."""
        path = self._files.get(name)
        stamp = _stamp(path) if path else None
        if path is None or stamp is None:
            self._files = self._scan()
            path = self._files.get(name)
            stamp = _stamp(path) if path else None
            if path is None or stamp is None:
                self._readings.pop(name, None)
                return None
        known = self._readings.get(name)
        if known is None or (known.path, known.stamp) != (path, stamp):
            try:
                known = _Reading(path, stamp, read_environment(path))
            except InvalidRequest as exc:
                known = _Reading(path, stamp, known.environment if known else None, str(exc))
            self._readings[name] = known
        return known

    def _remedy(self, name: str) -> str:
        names = self.names
        by_folded = {known.casefold(): known for known in names}
        close = difflib.get_close_matches(name[:64].casefold(), by_folded, n=1, cutoff=0.8)
        suggestion = f"did you mean {by_folded[close[0]]}? " if close else ""
        return f"{suggestion}there are: {', '.join(names) or 'none'}"


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def read_environment(path: Path) -> Environment:
    values = _read_mapping(path)
    for key in _REQUIRED:
        if key not in values:
            raise InvalidRequest(f"{path}: the key {key!r} is missing")
    if values["name"] != path.stem:
        raise InvalidRequest(f"{path}: name is {values['name']!r}, the file's name says {path.stem!r}")
    limits = _read_limits(path, values.pop("limits", {}))
    io = _read_io(path, values.pop("io", {}))
    pool = _read_pool(path, values.pop("pool")) if "pool" in values else None
    policy = values.pop("policy", None)
    network = values.pop("network", None)
    env = values.pop("env", {})
    secrets = _read_secrets(path, values.pop("secrets", []))
    needs = _read_needs(path, values.pop("needs", []))
    wanted_gpus = values.pop("gpus", 0)
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidRequest(f"{path}: env.{name} must be a text; put it in quotes")
    try:
        rules = Policy() if policy is None else Policy.from_mapping(policy)
        reach = NO_NETWORK if network is None else NetworkRules.from_mapping(network)
        return Environment(
            limits=limits,
            io=io,
            env=env,
            pool=pool,
            policy=rules,
            needs=needs,
            network=reach,
            secrets=secrets,
            gpus=read_gpus(wanted_gpus),
            **values,
        )
    except InvalidRequest as exc:
        raise InvalidRequest(f"{path}: {exc.message}", remedy=exc.remedy) from exc


def _read_mapping(path: Path) -> dict[str, Any]:
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise InvalidRequest(f"{path}: keys and values are expected, this is {type(values).__name__}")
    for key, value in values.items():
        if key not in _KEYS:
            raise InvalidRequest(f"{path}: there is no key {key!r}", remedy=f"the keys are {', '.join(_KEYS)}")
        types, in_words = _KEYS[key]
        if isinstance(value, bool) or not isinstance(value, types):
            raise InvalidRequest(f"{path}: {key} is {value!r}, it must be {in_words}")
    return values


def _read_secrets(path: Path, names: list[Any]) -> tuple[str, ...]:
    for name in names:
        if not isinstance(name, str):
            raise InvalidRequest(f"{path}: secrets are names, {name!r} is none", remedy="the values are set elsewhere")
    return tuple(names)


def _read_needs(path: Path, names: list[Any]) -> frozenset[Capability]:
    for name in names:
        if name not in list(Capability):
            raise InvalidRequest(
                f"{path}: there is no capability {name!r}", remedy=f"the capabilities are {', '.join(Capability)}"
            )
    return frozenset(map(Capability, names))


def _read_limits(path: Path, values: dict[Any, Any]) -> Limits:
    known = [field.name for field in fields(Limits)]
    for key, value in values.items():
        if key not in known:
            raise InvalidRequest(f"{path}: there is no limit {key!r}", remedy=f"the limits are {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidRequest(f"{path}: limits.{key} is {value!r}, it must be a number")
        if key != "cpus" and not isinstance(value, int):
            raise InvalidRequest(f"{path}: limits.{key} is {value!r}, it must be a whole number")
    try:
        return Limits(**values)
    except InvalidRequest as exc:
        raise InvalidRequest(f"{path}: {exc.message}") from exc


def _read_io(path: Path, values: dict[Any, Any]) -> IoLimits:
    known = [field.name for field in fields(IoLimits)]
    for key, value in values.items():
        if key not in known:
            raise InvalidRequest(f"{path}: there is no key io.{key}", remedy=f"the keys are {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidRequest(f"{path}: io.{key} is {value!r}, it must be a whole number")
    try:
        return IoLimits(**values)
    except InvalidRequest as exc:
        raise InvalidRequest(f"{path}: {exc.message}") from exc


def _read_pool(path: Path, values: dict[Any, Any]) -> PoolSize:
    """A min or max that is not given follows the size."""
    known = [field.name for field in fields(PoolSize)]
    for key, value in values.items():
        if key not in known:
            raise InvalidRequest(f"{path}: there is no key pool.{key}", remedy=f"the keys are {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidRequest(f"{path}: pool.{key} is {value!r}, it must be a whole number")
    defaults = PoolSize()
    size = values.get("size", defaults.size)
    bounds = {"min": min(defaults.min, size), "max": max(defaults.max, size)}
    try:
        return PoolSize(**{"size": size, **bounds, **values})
    except InvalidRequest as exc:
        raise InvalidRequest(f"{path}: {exc.message}", remedy=exc.remedy) from exc
