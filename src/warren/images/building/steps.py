"""Runs the steps of a build, each in a sandbox of its own, and makes a layer of what a step wrote.

The sandboxes belong to a provider that is made for the build, with a state directory below the builder's temporary
directory. They are ephemeral: if the builder is killed, they end by themselves, and the next process that clears the
temporary directory removes what they left (`clear_abandoned`). Files go in and out through the agent, so that every
link of the image is resolved inside; this process opens no path of an image that a step has made.
"""

import asyncio
import contextlib
import os
import posixpath
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from warren.images.building.refusals import explain_refusals, suggest_networks
from warren.images.building.settings import BuildNetwork, BuildProgress, BuildProvider, NewProvider, StepLimits
from warren.images.store.abandoned_builds import STATE, StepImages
from warren.images.trees.layers import LayerSize, collect
from warren.interfaces.images import RootFs
from warren.kernel.shielding import run_shielded
from warren.model.errors import (
    BuildFailed,
    FileExists,
    FileNotFound,
    FileProblem,
    InvalidRequest,
    NotADirectory,
    UnknownUser,
    WarrenError,
)
from warren.model.image import ImageConfig, Run
from warren.model.operations import Command, FileKind, Reason
from warren.model.secrets import CA_VARIABLES
from warren.model.spec import SandboxSpec
from warren.sandboxes.agent.sandbox import AgentSandbox
from warren.sandboxes.agent.tar_stream import TarMember

ROOT: Final = "0"  # a number, because an image may have no /etc/passwd
_NAME: Final = "build"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEEP_BYTES: Final = 1024 * 1024
_MAX_SHOWN: Final = 4 * 1024 * 1024
_LAST_LINES: Final = 40
_LONGEST_LINE: Final = 2000
_PRIVATE: Final = "/dev/shm/.warren-build"  # a tmpfs, so these files are in no layer
_MAX_LINKS: Final = 8
_MAX_SMALL_FILE: Final = 1024 * 1024

Parts = AsyncIterator[TarMember | bytes]


class StepRunner:
    """Runs steps in sandboxes. It makes the provider only when it is first needed: a fully cached build needs none."""

    def __init__(
        self,
        making: Path,
        new_provider: NewProvider,
        find_network: Callable[[], BuildNetwork],
        limits: StepLimits,
        progress: BuildProgress,
    ) -> None:
        self._making, self._new_provider = making, new_provider
        self._find_network, self._limits, self._progress = find_network, limits, progress
        self._images = StepImages()
        self._provider: BuildProvider | None = None
        self._network: BuildNetwork | None = None
        self._creating = asyncio.Lock()

    async def close(self) -> None:
        if self._provider is not None:
            for sandbox_id in await self._provider.list_ids():
                await self._provider.destroy(sandbox_id)
            await self._provider.close()

    @contextlib.asynccontextmanager
    async def sandbox(self, rootfs: RootFs) -> AsyncIterator[tuple[BuildProvider, AgentSandbox]]:
        """Yields the provider and a sandbox on this root filesystem, which it destroys even when cancelled."""
        if self._provider is None:
            self._provider = self._new_provider(self._making / STATE, self._images)
        provider = self._provider
        spec = SandboxSpec(_NAME, self._limits.sandbox, ephemeral=True, writable_root=True, sudo=True)
        async with self._creating:
            self._images.next = rootfs
            sandbox = await provider.create(spec)
        try:
            yield provider, sandbox
        finally:
            await run_shielded(_end(provider, sandbox))

    async def layer(
        self, rootfs: RootFs, act: Callable[[AgentSandbox], Awaitable[tuple[int, int] | None]], target: Path
    ) -> LayerSize:
        """Makes a layer in `target` from what `act` changes in a sandbox. `act` returns the owner for everything new,
        or None to keep the owners as they are."""
        changes = -1
        try:
            async with self.sandbox(rootfs) as (provider, sandbox):
                owner = await act(sandbox)
                # Taken while the sandbox lives: the descriptor keeps its upper directory after the sandbox's mounts are
                # gone.
                uid_base = provider.uid_base(sandbox.id)
                changes = provider.changes(sandbox.id)
            below = (*rootfs.layers, rootfs.path)
            return await asyncio.to_thread(
                collect, changes, uid_base, target, owner=owner, below=below, caps=self._limits.caps
            )
        finally:
            if changes >= 0:
                os.close(changes)

    # -- what a step does

    async def run(self, sandbox: AgentSandbox, step: Run, config: ImageConfig) -> None:
        """Runs a command to its end. Raises BuildFailed, with the last lines of its output."""
        network = await self._open_network(sandbox)
        user = await _with_group(sandbox, step.user or config.user)
        command = Command(
            argv=step.argv,
            env={
                "PATH": _PATH,
                **network.env,
                **await self._authorities_env(sandbox, network),
                **config.env,
                **step.env,
                **await self._apt_env(sandbox, network),
            },
            cwd=config.workdir or "/",
            user=user,
            timeout_s=self._limits.timeout_s,
            carry_state=False,
            keep_bytes=_KEEP_BYTES,
        )
        tail = _Tail(self._progress.output)
        try:
            process = await sandbox.start(command, follow=True)
        except (UnknownUser, FileNotFound, NotADirectory) as exc:
            raise BuildFailed(f"it cannot be started: {exc.message}") from exc
        async for chunk in process.output():
            tail.add(chunk.data)
        result = await process.ended()
        if result.reason is Reason.EXITED and result.exit_code == 0:
            return
        why = _why(result.reason, result.exit_code, self._limits)
        text, remedy = await self._refused(sandbox, network)
        raise BuildFailed(why + text, remedy=remedy, last_lines=tail.last())

    async def _refused(self, sandbox: AgentSandbox, network: BuildNetwork) -> tuple[str, str]:
        """Returns what the network has refused to a step that failed, and what the operator can do about it: the latter
        is no part of the message, because a server passes messages on to tenants."""
        with contextlib.suppress(WarrenError):
            if network.rules.is_open and (refusals := (await sandbox.network_use()).refusals):
                return f"; {explain_refusals(refusals)}", await suggest_networks(refusals)
        return "", ""

    async def _open_network(self, sandbox: AgentSandbox) -> BuildNetwork:
        if self._network is None:
            self._network = await asyncio.to_thread(self._find_network)
        if self._network.rules.is_open:
            await sandbox.set_network(self._network.rules)
        return self._network

    async def _authorities_env(self, sandbox: AgentSandbox, network: BuildNetwork) -> dict[str, str]:
        """Makes programs trust this machine's authorities: the operator's proxy may present certificates of its own."""
        if not network.authorities or not network.rules.is_open:
            return {}
        await make_directory(sandbox, _PRIVATE)
        await sandbox.write(f"{_PRIVATE}/ca.crt", network.authorities.encode(), mode=0o644, user=ROOT)
        return dict.fromkeys(CA_VARIABLES, f"{_PRIVATE}/ca.crt")

    async def _apt_env(self, sandbox: AgentSandbox, network: BuildNetwork) -> dict[str, str]:
        """Makes apt use the operator's package sources if they are for the image's release."""
        release = await read_small_file(sandbox, "/etc/os-release")
        code_name = re.search(r'^VERSION_CODENAME="?([a-z0-9.-]+)', release, re.MULTILINE)
        sources = network.apt_sources.get(code_name[1], "") if code_name else ""
        if not sources:
            return {}
        with contextlib.suppress(FileExists):
            await sandbox.mkdir(_PRIVATE, user=ROOT)
        settings = (
            f'Dir::Etc::sourcelist "{_PRIVATE}/sources.list";\n'
            'APT::Sandbox::User "root";\nAPT::Install-Recommends "false";\nAcquire::Languages "none";\n'
            'Dpkg::Options:: "--force-unsafe-io";\nDpkg::Use-Pty "0";\n'
        )
        await sandbox.write(f"{_PRIVATE}/sources.list", sources.encode(), mode=0o644, user=ROOT)
        await sandbox.write(f"{_PRIVATE}/apt.conf", settings.encode(), mode=0o644, user=ROOT)
        return {"APT_CONFIG": f"{_PRIVATE}/apt.conf"}


async def _end(provider: BuildProvider, sandbox: AgentSandbox) -> None:
    await provider.destroy(sandbox.id)
    await sandbox.close()


class _Tail:
    """Passes output on up to a limit, and keeps the last lines."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show, self._shown = show, 0
        self._lines: list[bytes] = []
        self._line = b""

    def add(self, data: bytes) -> None:
        if self._shown <= _MAX_SHOWN:
            self._shown += len(data)
            more = "\n(the rest of this step's output is not shown)\n" if self._shown > _MAX_SHOWN else ""
            self._show(data.decode(errors="replace") + more)
        *lines, last = (self._line + data[-_LAST_LINES * _LONGEST_LINE :]).split(b"\n")
        self._lines = [*self._lines, *lines][-_LAST_LINES:]
        self._line = last[-_LONGEST_LINE:]

    def last(self) -> tuple[str, ...]:
        lines = [*self._lines, *([self._line] if self._line else [])][-_LAST_LINES:]
        return tuple(line[:_LONGEST_LINE].decode(errors="replace").rstrip("\r") for line in lines)


def _why(reason: Reason, exit_code: int, limits: StepLimits) -> str:
    match reason:
        case Reason.EXITED:
            return f"it ended with exit code {exit_code}"
        case Reason.TIMEOUT:
            return f"it ran longer than {limits.timeout_s:g} s (image_build_timeout_s)"
        case Reason.OOM:
            return f"it needed more than {limits.sandbox.memory_mb} MiB of memory (image_build_memory_mb)"
        case Reason.SANDBOX_LOST:
            return "its sandbox died"
        case _:
            return f"it was ended, with exit code {exit_code}"


# -- files inside


async def make_directory(sandbox: AgentSandbox, path: str) -> None:
    if not await is_directory(sandbox, path):
        await sandbox.mkdir(path, user=ROOT)


async def is_directory(sandbox: AgentSandbox, path: str) -> bool:
    """Returns whether the path is a directory, or a link to one."""
    try:
        return (await sandbox.stat(f"{path.rstrip('/')}/.", user=ROOT)).kind is FileKind.DIRECTORY
    except (FileNotFound, FileProblem):
        return False


async def read_small_file(sandbox: AgentSandbox, path: str) -> str:
    """Returns the text of a file of the image; "" if it cannot be read."""
    data = b""
    with contextlib.suppress(FileNotFound, FileProblem):
        async for part in sandbox.read(path, length=_MAX_SMALL_FILE, user=ROOT):
            data += part
    return data.decode(errors="surrogateescape")


async def find_owner(sandbox: AgentSandbox, text: str) -> tuple[int, int] | None:
    """Returns the uid and gid of `user`, `user:group` or numbers, as the image's /etc/passwd and /etc/group have them.
    Returns None for an empty text. Raises InvalidRequest for a name that the image does not have."""
    if not text:
        return None
    user, _, group = text.partition(":")
    users = [line.split(":") for line in (await read_small_file(sandbox, "/etc/passwd")).splitlines()]
    known = next((line for line in users if len(line) > 3 and line[0] == user), None)
    uid = _id(known[2] if known else user, f"user {user!r}")
    if not group:
        return uid, (_id(known[3], "group") if known else uid)
    groups = [line.split(":") for line in (await read_small_file(sandbox, "/etc/group")).splitlines()]
    found = next((line for line in groups if len(line) > 2 and line[0] == group), None)
    return uid, _id(found[2] if found else group, f"group {group!r}")


async def _with_group(sandbox: AgentSandbox, text: str) -> str:
    """Returns the user as the agent expects it: the name alone, or the name with the number of the only group."""
    user, _, group = text.partition(":")
    owner = await find_owner(sandbox, f"{user or ROOT}:{group}") if group else None
    return f"{user or ROOT}:{owner[1]}" if owner else user or ROOT


def _id(text: str, what: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65535:
        raise InvalidRequest(f"the image has no {what}", remedy="name one of its /etc/passwd, or give a number")
    return int(text)


async def place_file(
    sandbox: AgentSandbox, target: str, into: bool, name: str, content: Callable[[str], Parts]
) -> None:
    """Puts a file at the path `target`, or into that directory under its own name. `content` is called with the file's
    final name, and yields the file."""
    if into or await is_directory(sandbox, target):
        await sandbox.place(target, content(name), user=ROOT)
    else:
        await sandbox.place(posixpath.dirname(target), content(posixpath.basename(target)), user=ROOT)


async def copy_between(
    source: AgentSandbox, sources: Sequence[str], sandbox: AgentSandbox, target: str, into: bool, mode: int | None
) -> None:
    """Copies paths of the sandbox `source` into `sandbox`."""
    paths = [path for pattern in sources for path in await _expand(source, pattern)]
    into = into or len(paths) > 1
    for path in paths:
        if await is_directory(source, path):
            await sandbox.place(target, _changed(source.members(f"{path.rstrip('/')}/.", user=ROOT), mode), user=ROOT)
        else:
            await _copy_file(source, path, sandbox, target, into, mode)


async def _copy_file(
    source: AgentSandbox, path: str, sandbox: AgentSandbox, target: str, into: bool, mode: int | None
) -> None:
    found, place = await source.stat(path, user=ROOT), path
    for _ in range(_MAX_LINKS):
        if found.kind is FileKind.SYMLINK:
            place = posixpath.join(posixpath.dirname(place), found.target)
            found = await source.stat(place, user=ROOT)
    if found.kind is not FileKind.FILE:
        raise InvalidRequest(f"{path!r} is no file or directory, it cannot be copied")
    bits = found.mode & 0o777 if mode is None else mode

    async def content(name: str) -> Parts:
        yield TarMember(name, FileKind.FILE, found.size, bits, int(found.modified), "", found.uid, found.gid)
        async for part in source.read(path, length=found.size, user=ROOT):
            yield part

    await place_file(sandbox, target, into, posixpath.basename(path), content)


async def _expand(source: AgentSandbox, pattern: str) -> list[str]:
    from warren.images.building.context import component_pattern

    path = posixpath.normpath(f"/{pattern.lstrip('/')}")
    folder, name = posixpath.split(path)
    if not re.search(r"[*?\[\\]", path):
        try:
            await source.stat(path, user=ROOT)
        except (FileNotFound, FileProblem) as exc:
            raise InvalidRequest(f"there is no {path!r} in what is copied from") from exc
        return [path]
    if re.search(r"[*?\[\\]", folder):
        raise InvalidRequest(f"{pattern!r} has a pattern in a directory's name", remedy="use patterns for files alone")
    wanted = component_pattern(name)
    found = [info.path for info in await source.list(folder, user=ROOT) if wanted.fullmatch(info.name)]
    if not found:
        raise InvalidRequest(f"there is no {path!r} in what is copied from")
    return sorted(found)


async def _changed(members: AsyncIterator[TarMember | bytes], mode: int | None) -> Parts:
    async for part in members:
        if isinstance(part, TarMember) and mode is not None and part.kind is not FileKind.SYMLINK:
            yield replace(part, mode=mode)
        else:
            yield part
