"""The few calls that Warren makes to a Docker engine, with the engine's errors in Warren's words.

Calls that make or start something are shielded from cancellation: an engine goes on with a request whose caller has
gone, and the clean-up would miss what it makes then.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, cast

import aiohttp
from aiodocker import Docker
from aiodocker.exceptions import DockerError

from warren.kernel.shielding import run_shielded
from warren.model.errors import ImageNotFound, InvalidRequest, NoSpace, ProviderUnavailable, SandboxLost, WarrenError

DEFAULT_URL: Final = "unix:///var/run/docker.sock"
_UNIX: Final = "unix://"
_TIMEOUT: Final = aiohttp.ClientTimeout(total=120, sock_connect=10)
_BULK_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=600)
_NO_CONNECTION: Final = 900  # aiodocker's own, beside the engine's HTTP codes
_READ_S: Final = 20.0
_REMOVE_S: Final = 60.0
_PAUSE_S: Final = 0.05

Json = dict[str, Any]


class DockerEngine:
    """Connects when first used, and again after `close`."""

    def __init__(self, url: str = "") -> None:
        self.url = url or DEFAULT_URL
        if not self.url.startswith((_UNIX, "tcp://", "http://", "https://")):
            raise InvalidRequest(
                f"the Docker address {url!r} cannot be used here", remedy="set DOCKER_HOST to unix://… or tcp://…"
            )
        self._docker: Docker | None = None
        self._connector: aiohttp.BaseConnector | None = None

    def __repr__(self) -> str:
        return f"<DockerEngine {self.url}>"

    async def close(self) -> None:
        docker, self._docker = self._docker, None
        if docker is not None:
            await docker.close()
        if self._connector is not None:
            await self._connector.close()

    async def info(self) -> Json:
        with self._errors("asking the engine what it is"):
            async with asyncio.timeout(_READ_S):
                return cast(Json, await self._client().system.info())

    # -- containers

    async def create(self, name: str, config: Json) -> str:
        """Returns the new container's id. Without a name the engine invents one."""
        with self._errors("creating a sandbox"):
            container = await run_shielded(self._client().containers.create(config, name=name))
            return str(container.id)

    async def start(self, container: str) -> None:
        with self._errors("starting a sandbox"):
            await run_shielded(self._client().containers.container(container).start())

    async def state(self, container: str) -> Json:
        with self._errors("looking at a sandbox"):
            async with asyncio.timeout(_READ_S):
                return cast(Json, (await self._client().containers.container(container).show())["State"])

    async def remove(self, name: str) -> None:
        """Kills and removes a container, by name or id; returns when it is gone. Idempotent."""
        with self._errors("removing a sandbox"):
            container = self._client().containers.container(name)
            deadline = time.monotonic() + _REMOVE_S
            while True:
                try:
                    return await container.delete(force=True, v=True)
                except DockerError as exc:
                    if exc.status == 404:
                        return
                    # 409: another removal is under way. 500: it was ending by itself, or its mounts are still busy.
                    if exc.status not in (409, 500) or time.monotonic() > deadline:
                        raise
                await asyncio.sleep(_PAUSE_S)

    async def containers(self, label: str) -> Sequence[Json]:
        """Returns every container, running or not, that has this label."""
        with self._errors("listing containers"):
            return await self._list("containers/json", label)

    @asynccontextmanager
    async def export(self, container: str) -> AsyncIterator[aiohttp.StreamReader]:
        """Yields the files of a container as a tar stream."""
        async with AsyncExitStack() as stack:
            with self._errors("exporting a container"):
                # aiodocker has no method for it.
                query = self._client()._query(f"containers/{container}/export", timeout=_BULK_TIMEOUT)
                response = await stack.enter_async_context(_released(query))
            yield response.content

    # -- images

    async def image(self, reference: str) -> Json | None:
        with self._errors(f"looking for the image {reference}"):
            try:
                async with asyncio.timeout(_READ_S):
                    return await self._client().images.inspect(reference)
            except DockerError as exc:
                if exc.status in (400, 404):  # 400: what Docker does not take as a name at all
                    return None
                raise

    async def load(self, repository: str, tag: str, label: str, tar: AsyncIterator[bytes]) -> None:
        """Makes an image of one layer from a root filesystem."""
        params = {"fromSrc": "-", "repo": repository, "tag": tag, "changes": f"LABEL {label}"}
        with self._errors(f"loading the image {repository}:{tag}"):
            # aiodocker has a method for `docker load`, none for `docker import`.
            query = self._client()._query(
                *("images/create", "POST"),
                params=params,
                data=tar,
                headers={"Content-Type": "application/x-tar"},
                timeout=_BULK_TIMEOUT,
            )
            async with _released(query) as response:
                async for line in response.content:
                    _check_progress(line)

    async def build(self, options: Mapping[str, str], tar: AsyncIterator[bytes]) -> AsyncGenerator[Json, None]:
        """Builds an image of a directory that comes as a tar, and yields the engine's messages; one with `error` is the
        last."""
        with self._errors("building the image"):
            # aiodocker's own method takes the whole of an archive into memory, or a file.
            query = self._client()._query(
                *("build", "POST"),
                params=options,
                data=tar,
                headers={"Content-Type": "application/x-tar"},
                timeout=_BULK_TIMEOUT,
            )
            async with _released(query) as response:
                async for line in response.content:
                    with suppress(ValueError):
                        message = json.loads(line)
                        if isinstance(message, dict):
                            yield message

    async def labelled_images(self, label: str) -> Sequence[Json]:
        with self._errors("listing images"):
            return await self._list("images/json", label)

    async def remove_image(self, image_id: str, *, force: bool = False) -> bool:
        """Returns False if it is in use, or gone."""
        with self._errors("removing an image"):
            try:
                await self._client().images.delete(image_id, force=force)
            except DockerError as exc:
                if exc.status in (404, 409):
                    return False
                raise
            return True

    # -- calls and errors

    async def _list(self, what: str, label: str) -> list[Json]:
        # How aiodocker's own lists take a filter changes from release to release.
        params = {"all": "true", "filters": json.dumps({"label": [label]})}
        async with asyncio.timeout(_READ_S):
            return cast(list[Json], await self._client()._query_json(what, params=params))

    def _client(self) -> Docker:
        if self._docker is None:
            # Every request has a connection of its own: a kept one would not survive a restart of the engine.
            if self.url.startswith(_UNIX):
                self._connector = aiohttp.UnixConnector(self.url.removeprefix(_UNIX), force_close=True)
            else:
                self._connector = aiohttp.TCPConnector(force_close=True)
            url = f"{_UNIX}localhost" if self.url.startswith(_UNIX) else self.url.replace("tcp://", "http://", 1)
            self._docker = Docker(url, connector=self._connector, timeout=_TIMEOUT)
        return self._docker

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except DockerError as exc:
            if exc.status == _NO_CONNECTION:
                raise self._unreachable(doing, exc.__context__ or exc) from exc
            raise translate_error(doing, exc.status, exc.message) from exc
        except TimeoutError as exc:
            raise ProviderUnavailable(f"docker, {doing}: the engine did not answer in time") from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise self._unreachable(doing, exc) from exc

    def _unreachable(self, doing: str, exc: BaseException) -> ProviderUnavailable:
        why = getattr(exc, "strerror", None) or exc
        return ProviderUnavailable(
            f"the Docker engine at {self.url} does not answer ({doing}: {why})",
            remedy="start it (systemctl start docker), or set DOCKER_HOST",
        )


@asynccontextmanager
async def _released(
    query: AbstractAsyncContextManager[aiohttp.ClientResponse],
) -> AsyncIterator[aiohttp.ClientResponse]:
    """aiodocker's own context does not close the connection of a response that was not read to its end."""
    async with query as response, response:
        yield response


def translate_error(doing: str, status: int, message: str) -> WarrenError:
    """Turns an error response of the engine into an error of Warren's. Pure."""
    text, lower = f"docker, {doing}: {message.strip()}", message.lower()
    if "bind source path does not exist" in lower:
        return ProviderUnavailable(
            f"docker, {doing}: the engine does not see the files of this machine ({message.strip()})",
            remedy="use the engine of this machine; a remote one, or one in another mount namespace, cannot be used",
        )
    if "no space left on device" in lower:
        return NoSpace(text, remedy="free some space where Docker keeps its data")
    if status == 404:
        return ImageNotFound(text, remedy="docker pull it first") if "image" in lower else SandboxLost(text)
    if status == 400 and "minimum memory" in lower:
        return InvalidRequest(text)
    return ProviderUnavailable(text)


def _check_progress(line: bytes) -> None:
    """Raises the error that the engine reports in the body, after a status of 200."""
    try:
        progress = json.loads(line)
    except ValueError:
        return
    if isinstance(progress, dict) and "error" in progress:
        raise DockerError(500, str(progress["error"]))
