"""Takes the files of a Docker image: creates a container from it, exports that as a tar stream and removes it.

The container never runs. It carries a label with the directory that the import works in: if that directory is gone,
its importer has died, and the next import removes the container.
"""

import asyncio
import io
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, cast

import aiohttp

from warren.kernel.shielding import run_shielded
from warren.kernel.thread_streams import ThreadReader
from warren.model.errors import ImageNotFound, ProviderUnavailable
from warren.model.image import ImageConfig
from warren.model.oci_image import engine_config
from warren.sandboxes.providers.docker_engine import DockerEngine

_LABEL: Final = "warren.image-import"
_PART: Final = 1024 * 1024


async def unpack_docker_image(
    docker_url: str, reference: str, owner: Path, unpack: Callable[[IO[bytes]], None]
) -> ImageConfig:
    """Calls `unpack` in a thread with the image's files as an uncompressed tar, and leaves nothing in the engine.
    Returns the image's own config. Raises ImageNotFound."""
    engine = DockerEngine(docker_url)
    try:
        await _remove_abandoned(engine)
        found = await engine.image(reference)
        if found is None:
            raise ImageNotFound(
                f"the Docker engine has no image {reference!r}",
                remedy="docker pull it first; `docker images` shows those it has",
            )
        container = await engine.create("", _container(reference, owner))
        try:
            async with engine.export(container) as content:
                stream = io.BufferedReader(ThreadReader(partial(_read, content)), _PART)
                await asyncio.to_thread(unpack, cast(IO[bytes], stream))
        finally:
            # Shielded: a cancelled import must not leave its container behind in the engine.
            await run_shielded(engine.remove(container))
        return replace(engine_config(found.get("Config") or {}), digest=str(found.get("Id", "")))
    finally:
        await engine.close()


async def docker_image_id(docker_url: str, reference: str) -> str:
    """Returns the id of the image that the engine has under this name; "" if it has none or does not answer."""
    engine = DockerEngine(docker_url)
    try:
        return str((await engine.image(reference) or {}).get("Id", ""))
    except ProviderUnavailable:
        return ""
    finally:
        await engine.close()


async def _read(content: aiohttp.StreamReader, size: int) -> bytes:
    try:
        return await content.read(size)
    except (aiohttp.ClientError, TimeoutError) as exc:
        raise ProviderUnavailable(f"the Docker engine broke off the export of the image: {exc}") from exc


def _container(reference: str, owner: Path) -> dict[str, Any]:
    return {
        "Image": reference,
        "Cmd": ["/never-run"],
        "NetworkDisabled": True,
        "Labels": {_LABEL: f"{os.uname().nodename}:{owner}"},
        "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "none"}},
    }


async def _remove_abandoned(engine: DockerEngine) -> None:
    for container in await engine.containers(_LABEL):
        machine, _, path = container["Labels"][_LABEL].partition(":")
        if machine == os.uname().nodename and not Path(path).exists():
            await engine.remove(container["Id"])
