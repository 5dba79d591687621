"""Warren's images in the engine.

A version of an image of Warren's is loaded into the engine once, as `warren/<name>:<version>`, in a task that all who
need it wait for. A tenant's images are loaded one after the other, and a few tenants' at once. The engine then has a
copy of its own, so sandboxes do not hold the version; after each load the copies are removed that no container uses and
whose version is gone here. Every other name is that of an image the engine already has, and its version is the engine's
id of it.
"""

import asyncio
import hashlib
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import quote
from weakref import WeakValueDictionary

from warren.interfaces.images import Images, RootFs
from warren.kernel.bounded_dict import BoundedDict
from warren.kernel.shielding import run_shielded
from warren.kernel.tree_tar import tar_parts
from warren.model.errors import ImageBuilding, ImageNotFound, InvalidRequest
from warren.model.image import ImageConfig, remaining_s
from warren.model.oci_image import engine_config
from warren.model.tenant_images import owner_of
from warren.sandboxes.providers.docker_engine import DockerEngine
from warren.sandboxes.providers.docker_spec import EngineImage

_LABEL: Final = "warren.rootfs"
_LOOK_S: Final = 0.5
_AT_ONCE: Final = 3
_MAX_KNOWN: Final = 1000


class _Load:
    """An image on its way into the engine, or being looked for there. `sent`: the bytes of it that have gone."""

    def __init__(self, rootfs: RootFs, work: Callable[["_Load"], Coroutine[Any, Any, EngineImage]]) -> None:
        self.rootfs, self.sent, self._began = rootfs, 0, time.monotonic()
        self.task = asyncio.create_task(work(self))

    async def parts(self) -> AsyncIterator[bytes]:
        """The files as a tar, read in threads, one part in memory at a time."""
        parts = tar_parts(self.rootfs.path)
        while part := await run_shielded(asyncio.to_thread(next, parts, b"")):
            self.sent += len(part)
            yield part

    def error(self) -> ImageBuilding:
        total = self.rootfs.size_bytes
        fraction = min(0.99, self.sent / total) if total else None
        left_s = remaining_s(time.monotonic() - self._began, fraction)
        return ImageBuilding(
            "the image of this environment is being loaded into the Docker engine",
            remedy="try again in a moment",
            retry_after_s=min(30.0, max(2.0, left_s or 0.0)),
            step=f"loading it into the Docker engine, {self.sent // 1_000_000} MB so far",
            fraction=fraction,
            remaining_s=left_s,
        )


class EngineImages:
    def __init__(self, images: Images, engine: DockerEngine) -> None:
        self._images = images
        self._engine = engine
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._locks = WeakValueDictionary[str, asyncio.Lock]()  # of owners of images
        self._loads: dict[str, _Load] = {}  # by version
        self._loaded = BoundedDict[str, str](_MAX_KNOWN)  # the version of each name that the engine has had

    async def version(self, name: str) -> str:
        try:
            return self._images.version(name)
        except ImageNotFound:
            return (await self._find_in_engine(name)).id

    async def load(self, name: str) -> None:
        """Begins to load an image of Warren's that the engine lacks. Raises ImageBuilding until that is done."""
        try:
            if self._loaded.get(name) == self._images.version(name):
                return
            rootfs = self._images.rootfs(name)
        except ImageNotFound:
            return
        load = self._begin(name, rootfs)
        await asyncio.wait([load.task], timeout=_LOOK_S)
        if not load.task.done():
            raise load.error()
        load.task.result()

    async def find(self, name: str) -> EngineImage:
        """Finds the image of that name, and loads it if necessary. Callers use its id from then on: tags can move."""
        try:
            rootfs = self._images.rootfs(name)
        except ImageNotFound:
            return await self._find_in_engine(name)
        return await asyncio.shield(self._begin(name, rootfs).task)

    async def close(self) -> None:
        tasks = [load.task for load in self._loads.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, name: str, rootfs: RootFs) -> _Load:
        """Returns the load of this version, which callers share."""
        if rootfs.host_usr:
            raise InvalidRequest(
                f"the image {name!r} stands on the /usr of this machine, which the docker provider cannot give",
                remedy="use the image base, or the provider oci",
            )
        if (load := self._loads.get(rootfs.version)) is None:
            load = self._loads[rootfs.version] = _Load(rootfs, partial(self._find_or_load, name))
            load.task.add_done_callback(partial(self._end, rootfs.version))
        return load

    def _end(self, version: str, task: asyncio.Task[EngineImage]) -> None:
        self._loads.pop(version, None)
        if not task.cancelled():
            task.exception()  # whoever waits raises it; maybe nobody does any more

    async def _find_or_load(self, name: str, load: _Load) -> EngineImage:
        rootfs = load.rootfs
        repository, tag = f"warren/{slug(name)}", rootfs.version
        found = await self._engine.image(f"{repository}:{tag}")
        if found is None:
            self._loaded.pop(name, None)  # somebody has removed it there: callers are to wait again
            lock = self._locks.setdefault(owner_of(name), asyncio.Lock())
            async with lock, self._slots:  # in this order an owner has at most one place in the queue for the slots
                await self._engine.load(repository, tag, f"{_LABEL}={_label(name, rootfs)}", load.parts())
                found = await self._engine.image(f"{repository}:{tag}")
                assert found is not None
                await self._remove_unneeded(name, rootfs)
        self._loaded[name] = rootfs.version
        return _image(found, rootfs.config)

    async def _find_in_engine(self, name: str) -> EngineImage:
        found = await self._engine.image(name)
        if found is None:
            raise ImageNotFound(
                f"neither Warren nor the Docker engine has an image {name!r}",
                remedy=f"warren image pull {name}, or: docker pull {name}",
            )
        return _image(found, engine_config(found.get("Config") or {}))

    async def _remove_unneeded(self, name: str, rootfs: RootFs) -> None:
        """Removes the copies of versions that are gone, and older ones of this image."""
        label = _label(name, rootfs)
        folder, _, path = label.partition("-")
        needed = {*await asyncio.to_thread(os.listdir, rootfs.path.parents[1]), *self._loads}
        for copy in await self._engine.labelled_images(_LABEL):
            found = str((copy.get("Labels") or {}).get(_LABEL, ""))
            version = str((copy.get("RepoTags") or [""])[0]).rpartition(":")[2]
            is_older = found in (label, path) and version != rootfs.version
            if is_older or (found.startswith(f"{folder}-") and version not in needed):
                await self._engine.remove_image(str(copy["Id"]))


def slug(name: str) -> str:
    """A repository's name in Docker's alphabet."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "image"


def _label(name: str, rootfs: RootFs) -> str:
    """Says whose copy it is: of which folder of images, as engines may serve several, and of which image. An image is
    named after the path that it had before there were versions; copies of that time have this part alone."""
    folder = rootfs.path.parents[2]
    return f"{_digest(f'{folder} {folder.stat().st_ino}')}-{_digest(str(folder / quote(name, safe='') / 'rootfs'))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _image(found: dict[str, Any], config: ImageConfig) -> EngineImage:
    volumes = (found.get("Config") or {}).get("Volumes") or ()
    return EngineImage(found["Id"], tuple(sorted(volumes)), replace(config, user=""))
