"""Values and pure functions for creating sessions."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from warren.model.agent import Agent
from warren.model.errors import InvalidRequest
from warren.model.mismatch import Mismatch
from warren.model.network import NetworkRules
from warren.model.preview import PreviewRules
from warren.model.session import (
    FAILED_CREATIONS,
    IDLE_TIMEOUT_S,
    MAX_LIFETIME_S,
    MAX_PAUSED_S,
    EndReason,
    OnIdle,
    Previous,
    Session,
)
from warren.model.spec import Layer, Limits
from warren.model.volume import VolumeWish

_LATER: Final = (
    *("provider", "judged_as", "network", "secrets", "agent_config", "gpus", "previews", "until_closed", "volumes"),
    *("on_idle", "max_paused_s", "snapshot", "forked_from", "logs", "on_timeout", "renewal_s"),
)


@dataclass(frozen=True, slots=True)
class Defaults:
    environment: str = "base"
    idle_timeout_s: float = IDLE_TIMEOUT_S
    max_lifetime_s: float = MAX_LIFETIME_S
    on_idle: OnIdle = OnIdle.END
    max_paused_s: float = MAX_PAUSED_S
    hibernate_after_s: float = 0.0


OnMismatch = Literal["keep", "replace", "error"]


@dataclass(frozen=True, slots=True)
class NewSession:
    """The session that a caller wants. With `replace_lost` a thread whose sandbox has died gets a new one. `network`
    and `gpus` None: what the environment says. `agent_config` is the name of an agent of the registry, or an agent as
    JSON has it; what the request says itself wins over what the agent says. `previews` None: no port is public.
    `on_mismatch`: what becomes of a thread's session that has something else than this names."""

    environment: str = ""
    thread_id: str = ""
    image: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    require: frozenset[Layer] = frozenset()
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    idle_timeout_s: float | None = None
    max_lifetime_s: float | None = None
    replace_lost: bool = False
    provider: str = ""
    network: NetworkRules | None = None
    secrets: tuple[str, ...] = ()
    agent_config: str | Mapping[str, Any] = ""
    gpus: tuple[str, ...] | None = None
    previews: PreviewRules | None = None
    on_mismatch: OnMismatch = "error"
    on_idle: OnIdle | None = None
    on_timeout: OnIdle | None = None
    renewal_s: float = 0.0
    max_paused_s: float | None = None
    auto_resume: bool = True
    snapshot: str = ""
    forked_from: str = ""
    logs: str = ""
    volumes: tuple[VolumeWish, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateResult:
    """`created`: this call made the session. Otherwise the thread had it, or (`replayed`) an earlier call with the same
    Idempotency-Key made it. `mismatch`: what the thread's session has, and the request would have otherwise."""

    session: Session
    created: bool
    replayed: bool = False
    mismatch: Mismatch = field(default_factory=dict)


def fingerprint(request: Any) -> str:
    """A hash of the request, the same in every process and version: a field added later counts only if it is set."""
    values = asdict(request)
    for name in _LATER:
        if not values.get(name):
            values.pop(name, None)
    if values.get("auto_resume"):
        del values["auto_resume"]
    for name, part in (("network", "headers"), ("previews", "host_mask")):
        if values.get(name) and not values[name][part]:
            del values[name][part]
    if values.get("on_mismatch") == "error":
        del values["on_mismatch"]
    if values.get("stdin"):
        del values["stdin"]
    text = json.dumps(values, sort_keys=True, default=_to_json)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _to_json(value: object) -> object:
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"no fingerprint for {type(value).__name__}")


def previous_of(earlier: Session | None) -> Previous | None:
    if earlier is None:
        return None
    if earlier.reason in FAILED_CREATIONS:
        return earlier.previous
    return Previous(earlier.id, earlier.reason or EndReason.DELETED, earlier.detail)


def with_agent(request: NewSession, agent: Agent) -> NewSession:
    """Returns the request, completed with what only the agent says."""
    return replace(
        request,
        environment=request.environment or agent.environment,
        limits={**agent.limits, **request.limits},
        env={**agent.env, **request.env},
    )


def with_image(request: NewSession) -> NewSession:
    """Returns the request for the default environment with an image, of one that names the image as its environment.
    Raises InvalidRequest if it names another image besides."""
    if request.image not in ("", request.environment):
        raise InvalidRequest(
            f"the environment {request.environment!r} is the name of an image, and {request.image!r} is another one",
            remedy="name one of them, as `image`",
        )
    return replace(request, environment="", image=request.environment)


def changed_limits(limits: Limits, changes: Mapping[str, float]) -> Limits:
    values: dict[str, Any] = dict(changes)
    return replace(limits, **values) if values else limits
