"""Finds, starts and ends the code contexts of sandboxes, and runs cells in them.

A context is a process with a reserved id, so the agent settles races and remembers it over a restart of the server.
Each language has a default context, which its first cell starts. Every cell is a command of its own: what holds for
commands (policies, exec seconds, time-outs, the audit record) holds for cells.

The process ids of keepers are remembered here, so that a cell costs one request to the agent. A cell that does not
find the keeper has run nothing: the keeper is looked up again.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from weakref import WeakValueDictionary

from warren.interfaces.sandbox import Sandbox
from warren.model.code import (
    AGENT,
    CELL_BUSY,
    CELL_NO_KEEPER,
    CELL_PREFIX,
    CONTEXT_IDLE_S,
    MAX_CONTEXTS,
    PREFIX,
    ContextStatus,
    Language,
    find_language,
    is_context,
    language_of,
)
from warren.model.errors import (
    Conflict,
    ContextLost,
    ContextNotFound,
    InvalidRequest,
    LimitReached,
    ProcessNotFound,
    Unavailable,
    WarrenError,
)
from warren.model.operations import MAX_KEEP_BYTES, Command, ExecResult, ProcessStatus, Reason
from warren.model.session import Session
from warren.sandboxes.keepers import Hello, read_hello, remove_keeper, start_keeper

GRACE_S: Final = 3.5  # longer than a keeper gives its interpreter after an interrupt, so that its last words arrive
_ROOT: Final = "root"
_REMEMBERED: Final = 10_000
_HELLO_S: Final = 5.0
_KILL_S: Final = 5.0
_END_S: Final = 2.0  # a keeper ends within this time after its interpreter; one that lives longer has taken its place


@dataclass(frozen=True, slots=True)
class Beginning:
    """How to start a default context that does not exist yet: its directory, its own variables, and after how many
    seconds without a cell it ends (None: as the server is set, 0: never)."""

    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    idle_s: float | None = None


PLAIN: Final = Beginning()


@dataclass(slots=True)
class Keeper:
    """A context that was found or started. `env` are the variables it was started with. `user`: root, or empty for the
    sandbox user; its cells run as the same user, because a keeper serves no other."""

    id: str
    pid: int
    language: Language
    hello: Hello | None = None
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict)
    idle_s: float = CONTEXT_IDLE_S
    user: str = ""

    @property
    def is_default(self) -> bool:
        return self.id == self.language.default_context

    @property
    def size(self) -> int:
        return sum(len(name) + len(value) for name, value in self.env.items())


class Contexts:
    """A session may have `most` contexts at once; a context that runs no cell for `idle_s` ends.

    At most `max_bytes` of variables are remembered; the oldest contexts make room. A request waits up to `turn_s`
    while others start or end contexts of the same sandbox.
    """

    def __init__(
        self,
        most: int = MAX_CONTEXTS,
        idle_s: float = CONTEXT_IDLE_S,
        *,
        max_bytes: int = 64 * 1024 * 1024,
        turn_s: float = 60.0,
    ) -> None:
        self._most, self._idle_s, self._max_bytes, self._turn_s = most, idle_s, max_bytes, turn_s
        self._keepers: dict[tuple[str, str], Keeper] = {}
        self._remembered_bytes = 0
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._forgetting: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Contexts: {len(self._keepers)} remembered>"

    # -- contexts

    async def create(
        self,
        sandbox: Sandbox,
        session: Session,
        language: str,
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        idle_s: float | None = None,
        image: str = "",
        user: str = "",
    ) -> ContextStatus:
        found = find_language(language)
        keeper = Keeper(
            f"{PREFIX}{found.name}_{os.urandom(4).hex()}", 0, found, cwd=cwd, env=dict(env or {}),
            idle_s=self._idle_s if idle_s is None else idle_s, user=user,
        )  # fmt: skip
        async with self._turn(sandbox):
            await self._start(sandbox, session, keeper, image)
        return await self.get(sandbox, keeper.id)

    async def list(self, sandbox: Sandbox) -> list[ContextStatus]:
        """Returns all contexts, those that were started first at the front."""
        known = await sandbox.processes()
        found = sorted((info for info in known if is_context(info.id)), key=lambda info: -info.started_s_ago)
        return [await self._show(sandbox, info, known) for info in found]

    async def get(self, sandbox: Sandbox, context_id: str) -> ContextStatus:
        known = await sandbox.processes()
        return await self._show(sandbox, _find(known, context_id), known)

    async def delete(self, sandbox: Sandbox, context_id: str) -> None:
        async with self._turn(sandbox):
            _find(await sandbox.processes(), context_id)
            await self._remove(sandbox, context_id)

    async def restart(self, sandbox: Sandbox, session: Session, context_id: str, image: str = "") -> ContextStatus:
        """Replaces the interpreter by a fresh one, with the directory, variables and idle time of the context."""
        async with self._turn(sandbox):
            known = await sandbox.processes()
            keeper = await self._known(sandbox, _find(known, context_id))
            await self._remove(sandbox, context_id)
            await self._start(sandbox, session, keeper, image)
        return await self.get(sandbox, context_id)

    async def interrupt(self, sandbox: Sandbox, context_id: str) -> ContextStatus:
        """Interrupts the cell that the context runs, if there is one. Raises ContextLost if the context has ended."""
        info = _find(await sandbox.processes(), context_id)
        if not info.running:
            raise await self._lost_error(sandbox, info)
        await (await sandbox.process(context_id)).signal(signal.SIGINT)
        return await self.get(sandbox, context_id)

    async def _start(self, sandbox: Sandbox, session: Session, keeper: Keeper, image: str) -> None:
        running = [info for info in await sandbox.processes() if is_context(info.id) and info.running]
        if len(running) >= self._most:
            raise LimitReached(
                f"the session has {len(running)} code contexts, more are not allowed",
                remedy="delete one of them: DELETE /api/sessions/{id}/contexts/{context_id}",
            )
        # The session's variables come with every cell of a default context: the pool may have started it ahead.
        hello = await start_keeper(
            sandbox, keeper.language, keeper.id, cwd=keeper.cwd, env=keeper.env,
            base_env={} if keeper.is_default else session.env, idle_s=keeper.idle_s, image=image, user=keeper.user,
        )  # fmt: skip
        keeper.hello = replace(hello, env={})
        keeper.pid = _find(await sandbox.processes(), keeper.id).pid
        self._remember(sandbox, keeper)

    async def _remove(self, sandbox: Sandbox, context_id: str) -> None:
        self.forget(sandbox, context_id)
        with contextlib.suppress(ProcessNotFound):
            await remove_keeper(sandbox, await sandbox.process(context_id))

    def _found(self, sandbox: Sandbox, info: ProcessStatus) -> Keeper:
        """Returns the keeper as it is remembered, or a new one. What a new one said at its start is read only when
        `_known` needs it."""
        keeper = self._keepers.get((sandbox.id, info.id))
        if keeper is None or keeper.pid != info.pid:
            language = language_of(info.id)
            assert language is not None
            user = _ROOT if info.user == _ROOT else ""
            keeper = Keeper(info.id, info.pid, language, idle_s=_idle_of(info), user=user)
            if info.running:
                self._remember(sandbox, keeper)
        return keeper

    async def _known(self, sandbox: Sandbox, info: ProcessStatus) -> Keeper:
        keeper = self._found(sandbox, info)
        if keeper.hello is None:
            hello = None
            with contextlib.suppress(TimeoutError, WarrenError):
                async with asyncio.timeout(_HELLO_S):
                    hello = await read_hello(await sandbox.process(info.id))
            if hello is not None:  # an earlier server or the pool has started it, with these
                is_remembered = (sandbox.id, info.id) in self._keepers
                self.forget(sandbox, info.id)
                keeper.hello, keeper.cwd, keeper.env = replace(hello, env={}), hello.cwd, dict(hello.env)
                if is_remembered:
                    self._remember(sandbox, keeper)
        return keeper

    async def _show(self, sandbox: Sandbox, info: ProcessStatus, known: Sequence[ProcessStatus]) -> ContextStatus:
        keeper = await self._known(sandbox, info)
        hello = keeper.hello or Hello()
        state = "lost" if not info.running else "busy" if _is_busy(info.id, known) else "idle"
        return ContextStatus(
            info.id, keeper.language.name, state, hello.cwd or keeper.cwd, hello.version, keeper.is_default,
            info.started_s_ago, None if info.running else await self.why_lost(sandbox, info.id),
        )  # fmt: skip

    def _remember(self, sandbox: Sandbox, keeper: Keeper) -> None:
        self.forget(sandbox, keeper.id)
        self._keepers[sandbox.id, keeper.id] = keeper
        self._remembered_bytes += keeper.size
        while len(self._keepers) > _REMEMBERED or self._remembered_bytes > self._max_bytes:
            self._forget(next(iter(self._keepers)))

    def forget(self, sandbox: Sandbox, context_id: str) -> None:
        self._forget((sandbox.id, context_id))

    def _forget(self, name: tuple[str, str]) -> None:
        if (keeper := self._keepers.pop(name, None)) is not None:
            self._remembered_bytes -= keeper.size

    @contextlib.asynccontextmanager
    async def _turn(self, sandbox: Sandbox) -> AsyncIterator[None]:
        """Lets one request at a time start or end contexts of a sandbox, so that their number stays right."""
        lock = self._locks.get(sandbox.id)
        if lock is None:
            lock = self._locks[sandbox.id] = asyncio.Lock()
        try:
            async with asyncio.timeout(self._turn_s):
                await lock.acquire()
        except TimeoutError:
            raise Unavailable(
                "other code contexts of the session are being started, and take long",
                remedy="try again when they are ready",
                retry_after_s=5,
            ) from None
        try:
            yield
        finally:
            lock.release()

    def forget_later(self, sandbox: Sandbox, cell_id: str) -> None:
        """Has the agent forget a cell whose caller has its result, without letting the caller wait for that."""
        task = asyncio.create_task(_forget_cell(sandbox, cell_id), name=f"forgetting {cell_id}")
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    # -- contexts that have ended

    async def why_lost(self, sandbox: Sandbox, context_id: str) -> str:
        """Returns why a context that has ended did so: oom, killed or exited."""
        try:
            async with asyncio.timeout(_END_S):
                ended = await (await sandbox.process(context_id)).ended()
        except (TimeoutError, WarrenError):
            return "killed"
        if ended.reason is Reason.OOM:
            return "oom"
        return "exited" if ended.reason is Reason.EXITED and ended.exit_code < 128 else "killed"

    async def _lost_error(self, sandbox: Sandbox, info: ProcessStatus) -> ContextLost:
        why = await self.why_lost(sandbox, info.id)
        how = {"oom": "it ran out of memory", "killed": "it was killed"}.get(why, "it exited, or was idle for too long")
        return ContextLost(
            f"the context {info.id} has ended: {how} ({why}, exit code {info.exit_code}). What it held is lost",
            remedy="send the cell again: it runs in a fresh context"
            if info.id == _default_of(info.id)
            else "restart it: POST /api/sessions/{id}/contexts/{context_id}/restart, or delete it",
        )

    async def note_lost(self, sandbox: Sandbox, context_id: str) -> str:
        """Returns why the context ended during a cell. A default context is forgotten, so that the next cell gets a
        fresh one: the caller of this cell learns of the loss."""
        self.forget(sandbox, context_id)
        why = await self.why_lost(sandbox, context_id)
        if context_id == _default_of(context_id):
            with contextlib.suppress(WarrenError):
                await sandbox.forget(context_id)
        return why

    async def end_unheeding(self, sandbox: Sandbox, cell_id: str, context_id: str) -> str:
        """Ends the context of a cell that was killed at its time-out, and everything that its code has started.

        Neither code nor keeper have answered within the grace time, as when a fork bomb leaves them no processor time.
        The keeper would end the context a little later, when nobody is left to be told. Returns why it ended.
        """
        known = await sandbox.processes()
        pids = [_keeper_pid_of(info) for info in known if info.id == cell_id]
        if any(info.id == context_id and info.running and info.pid in pids for info in known):
            with contextlib.suppress(TimeoutError, WarrenError):
                async with asyncio.timeout(_KILL_S):
                    process = await sandbox.process(context_id)
                    await process.kill(0)
                    await process.ended()
        return await self.note_lost(sandbox, context_id)

    # -- cells

    async def keeper_of(
        self,
        sandbox: Sandbox,
        session: Session,
        context_id: str,
        image: Callable[[], str] = lambda: "",
        *,
        look: bool = False,
        beginning: Beginning = PLAIN,
    ) -> Keeper:
        """Returns the context that a cell is for, and starts a default one that does not exist. With `look` the sandbox
        is asked instead of what is remembered. Raises ContextNotFound, and ContextLost if the context has ended."""
        if not look and (known := self._keepers.get((sandbox.id, context_id))) is not None:
            return known
        if (running := await self._running(sandbox, context_id)) is not None:
            return running
        async with self._turn(sandbox):
            found = [info for info in await sandbox.processes() if info.id == context_id]
            if found and found[0].running:
                return self._found(sandbox, found[0])
            self.forget(sandbox, context_id)
            if found:
                # The loss of a default context is reported once: the next cell starts a fresh one.
                lost = await self._lost_error(sandbox, found[0])
                if context_id == _default_of(context_id):
                    with contextlib.suppress(ProcessNotFound):
                        await sandbox.forget(context_id)
                raise lost
            language = language_of(context_id)
            if language is None or context_id != language.default_context:
                raise _not_found(context_id)
            idle_s = self._idle_s if beginning.idle_s is None else beginning.idle_s
            keeper = Keeper(context_id, 0, language, cwd=beginning.cwd, env=dict(beginning.env), idle_s=idle_s)
            try:
                await self._start(sandbox, session, keeper, image())
            except Conflict:  # another server has started it at this moment
                return self._found(sandbox, _find(await sandbox.processes(), context_id))
            return keeper

    async def _running(self, sandbox: Sandbox, context_id: str) -> Keeper | None:
        """Returns the remembered context if it still runs: then the cell need not wait while others are started."""
        known = self._keepers.get((sandbox.id, context_id))
        if known is None:
            return None
        found = any(
            info.id == context_id and info.running and info.pid == known.pid for info in await sandbox.processes()
        )
        return known if found else None


def cell_command(
    context_id: str, language: Language, code: str, env: Mapping[str, str], timeout_s: float | None
) -> Command:
    """The command of a cell, without the keeper's process id and user, which `with_keeper` adds."""
    return Command(
        argv=(AGENT, "cell", context_id),
        env=dict(env),  # checked here, and seen by policies; the runner gets them with the request
        timeout_s=timeout_s,
        grace_s=GRACE_S,
        keep_bytes=MAX_KEEP_BYTES,
        judged_as=language.judged_as(code),
    )


def with_keeper(command: Command, keeper: Keeper) -> Command:
    return replace(command, argv=(AGENT, "cell", "--pid", str(keeper.pid), keeper.id), user=keeper.user)


def cell_request(session: Session, context_id: str, code: str, env: Mapping[str, str]) -> bytes:
    """The request that the runner gets. It brings a default context the session's variables."""
    given = {**session.env, **env} if context_id == _default_of(context_id) else dict(env)
    return json.dumps({"code": code, "env": given}).encode()


def context_and_language(context_id: str, language: str) -> tuple[str, Language]:
    """Returns the context that a cell is for, and its language. Either argument may be empty."""
    asked = find_language(language) if language else None
    if not context_id:
        asked = asked or find_language("python")
        return asked.default_context, asked
    found = language_of(context_id)
    if found is None:
        raise _not_found(context_id)
    if asked is not None and asked is not found:
        raise InvalidRequest(
            f"the context {context_id} runs {found.name}, not {asked.name}",
            remedy="leave out the language, or the context",
        )
    return context_id, found


def new_cell_id() -> str:
    return f"{CELL_PREFIX}{os.urandom(6).hex()}"


def check_started(result: ExecResult) -> bool:
    """Whether the cell has reached its context. Raises LimitReached if too many wait for it."""
    if result.reason is not Reason.EXITED:
        return True
    if result.exit_code == CELL_BUSY:
        raise LimitReached("too many cells wait for this context", remedy="try again later, or use another context")
    return result.exit_code != CELL_NO_KEEPER


def context_of_cell(info: ProcessStatus) -> str:
    """The context that this process is a cell of; empty if it is none."""
    words = info.command.split()
    return words[4] if words[:3] == [AGENT, "cell", "--pid"] and len(words) == 5 else ""


def _keeper_pid_of(cell: ProcessStatus) -> int:
    words = cell.command.split()
    return int(words[3]) if context_of_cell(cell) and words[3].isdecimal() else 0


def context_view(context: ContextStatus) -> dict[str, Any]:
    shown = {
        "id": context.id,
        "language": context.language,
        "state": context.state,
        "cwd": context.cwd,
        "version": context.version,
        "default": context.default,
        "started_s_ago": round(context.started_s_ago, 3),
    }
    return shown | ({"lost_reason": context.lost_reason} if context.lost_reason else {})


def _idle_of(info: ProcessStatus) -> float:
    """The idle time of a context that an earlier server may have started; 0 means that it has none."""
    words = info.command.split()
    seconds = words[words.index("--idle-s") + 1] if "--idle-s" in words[:-1] else ""
    return float(seconds) if seconds.isascii() and seconds.isdecimal() else 0.0


def _is_busy(context_id: str, known: Sequence[ProcessStatus]) -> bool:
    return any(info.running and context_of_cell(info) == context_id for info in known)


async def _forget_cell(sandbox: Sandbox, cell_id: str) -> None:
    with contextlib.suppress(WarrenError):
        await sandbox.forget(cell_id)


def _find(known: Sequence[ProcessStatus], context_id: str) -> ProcessStatus:
    if is_context(context_id):
        for info in known:
            if info.id == context_id:
                return info
    raise _not_found(context_id)


def _not_found(context_id: str) -> ContextNotFound:
    return ContextNotFound(f"there is no context {context_id[:80]!r}", remedy="create one, or take one that is listed")


def _default_of(context_id: str) -> str:
    language = language_of(context_id)
    return language.default_context if language else ""
