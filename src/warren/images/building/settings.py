"""The parameters of an image builder: limits, a network, a provider of sandboxes, and a progress callback.

This module imports fast: a build whose layers are all cached needs no other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from warren.images.trees.layers import USUAL_CAPS, LayerCaps
from warren.interfaces.images import Images, ImageVersion
from warren.model.network import NO_NETWORK, NetworkRules
from warren.model.spec import Limits, SandboxSpec

if TYPE_CHECKING:
    from warren.images.store.store import ImageStore
    from warren.sandboxes.agent.sandbox import AgentSandbox

LAST_OUTPUT: Final = "\nits last output:"
"""Comes in the message of a step that failed before what the step wrote."""


class BuildProvider(Protocol):
    """The part of a provider that a builder uses; see OciProvider with `keep_changes`."""

    async def create(self, spec: SandboxSpec) -> "AgentSandbox": ...
    async def destroy(self, sandbox_id: str) -> None: ...
    def changes(self, sandbox_id: str) -> int: ...
    def uid_base(self, sandbox_id: str) -> int: ...
    async def close(self) -> None: ...
    async def list_ids(self) -> Sequence[str]: ...


class BuildProgress(Protocol):
    """Receives the current step and the finished fraction of the build; `output` receives what a step writes."""

    def __call__(self, step: str, fraction: float | None) -> None: ...
    def output(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class BuildNetwork:
    """What commands of a build may reach, and the settings that make programs use it. `apt_sources` maps the code name
    of a release to lines for apt; `authorities` are certificates for the hosts (PEM). None of it stays in the image."""

    rules: NetworkRules = NO_NETWORK
    env: Mapping[str, str] = field(default_factory=dict)
    apt_sources: Mapping[str, str] = field(default_factory=dict)
    authorities: str = ""


@dataclass(frozen=True, slots=True)
class StepLimits:
    sandbox: Limits
    timeout_s: float
    caps: LayerCaps = USUAL_CAPS


NewProvider = Callable[[Path, Images], BuildProvider]
Pull = Callable[["ImageStore", str, str, BuildProgress], ImageVersion]


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """The operator's settings. `new_provider` makes the provider of the sandboxes that steps run in. `pull` takes an
    image from a registry; with a `registry`, also images whose name has no host."""

    new_provider: NewProvider
    find_network: Callable[[], BuildNetwork]
    limits: StepLimits
    cache_mb: int = 10240
    docker_url: str = ""
    pull: Pull | None = None
    registry: str = ""
