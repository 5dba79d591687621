"""Templates: what sandboxes of E2B's clients are made of.

A template is an environment of the registry, under its own name or one of the option e2b_templates, or one that the
tenant has built.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from warren.e2b.errors import E2bError
from warren.e2b.routes import E2bCall, Route
from warren.model.errors import Unavailable, UnknownEnvironment


@dataclass(frozen=True, slots=True)
class Template:
    """What a new session asks for. `image` is empty for the environment's own; `limits` are those that the template
    has beyond the environment's. `user` and `workdir` are where commands start, empty for the usual ones."""

    name: str
    environment: str
    image: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    user: str = ""
    workdir: str = ""


async def find_template(call: E2bCall, name: str) -> Template:
    """The template of that name (`name` or `name:tag`) as the caller sees it. Raises E2bError 404."""
    environment = call.rules.templates.get(name, name)
    try:
        call.context.environments(environment)
    except UnknownEnvironment:
        raise E2bError(404, f"template '{name[:80]}' not found; GET /templates lists those there are") from None
    except Unavailable as exc:
        raise E2bError(exc.http_status, exc.message) from exc
    return Template(name, environment)


ROUTES: tuple[Route, ...] = ()
