"""Builds a Dockerfile with a Docker engine and imports the image: `warren image build --with docker`.

The image in the engine carries a label with the directory that the build works in: if that directory is gone, its
builder has died, and the next build removes the image. Base images that the engine pulled stay in the engine.
"""

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from warren.images.building.context import CopySource, FileTree
from warren.images.building.settings import LAST_OUTPUT, BuildProgress
from warren.images.store.store import ImageStore
from warren.interfaces.images import ImageVersion
from warren.kernel.shielding import run_shielded
from warren.model.errors import BuildFailed, InvalidRequest
from warren.model.operations import FileKind
from warren.model.spec import check_image_name
from warren.sandboxes.agent.tar_stream import TarMember, header, padding, trailer
from warren.sandboxes.providers.docker_engine import DockerEngine

_LABEL: Final = "warren.image-build"
_MAX_DOCKERFILE: Final = 1024 * 1024
_LAST_LINES: Final = 40


def build_with_docker(
    images: ImageStore,
    name: str,
    *,
    context: Path,
    dockerfile: str,
    docker_url: str,
    progress: BuildProgress,
    build_args: Mapping[str, str] | None = None,
    target: str = "",
    no_cache: bool = False,
) -> ImageVersion:
    """Makes a new version of the image `name`, and leaves nothing in the engine. `dockerfile` is the text. Raises
    BuildFailed."""
    check_image_name(name)
    text = dockerfile.encode()
    if len(text) > _MAX_DOCKERFILE:
        raise InvalidRequest(f"the Dockerfile is longer than {_MAX_DOCKERFILE} bytes")
    with images.temporary() as making:
        tag = f"warren-build:{secrets.token_hex(8)}"
        options = {
            **({"buildargs": json.dumps(dict(build_args))} if build_args else {}),
            **({"target": target} if target else {}),
            **({"nocache": "true"} if no_cache else {}),
            **{"t": tag, "rm": "true", "forcerm": "true"},
            "labels": json.dumps({_LABEL: _owner(making)}),
        }
        try:
            asyncio.run(_build(docker_url, options, context, text, progress))
            return images.import_docker(name, tag, docker_url, progress, shell_needed=False)
        finally:
            asyncio.run(_remove(docker_url, tag))


def _owner(making: Path) -> str:
    return f"{os.uname().nodename}:{making}"


async def _build(
    docker_url: str, options: Mapping[str, str], context: Path, dockerfile: bytes, progress: BuildProgress
) -> None:
    engine = DockerEngine(docker_url)
    try:
        await _remove_abandoned(engine)
        progress("building in the Docker engine", None)
        name = f".dockerfile.{secrets.token_hex(8)}"
        last: list[str] = []
        with FileTree(context) as files:
            tar = _as_tar(files, name, dockerfile)
            async with contextlib.aclosing(engine.build({**options, "dockerfile": name}, tar)) as messages:
                async for message in messages:
                    _take(message, last, progress)
    finally:
        await engine.close()


def _take(message: Mapping[str, Any], last: list[str], progress: BuildProgress) -> None:
    if "error" in message:
        output = "".join(f"\n    {line}" for line in last)
        shown = f"{LAST_OUTPUT}{output}" if output else ""
        raise BuildFailed(f"docker, building the image: {message['error']}{shown}", last_lines=tuple(last))
    text = message.get("stream") or message.get("status") or ""
    if isinstance(text, str) and text.strip():
        progress.output(text if text.endswith("\n") else f"{text}\n")
        last[:] = [*last, *text.strip().splitlines()][-_LAST_LINES:]
        if text.startswith("Step "):
            progress(text.strip(), None)


async def _as_tar(files: FileTree, name: str, dockerfile: bytes) -> AsyncIterator[bytes]:
    yield header(TarMember(name, FileKind.FILE, len(dockerfile), 0o644, 0))
    yield dockerfile + padding(len(dockerfile))
    size = 0
    for part in files.content(CopySource("", True)):
        if isinstance(part, TarMember):
            yield padding(size) + header(part)
            size = part.size
        else:
            yield part
    yield padding(size) + trailer()


async def _remove(docker_url: str, reference: str) -> None:
    engine = DockerEngine(docker_url)
    try:
        if await engine.image(reference) is not None:
            await run_shielded(engine.remove_image(reference))
    finally:
        await engine.close()


async def _remove_abandoned(engine: DockerEngine) -> None:
    for image in await engine.labelled_images(_LABEL):
        machine, _, path = str((image.get("Labels") or {}).get(_LABEL, "")).partition(":")
        if machine == os.uname().nodename and not Path(path).exists():
            await engine.remove_image(str(image["Id"]), force=True)
