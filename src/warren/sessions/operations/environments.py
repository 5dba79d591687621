"""Lists what sessions can be made of: environments and images."""

import asyncio
from dataclasses import asdict
from typing import Final, Literal

from pydantic import BaseModel, Field

from warren.model.environment import Environment
from warren.model.tenant_images import may_use_image, reference_in
from warren.sessions.operations.call import Call, Handler, Values
from warren.sessions.request_context import current_caller
from warren.sessions.schemas import LimitsView, NetworkView, OnIdleName, timestamp

_SHOWN_OF_IMAGE: Final = ("name", "version", "size_bytes", "files")


class IoView(BaseModel):
    """Of reads and of writes each; 0 is no limit."""

    mbps: int = Field(description="MiB a second")
    iops: int = Field(description="Operations a second")


class AlertsView(BaseModel):
    memory: float
    disk: float
    processes: float
    cpu: float


class WishedVolumeView(BaseModel):
    name: str = Field(description="`{tenant}`, `{user}` and `{thread}` stand for values of the session")
    path: str
    read_only: bool
    size_mb: int | None = Field(description="Of one that is made; 0: the server's default")


class EnvironmentView(BaseModel):
    name: str
    description: str
    image: str
    provider: str | None = Field(description="What makes its sandboxes; null: the server's default")
    limits: LimitsView
    io: IoView
    env_names: list[str] = Field(description="Names of its environment variables")
    idle_timeout_s: float | None = Field(description="null: the server's default")
    max_lifetime_s: float | None = Field(description="null: the server's default")
    on_idle: OnIdleName | None = Field(description="null: the server's default")
    max_paused_s: float | None = Field(description="null: the server's default")
    needs: list[str] = Field(description="Capabilities that its provider must have")
    secrets: list[str] = Field(description="Names of secrets that your tenant must have for it")
    gpus: list[str] = Field(description="Graphics processors that its sandboxes have for themselves: ids, or `any`")
    network: NetworkView = Field(description="What its sessions may reach unless they ask for something else")
    root: Literal["read-only", "writable"] = Field(description="Whether all of the file system can be written to")
    sudo: bool = Field(description="Commands may run as root of the sandbox: `user: root`, or `sudo` inside")
    contexts: list[str] = Field(description="Languages whose code context is started ahead, in sandboxes of the pool")
    volumes: list[WishedVolumeView] = Field(description="Named volumes that each of its sessions gets")
    alerts: AlertsView = Field(description="Percent of the limits from which on `resource.high` is published; 0: never")
    default: bool = Field(description="A session that names no environment gets this one")
    image_state: Literal["ready", "missing", "outdated", "building"] | None = Field(
        description="A missing image is built when it is first needed, if there is a recipe. null: a coordinator"
    )


class EnvironmentList(BaseModel):
    environments: list[EnvironmentView]


class ImageView(BaseModel):
    name: str
    version: str = Field(description="Another one each time the image is made anew")
    size_bytes: int
    files: int
    created_at: str


class ImageList(BaseModel):
    images: list[ImageView]


async def list_environments(call: Call) -> Values:
    """As they are now, with the limits a session gets if it asks for no others. Values of variables are not shown."""
    default = call.context.default_environment
    starting = call.context.sessions.lifecycle.starting
    return {
        "environments": [
            {**show_environment(one, is_default=one.name == default), "image_state": await starting.image_state(one)}
            for one in await usable_environments(call)
        ]
    }


async def list_images(call: Call) -> Values:
    """The version that new sandboxes get. A key that is bound to environments sees the images of these, and nobody
    those of another tenant. One that was pulled for the caller's tenant has the name by which it was asked for. With
    docker, images of the engine can be used too; they are not listed."""
    images = await asyncio.to_thread(call.context.images.list)
    if any(quota.environments for _, quota in current_caller().quota_levels):
        named = {one.image for one in await usable_environments(call)}
        images = [one for one in images if one.name in named]
    return {
        "images": [
            {
                **{name: getattr(one, name) for name in _SHOWN_OF_IMAGE},
                "name": reference_in(one.name) or one.name,
                "created_at": timestamp(one.created),
            }
            for one in images
            if one.current and may_use_image(call.tenant, one.name)
        ]
    }


async def usable_environments(call: Call) -> list[Environment]:
    """The environments that the caller may use."""
    levels = [quota.environments for _, quota in current_caller().quota_levels if quota.environments]
    found = await asyncio.to_thread(call.context.environments.list)
    return [one for one in found if all(one.name in names for names in levels)]


def show_environment(environment: Environment, *, is_default: bool) -> Values:
    return {
        "name": environment.name,
        "description": environment.description,
        "image": environment.image,
        "provider": environment.provider or None,
        "limits": asdict(environment.limits),
        "io": asdict(environment.io),
        "env_names": sorted(environment.env),
        "idle_timeout_s": environment.idle_timeout_s,
        "max_lifetime_s": environment.max_lifetime_s,
        "on_idle": environment.on_idle,
        "max_paused_s": environment.max_paused_s,
        "needs": sorted(environment.needs),
        "secrets": list(environment.secrets),
        "gpus": list(environment.gpus),
        "network": environment.network.as_mapping(),
        "root": "writable" if environment.writable_root else "read-only",
        "sudo": environment.sudo,
        "contexts": list(environment.contexts),
        "volumes": [asdict(wish) for wish in environment.volumes],
        "alerts": asdict(environment.alerts),
        "default": is_default,
        "image_state": None,
    }


HANDLERS = (
    Handler("list_environments", list_environments, result=EnvironmentList),
    Handler("list_images", list_images, result=ImageList),
)
