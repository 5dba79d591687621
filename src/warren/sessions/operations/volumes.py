"""Volumes: makes, lists, changes and deletes them, and mounts them in running sandboxes. They outlive sessions."""

from typing import Annotated, Final

from pydantic import BaseModel, Field

from warren.model.volume import MAX_MB, MIN_MB, Volume
from warren.sessions.operations.call import Call, Handler, Values
from warren.sessions.operations.sessions import show as show_session
from warren.sessions.schemas import Body, SessionView, VolumeBody, timestamp
from warren.sessions.volumes.service import Volumes

_SizeMb = Annotated[int, Field(ge=MIN_MB, le=MAX_MB)]


class VolumeView(BaseModel):
    volume_id: str
    name: str
    size_mb: int
    created_at: str
    metadata: dict[str, str]
    worker: str | None = Field(description="The worker whose disk it is on; null outside of a cluster")
    used_bytes: int | None = Field(None, description="What it occupies there; null in lists, and while that is away")
    sessions: list[str] | None = Field(None, description="Those that have it in their sandbox; null in lists")


class VolumePage(BaseModel):
    volumes: list[VolumeView]
    next: str | None = Field(description="Give it as `after` to get the next page")


class VolumesQuery(BaseModel):
    after: str = Field("", max_length=255, description="`next` of the page before")
    limit: Annotated[int, Field(ge=1, le=1000, description="So many at most")] = 100


class NewVolumeBody(Body):
    name: str = Field(description="1 to 128 letters, digits, dots, dashes and underscores", examples=["cache"])
    size_mb: _SizeMb | None = Field(None, description="By default as the server is set", examples=[1024])
    metadata: dict[str, str] = Field({}, description="Labels of your own")


class VolumePatchBody(Body):
    size_mb: _SizeMb | None = Field(None, description="Never less than it has", examples=[2048])
    metadata: dict[str, str | None] | None = Field(
        None, description="Merged into what is there; a null takes an entry away"
    )


class CopyBody(Body):
    name: str = Field(description="The name of the copy", examples=["cache-2"])


class DetachQuery(BaseModel):
    path: str = Field(max_length=1024, description="Where the volume is", examples=["/workspace/data"])


async def create_volume(call: Call, body: NewVolumeBody) -> Values:
    """An empty disk with a name. Its size is what it may hold; it takes room on the machine as it fills."""
    made = await _volumes(call).create(call.tenant, body.name, body.size_mb, body.metadata)
    return await _show(call, made)


async def list_volumes(call: Call, query: VolumesQuery) -> Values:
    """In the order of their names. A page may have fewer than `limit` although there are more: `next` says so."""
    found, more = await _volumes(call).list(call.tenant, query.after, query.limit)
    return {"volumes": [_view(volume) for volume in found], "next": more}


async def get_volume(call: Call) -> Values:
    return await _show(call, await _volumes(call).get(call.tenant, call.volume))


async def change_volume(call: Call, body: VolumePatchBody) -> Values:
    """What is left out stays as it is. A volume that is in use keeps its size: the answer is 409."""
    changed = await _volumes(call).change(call.tenant, call.volume, size_mb=body.size_mb, metadata=body.metadata)
    return await _show(call, changed)


async def copy_volume(call: Call, body: CopyBody) -> Values:
    """The copy has the same content and size, and is on the same machine. 409 while the volume is in use."""
    return await _show(call, await _volumes(call).copy(call.tenant, call.volume, body.name))


async def delete_volume(call: Call) -> None:
    """All that is in it is gone. 409 while a session has it in its sandbox."""
    await _volumes(call).delete(call.tenant, call.volume)


async def attach_volume(call: Call, body: VolumeBody) -> Values:
    """When this answers, commands see it. The path is made if it is not there, and leads through no link."""
    return show_session(call, await call.sessions.attach_volume(call.tenant, call.session_id, body.to_wish()))


async def detach_volume(call: Call, query: DetachQuery) -> Values:
    """What programs have open in it stays open for them until they close it."""
    return show_session(call, await call.sessions.detach_volume(call.tenant, call.session_id, query.path))


def _volumes(call: Call) -> Volumes:
    return call.sessions.lifecycle.volumes


async def _show(call: Call, volume: Volume) -> Values:
    volumes = _volumes(call)
    used, users = await volumes.used_bytes(volume), await volumes.users(volume)
    return {**_view(volume), "used_bytes": used, "sessions": list(users)}


def _view(volume: Volume) -> Values:
    return {
        "volume_id": volume.id,
        "name": volume.name,
        "size_mb": volume.size_mb,
        "created_at": timestamp(volume.created_at),
        "metadata": dict(volume.metadata),
        "worker": volume.place or None,
        "used_bytes": None,
        "sessions": None,
    }


HANDLERS: Final = (
    Handler("create_volume", create_volume, body=NewVolumeBody, result=VolumeView),
    Handler("list_volumes", list_volumes, query=VolumesQuery, result=VolumePage),
    Handler("get_volume", get_volume, result=VolumeView),
    Handler("change_volume", change_volume, body=VolumePatchBody, result=VolumeView),
    Handler("copy_volume", copy_volume, body=CopyBody, result=VolumeView),
    Handler("delete_volume", delete_volume),
    Handler("attach_volume", attach_volume, body=VolumeBody, result=SessionView),
    Handler("detach_volume", detach_volume, query=DetachQuery, result=SessionView),
)
