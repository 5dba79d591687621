"""The templates that tenants have built, as the store keeps them: one record for each, with its builds and tags.

A tag points to a build that is ready, and a build belongs to tags: one that no tag points to any more loses its image.
A template without a tag, of which nothing is being built, is a leftover: of a build that was refused, that failed, or
that its client never started. It is removed after a while, and at once if its tenant needs the place.
"""

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from warren.http.e2b.errors import E2bError, wait_for_change
from warren.interfaces.records import Record, RecordStore

KIND: Final = "e2b_template"
DEFAULT_TAG: Final = "default"
MAX_TEMPLATES: Final = 50
LEFTOVER_S: Final = 3600.0  # for as long as uploads are kept
_STARTING_S: Final = 900.0  # for as long as a client may upload to an address
_MAX_TAGS: Final = 20
_MAX_BUILDS: Final = 10  # that no tag points to
_TRIES: Final = 20
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)
_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)


class Status(StrEnum):
    """WAITING: for the client to send the steps."""

    WAITING = "waiting"
    BUILDING = "building"
    READY = "ready"
    ERROR = "error"

    @property
    def has_ended(self) -> bool:
        return self in (Status.READY, Status.ERROR)


@dataclass(frozen=True, slots=True)
class Build:
    """`tags` are those that will point to it when it is ready. `start` runs in each sandbox from its beginning, which
    is when `ready` succeeds. `message` and `step` say why the build failed."""

    id: str
    created_at: float
    updated_at: float
    status: Status = Status.WAITING
    environment: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    user: str = ""
    start: str = ""
    ready: str = ""
    tags: tuple[str, ...] = ()
    message: str = ""
    step: str = ""


@dataclass(frozen=True, slots=True)
class Tag:
    build: str
    at: float


@dataclass(frozen=True, slots=True)
class BuiltTemplate:
    tenant: str
    name: str
    created_at: float
    updated_at: float
    builds: Mapping[str, Build] = field(default_factory=dict)
    tags: Mapping[str, Tag] = field(default_factory=dict)

    def build(self, build_id: str) -> Build:
        try:
            return self.builds[build_id]
        except KeyError:
            raise E2bError(404, f"the template {self.name!r} has no build {build_id[:80]!r}") from None

    def tagged(self, tag: str) -> Build:
        """Returns the build that a tag points to."""
        try:
            return self.builds[self.tags[tag].build]
        except KeyError:
            known = f"it has {', '.join(sorted(self.tags))}" if self.tags else "no build of it is ready"
            raise E2bError(404, f"the template '{self.name}' has no tag '{tag[:80]}'; {known}") from None

    @property
    def newest(self) -> Build | None:
        return max(self.builds.values(), key=lambda build: build.created_at, default=None)

    def is_leftover(self, now: float) -> bool:
        """Whether nothing came of it, and no client is about to start a build of it."""
        starting = any(
            build.status is Status.BUILDING or (build.status is Status.WAITING and build.created_at > now - _STARTING_S)
            for build in self.builds.values()
        )
        return not self.tags and not starting


# -- names


def read_name(text: Any) -> tuple[str, str]:
    """Returns the name and the tag, or "", of `name` or `name:tag`. Raises E2bError."""
    name, colon, tag = text.partition(":") if isinstance(text, str) else ("", "", "")
    name = name.lower()
    if not _NAME.fullmatch(name) or (colon and not _TAG.fullmatch(tag)):
        shown = repr(text)[:80]
        raise E2bError(400, f"{shown} cannot name a template; it has 1 to 63 letters, digits, _ and -, perhaps :tag")
    return name, tag


def read_tags(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or len(values) > _MAX_TAGS:
        raise E2bError(400, f"tags must be a list of at most {_MAX_TAGS} tags")
    for tag in values:
        if not isinstance(tag, str) or not _TAG.fullmatch(tag):
            raise E2bError(400, f"{str(tag)[:80]!r} cannot be a tag; it has 1 to 63 letters, digits and . _ -")
    return tuple(dict.fromkeys(values))


# -- changes


def with_build(template: BuiltTemplate, build: Build) -> BuiltTemplate:
    """Returns the template with a new or changed build; the oldest that nobody needs are left out."""
    builds = {**template.builds, build.id: build}
    needed = {tag.build for tag in template.tags.values()} | {build.id}
    others = [one for one in builds.values() if one.id not in needed and one.status is not Status.BUILDING]
    for one in sorted(others, key=lambda one: one.created_at)[: max(0, len(others) - _MAX_BUILDS)]:
        del builds[one.id]
    return replace(template, builds=builds, updated_at=build.updated_at)


def with_tags(template: BuiltTemplate, build: Build, tags: Sequence[str], now: float) -> BuiltTemplate:
    """Raises E2bError if the template would have too many tags."""
    changed = {**template.tags, **{tag: Tag(build.id, now) for tag in tags}}
    if len(changed) > _MAX_TAGS:
        raise E2bError(400, f"a template may have {_MAX_TAGS} tags; remove some first")
    return replace(template, tags=changed, updated_at=now)


def without_tags(template: BuiltTemplate, tags: Sequence[str], now: float) -> BuiltTemplate:
    for tag in tags:
        template.tagged(tag)
    kept = {tag: one for tag, one in template.tags.items() if tag not in tags}
    return replace(template, tags=kept, updated_at=now)


def finished(template: BuiltTemplate, build_id: str, status: Status, now: float, why: tuple[str, str]) -> BuiltTemplate:
    """`why` is the message and the step of a build that failed."""
    build = replace(template.build(build_id), status=status, updated_at=now, message=why[0], step=why[1])
    template = with_build(template, build)
    return with_tags(template, build, build.tags, now) if status is Status.READY else template


def _without(template: BuiltTemplate, build_id: str) -> BuiltTemplate:
    builds = {key: one for key, one in template.builds.items() if key != build_id or one.status is not Status.WAITING}
    return replace(template, builds=builds)


# -- the store


class TemplateRecords:
    """Templates of a tenant, at most MAX_TEMPLATES."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._whole = asyncio.Lock()  # so that no template is removed while it gets its next build

    async def find(self, tenant: str, name: str) -> BuiltTemplate | None:
        record = await self._records.get(KIND, _id(tenant, name))
        return _read(record) if record else None

    async def get(self, tenant: str, name: str) -> BuiltTemplate:
        template = await self.find(tenant, name)
        if template is None:
            raise E2bError(404, f"there is no template '{name[:80]}' of yours; GET /templates lists those there are")
        return template

    async def list(self, tenant: str) -> Sequence[BuiltTemplate]:
        return [_read(record) for record in await self._records.list(KIND, group=tenant)]

    async def list_all(self) -> Sequence[BuiltTemplate]:
        found: list[BuiltTemplate] = []
        after = ""
        while page := await self._records.list(KIND, after=after):
            found += [_read(record) for record in page]
            after = page[-1].id
        return found

    async def add_build(self, tenant: str, name: str, build: Build) -> BuiltTemplate:
        """Adds a build to the template of that name, which is made if there is none. Raises E2bError if the tenant has
        too many templates, or the template would have too many tags."""
        async with self._whole:
            found, now = await self.find(tenant, name), build.created_at
            with_tags(found or BuiltTemplate(tenant, name, now, now), build, build.tags, now)
            if found is None:
                await self._make_room(tenant, now)
                template = BuiltTemplate(tenant, name, now, now)
                await self._records.put(Record(KIND, _id(tenant, name), _text(template), group=tenant))
            return await self.change(tenant, name, lambda template: with_build(template, build))

    async def _make_room(self, tenant: str, now: float) -> None:
        """Removes the oldest leftover if the tenant has as many templates as it may. Raises E2bError if none is."""
        if await self._records.count(KIND, group=tenant) < MAX_TEMPLATES:
            return
        leftovers = [template for template in await self.list(tenant) if template.is_leftover(now)]
        if not leftovers:
            raise wait_for_change(f"you have {MAX_TEMPLATES} templates, the most there may be; delete some first")
        await self.delete(tenant, min(leftovers, key=lambda template: template.updated_at).name)

    async def drop_build(self, tenant: str, name: str, build_id: str) -> None:
        """Removes a build that was not started, and the template with it if there is nothing else in it."""
        async with self._whole:
            left = await self.change(tenant, name, lambda template: _without(template, build_id))
            if not left.builds and not left.tags:
                await self.delete(tenant, name)

    async def remove_leftovers(self, now: float) -> None:
        """Removes what nobody has touched for LEFTOVER_S."""
        async with self._whole:
            for template in await self.list_all():
                if template.is_leftover(now) and template.updated_at < now - LEFTOVER_S:
                    await self.delete(template.tenant, template.name)

    async def change(self, tenant: str, name: str, change: Callable[[BuiltTemplate], BuiltTemplate]) -> BuiltTemplate:
        """Raises E2bError if there is no such template (any more), or if others change it all the time."""
        for _ in range(_TRIES):
            record = await self._records.get(KIND, _id(tenant, name))
            if record is None:
                raise E2bError(404, f"there is no template '{name[:80]}' of yours")
            changed = change(_read(record))
            if await self._records.put(record.changed(_text(changed))):
                return changed
        raise E2bError(409, f"the template '{name[:80]}' is being changed by others; try again")

    async def delete(self, tenant: str, name: str) -> bool:
        return await self._records.delete(KIND, _id(tenant, name))


def _id(tenant: str, name: str) -> str:
    return f"{tenant}/{name}"


def _text(template: BuiltTemplate) -> str:
    return json.dumps(asdict(template))


def _read(record: Record) -> BuiltTemplate:
    values = json.loads(record.value)
    builds = {
        key: Build(**{**build, "status": Status(build["status"]), "tags": tuple(build["tags"])})
        for key, build in values.pop("builds").items()
    }
    tags = {key: Tag(**tag) for key, tag in values.pop("tags").items()}
    return BuiltTemplate(**values, builds=builds, tags=tags)
