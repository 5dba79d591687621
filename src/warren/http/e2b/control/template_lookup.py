"""Finds the template that a client of E2B names.

A template is an environment of the registry, under its own name or one of the option e2b_templates, which everybody may
use; or one that the tenant has built (template_builds.py). A tenant's own is found first. Its id is its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from warren.http.e2b.call import E2bCall
from warren.http.e2b.errors import E2bError
from warren.http.e2b.template_builds import TemplateBuilds
from warren.http.e2b.template_records import (
    DEFAULT_TAG,
    BuiltTemplate,
    read_name,
)
from warren.model.environment import Environment
from warren.model.errors import UnknownEnvironment
from warren.model.tenant_images import tenant_image

BASE: Final = "base"
_NOT_HERE: Final = "templates are not built in a cluster; let the operator add an environment to the registry"


@dataclass(frozen=True, slots=True)
class Template:
    """What a new session asks for. `image` is empty for the environment's own; `limits` are those that the template
    has beyond the environment's. `user` runs its commands, empty for the usual one. `start` and `ready` are those of
    Build."""

    name: str
    environment: str
    image: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    user: str = ""
    start: str = ""
    ready: str = ""


async def find_template(call: E2bCall, name: str) -> Template:
    """Returns the template of that name (`name` or `name:tag`) as the caller sees it. Raises E2bError 404."""
    if call.rules.builds is not None and (built := await find_built(call.rules.builds, call.tenant, name)):
        template, tag = built
        build = template.tagged(tag)
        image = tenant_image(call.tenant, template.name, build.id)
        return Template(template.name, build.environment, image, build.limits, build.user, build.start, build.ready)
    return Template(name, environment_of(call, name).name)


async def find_built(builds: TemplateBuilds, tenant: str, name: str) -> tuple[BuiltTemplate, str] | None:
    try:
        plain, tag = read_name(name)
    except E2bError:
        return None
    template = await builds.records.find(tenant, plain)
    return (template, tag or DEFAULT_TAG) if template is not None else None


def environment_of(call: E2bCall, name: str) -> Environment:
    """Returns the environment that a template of this server stands for. Raises E2bError 404."""
    name = name.removesuffix(f":{DEFAULT_TAG}")
    try:
        return call.context.environments(call.rules.templates.get(name, name))
    except UnknownEnvironment:
        raise E2bError(404, f"template '{name[:80]}' not found; GET /templates lists those there are") from None


def own_builds(call: E2bCall) -> TemplateBuilds:
    if call.rules.builds is None:
        raise E2bError(501, _NOT_HERE)
    return call.rules.builds


def number_in_query(call: E2bCall, name: str, default: int, least: int, most: int) -> int:
    text = call.parameter(name)
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 16 or not least <= int(text):
        raise E2bError(400, f"{name} must be a whole number, {least} or more")
    return min(int(text), most)
