"""Reads the registry: YAML files that describe environments and hold no logic.

The package brings its own; a directory of the operator may add to them or replace them by name. A file is read when
its environment is used, so that a mistake in one file does not affect the others.
"""

import difflib
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from warren.model.capability import Capability
from warren.model.environment import Environment, PoolSize
from warren.model.errors import InvalidRequest, UnknownEnvironment
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
}
_REQUIRED = ("name", "image")


def packaged_registry() -> Path:
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


class Registry:
    """Environments by name. Later directories win over earlier ones."""

    def __init__(self, *directories: Path) -> None:
        self._files = {
            path.stem: path for directory in directories for path in sorted((directory / "environments").glob("*.yaml"))
        }
        self._read: dict[str, tuple[int, Environment]] = {}  # with the time of the file's last change

    @property
    def names(self) -> list[str]:
        return sorted(self._files, key=lambda name: (name.casefold(), name))

    def environment(self, name: str) -> Environment:
        if name not in self._files:
            raise UnknownEnvironment(f"there is no environment {name!r}", remedy=self._remedy(name))
        path = self._files[name]
        try:
            changed_at = path.stat().st_mtime_ns
        except OSError:
            return read_environment(path)
        cached = self._read.get(name)
        if cached is None or cached[0] != changed_at:
            cached = self._read[name] = (changed_at, read_environment(path))
        return cached[1]

    def _remedy(self, name: str) -> str:
        by_folded = {known.casefold(): known for known in self.names}
        close = difflib.get_close_matches(name[:64].casefold(), by_folded, n=1, cutoff=0.8)
        suggestion = f"did you mean {by_folded[close[0]]}? " if close else ""
        return f"{suggestion}there are: {', '.join(self.names) or 'none'}"


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
    env = values.pop("env", {})
    needs = _read_needs(path, values.pop("needs", []))
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidRequest(f"{path}: env.{name} must be a text; put it in quotes")
    try:
        rules = Policy() if policy is None else Policy.from_mapping(policy)
        return Environment(limits=limits, io=io, env=env, pool=pool, policy=rules, needs=needs, **values)
    except InvalidRequest as exc:
        raise InvalidRequest(f"{path}: {exc.message}", remedy=exc.remedy) from exc


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else "?"
        raise InvalidRequest(f"{path}, line {line}: this is not YAML: {exc.problem}") from exc
    except (yaml.YAMLError, UnicodeError) as exc:
        raise InvalidRequest(f"{path}: this is not YAML: {' '.join(str(exc).split())}") from exc
    except OSError as exc:
        raise InvalidRequest(f"{path} cannot be read: {exc.strerror}") from exc
    if not isinstance(values, dict):
        raise InvalidRequest(f"{path}: keys and values are expected, this is {type(values).__name__}")
    for key, value in values.items():
        if key not in _KEYS:
            raise InvalidRequest(f"{path}: there is no key {key!r}", remedy=f"the keys are {', '.join(_KEYS)}")
        types, in_words = _KEYS[key]
        if isinstance(value, bool) or not isinstance(value, types):
            raise InvalidRequest(f"{path}: {key} is {value!r}, it must be {in_words}")
    return values


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
