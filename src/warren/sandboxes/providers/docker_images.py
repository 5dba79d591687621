"""Warren's images in the engine.

A version of an image of Warren's is loaded into the engine once, as `warren/<name>:<version>`. The engine then has a
copy of its own, so sandboxes do not hold the version; when the next one is loaded, the older copies that no container
uses are removed. Every other name is that of an image the engine already has, and its version is the engine's id of it.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from warren.interfaces.images import Images
from warren.kernel.shielding import run_shielded
from warren.kernel.tree_tar import tar_parts
from warren.model.errors import ImageNotFound, InvalidRequest
from warren.model.image import ImageConfig
from warren.model.oci_image import engine_config
from warren.sandboxes.providers.docker_engine import DockerEngine
from warren.sandboxes.providers.docker_spec import EngineImage

_LABEL: Final = "warren.rootfs"


class EngineImages:
    def __init__(self, images: Images, engine: DockerEngine) -> None:
        self._images = images
        self._engine = engine
        self._loading = asyncio.Lock()

    async def version(self, name: str) -> str:
        try:
            return self._images.version(name)
        except ImageNotFound:
            return (await self._find_in_engine(name)).id

    async def find(self, name: str) -> EngineImage:
        """Finds the image of that name, and loads it if necessary. Callers use its id from then on: tags can move."""
        try:
            rootfs = self._images.rootfs(name)
        except ImageNotFound:
            return await self._find_in_engine(name)
        if rootfs.host_usr:
            raise InvalidRequest(
                f"the image {name!r} stands on the /usr of this machine, which the docker provider cannot give",
                remedy="use the image base, or the provider oci",
            )
        repository, tag = f"warren/{slug(name)}", rootfs.version
        async with self._loading:
            if found := await self._engine.image(f"{repository}:{tag}"):
                return _image(found, rootfs.config)
            # Named after the path that images had before there were versions, so that older copies are found.
            label = f"{_LABEL}={_digest(str(rootfs.path.parents[2] / quote(name, safe='') / 'rootfs'))}"
            await self._engine.load(repository, tag, label, _tar(rootfs.path))
            found = await self._engine.image(f"{repository}:{tag}")
            assert found is not None
            await self._remove_older(label, found["Id"])
            return _image(found, rootfs.config)

    async def _find_in_engine(self, name: str) -> EngineImage:
        found = await self._engine.image(name)
        if found is None:
            raise ImageNotFound(
                f"neither Warren nor the Docker engine has an image {name!r}",
                remedy=f"warren image pull {name}, or: docker pull {name}",
            )
        return _image(found, engine_config(found.get("Config") or {}))

    async def _remove_older(self, label: str, current: str) -> None:
        for image_id in await self._engine.image_ids(label):
            if image_id != current:
                await self._engine.remove_image(image_id)


def slug(name: str) -> str:
    """A repository's name in Docker's alphabet."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "image"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _image(found: dict[str, Any], config: ImageConfig) -> EngineImage:
    volumes = (found.get("Config") or {}).get("Volumes") or ()
    return EngineImage(found["Id"], tuple(sorted(volumes)), replace(config, user=""))


async def _tar(root: Path) -> AsyncIterator[bytes]:
    """The tree as a tar, read in threads, one part in memory at a time."""
    parts = tar_parts(root)
    while part := await run_shielded(asyncio.to_thread(next, parts, b"")):
        yield part
