"""What can be read of a sandbox's files, found out before an answer has begun."""

import contextlib
import posixpath
from typing import Final

from warren.interfaces.sandbox import Sandbox
from warren.model.errors import FileNotFound, IsDirectory
from warren.model.operations import FileInfo, FileKind

_MOST_LINKS: Final = 40  # as the kernel follows


async def file_to_read(sandbox: Sandbox, path: str, user: str = "") -> FileInfo:
    """What reading `path` reads, links followed. Opening it tells what is wrong with it."""
    info = await sandbox.stat(path, user=user)
    if info.kind is FileKind.DIRECTORY:
        raise IsDirectory(
            f"{path!r} is a directory", remedy="take all of it: GET …/files/archive, or download_dir of the SDK"
        )
    async for _ in sandbox.read(path, length=1, user=user):
        break
    return await _target(sandbox, info, user)


async def _target(sandbox: Sandbox, info: FileInfo, user: str) -> FileInfo:
    """What a link leads to: reading follows it, so the size is that of its target."""
    with contextlib.suppress(FileNotFound):  # the kernel has links that can be read and lead nowhere
        for _ in range(_MOST_LINKS):
            if info.kind is not FileKind.SYMLINK:
                break
            info = await sandbox.stat(posixpath.join(posixpath.dirname(info.path), info.target), user=user)
    return info
