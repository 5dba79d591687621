"""The options that both clients take as keywords, in groups: `**options: Unpack[ClientOptions]`.

`session_values` and `command_values` make the fields of requests of them.
"""

import base64
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from warren.model.errors import ImageBuilding, InvalidRequest

if TYPE_CHECKING:
    from warren.model.network import NetworkRules

OnMismatch = Literal["keep", "replace", "error"]
Mode = Literal["remote", "local"]
ImageProgress = Callable[[ImageBuilding], None]

_log: Final = logging.getLogger("warren")
_SENT_IF_FALSE: Final = frozenset({"auto_resume"})
_NOT_SENT: Final = frozenset({"timeout", "exactly_once", "image_timeout_s", "on_image_progress", "direct"})


def log_once() -> ImageProgress:
    """Returns what logs the first call: a program that waits for minutes should say for what."""
    told = False

    def log(building: ImageBuilding) -> None:
        nonlocal told
        if not told:
            _log.warning("%s; the first use of the environment waits for it", building.message)
        told = True

    return log


class ServerOptions(TypedDict, total=False):
    """Where the server is, and the key for it."""

    mode: Mode
    api_key: str | None


class AttachOptions(ServerOptions, total=False):
    """How a client of an existing session works."""

    timeout: float
    exactly_once: bool


class SessionOptions(TypedDict, total=False):
    """What a new session is like, how its client waits for it, and whether it repeats commands."""

    environment: str
    image: str
    limits: Mapping[str, float] | None
    env: Mapping[str, str] | None
    metadata: Mapping[str, str] | None
    require: Sequence[str]
    secrets: Sequence[str]
    labels: Mapping[str, str] | None
    provider: str
    network: "NetworkRules | Mapping[str, Any] | None"
    gpus: int | Sequence[str] | None
    volumes: Sequence[str | Mapping[str, Any]]
    idle_timeout_s: float | None
    max_lifetime_s: float | None
    on_idle: Literal["end", "pause", "hibernate"] | None
    max_paused_s: float | None
    auto_resume: bool
    replace_lost: bool
    on_mismatch: OnMismatch
    agent_config: str | Mapping[str, Any]
    snapshot: str
    logs: str
    exactly_once: bool
    image_timeout_s: float
    on_image_progress: ImageProgress | None
    direct: bool


class WorkOptions(SessionOptions, total=False):
    """What a client takes beside its server and its session; `timeout` is that of commands without one."""

    timeout: float


class SandboxOptions(ServerOptions, SessionOptions, total=False):
    """What the integrations take: they have a `timeout` of their own."""


class ClientOptions(ServerOptions, WorkOptions, total=False):
    """All options of a client."""

    thread_id: str
    session_id: str


class CommandOptions(TypedDict, total=False):
    """How a command runs. The same as the arguments of `execute`."""

    cwd: str
    env: Mapping[str, str] | None
    user: str
    carry_state: bool
    keep_bytes: int | None


class SessionChanges(TypedDict, total=False):
    """What can be changed while a session runs. An entry of `metadata` that is None is removed."""

    idle_timeout_s: float
    max_lifetime_s: float
    metadata: Mapping[str, str | None]


def check_options(options: WorkOptions) -> None:
    """Raises TypeError for a name that is no option, as Python does for an argument that is not declared."""
    for name in options:
        if name not in WorkOptions.__annotations__:
            from difflib import get_close_matches

            known = sorted(ClientOptions.__annotations__)
            near = [each for each in known if each.startswith(name)] or get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}? It" if near else "it"
            raise TypeError(f"a client has no option {name!r}; {hint} has {', '.join(known)}")


def session_values(thread_id: str, options: WorkOptions) -> dict[str, Any]:
    """Returns what the request for a new session says, as JSON has it: options that are not empty."""
    given = {"thread_id": thread_id, **{name: _json_value(name, value) for name, value in options.items()}}
    return {
        name: value
        for name, value in given.items()
        if (value or (value is False and name in _SENT_IF_FALSE)) and name not in _NOT_SENT
    }


def network_values(rules: "NetworkRules | Mapping[str, Any]") -> dict[str, Any]:
    """Returns network rules as the server takes them. Raises InvalidRequest."""
    if not isinstance(rules, Mapping) and not hasattr(rules, "as_mapping"):
        raise InvalidRequest(
            f"network is {rules!r}, it must be a mapping or NetworkRules",
            remedy='such as {"allow": ["api.example.com"]}, or {"internet": True}',
        )
    values = dict(rules) if isinstance(rules, Mapping) else rules.as_mapping()
    for name in ("allow", "deny"):
        if isinstance(values.get(name), str):
            raise InvalidRequest(f"{name} is {values[name]!r}, it must be a list", remedy=f"write [{values[name]!r}]")
    return {"internet": False, **{k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}}


def _json_value(name: str, value: Any) -> Any:
    if name == "network" and value is not None:
        return network_values(value)
    if name == "limits" and value:
        _check_limits(value)
    if name == "volumes" and value:
        return [volume_values(each) for each in value]
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def volume_values(volume: str | Mapping[str, Any]) -> dict[str, Any]:
    """Reads NAME:PATH[:ro], or the mapping that a request has. Raises InvalidRequest."""
    if isinstance(volume, Mapping):
        return dict(volume)
    from warren.model.volume import parse_mount

    return parse_mount(volume)


def _check_limits(limits: Any) -> None:
    from warren.model.spec import Limits

    known = ", ".join(Limits.__dataclass_fields__)
    if not isinstance(limits, Mapping):
        raise InvalidRequest(f"limits is {limits!r}, it must be a mapping", remedy=f"its keys: {known}")
    if unknown := [name for name in limits if name not in Limits.__dataclass_fields__]:
        raise InvalidRequest(f"there is no limit {unknown[0]!r}", remedy=f"there are: {known}")


def stdin_values(stdin: str | bytes) -> dict[str, Any]:
    """Returns the fields of a request for its input: ASCII text as it is, bytes and any other text as base64."""
    if isinstance(stdin, str) and not stdin.isascii():
        stdin = stdin.encode(errors="surrogateescape")
    if isinstance(stdin, bytes):
        return {"stdin_base64": base64.b64encode(stdin).decode()} if stdin else {}
    return {"stdin": stdin} if stdin else {}


def command_values(
    command: str | Sequence[str],
    timeout: float | None,
    cwd: str = "",
    env: Mapping[str, str] | None = None,
    user: str = "",
    carry_state: bool = True,
    keep_bytes: int | None = None,
) -> dict[str, Any]:
    """Returns the fields of a request for a command; options that are not given are left out."""
    if not isinstance(command, (str, Sequence)):
        raise InvalidRequest(
            f"the command is {command!r}, it must be a text or a list of texts",
            remedy='such as "ls -l", a line for bash, or ["ls", "-l"], a program and its arguments',
        )
    values: dict[str, Any] = {"command": command if isinstance(command, str) else list(command)}
    given = {"timeout_s": timeout, "cwd": cwd, "env": dict(env or {}), "user": user, "keep_bytes": keep_bytes}
    values.update({name: value for name, value in given.items() if value not in (None, "", {})})
    return values if carry_state else {**values, "carry_state": False}
