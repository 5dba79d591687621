"""The keyword arguments that methods of both clients hand on, for type checkers: `**options: Unpack[ClientOptions]`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from warren.model.network import NetworkRules
    from warren.sdk.protocol import ImageProgress

Mode = Literal["remote", "local"]


class ServerOptions(TypedDict, total=False):
    """Which server is meant."""

    mode: Mode
    api_key: str


class AttachOptions(ServerOptions, total=False):
    """How a client of a session works."""

    timeout: float
    exactly_once: bool


class SandboxOptions(ServerOptions, total=False):
    """What a new session is like. The integrations take these."""

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
    idle_timeout_s: float | None
    max_lifetime_s: float | None
    replace_lost: bool
    exactly_once: bool
    agent_config: str | Mapping[str, Any]
    image_timeout_s: float
    on_image_progress: "ImageProgress | None"


class ClientOptions(SandboxOptions, total=False):
    """All options of a client."""

    timeout: float
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
