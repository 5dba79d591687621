"""Builds of templates: a client asks for one, uploads the files of its COPY steps, sends the steps, and asks how far it
is. What builds is template_builds.py."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from starlette.responses import Response

from warren.http.context import answer_json
from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.control.template_lookup import (
    BASE,
    Template,
    environment_of,
    find_template,
    number_in_query,
    own_builds,
)
from warren.http.e2b.errors import E2bError
from warren.http.e2b.template_builds import LOG_PAGE, TemplateBuilds
from warren.http.e2b.template_log import LogEntry
from warren.http.e2b.template_process import Plan
from warren.http.e2b.template_records import (
    DEFAULT_TAG,
    Build,
    BuiltTemplate,
    Status,
    read_name,
    read_tags,
)
from warren.http.e2b.template_steps import DEFAULT_USER, check_hash, last_user, read_steps
from warren.http.e2b.tokens import Upload
from warren.images.trees.own_images import plain_suite
from warren.model.e2b import UPLOADS
from warren.model.environment import Environment
from warren.model.errors import ImageNotFound, InvalidRequest, WarrenError
from warren.model.spec import check_image_name
from warren.model.tenant_images import may_use_image
from warren.sessions.schemas import timestamp

_OFFICIAL: Final = {"e2bdev/base": BASE, "e2bdev/code-interpreter": "code-interpreter-v1"}
_UPLOAD_S: Final = 900
_LONGEST_COMMAND: Final = 8 * 1024
_LATER: Final = (429, 503)  # a client may start the same build again, after such an answer


async def request_build(call: E2bCall) -> Response:
    body, builds = await call.json(), own_builds(call)
    await builds.ready()
    name, tag = read_name(body.get("name") or body.get("alias"))
    tags = read_tags(body.get("tags") or [])
    tags = tuple(dict.fromkeys([*([tag] if tag else []), *tags])) or (DEFAULT_TAG,)
    if name in call.rules.templates or any(name == one.name for one in call.context.environments.list()):
        raise E2bError(409, f"'{name}' is a template of this server; take another name")
    base = environment_of(call, BASE)
    limits = _read_limits(body, base)
    call.sessions.new_rows.check_limits(call.caller, base, limits)
    now = call.sessions.clock.wall()
    build = Build(str(uuid.uuid4()), now, now, limits=limits, tags=tags)
    await builds.records.add_build(call.tenant, name, build)
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
    builds, files_hash = own_builds(call), check_hash(call.params["hash"])
    await builds.records.get(call.tenant, read_name(call.params["template"])[0])
    upload = Upload(int(call.sessions.clock.wall()) + _UPLOAD_S, call.tenant, call.caller.key_id, files_hash)
    address = f"{call.scope['scheme']}://{call.address.base}{UPLOADS}{files_hash}"
    url = f"{address}?token={call.tokens.sign_upload(upload)}"
    return answer_json({"present": await builds.uploads.has(call.tenant, files_hash), "url": url}, 201)


async def put_files(call: E2bCall) -> Response:
    """The token in the address has let the caller in."""
    builds, upload = own_builds(call), call.tokens.read_upload(call.parameter("token"))
    if upload.files_hash != call.params["hash"]:
        raise E2bError(401, "this address is for other files")
    length = call.header("content-length")
    await builds.uploads.put(upload.tenant, upload.files_hash, call.stream(), int(length) if length else 0)
    return Response(status_code=200)


async def start_build(call: E2bCall) -> Response:
    body, builds = await call.json(), own_builds(call)
    await builds.ready()
    template = await builds.records.get(call.tenant, read_name(call.params["template"])[0])
    build = template.build(call.params["build"])
    try:
        await _start(call, builds, template, build, body)
    except (E2bError, WarrenError) as exc:
        if isinstance(exc, E2bError) or exc.http_status not in _LATER:
            await builds.drop(template, build)
        raise
    return Response(status_code=202)


async def _start(
    call: E2bCall, builds: TemplateBuilds, template: BuiltTemplate, build: Build, body: Mapping[str, Any]
) -> None:
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


def _read_command(body: Mapping[str, Any], name: str) -> str:
    text = body.get(name) or ""
    if not isinstance(text, str) or "\0" in text or len(text) > _LONGEST_COMMAND:
        raise E2bError(400, f"{name} must be a command of at most {_LONGEST_COMMAND} characters")
    return text


async def _find_base(call: E2bCall, builds: TemplateBuilds, body: Mapping[str, Any]) -> tuple[Template, str]:
    """Returns the template that is built on, and its image."""
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
    image = await _choose_image(call, builds, str(from_image))
    return Template(image, environment_of(call, BASE).name), image


async def _choose_image(call: E2bCall, builds: TemplateBuilds, image: str) -> str:
    """Returns the name by which this machine has the image, or will have it: one that is neither here nor made here is
    pulled by the build, if the operator allows that. Raises E2bError."""
    try:
        check_image_name(image)
        known = {one.name for one in await asyncio.to_thread(builds.images) if one.current}
        if (may_use_image(call.tenant, image) and image in known) or plain_suite(image):
            return image
        is_bound = any(quota.environments for _, quota in call.caller.quota_levels)
        if pulled := "" if is_bound else call.rules.pulls.image_for(call.tenant, image):
            return pulled
    except (InvalidRequest, ImageNotFound) as exc:
        raise E2bError(400, exc.message) from exc
    raise E2bError(
        400,
        f"there is no image '{image[:80]}' on this server; build on a template, or let the operator add the image "
        "with `warren image pull` or `warren image import`, or allow pulls with the option image_pull",
    )


async def get_status(call: E2bCall) -> Response:
    builds = own_builds(call)
    await builds.ready()
    template = await builds.records.get(call.tenant, read_name(call.params["template"])[0])
    build = template.build(call.params["build"])
    offset, limit = (
        number_in_query(call, "logsOffset", 0, 0, 1 << 31),
        number_in_query(call, "limit", LOG_PAGE, 0, LOG_PAGE),
    )
    entries = [_view_of_entry(entry) for entry in _chosen(call, builds.log(build.id))[offset : offset + limit]]
    view: dict[str, Any] = {"templateID": template.name, "buildID": build.id, "status": build.status}
    if build.status is Status.ERROR:
        view["reason"] = {"message": build.message, **({"step": build.step} if build.step else {})}
    return answer_json({**view, "logs": [], "logEntries": entries})


async def get_logs(call: E2bCall) -> Response:
    """`cursor` is a time in milliseconds; the newest come first if the client goes backward."""
    builds = own_builds(call)
    template = await builds.records.get(call.tenant, read_name(call.params["template"])[0])
    entries = _chosen(call, builds.log(template.build(call.params["build"]).id))
    cursor, backward = number_in_query(call, "cursor", 0, 0, 1 << 53) / 1000, call.parameter("direction") == "backward"
    if backward:
        entries = [entry for entry in reversed(entries) if not cursor or entry.at < cursor]
    else:
        entries = [entry for entry in entries if entry.at >= cursor]
    limit = number_in_query(call, "limit", LOG_PAGE, 0, LOG_PAGE)
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


HANDLERS: Mapping[str, Run] = {
    "e2b_request_build": request_build,
    "e2b_find_files": find_files,
    "e2b_upload_files": put_files,
    "e2b_start_build": start_build,
    "e2b_get_build": get_status,
    "e2b_get_build_logs": get_logs,
}
