"""Templates: what sandboxes of E2B's clients are made of.

A template is an environment of the registry, under its own name or one of the option e2b_templates, which everybody may
use; or one that the tenant has built (template_builds.py). A tenant's own is found first. Its id is its name.

A client builds a template in four steps: it asks for a build, uploads the files of its COPY steps, sends the steps, and
asks how far the build is.
"""

import asyncio
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from starlette.responses import Response

from warren.http.context import answer_json
from warren.http.e2b.errors import E2bError
from warren.http.e2b.routes import E2bCall, Route
from warren.http.e2b.template_builds import LOG_PAGE, LogEntry, TemplateBuilds
from warren.http.e2b.template_process import Plan
from warren.http.e2b.template_records import (
    DEFAULT_TAG,
    Build,
    BuiltTemplate,
    Status,
    read_name,
    read_tags,
    with_build,
    with_tags,
    without_tags,
)
from warren.http.e2b.template_steps import DEFAULT_USER, check_hash, last_user, read_steps
from warren.http.e2b.tokens import Upload
from warren.images.building.own_images import plain_suite
from warren.model.access import Scope
from warren.model.e2b import ADDRESS, ENVD_VERSION, UPLOADS
from warren.model.environment import Environment
from warren.model.errors import InvalidRequest, UnknownEnvironment
from warren.model.spec import Limits, check_image_name
from warren.model.tenant_images import may_use_image, tenant_image
from warren.sessions.schemas import timestamp

_BASE: Final = "base"
_OFFICIAL: Final = {"e2bdev/base": _BASE, "e2bdev/code-interpreter": "code-interpreter-v1"}
_NAMESPACE: Final = uuid.UUID("6d7a0c1e-52a1-4f0e-9a55-2f5b7c1f5a10")
_UPLOAD_S: Final = 900
_MOST_LISTED: Final = 100
_NOT_HERE: Final = "templates are not built in a cluster; let the operator add an environment to the registry"
_LONGEST_COMMAND: Final = 8 * 1024
_BUILDER: Final = Scope.SESSIONS


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
    """The template of that name (`name` or `name:tag`) as the caller sees it. Raises E2bError 404."""
    if call.rules.builds is not None and (built := await _find_built(call.rules.builds, call.tenant, name)):
        template, tag = built
        build = template.tagged(tag)
        image = tenant_image(call.tenant, template.name, build.id)
        return Template(template.name, build.environment, image, build.limits, build.user, build.start, build.ready)
    return Template(name, _environment(call, name).name)


async def _find_built(builds: TemplateBuilds, tenant: str, name: str) -> tuple[BuiltTemplate, str] | None:
    try:
        plain, tag = read_name(name)
    except E2bError:
        return None
    template = await builds.records.find(tenant, plain)
    return (template, tag or DEFAULT_TAG) if template is not None else None


def _environment(call: E2bCall, name: str) -> Environment:
    """The environment that a template of this server stands for. Raises E2bError 404."""
    name = name.removesuffix(f":{DEFAULT_TAG}")
    try:
        return call.context.environments(call.rules.templates.get(name, name))
    except UnknownEnvironment:
        raise E2bError(404, f"template '{name[:80]}' not found; GET /templates lists those there are") from None


def _own(call: E2bCall) -> TemplateBuilds:
    if call.rules.builds is None:
        raise E2bError(501, _NOT_HERE)
    return call.rules.builds


# -- looking


async def list_templates(call: E2bCall) -> Response:
    return answer_json(await _all_views(call))


async def list_page(call: E2bCall) -> Response:
    """In the order of their ids; `nextToken` is the last one of the page before."""
    limit, after = _number(call, "limit", _MOST_LISTED, 1, _MOST_LISTED), call.parameter("nextToken")
    found = [view for view in await _all_views(call) if view["templateID"] > after]
    headers = {"x-next-token": found[limit - 1]["templateID"]} if len(found) > limit else {}
    return answer_json(found[:limit], 200, headers)


async def list_shared(call: E2bCall) -> Response:
    return answer_json(list((await _shared_views(call)).values()))


async def get_template(call: E2bCall) -> Response:
    name = call.params["template"]
    built = await _find_built(call.rules.builds, call.tenant, name) if call.rules.builds else None
    if built is not None:
        builds = sorted(built[0].builds.values(), key=lambda build: build.created_at, reverse=True)
        return answer_json({**_view_of_built(call, built[0]), "builds": [_view_of_build(call, one) for one in builds]})
    _environment(call, name)
    view = (await _shared_views(call)).get(name.removesuffix(f":{DEFAULT_TAG}"))
    if view is None:
        raise E2bError(403, f"the template '{name[:80]}' is not for this key")
    build = {key: view[key] for key in ("buildID", "createdAt", "updatedAt", "cpuCount", "memoryMB", "envdVersion")}
    return answer_json({**view, "builds": [{**build, "status": Status.READY, "finishedAt": view["updatedAt"]}]})


async def get_alias(call: E2bCall) -> Response:
    name = call.params["alias"]
    if call.rules.builds and (built := await _find_built(call.rules.builds, call.tenant, name)):
        return answer_json({"templateID": built[0].name, "public": False})
    environment = _environment(call, name)
    if not _may_use(call, environment):
        raise E2bError(403, f"the template '{name[:80]}' is not for this key")
    return answer_json({"templateID": name.removesuffix(f":{DEFAULT_TAG}"), "public": True})


def _may_use(call: E2bCall, environment: Environment) -> bool:
    levels = [quota.environments for _, quota in call.caller.quota_levels if quota.environments]
    return all(environment.name in names for names in levels)


async def _all_views(call: E2bCall) -> list[dict[str, Any]]:
    views = await _shared_views(call)
    if call.rules.builds is not None:
        for template in await call.rules.builds.records.list(call.tenant):
            views[template.name] = _view_of_built(call, template)
    return [views[name] for name in sorted(views)]


async def _shared_views(call: E2bCall) -> dict[str, dict[str, Any]]:
    """By name, those that everybody may use."""
    images = await asyncio.to_thread(call.context.images.list)
    created = {image.name: image.created for image in images if image.current}
    by_name = {environment.name: environment for environment in call.context.environments.list()}
    named = {**by_name, **{name: by_name[each] for name, each in call.rules.templates.items() if each in by_name}}
    return {
        name: _view(
            name,
            str(uuid.uuid5(_NAMESPACE, name)),
            environment.limits,
            created.get(environment.image, 0.0),
            created.get(environment.image, 0.0),
            Status.READY,
            public=True,
        )
        for name, environment in named.items()
        if _may_use(call, environment)
    }


def _view_of_built(call: E2bCall, template: BuiltTemplate) -> dict[str, Any]:
    tag = template.tags.get(DEFAULT_TAG) or next(iter(template.tags.values()), None)
    build = template.builds[tag.build] if tag else template.newest
    status = build.status if build else Status.WAITING
    limits = _limits_of(call, build) if build else Limits()
    build_id = build.id if build else str(uuid.UUID(int=0))
    times = template.created_at, template.updated_at
    return _view(template.name, build_id, limits, *times, status, public=False, builds=len(template.builds))


def _view(
    name: str,
    build_id: str,
    limits: Limits,
    created_at: float,
    updated_at: float,
    status: Status,
    *,
    public: bool,
    builds: int = 1,
) -> dict[str, Any]:
    return {
        "templateID": name,
        "buildID": build_id,
        **_sizes(limits),
        "public": public,
        "aliases": [name],
        "names": [name],
        "createdAt": timestamp(created_at),
        "updatedAt": timestamp(updated_at),
        "createdBy": None,
        "lastSpawnedAt": None,
        "spawnCount": 0,
        "buildCount": builds,
        "envdVersion": ENVD_VERSION,
        "buildStatus": status,
    }


def _view_of_build(call: E2bCall, build: Build) -> dict[str, Any]:
    ended = {"finishedAt": timestamp(build.updated_at)} if build.status.has_ended else {}
    return {
        "buildID": build.id,
        "status": build.status,
        "createdAt": timestamp(build.created_at),
        "updatedAt": timestamp(build.updated_at),
        **_sizes(_limits_of(call, build)),
        "envdVersion": ENVD_VERSION,
        **ended,
    }


def _sizes(limits: Limits) -> dict[str, int]:
    return {"cpuCount": math.ceil(limits.cpus), "memoryMB": limits.memory_mb, "diskSizeMB": limits.disk_mb}


def _limits_of(call: E2bCall, build: Build) -> Limits:
    values: dict[str, Any] = dict(build.limits)
    try:
        base = call.context.environments(build.environment or call.rules.templates.get(_BASE, _BASE)).limits
    except UnknownEnvironment:
        base = Limits()
    return replace(base, **values)


# -- changing


async def update_template(call: E2bCall) -> Response:
    body = await call.json()
    template = await _own(call).records.get(call.tenant, read_name(call.params["template"])[0])
    if body.get("public", False) is not False:
        raise E2bError(501, "not supported: a template is for its own tenant; add an environment for all tenants")
    return answer_json({"names": [template.name]})


async def delete_template(call: E2bCall) -> Response:
    builds, name = _own(call), read_name(call.params["template"])[0]
    template = await builds.records.get(call.tenant, name)
    if any(build.status is Status.BUILDING for build in template.builds.values()):
        raise E2bError(409, f"the template '{name}' is being built; delete it when that is done")
    await builds.records.delete(call.tenant, name)
    await builds.remove_unneeded()
    return Response(status_code=204)


# -- tags


async def list_tags(call: E2bCall) -> Response:
    return answer_json(
        [{"tag": tag, "buildID": build, "createdAt": timestamp(at)} for tag, build, at in await _tags(call)]
    )


async def count_tags(call: E2bCall) -> Response:
    return answer_json({"total": len(await _tags(call))})


async def has_tag(call: E2bCall) -> Response:
    tag = read_tags([call.parameter("tag")])[0]
    return answer_json({"exists": any(tag == known for known, _, _ in await _tags(call)), "normalizedTag": tag})


async def _tags(call: E2bCall) -> list[tuple[str, str, float]]:
    """Tags, their builds, and since when."""
    name = call.params["template"]
    built = await _find_built(call.rules.builds, call.tenant, name) if call.rules.builds else None
    if built is not None:
        return [(tag, one.build, one.at) for tag, one in sorted(built[0].tags.items())]
    _environment(call, name)
    return [(DEFAULT_TAG, str(uuid.uuid5(_NAMESPACE, name)), 0.0)]


async def add_tags(call: E2bCall) -> Response:
    body, builds = await call.json(), _own(call)
    (name, tag), tags = read_name(body.get("target")), read_tags(body.get("tags"))
    now = call.sessions.clock.wall()

    def change(template: BuiltTemplate) -> BuiltTemplate:
        return with_tags(template, template.tagged(tag or DEFAULT_TAG), tags, now)

    template = await builds.records.change(call.tenant, name, change)
    await builds.remove_unneeded()
    return answer_json({"buildID": template.tagged(tag or DEFAULT_TAG).id, "tags": list(tags)}, 201)


async def remove_tags(call: E2bCall) -> Response:
    body, builds = await call.json(), _own(call)
    name, tags = read_name(body.get("name"))[0], read_tags(body.get("tags"))
    now = call.sessions.clock.wall()
    await builds.records.change(call.tenant, name, lambda template: without_tags(template, tags, now))
    await builds.remove_unneeded()
    return Response(status_code=204)


# -- building


async def request_build(call: E2bCall) -> Response:
    body, builds = await call.json(), _own(call)
    await builds.ready()
    name, tag = read_name(body.get("name") or body.get("alias"))
    tags = read_tags(body.get("tags") or [])
    tags = tuple(dict.fromkeys([*([tag] if tag else []), *tags])) or (DEFAULT_TAG,)
    if name in call.rules.templates or any(name == one.name for one in call.context.environments.list()):
        raise E2bError(409, f"'{name}' is a template of this server; take another name")
    base = _environment(call, _BASE)
    limits = _read_limits(body, base)
    call.sessions.new_rows.check_limits(call.caller, base, limits)
    now = call.sessions.clock.wall()
    build = Build(str(uuid.uuid4()), now, now, limits=limits, tags=tags)
    template = await builds.records.ensure(call.tenant, name, now)
    with_tags(template, build, tags, now)
    await builds.records.change(call.tenant, name, lambda template: with_build(template, build))
    names = {"names": [name], "tags": list(tags), "aliases": [name], "public": False}
    return answer_json({"templateID": name, "buildID": build.id, **names}, 202)


def _read_limits(body: Mapping[str, Any], base: Environment) -> dict[str, float]:
    asked = {"cpus": body.get("cpuCount"), "memory_mb": body.get("memoryMB"), "disk_mb": body.get("minFreeDiskMb")}
    limits: dict[str, float] = {}
    for name, value in asked.items():
        if value is None or (name == "disk_mb" and value == 0):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
            raise E2bError(400, "cpuCount, memoryMB and minFreeDiskMb must be whole numbers, 1 or more")
        limits[name] = max(value, base.limits.disk_mb) if name == "disk_mb" else value
    return limits


async def find_files(call: E2bCall) -> Response:
    builds, files_hash = _own(call), check_hash(call.params["hash"])
    await builds.records.get(call.tenant, read_name(call.params["template"])[0])
    upload = Upload(int(call.sessions.clock.wall()) + _UPLOAD_S, call.tenant, call.caller.key_id, files_hash)
    address = f"{call.scope['scheme']}://{call.scope[ADDRESS]}{UPLOADS}{files_hash}"
    url = f"{address}?token={call.tokens.sign_upload(upload)}"
    return answer_json({"present": await builds.uploads.has(call.tenant, files_hash), "url": url}, 201)


async def put_files(call: E2bCall) -> Response:
    """The edge has let the caller in by the token in the address."""
    builds, upload = _own(call), call.tokens.read_upload(call.parameter("token"))
    if upload.files_hash != call.params["hash"]:
        raise E2bError(401, "this address is for other files")
    length = call.header("content-length")
    await builds.uploads.put(upload.tenant, upload.files_hash, call.stream(), int(length) if length else 0)
    return Response(status_code=200)


async def start_build(call: E2bCall) -> Response:
    body, builds = await call.json(), _own(call)
    await builds.ready()
    template = await builds.records.get(call.tenant, read_name(call.params["template"])[0])
    build = template.build(call.params["build"])
    start, ready = (_read_command(body, name) for name in ("startCmd", "readyCmd"))
    if body.get("fromImageRegistry"):
        raise E2bError(501, "fromImageRegistry is not supported: the operator pulls images, with `warren image pull`")
    steps = read_steps(body.get("steps"))
    base, image = await _find_base(call, builds, body)
    forced = body.get("force") is True or any(each.get("force") is True for each in body.get("steps") or [])
    plan = Plan(image, base.user or DEFAULT_USER, steps, forced)
    limits = {**base.limits, **build.limits}
    call.sessions.new_rows.check_limits(call.caller, call.context.environments(base.environment), limits)
    user = last_user(steps, plan.user)
    if not start:  # without one of its own a template has those of its base
        start, ready = base.start, ready or base.ready
    started = replace(
        build,
        environment=base.environment,
        limits=limits,
        user="" if user == DEFAULT_USER else user,
        start=start,
        ready=ready,
    )
    await builds.build(template, started, plan)
    return Response(status_code=202)


def _read_command(body: Mapping[str, Any], name: str) -> str:
    text = body.get(name) or ""
    if not isinstance(text, str) or "\0" in text or len(text) > _LONGEST_COMMAND:
        raise E2bError(400, f"{name} must be a command of at most {_LONGEST_COMMAND} characters")
    return text


async def _find_base(call: E2bCall, builds: TemplateBuilds, body: Mapping[str, Any]) -> tuple[Template, str]:
    """The template that is built on, and its image."""
    from_template, from_image = body.get("fromTemplate"), body.get("fromImage")
    for value in (from_template, from_image):
        if value is not None and (not isinstance(value, str) or not value):
            raise E2bError(400, "fromTemplate and fromImage must be names")
    if (from_template is None) == (from_image is None):
        raise E2bError(400, "a template is built on another one or on an image: give fromTemplate or fromImage")
    if from_image in _OFFICIAL or str(from_image).removesuffix(":latest") in _OFFICIAL:
        from_template = _OFFICIAL[str(from_image).removesuffix(":latest")]
    if from_template is not None:
        base = await find_template(call, from_template)
        return base, base.image or call.context.environments(base.environment).image
    image = str(from_image)
    await _check_image(call, builds, image)
    return Template(image, _environment(call, _BASE).name), image


async def _check_image(call: E2bCall, builds: TemplateBuilds, image: str) -> None:
    """Raises E2bError for an image that this machine neither has nor makes: nothing is fetched for a template."""
    try:
        check_image_name(image)
    except InvalidRequest as exc:
        raise E2bError(400, exc.message) from exc
    known = {one.name for one in await asyncio.to_thread(builds.images) if one.current}
    if not (may_use_image(call.tenant, image) and image in known) and not plain_suite(image):
        raise E2bError(
            400,
            f"there is no image '{image[:80]}' on this server; build on a template, or let the operator add the image "
            "with `warren image pull` or `warren image import`",
        )


async def get_status(call: E2bCall) -> Response:
    builds = _own(call)
    await builds.ready()
    template = await builds.records.get(call.tenant, read_name(call.params["template"])[0])
    build = template.build(call.params["build"])
    offset, limit = _number(call, "logsOffset", 0, 0, 1 << 31), _number(call, "limit", LOG_PAGE, 0, LOG_PAGE)
    entries = [_view_of_entry(entry) for entry in _chosen(call, builds.log(build.id))[offset : offset + limit]]
    view: dict[str, Any] = {"templateID": template.name, "buildID": build.id, "status": build.status}
    if build.status is Status.ERROR:
        view["reason"] = {"message": build.message, **({"step": build.step} if build.step else {})}
    return answer_json({**view, "logs": [], "logEntries": entries})


async def get_logs(call: E2bCall) -> Response:
    """`cursor` is a time in milliseconds; the newest come first if the client goes backward."""
    builds = _own(call)
    template = await builds.records.get(call.tenant, read_name(call.params["template"])[0])
    entries = _chosen(call, builds.log(template.build(call.params["build"]).id))
    cursor, backward = _number(call, "cursor", 0, 0, 1 << 53) / 1000, call.parameter("direction") == "backward"
    if backward:
        entries = [entry for entry in reversed(entries) if not cursor or entry.at < cursor]
    else:
        entries = [entry for entry in entries if entry.at >= cursor]
    limit = _number(call, "limit", LOG_PAGE, 0, LOG_PAGE)
    return answer_json({"logs": [_view_of_entry(entry) for entry in entries[:limit]]})


def _chosen(call: E2bCall, entries: Sequence[LogEntry]) -> list[LogEntry]:
    levels = ("debug", "info", "warn", "error")
    level = call.parameter("level") or "debug"
    if level not in levels:
        raise E2bError(400, f"level must be one of {', '.join(levels)}")
    return [entry for entry in entries if levels.index(entry.level) >= levels.index(level)]


def _view_of_entry(entry: LogEntry) -> dict[str, Any]:
    step = {"step": entry.step} if entry.step else {}
    return {"timestamp": timestamp(entry.at), "message": entry.message, "level": entry.level, **step}


def _number(call: E2bCall, name: str, default: int, least: int, most: int) -> int:
    text = call.parameter(name)
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 16 or not least <= int(text):
        raise E2bError(400, f"{name} must be a whole number, {least} or more")
    return min(int(text), most)


async def refuse_history(call: E2bCall) -> Response:
    raise E2bError(501, "not supported: there is no history of tags; GET /templates/{id}/tags has those there are")


_ONE: Final = "/templates/{template}"
_BUILD: Final = "/templates/{template}/builds/{build}"

ROUTES: tuple[Route, ...] = (
    Route("GET", "/templates", "e2b_list_templates", Scope.READ, list_templates),
    Route("GET", "/v2/templates", "e2b_list_templates", Scope.READ, list_page),
    Route("GET", "/default-templates", "e2b_list_templates", Scope.READ, list_shared),
    Route("GET", "/templates/aliases/{alias}", "e2b_get_template", Scope.READ, get_alias),
    Route("GET", f"{_ONE}/tags", "e2b_list_tags", Scope.READ, list_tags),
    Route("GET", f"{_ONE}/tags/count", "e2b_list_tags", Scope.READ, count_tags),
    Route("GET", f"{_ONE}/tags/exists", "e2b_list_tags", Scope.READ, has_tag),
    Route("GET", f"{_ONE}/tags/groups", "e2b_list_tags", Scope.READ, refuse_history),
    Route("GET", f"{_ONE}/tags/{{tag}}/assignments", "e2b_list_tags", Scope.READ, refuse_history),
    Route("POST", "/templates/tags", "e2b_change_template", _BUILDER, add_tags),
    Route("DELETE", "/templates/tags", "e2b_change_template", _BUILDER, remove_tags),
    Route("GET", _ONE, "e2b_get_template", Scope.READ, get_template),
    Route("PATCH", _ONE, "e2b_change_template", _BUILDER, update_template),
    Route("PATCH", f"/v2{_ONE}", "e2b_change_template", _BUILDER, update_template),
    Route("DELETE", _ONE, "e2b_delete_template", _BUILDER, delete_template),
    Route("POST", "/v3/templates", "e2b_build_template", _BUILDER, request_build),
    Route("GET", f"{_ONE}/files/{{hash}}", "e2b_build_template", _BUILDER, find_files),
    Route("PUT", f"{UPLOADS}{{hash}}", "e2b_upload_files", None, put_files, streams=True),
    Route("POST", f"/v2{_BUILD}", "e2b_build_template", _BUILDER, start_build),
    Route("GET", f"{_BUILD}/status", "e2b_get_build", Scope.READ, get_status),
    Route("GET", f"{_BUILD}/logs", "e2b_get_build", Scope.READ, get_logs),
)
