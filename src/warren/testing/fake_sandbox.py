"""A sandbox in memory, for tests of everything that uses sandboxes."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

import anyio

from warren.interfaces.sandbox import Process
from warren.model.capability import Capability, lacks
from warren.model.code import AGENT
from warren.model.errors import (
    Conflict,
    FileNotFound,
    InvalidPath,
    InvalidRequest,
    IsDirectory,
    NotADirectory,
    ProcessNotFound,
    SandboxLost,
    WarrenError,
)
from warren.model.metrics import SandboxMetrics
from warren.model.network import NO_NETWORK, EgressBound, ListeningPort, NetworkRules, NetworkUse
from warren.model.operations import (
    Change,
    Command,
    ExecResult,
    FileEvent,
    FileInfo,
    FileKind,
    ProcessStatus,
    Reason,
    Search,
    SearchMatch,
    SearchTotals,
    check_metadata,
    check_process_id,
    new_process_id,
)
from warren.model.secrets import BoundSecret
from warren.model.spec import HOME, USER, WORKSPACE, Isolation, SandboxSpec
from warren.sandboxes.agent.command_result import lost_result
from warren.sandboxes.agent.files import check_mode
from warren.sandboxes.agent.tar_stream import TarMember, TarReader, header, padding, trailer
from warren.testing.fake_contexts import FakeAgent, FakeContext
from warren.testing.fake_files import FakeFiles, normalize_path, uid_of
from warren.testing.fake_process import FakeFreezer, FakeProcess
from warren.testing.fake_search import FakeSearch
from warren.testing.fake_shell import FakeShell

CHUNK = 64 * 1024
T = TypeVar("T")


class FakeMachine:
    """The state of a sandbox, which outlives the objects that use it."""

    def __init__(
        self, sandbox_id: str, spec: SandboxSpec, isolation: Isolation, capabilities: frozenset[Capability]
    ) -> None:
        self.id, self.spec, self.isolation, self.capabilities = sandbox_id, spec, isolation, capabilities
        self.files = FakeFiles(spec.limits.disk_mb)
        self.volumes: dict[str, str] = {}  # the paths of volumes, by their ids
        self.processes: dict[str, FakeProcess] = {}
        self.cwd = WORKSPACE
        self.exports: dict[str, str] = {}
        self.contexts: dict[str, FakeContext] = {}
        self.next_pid = 2
        self.network, self.network_use = NO_NETWORK, NetworkUse()
        self.network_bounds: tuple[EgressBound, ...] = ()
        self.metrics = SandboxMetrics()  # set by tests: what it uses apart from its files and commands
        self.lost = asyncio.Event()
        self.why = ""
        self.freezer = FakeFreezer()
        self.when_lost: list[tuple[FakeSandbox, Callable[[str], None]]] = []

    @property
    def frozen(self) -> bool:
        return self.freezer.frozen

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        self.freezer.set(frozen)

    @property
    def paused_s(self) -> float:
        """The sum of what it was told."""
        return self.freezer.paused_s

    @paused_s.setter
    def paused_s(self, paused_s: float) -> None:
        self.freezer.paused_s = paused_s

    def die(self, why: str) -> None:
        if not self.lost.is_set():
            self.why = why
            self.lost.set()
            for process in self.processes.values():
                process.end(Reason.SANDBOX_LOST)
                process.notify()
            calls, self.when_lost = self.when_lost, []
            for _, call in calls:
                call(why)

    def loss(self) -> SandboxLost | None:
        return SandboxLost(f"the sandbox is lost: {self.why}") if self.lost.is_set() else None


class FakeSandbox:
    def __init__(self, machine: FakeMachine) -> None:
        self._machine = machine
        self._files = machine.files
        self._closed = False

    def __repr__(self) -> str:
        return f"<FakeSandbox {self.id} {'lost' if self._machine.lost.is_set() else 'open'}>"

    @property
    def id(self) -> str:
        return self._machine.id

    @property
    def isolation(self) -> Isolation:
        return self._machine.isolation

    def _check_alive(self) -> FakeMachine:
        if (loss := self._machine.loss()) is not None:
            raise loss
        return self._machine

    # Commands.

    async def exec(
        self, command: Command, stdin: bytes | AsyncIterable[bytes] = b"", *, process_id: str = ""
    ) -> ExecResult:
        if (loss := self._machine.loss()) is not None:
            return lost_result(loss.message, "")
        process = self._start(command, check_process_id(process_id) if process_id else new_process_id())
        feeder = asyncio.ensure_future(_feed(process, stdin))
        waiting = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait((waiting, feeder), return_when=asyncio.FIRST_COMPLETED)
            failure = feeder.exception() if feeder.done() and not feeder.cancelled() else None
            if failure is not None and not isinstance(failure, SandboxLost):
                process.end(Reason.CANCELLED)
                await waiting
                raise failure
            return await waiting
        except asyncio.CancelledError:
            process.end(Reason.CANCELLED)
            with anyio.CancelScope(shield=True):
                await process.wait()
            raise
        finally:
            feeder.cancel()
            waiting.cancel()
            if not process_id and not process.children:
                self._machine.processes.pop(process.id, None)

    async def kill_all(self) -> int:
        processes = self._check_alive().processes.values()
        killed = sum(len(process.children) + process.running for process in processes)
        for process in processes:
            process.end(Reason.CANCELLED)
        while any(process.running or process.children for process in processes):  # noqa: ASYNC110
            await asyncio.sleep(0)
        return killed

    async def start(self, command: Command, *, process_id: str = "", follow: bool = False) -> Process:
        self._check_alive()
        process = self._start(command, check_process_id(process_id) if process_id else new_process_id())
        if follow:
            process.hold()
        return process

    def _start(self, command: Command, process_id: str) -> FakeProcess:
        machine = self._machine
        if process_id in machine.processes:
            raise Conflict(f"a process with the id {process_id} exists")
        if command.terminal is not None and Capability.TERMINALS not in machine.capabilities:
            raise lacks(machine.isolation.provider, Capability.TERMINALS)
        uid = uid_of(command.user)
        carry = bool(command.shell) and command.carry_state and command.terminal is None
        cwd = normalize_path(command.cwd) if command.cwd else machine.cwd if carry else WORKSPACE
        self._check_cwd(command, cwd, uid)
        base = {
            "HOME": HOME,
            "USER": USER,
            "PATH": "/usr/bin",
            **machine.spec.env,
            **command.base_env,
            **(machine.exports if carry else {}),
        }
        machine.next_pid += 1
        process = FakeProcess(process_id, machine.next_pid, command, machine.loss, machine.freezer)
        shell = FakeShell(self._files, process, uid, command.user or USER, cwd, {**base, **command.env})
        shell.exported = {*base, *command.env}

        def carry_state() -> None:
            if carry:
                if not command.cwd:
                    machine.cwd = shell.cwd
                kept = {name: shell.env[name] for name in shell.exported if name in shell.env}
                for name in command.env:
                    kept.pop(name, None)
                    if name in base:
                        kept[name] = base[name]
                machine.exports = kept

        machine.processes[process_id] = process
        is_agent = command.argv[:1] == (AGENT,)
        process.begin(FakeAgent(machine.contexts, process, shell) if is_agent else shell, carry_state)
        return process

    def _check_cwd(self, command: Command, cwd: str, uid: int) -> None:
        try:
            if self._files.find(cwd, uid).kind is FileKind.DIRECTORY:
                return
        except (FileNotFound, NotADirectory):
            if not command.cwd:
                return
        raise InvalidPath(f"the working directory {cwd!r} cannot be entered")

    async def process(self, process_id: str) -> Process:
        found = self._check_alive().processes.get(check_process_id(process_id))
        if found is None:
            raise ProcessNotFound(f"there is no process {process_id}")
        return found

    async def processes(self) -> Sequence[ProcessStatus]:
        return [process.info() for process in self._check_alive().processes.values()]

    async def forget(self, process_id: str) -> None:
        found = await self.process(process_id)
        assert isinstance(found, FakeProcess)
        if found.running:
            raise Conflict(f"process {process_id} is still running")
        del self._machine.processes[process_id]

    # Files.

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, user: str = ""
    ) -> AsyncGenerator[bytes, None]:
        self._check_alive()
        if offset < 0 or (length is not None and length < 0):
            raise InvalidRequest(f"cannot read {length} bytes from offset {offset}")
        data = self._files.read(normalize_path(path), uid_of(user))[offset:][:length]
        for at in range(0, len(data), CHUNK):
            self._check_alive()
            yield data[at : at + CHUNK]

    async def write(
        self,
        path: str,
        data: bytes | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        user: str = "",
        in_place: bool = False,
        metadata: Mapping[str, str] | None = None,
        owner: str = "",
    ) -> FileInfo:
        self._check_alive()
        uid, whole, details = uid_of(owner or user), normalize_path(path), in_place or metadata is not None
        check_metadata(metadata or {})
        if mode is not None:
            check_mode(mode)
        with contextlib.suppress(FileNotFound):
            if path.endswith("/") or self._files.find(whole, uid).kind is FileKind.DIRECTORY:
                raise IsDirectory(f"{path!r} is a directory")
        content = data if isinstance(data, bytes) else b"".join([part async for part in data])
        self._check_alive()
        return self._files.write(whole, content, mode, uid, in_place=in_place, metadata=metadata, details=details)

    async def list(self, path: str, *, depth: int = 1, user: str = "", details: bool = False) -> Sequence[FileInfo]:
        self._check_alive()
        if depth < 1:
            raise InvalidRequest(f"a depth of {depth} cannot be")
        return [info for info, _ in self._files.walk(normalize_path(path), depth, uid_of(user), details=details)]

    async def entries(
        self, path: str, *, depth: int = 1, user: str = "", details: bool = False
    ) -> AsyncGenerator[FileInfo, None]:
        for info in await self.list(path, depth=depth, user=user, details=details):
            yield info

    async def stat(self, path: str, *, user: str = "", details: bool = False) -> FileInfo:
        self._check_alive()
        return self._files.stat(normalize_path(path), uid_of(user), details=details)

    async def mkdir(self, path: str, *, mode: int = 0o755, user: str = "", owner: str = "") -> None:
        self._check_alive()
        self._files.mkdir(normalize_path(path), check_mode(mode), uid_of(owner or user))

    async def remove(self, path: str, *, recursive: bool = False, user: str = "") -> None:
        self._check_alive()
        self._files.remove(normalize_path(path), recursive, uid_of(user))

    async def rename(self, source: str, target: str, *, user: str = "") -> None:
        self._check_alive()
        self._files.rename(normalize_path(source), normalize_path(target), uid_of(user))

    async def pack(self, path: str, *, user: str = "") -> AsyncGenerator[bytes, None]:
        self._check_alive()
        base = normalize_path(path).rstrip("/")
        for info, node in self._files.walk(base, 1000, uid_of(user)):
            size = len(node.data)
            member = TarMember(
                info.path[len(base) + 1 :],
                info.kind,
                size,
                info.mode,
                int(info.modified),
                info.target,
                info.uid,
                info.gid,
            )
            yield header(member) + node.data + padding(size)
        yield trailer()

    async def unpack(self, path: str, tar: bytes | AsyncIterable[bytes], *, user: str = "") -> int:
        self._check_alive()
        base, uid, count = normalize_path(path).rstrip("/"), uid_of(user), 0
        reader = TarReader(tar)
        self._files.make_parents(f"{base}/x", uid)
        async for member in reader.members():
            data = b"".join([bytes(part) async for part in reader.content(member)])
            self._unpack_member(f"{base}/{member.path}", member, data, uid)
            count += 1
        return count

    def _unpack_member(self, path: str, member: TarMember, data: bytes, uid: int) -> None:
        self._files.make_parents(path, uid)
        if member.kind is FileKind.FILE:
            self._files.write(path, data, member.mode, uid)
        elif member.kind is FileKind.SYMLINK:
            with contextlib.suppress(FileNotFound):
                self._files.remove(path, False, uid)
            self._files.link(path, member.target, uid)
        else:
            with contextlib.suppress(Conflict):
                self._files.mkdir(path, member.mode, uid)

    def watch(self, path: str, *, recursive: bool = False, user: str = "", attributes: bool = False) -> "FakeWatch":
        events = asyncio.Queue[FileEvent | asyncio.Future[None]]()
        return FakeWatch(self._watch(path, recursive, user, attributes, events), events, self._machine.loss)

    async def _watch(
        self,
        path: str,
        recursive: bool,
        user: str,
        attributes: bool,
        events: "asyncio.Queue[FileEvent | asyncio.Future[None]]",
    ) -> AsyncGenerator[FileEvent, None]:
        self._check_alive()
        base = normalize_path(path).rstrip("/")
        if self._files.find(base, uid_of(user)).kind is not FileKind.DIRECTORY:
            raise NotADirectory(f"{path!r} is not a directory")

        def tell(event: FileEvent) -> None:
            inside, name = event.path.startswith(f"{base}/"), event.path[len(base) + 1 :]
            if event.change is Change.ATTRIBUTES and not attributes:
                event = replace(event, change=Change.MODIFIED)
            if inside and (recursive or "/" not in name):
                events.put_nowait(event)

        self._files.watchers.append(tell)
        try:
            yield FileEvent(Change.WATCHING, base, True)
            while True:
                event = await self._wait_unless_lost(events.get())
                if isinstance(event, FileEvent):
                    yield event
                elif not event.done():
                    event.set_result(None)
        finally:
            self._files.watchers.remove(tell)

    async def search(self, query: Search) -> AsyncGenerator[SearchMatch | SearchTotals, None]:
        self._check_alive()
        for found in FakeSearch(self._files, query).run():
            self._check_alive()
            yield found

    async def _wait_unless_lost(self, get: Coroutine[None, None, T]) -> T:
        event, loss = asyncio.ensure_future(get), asyncio.ensure_future(self._machine.lost.wait())
        try:
            await asyncio.wait((event, loss), return_when=asyncio.FIRST_COMPLETED)
            self._check_alive()
            return await event
        finally:
            event.cancel()
            loss.cancel()

    async def set_network(
        self, rules: NetworkRules, secrets: Sequence[BoundSecret] = (), bounds: Sequence[EgressBound] = ()
    ) -> None:
        machine = self._networked()
        machine.network, machine.network_bounds = rules, tuple(bounds)

    async def network_use(self) -> NetworkUse:
        return self._networked().network_use

    def _networked(self) -> FakeMachine:
        """Returns the machine if its provider has the capability. It then remembers rules, and enforces none."""
        machine = self._check_alive()
        if Capability.EGRESS not in machine.capabilities:
            raise lacks(machine.isolation.provider, Capability.EGRESS)
        return machine

    async def ports(self) -> Sequence[ListeningPort]:
        self._check_alive()
        return ()  # no server can run in it

    async def dial(self, port: int) -> socket.socket:
        raise lacks(self._check_alive().isolation.provider, Capability.PORTS)

    async def metrics(self) -> SandboxMetrics:
        machine = self._check_alive()
        running = sum(process.running + len(process.children) for process in machine.processes.values())
        use, base = machine.network_use, machine.metrics
        return replace(
            base,
            disk_bytes=base.disk_bytes + self._files.used,
            processes=base.processes + 1 + running,
            sent_bytes=use.bytes_sent,
            received_bytes=use.bytes_received,
        )

    async def ping(self) -> None:
        self._check_alive()

    def note_pause(self, paused_s: float) -> None:
        self._machine.paused_s += paused_s

    def is_frozen(self) -> bool:
        return self._machine.frozen

    def when_lost(self, call: Callable[[str], None]) -> None:
        if self._closed:
            return
        if self._machine.lost.is_set():
            call(self._machine.why)
        else:
            self._machine.when_lost.append((self, call))

    async def close(self) -> None:
        self._closed = True
        self._machine.when_lost = [(who, call) for who, call in self._machine.when_lost if who is not self]


class FakeWatch(AsyncGenerator[FileEvent, None]):
    """Changes and requests to sync come through one queue, so a sync is answered after all changes before it."""

    def __init__(
        self,
        read: AsyncGenerator[FileEvent, None],
        events: "asyncio.Queue[FileEvent | asyncio.Future[None]]",
        loss: Callable[[], SandboxLost | None],
    ) -> None:
        self._loss = loss
        self._read, self._events, self._watching = read, events, False

    async def asend(self, value: None) -> FileEvent:
        return await self._until_end(self._read.asend(value))

    async def athrow(self, typ: Any, val: object = None, tb: TracebackType | None = None) -> FileEvent:
        return await self._until_end(self._read.athrow(typ))

    async def aclose(self) -> None:
        self._end(Conflict("the watch has ended"))
        await self._read.aclose()

    async def _until_end(self, step: Awaitable[FileEvent]) -> FileEvent:
        try:
            event = await step
        except BaseException:
            self._end(self._loss() or Conflict("the watch has ended"))
            raise
        self._watching = True
        return event

    def _end(self, why: WarrenError) -> None:
        self._watching = False
        while not self._events.empty():
            if isinstance(left := self._events.get_nowait(), asyncio.Future) and not left.done():
                left.set_exception(why)
                left.exception()  # marks it as retrieved: no task may be waiting for it

    async def sync(self) -> None:
        if not self._watching:
            raise Conflict("the watch has not begun, or has ended")
        synced = asyncio.get_running_loop().create_future()
        self._events.put_nowait(synced)
        await synced


async def _feed(process: FakeProcess, stdin: bytes | AsyncIterable[bytes]) -> None:
    if isinstance(stdin, bytes):
        await process.write(stdin)
    else:
        async for part in stdin:
            await process.write(part)
    await process.close_stdin()
