"""Every option there is, read from the environment here and nowhere else.

| variable | meaning | default |
|---|---|---|
| WARREN_STATE_DIR | where images and sandboxes live | /var/lib/warren for root, else ~/.local/state/warren |
| WARREN_PROVIDER | what makes sandboxes: oci, docker | oci |
| WARREN_RUNTIME | the OCI runtime: crun, runc, runsc or a path | the best that works here |
| WARREN_BIN_DIR | where the agent and the launcher are | inside the package |
| WARREN_REGISTRY_DIR | a registry of your own, beside the built-in one | none |
| WARREN_DEBUG | show stack traces of internal errors | off |
| DOCKER_HOST | the Docker engine | unix:///var/run/docker.sock |
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from warren.model.errors import InvalidRequest

PROVIDERS = ("oci", "docker", "fake")


@dataclass(frozen=True, slots=True)
class Settings:
    state_dir: Path
    bin_dir: Path
    provider: str = "oci"
    runtime: str = ""
    registry_dir: Path | None = None
    docker_url: str = ""
    terminal: str = "xterm-256color"
    debug: bool = False

    def __post_init__(self) -> None:
        check_provider(self.provider)
        if "\0" in str(self.state_dir) or not self.state_dir.is_absolute():
            raise InvalidRequest(f"WARREN_STATE_DIR is {str(self.state_dir)!r}, it must be an absolute path")


def check_provider(name: str) -> None:
    if name not in PROVIDERS:
        raise InvalidRequest(f"there is no provider {name!r}", remedy=f"there are: {', '.join(PROVIDERS)}")


def read_settings(environ: Mapping[str, str] | None = None, *, uid: int | None = None) -> Settings:
    values = os.environ if environ is None else environ
    registry = values.get("WARREN_REGISTRY_DIR", "")
    return Settings(
        state_dir=_state_dir(values, os.geteuid() if uid is None else uid),
        bin_dir=Path(values.get("WARREN_BIN_DIR") or Path(__file__).parent / "bin"),
        provider=values.get("WARREN_PROVIDER") or "oci",
        runtime=values.get("WARREN_RUNTIME", ""),
        registry_dir=Path(registry) if registry else None,
        docker_url=values.get("DOCKER_HOST", ""),
        terminal=values.get("TERM") or "xterm-256color",
        debug=values.get("WARREN_DEBUG", "") not in ("", "0"),
    )


def _state_dir(values: Mapping[str, str], uid: int) -> Path:
    if chosen := values.get("WARREN_STATE_DIR"):
        return Path(chosen).absolute()
    if uid == 0:
        return Path("/var/lib/warren")
    states = values.get("XDG_STATE_HOME") or f"{values.get('HOME') or Path.home()}/.local/state"
    return Path(states) / "warren"
