"""What ENV, WORKDIR and USER of an image mean for commands in its sandboxes.

- ENV: below the variables of the environment, the session and the command. The image's PATH comes first, then what
  Warren's own has and it lacks; `~/.local/bin` of the sandbox user stays in front.
- WORKDIR: where commands begin instead of /workspace. `/` says nothing: many images have it that mean nothing by it.
- USER: who runs commands and touches files, unless it is root. Root, or nobody, means the sandbox user.
"""

from dataclasses import replace
from typing import Final

from warren.model.image import ImageConfig
from warren.model.spec import SEARCH_PATH, SandboxSpec

_OF_THE_USER: Final = ("HOME", "USER", "LOGNAME")


def default_user(config: ImageConfig) -> str:
    """Returns the name or number of the image's user, empty for root."""
    name = config.user.partition(":")[0]
    return "" if name in ("root", "0") else name


def default_directory(config: ImageConfig) -> str:
    return config.workdir if config.workdir != "/" else ""


def with_image_env(spec: SandboxSpec, config: ImageConfig) -> SandboxSpec:
    if not config.env:
        return spec
    env = dict(config.env)
    user = default_user(config)
    if not user:  # these describe root, and commands do not run as root
        env = {name: value for name, value in env.items() if name not in _OF_THE_USER}
    if env.get("PATH"):
        env["PATH"] = _search_path(env["PATH"], of_sandbox_user=not user)
    return replace(spec, env={**env, **spec.env})


def _search_path(path: str, *, of_sandbox_user: bool) -> str:
    own, *system = SEARCH_PATH.split(":")
    return ":".join(dict.fromkeys([*([own] if of_sandbox_user else []), *path.split(":"), *system]))
