"""A named recipe for sandboxes, as the registry has it."""

from dataclasses import dataclass, field

from warren.model.spec import Limits, check_env, check_image_name


@dataclass(frozen=True, slots=True)
class Environment:
    name: str
    image: str
    description: str = ""
    limits: Limits = Limits()
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_image_name(self.image)
        for name, value in self.env.items():
            check_env(name, value)
