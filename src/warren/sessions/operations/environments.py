"""Lists what sessions can be made of: environments and images."""

import asyncio
from dataclasses import asdict
from typing import Final

from warren.model.environment import Environment
from warren.model.tenant_images import may_use_image
from warren.sessions.operations.call import Call, Handler, Values
from warren.sessions.request_context import current_caller
from warren.sessions.schemas import EnvironmentList, ImageList, timestamp

_SHOWN_OF_IMAGE: Final = ("name", "version", "size_bytes", "files")


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
    those of another tenant. With docker, images of the engine can be used too; they are not listed."""
    images = await asyncio.to_thread(call.context.images.list)
    if any(quota.environments for _, quota in current_caller().quota_levels):
        named = {one.image for one in await usable_environments(call)}
        images = [one for one in images if one.name in named]
    return {
        "images": [
            {**{name: getattr(one, name) for name in _SHOWN_OF_IMAGE}, "created_at": timestamp(one.created)}
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
        "needs": sorted(environment.needs),
        "secrets": list(environment.secrets),
        "gpus": list(environment.gpus),
        "network": environment.network.as_mapping(),
        "root": "writable" if environment.writable_root else "read-only",
        "sudo": environment.sudo,
        "contexts": list(environment.contexts),
        "alerts": asdict(environment.alerts),
        "default": is_default,
        "image_state": None,
    }


HANDLERS = (
    Handler("list_environments", list_environments, result=EnvironmentList),
    Handler("list_images", list_images, result=ImageList),
)
