"""Finds the template that a client of E2B names.

A template is an environment of the registry, under its own name or one of the option e2b_templates, which everybody may
use; or one that the tenant has built (template_builds.py). A tenant's own is found first. Its id is its name. Snapshots
are templates too, unless others have their names.
"""

import contextlib
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
from warren.model.errors import NotFound, UnknownEnvironment
from warren.model.snapshot import Snapshot
from warren.model.tenant_images import tenant_image
from warren.sessions.snapshots.service import Snapshots

BASE: Final = "base"
_NOT_HERE: Final = "templates are not built in a cluster; let the operator add an environment to the registry"


@dataclass(frozen=True, slots=True)
class Template:
    """What a new session asks for. `image` is empty for the environment's own; `limits` are those that the template
    has beyond the environment's. `user` runs its commands, empty for the usual one. `start` and `ready` are those of
    Build. `snapshot` is the id of the one that it is, empty for none: its image is the one of the session."""

    name: str
    environment: str
    image: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    user: str = ""
    start: str = ""
    ready: str = ""
    snapshot: str = ""


async def find_template(call: E2bCall, name: str) -> Template:
    """Returns the template of that name (`name` or `name:tag`) as the caller sees it. Raises E2bError 404."""
    if call.rules.builds is not None and (built := await find_built(call.rules.builds, call.tenant, name)):
        template, tag = built
        build = template.tagged(tag)
        image = tenant_image(call.tenant, template.name, build.id)
        return Template(template.name, build.environment, image, build.limits, build.user, build.start, build.ready)
    try:
        return Template(name, environment_of(call, name).name)
    except E2bError:
        if (snapshot := await find_snapshot(call, name)) is None:
            raise
        return Template(snapshot.id, snapshot.environment, snapshot=snapshot.id)


async def is_template(call: E2bCall, name: str) -> bool:
    """Whether a template other than a snapshot has the name."""
    if call.rules.builds is not None and await find_built(call.rules.builds, call.tenant, name):
        return True
    try:
        return bool(environment_of(call, name))
    except E2bError:
        return False


def snapshots_of(call: E2bCall) -> Snapshots:
    if call.context.snapshots is None:
        raise E2bError(501, "snapshots are not supported: this server keeps none")
    return call.context.snapshots


async def find_snapshot(call: E2bCall, name: str) -> Snapshot | None:
    """Returns the snapshot with this id or name that sandboxes of the caller may start from."""
    with contextlib.suppress(NotFound):
        if call.context.snapshots is not None:
            return await call.context.snapshots.records.get_usable(call.tenant, plain_name(name))
    return None


def plain_name(name: str) -> str:
    """Returns the name without the tag that a name without a tag has."""
    return name.removesuffix(f":{DEFAULT_TAG}")


async def find_built(builds: TemplateBuilds, tenant: str, name: str) -> tuple[BuiltTemplate, str] | None:
    try:
        plain, tag = read_name(name)
    except E2bError:
        return None
    template = await builds.records.find(tenant, plain)
    return (template, tag or DEFAULT_TAG) if template is not None else None


def environment_of(call: E2bCall, name: str) -> Environment:
    """Returns the environment that a template of this server stands for. Raises E2bError 404."""
    name = plain_name(name)
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
