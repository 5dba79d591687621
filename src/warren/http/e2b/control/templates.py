"""Templates, what sandboxes of E2B's clients are made of: lists them, changes them and their tags."""

import asyncio
import math
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from starlette.responses import Response

from warren.http.context import answer_json
from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.control.template_lookup import (
    BASE,
    environment_of,
    find_built,
    find_snapshot,
    number_in_query,
    own_builds,
    snapshots_of,
)
from warren.http.e2b.errors import E2bError
from warren.http.e2b.template_records import (
    DEFAULT_TAG,
    Build,
    BuiltTemplate,
    Status,
    read_name,
    read_tags,
    with_tags,
    without_tags,
)
from warren.model.e2b import ENVD_VERSION
from warren.model.environment import Environment
from warren.model.errors import UnknownEnvironment
from warren.model.snapshot import Snapshot
from warren.model.spec import Limits
from warren.sessions.request_context import note
from warren.sessions.schemas import timestamp

_NAMESPACE: Final = uuid.UUID("6d7a0c1e-52a1-4f0e-9a55-2f5b7c1f5a10")
_MAX_LISTED: Final = 100


# -- looking


async def list_templates(call: E2bCall) -> Response:
    return answer_json(await _all_views(call))


async def list_page(call: E2bCall) -> Response:
    """In the order of their ids; `nextToken` is the last one of the page before."""
    limit, after = number_in_query(call, "limit", _MAX_LISTED, 1, _MAX_LISTED), call.parameter("nextToken")
    found = [view for view in await _all_views(call) if view["templateID"] > after]
    headers = {"x-next-token": found[limit - 1]["templateID"]} if len(found) > limit else {}
    return answer_json(found[:limit], 200, headers)


async def list_shared(call: E2bCall) -> Response:
    return answer_json(list((await _shared_views(call)).values()))


async def get_template(call: E2bCall) -> Response:
    name = call.params["template"]
    built = await find_built(call.rules.builds, call.tenant, name) if call.rules.builds else None
    if built is not None:
        builds = sorted(built[0].builds.values(), key=lambda build: build.created_at, reverse=True)
        return answer_json({**_view_of_built(call, built[0]), "builds": [_view_of_build(call, one) for one in builds]})
    environment_of(call, name)
    view = (await _shared_views(call)).get(name.removesuffix(f":{DEFAULT_TAG}"))
    if view is None:
        raise E2bError(403, f"the template '{name[:80]}' is not for this key")
    build = {key: view[key] for key in ("buildID", "createdAt", "updatedAt", "cpuCount", "memoryMB", "envdVersion")}
    return answer_json({**view, "builds": [{**build, "status": Status.READY, "finishedAt": view["updatedAt"]}]})


async def get_alias(call: E2bCall) -> Response:
    name = call.params["alias"]
    if call.rules.builds and (built := await find_built(call.rules.builds, call.tenant, name)):
        return answer_json({"templateID": built[0].name, "public": False})
    environment = environment_of(call, name)
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
    """Returns by name the templates that everybody may use, as far as the caller's key allows them."""
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
        base = call.context.environments(build.environment or call.rules.templates.get(BASE, BASE)).limits
    except UnknownEnvironment:
        base = Limits()
    return replace(base, **values)


# -- changing


async def update_template(call: E2bCall) -> Response:
    body = await call.json()
    template = await own_builds(call).records.get(call.tenant, read_name(call.params["template"])[0])
    if body.get("public", False) is not False:
        raise E2bError(501, "not supported: a template is for its own tenant; add an environment for all tenants")
    return answer_json({"names": [template.name]})


async def delete_template(call: E2bCall) -> Response:
    """Deletes a template of the tenant's, or if it has no such one a snapshot."""
    given = call.params["template"]
    if (snapshot := await _own_snapshot(call, given)) is not None:
        note(snapshot=snapshot.id)
        await snapshots_of(call).remove(snapshot, "deleted")
        return Response(status_code=204)
    if call.rules.builds is None:
        environment_of(call, given)
    builds, name = own_builds(call), read_name(given)[0]
    template = await builds.records.get(call.tenant, name)
    if any(build.status is Status.BUILDING for build in template.builds.values()):
        raise E2bError(409, f"the template '{name}' is being built; delete it when that is done")
    await builds.records.delete(call.tenant, name)
    await builds.remove_unneeded()
    return Response(status_code=204)


async def _own_snapshot(call: E2bCall, name: str) -> Snapshot | None:
    """Returns the snapshot of the tenant's, if no template of the tenant's has the name."""
    if call.rules.builds is not None and await find_built(call.rules.builds, call.tenant, name):
        return None
    snapshot = await find_snapshot(call, name)
    return snapshot if snapshot is not None and snapshot.tenant == call.tenant and not snapshot.is_hidden else None


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
    """Returns the tags, their builds, and since when they point to them."""
    name = call.params["template"]
    built = await find_built(call.rules.builds, call.tenant, name) if call.rules.builds else None
    if built is not None:
        return [(tag, one.build, one.at) for tag, one in sorted(built[0].tags.items())]
    environment_of(call, name)
    return [(DEFAULT_TAG, str(uuid.uuid5(_NAMESPACE, name)), 0.0)]


async def add_tags(call: E2bCall) -> Response:
    body, builds = await call.json(), own_builds(call)
    (name, tag), tags = read_name(body.get("target")), read_tags(body.get("tags"))
    now = call.sessions.clock.wall()

    def change(template: BuiltTemplate) -> BuiltTemplate:
        return with_tags(template, template.tagged(tag or DEFAULT_TAG), tags, now)

    template = await builds.records.change(call.tenant, name, change)
    await builds.remove_unneeded()
    return answer_json({"buildID": template.tagged(tag or DEFAULT_TAG).id, "tags": list(tags)}, 201)


async def remove_tags(call: E2bCall) -> Response:
    body, builds = await call.json(), own_builds(call)
    name, tags = read_name(body.get("name"))[0], read_tags(body.get("tags"))
    now = call.sessions.clock.wall()
    await builds.records.change(call.tenant, name, lambda template: without_tags(template, tags, now))
    await builds.remove_unneeded()
    return Response(status_code=204)


async def refuse_history(call: E2bCall) -> Response:
    raise E2bError(501, "not supported: there is no history of tags; GET /templates/{id}/tags has those there are")


HANDLERS: Mapping[str, Run] = {
    "e2b_list_templates": list_templates,
    "e2b_list_templates_v2": list_page,
    "e2b_list_default_templates": list_shared,
    "e2b_get_template_alias": get_alias,
    "e2b_list_tags": list_tags,
    "e2b_count_tags": count_tags,
    "e2b_has_tag": has_tag,
    "e2b_list_tag_groups": refuse_history,
    "e2b_list_tag_assignments": refuse_history,
    "e2b_add_tags": add_tags,
    "e2b_remove_tags": remove_tags,
    "e2b_get_template": get_template,
    "e2b_change_template": update_template,
    "e2b_change_template_v2": update_template,
    "e2b_delete_template": delete_template,
}
