"""Reads the registry: YAML files that describe environments, agents, tools and prompts, and hold no logic.

The package brings its own; a directory of the operator may add to them or replace them by name.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from warren.config.image_recipes import ENVIRONMENT_IMAGES, NamedRecipe, Where, recipe_of
from warren.config.option_kinds import parse_seconds
from warren.config.registry_files import RegistryFiles
from warren.config.yaml_files import YamlFile
from warren.model.agent import Agent, AgentPrompt
from warren.model.capability import Capability
from warren.model.code import find_language
from warren.model.entries import InvalidEntry, Place
from warren.model.environment import Environment, PoolSize
from warren.model.errors import InvalidRequest, Unavailable, UnknownEntry, UnknownEnvironment
from warren.model.gpus import read_gpus
from warren.model.metrics import AlertThresholds, Resource
from warren.model.network import NO_NETWORK, NetworkRules
from warren.model.policy import Policy
from warren.model.prompt import Prompt
from warren.model.secrets import check_names
from warren.model.session import OnIdle, check_seconds
from warren.model.snapshot import check_snapshot_name
from warren.model.spec import IoLimits, Limits, check_env, check_image_name
from warren.model.suggestions import suggest
from warren.model.tool import Tool
from warren.model.volume import VolumeWish

_PACKAGED = Path(__file__).parents[1] / "registry_data"
_CHECKOUT = Path(__file__).parents[3] / "registry"
_Type = tuple[tuple[type, ...], str]
_TEXT: _Type = (str,), "a text"
_MAPPING: _Type = (dict,), "keys and values"
_TIME: _Type = (int, float), "a number of seconds, or a time like 10m"
_LIST: _Type = (list,), "a list"
_FLAG: _Type = (bool,), "true or false"
_KEYS = {
    "name": _TEXT,
    "description": _TEXT,
    "image": ((str, dict), "a text, or keys and values"),
    "limits": _MAPPING,
    "io": _MAPPING,
    "env": _MAPPING,
    "pool": _MAPPING,
    "policy": _MAPPING,
    "idle_timeout_s": _TIME,
    "max_lifetime_s": _TIME,
    "on_idle": _TEXT,
    "max_paused_s": _TIME,
    "provider": _TEXT,
    "needs": _LIST,
    "network": _MAPPING,
    "secrets": _LIST,
    "root": _TEXT,
    "sudo": _FLAG,
    "gpus": ((int, list), "a number or a list of ids"),
    "volumes": ((list,), "a list of volumes"),
    "contexts": _LIST,
    "user": _TEXT,
    "alerts": _MAPPING,
    "snapshot": _TEXT,
    "logs": _TEXT,
}
_TIMES = ("idle_timeout_s", "max_lifetime_s", "max_paused_s", "timeout_s")
_REQUIRED = ("name", "image")
_ROOTS = {"read-only": False, "writable": True}


def packaged_registry() -> Path:
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


class Registry(RegistryFiles[Environment]):
    """The environments, and beside them agents, tools and prompts."""

    def __init__(self, *directories: Path) -> None:
        super().__init__("environments", read_environment, UnknownEnvironment, *directories)
        self.agents = RegistryFiles("agents", read_agent, UnknownEntry, *directories)
        self.tools = RegistryFiles("tools", read_tool, UnknownEntry, *directories)
        self.prompts = RegistryFiles("prompts", read_prompt, UnknownEntry, *directories)
        self.kinds: dict[str, RegistryFiles[Any]] = {
            each.kind: each for each in (self, self.agents, self.tools, self.prompts)
        }

    def environment(self, name: str) -> Environment:
        return self.get(name)

    def recipe(self, name: str) -> NamedRecipe | None:
        """How the image of the environment is made, if its file says that. Raises what `environment` does."""
        environment = self.environment(name)
        if environment.recipe is None:
            return None
        return NamedRecipe(environment.image, environment.recipe, self._files[name].parent, environment.description)

    def check_agent(self, agent: Agent) -> None:
        """Raises for what the agent names and the registry does not have, or cannot use."""
        for _, find in self._references(agent):
            find()

    def _references(self, agent: Agent) -> Iterator[tuple[Place, Callable[[], object]]]:
        if agent.environment:
            yield ("environment",), lambda: self.get(agent.environment)
        for place, tool in enumerate(agent.tools):
            if isinstance(tool, str):
                yield ("tools", place), partial(self.tools.get, tool)
        if agent.prompt is not None and agent.prompt.name:
            yield ("prompt",), partial(self._check_prompt, agent.prompt)

    def _check_prompt(self, wanted: AgentPrompt) -> None:
        prompt = self.prompts.get(wanted.name)
        if unknown := [name for name in wanted.variables if name not in prompt.variables]:
            remedy = f"{suggest(unknown[0], prompt.variables)}its variables are {', '.join(prompt.variables)}"
            raise InvalidRequest(f"the prompt {prompt.name!r} has no variable {unknown[0]!r}", remedy=remedy)

    def all_problems(self) -> dict[tuple[str, str], str]:
        """Returns by kind and name what is wrong with each entry, references included; empty texts if nothing is."""
        found = {
            (kind, name): problem for kind, files in self.kinds.items() for name, problem in files.problems().items()
        }
        for agent in self.agents.list():
            if not found["agents", agent.name]:
                found["agents", agent.name] = self._problem_of(agent)
        return found

    def _problem_of(self, agent: Agent) -> str:
        for place, find in self._references(agent):
            try:
                find()
            except (InvalidRequest, Unavailable) as exc:
                return str(YamlFile(self.agents.path(agent.name)).error(exc.message, *place, remedy=exc.remedy))
        return ""


def read_agent(path: Path) -> Agent:
    return _read_entry(path, Agent.from_mapping)


def read_tool(path: Path) -> Tool:
    return _read_entry(path, Tool.from_mapping)


def read_prompt(path: Path) -> Prompt:
    return _read_entry(path, Prompt.from_mapping)


_Named = TypeVar("_Named", Agent, Tool, Prompt)


def _read_entry(path: Path, make: Callable[[Any], _Named]) -> _Named:
    file = YamlFile(path)
    try:
        entry = make(_with_seconds(file.values))
    except InvalidEntry as exc:
        raise file.error(exc.message, *exc.place, remedy=exc.remedy) from exc
    _check_name(file, entry.name)
    return entry


def _check_name(file: YamlFile, name: str) -> None:
    if not name:
        raise file.error("the key 'name' is missing")
    if name != file.path.stem:
        raise file.error(f"name is {name!r}, the file's name says {file.path.stem!r}", "name")


def read_environment(path: Path) -> Environment:
    file = YamlFile(path)
    values = _read_mapping(file)
    for key in _REQUIRED:
        if key not in values:
            raise file.error(f"the key {key!r} is missing")
    _check_name(file, values["name"])
    limits = _read_limits(file, values.pop("limits", {}))
    io = _read_io(file, values.pop("io", {}))
    pool = _read_pool(file, values.pop("pool")) if "pool" in values else None
    if values.get("snapshot"):
        pool = PoolSize(0, 0, 0)  # each sandbox begins from the snapshot, so none can be made ahead
        with _mistakes(file, "snapshot"):
            check_snapshot_name(values["snapshot"])
    policy = values.pop("policy", None)
    network = values.pop("network", None)
    env = _read_env(file, values.pop("env", {}))
    secrets = _read_secrets(file, values.pop("secrets", []))
    needs = _read_needs(file, values.pop("needs", []))
    alerts = _read_alerts(file, values.pop("alerts", {}))
    writable_root = _read_root(file, values.pop("root", "read-only"))
    if values.get("sudo"):
        needs |= {Capability.USER_NAMESPACE}  # without one, root inside would be the machine's root
    with _mistakes(file, "contexts"):
        contexts = _read_contexts(values.pop("contexts", []))
    with _mistakes(file, "gpus"):
        gpus = read_gpus(values.pop("gpus", 0))
    volumes = _read_volumes(file, values.pop("volumes", []))
    with _mistakes(file, "policy"):
        rules = Policy() if policy is None else Policy.from_mapping(policy)
    with _mistakes(file, "network"):
        reach = NO_NETWORK if network is None else NetworkRules.from_mapping(network)
    recipe = None
    if isinstance(values["image"], dict):
        recipe = recipe_of(values["image"], Where(file, ("image",)))
        values["image"] = f"{ENVIRONMENT_IMAGES}{path.stem}"
    with _mistakes(file, "image"):
        check_image_name(values["image"])
    for name in ("idle_timeout_s", "max_lifetime_s", "max_paused_s"):
        if name in values:
            with _mistakes(file, name):
                check_seconds(name, values[name])
    on_idle = _read_on_idle(file, values.pop("on_idle", None))
    with _mistakes(file):
        return Environment(
            limits=limits,
            io=io,
            env=env,
            pool=pool,
            policy=rules,
            contexts=contexts,
            needs=needs,
            network=reach,
            secrets=secrets,
            writable_root=writable_root,
            gpus=gpus,
            recipe=recipe,
            alerts=alerts,
            on_idle=on_idle,
            volumes=volumes,
            **values,
        )


@contextlib.contextmanager
def _mistakes(file: YamlFile, *keys: Any) -> Iterator[None]:
    """Adds the file and the line to an InvalidRequest that is raised in the block."""
    try:
        yield
    except InvalidRequest as exc:
        raise file.error(exc.message, *keys, remedy=exc.remedy) from exc


def _read_mapping(file: YamlFile) -> dict[str, Any]:
    values = _with_seconds(file.values)
    if not isinstance(values, dict):
        raise file.error(f"keys and values are expected, this is {type(values).__name__}")
    for key, value in values.items():
        if key not in _KEYS:
            raise _unknown_key(file, f"there is no key {key!r}", _KEYS, key)
        types, in_words = _KEYS[key]
        if isinstance(value, bool) != (types == (bool,)) or not isinstance(value, types):
            raise file.error(f"{key} is {value!r}, it must be {in_words}", key)
    return values


def _with_seconds(values: Any) -> Any:
    """Returns what a file says with its times in seconds. What is no time stays, for its reader to refuse."""
    texts = [name for name in _TIMES if isinstance(values, dict) and isinstance(values.get(name), str)]
    for name in texts:
        with contextlib.suppress(ValueError):
            values = {**values, name: parse_seconds(values[name])}
    return values


def _unknown_key(file: YamlFile, message: str, known: Iterable[str], *keys: Any) -> InvalidRequest:
    words = "limits" if "limit" in message else "keys"
    remedy = f"{suggest(keys[-1], known)}the {words} are {', '.join(known)}"
    return file.error(message, *map(str, keys), remedy=remedy)


def _read_env(file: YamlFile, values: dict[Any, Any]) -> dict[str, str]:
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise file.error(f"env.{name} must be a text; put it in quotes", "env", str(name))
        with _mistakes(file, "env", name):
            check_env(name, value)
    return values


def _read_contexts(languages: list[Any]) -> tuple[str, ...]:
    found = [find_language(str(language)).name for language in languages]
    if len(set(found)) < len(found):
        raise InvalidRequest("a language stands there twice")
    return tuple(found)


def _read_secrets(file: YamlFile, names: list[Any]) -> tuple[str, ...]:
    for place, name in enumerate(names):
        if not isinstance(name, str):
            raise file.error(
                f"secrets are names, {name!r} is none", "secrets", place, remedy="the values are set elsewhere"
            )
    with _mistakes(file, "secrets"):
        return check_names(names)


def _read_volumes(file: YamlFile, entries: list[Any]) -> tuple[VolumeWish, ...]:
    found = []
    for place, values in enumerate(entries):
        if not isinstance(values, dict):
            raise file.error(
                f"a volume is {values!r}", "volumes", place, remedy="write name: …, path: …, and size_mb or read_only"
            )
        with _mistakes(file, "volumes", place):
            found.append(VolumeWish.of_environment(values))
    return tuple(found)


def _read_needs(file: YamlFile, names: list[Any]) -> frozenset[Capability]:
    for place, name in enumerate(names):
        if name not in list(Capability):
            remedy = f"{suggest(name, Capability)}the capabilities are {', '.join(Capability)}"
            raise file.error(f"there is no capability {name!r}", "needs", place, remedy=remedy)
    return frozenset(map(Capability, names))


def _read_root(file: YamlFile, root: str) -> bool:
    if root not in _ROOTS:
        raise file.error(f"root is {root!r}", "root", remedy=f"it is one of {', '.join(_ROOTS)}")
    return _ROOTS[root]


def _read_on_idle(file: YamlFile, text: str | None) -> OnIdle | None:
    if text is not None and text not in list(OnIdle):
        raise file.error(f"on_idle is {text!r}", "on_idle", remedy=f"it is one of {', '.join(OnIdle)}")
    return None if text is None else OnIdle(text)


def _read_limits(file: YamlFile, values: dict[Any, Any]) -> Limits:
    known = [field.name for field in fields(Limits)]
    for key, value in values.items():
        if key not in known:
            raise _unknown_key(file, f"there is no limit {key!r}", known, "limits", key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise file.error(f"limits.{key} is {value!r}, it must be a number", "limits", key)
        if key != "cpus" and not isinstance(value, int):
            raise file.error(f"limits.{key} is {value!r}, it must be a whole number", "limits", key)
    with _mistakes(file, "limits"):
        return Limits(**values)


def _read_io(file: YamlFile, values: dict[Any, Any]) -> IoLimits:
    _check_whole_numbers(file, "io", values, [field.name for field in fields(IoLimits)])
    with _mistakes(file, "io"):
        return IoLimits(**values)


def _read_alerts(file: YamlFile, values: dict[Any, Any]) -> AlertThresholds:
    for key in values:
        if key not in list(Resource):
            raise _unknown_key(file, f"there is no key alerts.{key}", Resource, "alerts", key)
    with _mistakes(file, "alerts"):
        return AlertThresholds.from_mapping(values)


def _read_pool(file: YamlFile, values: dict[Any, Any]) -> PoolSize:
    """Reads the size of a pool. A min or max that is not given follows the size."""
    _check_whole_numbers(file, "pool", values, [field.name for field in fields(PoolSize)])
    defaults = PoolSize()
    size = values.get("size", defaults.size)
    bounds = {"min": min(defaults.min, size), "max": max(defaults.max, size)}
    with _mistakes(file, "pool"):
        return PoolSize(**{"size": size, **bounds, **values})


def _check_whole_numbers(file: YamlFile, block: str, values: dict[Any, Any], known: list[str]) -> None:
    for key, value in values.items():
        if key not in known:
            raise _unknown_key(file, f"there is no key {block}.{key}", known, block, key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise file.error(f"{block}.{key} is {value!r}, it must be a whole number", block, key)
