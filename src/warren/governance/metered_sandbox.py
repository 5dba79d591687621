"""Every command of every route passes here before it reaches a sandbox, and so does its result.

`MeteredSandbox` is a sandbox whose `exec` and `start` check first: the command policies of the environment and the
tenant, the tenant's exec seconds, and the gate that gives tenants their turns. When a command has ended it is
counted and published. File operations go straight to the sandbox; in a trace, both have spans.

Each second of a command is paid in advance, so commands that run at once never use more exec seconds than are left. A
command whose next second cannot be paid is ended and keeps its output so far. While a sandbox is frozen nothing is
paid, and the durations that it reports leave that time out. A command whose end nobody sees, because its caller has
left or its sandbox is gone, is counted for the time it ran.

The keeper of a code context is started like a command, which costs one exec second, and is not counted while it waits:
its cells are commands, and they are. What a cell leaves running in its context is free until the next one, as is what a
command leaves running in the background. Callers cannot give the ids of contexts to processes of their own.
"""

import asyncio
import math
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from warren.governance.delegated_sandbox import DelegatedSandbox
from warren.governance.fair_gate import FairGate
from warren.governance.quotas import DAY_S, EGRESS_BYTES, Quotas
from warren.interfaces.recorder import NO_RECORDER, Recorder
from warren.interfaces.sandbox import Process, Sandbox
from warren.kernel.answer_memory import waits_for_room
from warren.kernel.clock import Clock
from warren.kernel.tracing import NO_SPAN, Span, current_span
from warren.model.access import Caller
from warren.model.code import is_context
from warren.model.command_output import CommandOutput, output_of
from warren.model.errors import CommandRefused, SandboxLost, WarrenError
from warren.model.events import CommandEndedData, Event, EventKind
from warren.model.operations import (
    Command,
    ExecResult,
    ProcessStatus,
    Reason,
)
from warren.model.session import Session
from warren.sessions.allowances import PayerOf, unbounded
from warren.sessions.event_hub import EventHub
from warren.sessions.refused_process import RefusedProcess
from warren.sessions.request_context import current_caller, note, note_command, note_end

Verdict = Callable[[Session, Command], Awaitable["ExecResult | None"]]
CountCommand = Callable[[str, float, float], None]
LoggedSandboxes = Callable[["CommandMetering", Session, Sandbox], "MeteredSandbox"]

EXEC_SECONDS: Final = "exec_seconds"
SLICE_S: Final = 1.0
_OVER: Final = "\nwarren: ended: the exec seconds of this day are used up\n"
_BROKEN_OFF: Final = _OVER.lstrip()


async def _allowed(session: Session, command: Command) -> ExecResult | None:
    return None


class CommandMetering:
    """`refused` returns the result of a command that a policy does not allow, else None. `payer_of` returns the caller
    whose exec seconds pay for the commands that an earlier server process left running in a session. `count_command`
    is called with the tenant of a command that has ended, the seconds it ran and its processor time. `logged` makes the
    sandboxes of sessions that have a log; without it nothing is logged."""

    def __init__(
        self,
        clock: Clock,
        quotas: Quotas | None = None,
        gate: FairGate | None = None,
        events: EventHub | None = None,
        refused: Verdict = _allowed,
        payer_of: PayerOf = unbounded,
        count_command: CountCommand = lambda tenant, ran_s, cpu_s: None,
        slice_s: float = SLICE_S,
        recorder: Recorder = NO_RECORDER,
    ) -> None:
        self.logged: LoggedSandboxes | None = None
        self.clock = clock
        self.quotas = quotas or Quotas(clock)
        self.gate = gate or FairGate()
        self.refused = refused
        self._payer_of = payer_of
        self._count_command = count_command
        self.slice_s = slice_s
        self._recorder = recorder
        self._events = events or EventHub()
        self._followed: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Metering: {len(self._followed)} followed, {self.gate!r}>"

    def sandbox(self, session: Session, sandbox: Sandbox) -> "MeteredSandbox":
        if session.logs and self.logged is not None:
            return self.logged(self, session, sandbox)
        return MeteredSandbox(self, session, sandbox)

    def finished(
        self, session: Session, result: ExecResult, *, background: bool = False, waited_s: float | None = None
    ) -> None:
        """Counts a command that has ended, and publishes that. `waited_s`: how long the caller waited for it in all."""
        ran_s = result.duration_ms / 1000
        overhead_s = None if waited_s is None else max(0.0, waited_s - ran_s)
        self._recorder.command_ended(session.environment, result.reason, ran_s, overhead_s)
        if not background:
            note_end(result)
        kind = EventKind.COMMAND_REFUSED
        if result.reason is not Reason.REFUSED:
            kind = EventKind.COMMAND_FINISHED
            self._count_command(session.tenant, ran_s, result.cpu_ms / 1000)
        if not background and not self._events.is_wanted(session.tenant, kind):
            return
        data = CommandEndedData(
            process_id=result.process_id,
            exit_code=result.exit_code,
            reason=str(result.reason),
            duration_ms=round(result.duration_ms, 3),
            cpu_ms=round(result.cpu_ms, 3),
            bytes_total=result.bytes_total,
            background=background,
        )
        self._events.publish(Event(kind, session.tenant, self.clock.wall(), data, session.id))

    async def count_create(self, caller: Caller) -> None:
        await self.quotas.create(caller)

    async def check_network(self, caller: Caller) -> None:
        if self.quotas.bounds(caller, EGRESS_BYTES) and await self.quotas.left(caller, EGRESS_BYTES) <= 0:
            raise self.quotas.spent(caller, EGRESS_BYTES)

    def report_limit(self, caller: Caller, quota: str) -> None:
        self.quotas.tell(caller, quota)

    def follow(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._followed.add(task)
        task.add_done_callback(self._followed.discard)

    async def can_go_on(self, caller: Caller) -> bool:
        """Pays for one more second of a command. While the counters cannot be read, commands run on."""
        try:
            return await self.quotas.spend(caller, EXEC_SECONDS, 1)
        except WarrenError:
            return True

    async def take_over(self, session: Session, sandbox: Sandbox) -> None:
        """Follows the commands again that still run in the background after a restart."""
        metered, caller = self.sandbox(session, sandbox), await self._payer_of(session)
        payer = caller if self.quotas.bounds(caller, EXEC_SECONDS) else None
        for info in await sandbox.processes():
            if info.running and not is_context(info.id):
                process = await sandbox.process(info.id)
                if payer is not None:
                    await self.quotas.spend_again(payer, EXEC_SECONDS, self._had_today(info))
                ending = metered.until_ended(process, payer, background=True, had_s=info.started_s_ago)
                self.follow(ending, f"following {info.id}")

    def _had_today(self, info: ProcessStatus) -> int:
        return math.ceil(min(info.started_s_ago, self.clock.wall() % DAY_S))

    async def close(self) -> None:
        for task in list(self._followed):
            task.cancel()
        if self._followed:
            await asyncio.wait(self._followed)


class MeteredSandbox(DelegatedSandbox):
    """A sandbox whose commands are metered; everything else is the sandbox's own."""

    __slots__ = ("_metering",)

    def __init__(self, metering: CommandMetering, session: Session, sandbox: Sandbox) -> None:
        self._metering = metering
        self._session = session
        self._sandbox = sandbox

    def __repr__(self) -> str:
        return f"<MeteredSandbox {self._sandbox!r}>"

    def exec(
        self, command: Command, stdin: bytes | AsyncIterable[bytes] = b"", *, process_id: str = ""
    ) -> Coroutine[Any, Any, ExecResult]:
        executing = self._exec(command, stdin, process_id)
        return executing if current_span.get() is None else self._traced(executing)

    async def _traced(self, executing: Coroutine[Any, Any, ExecResult]) -> ExecResult:
        with self._span("exec") as span:
            result = await executing
            _note_result(span, result)
            return result

    async def _exec(self, command: Command, stdin: bytes | AsyncIterable[bytes], process_id: str) -> ExecResult:
        metering, session, caller = self._metering, self._session, current_caller()
        clock = metering.clock
        asked = clock.now()
        note_command(command, session_id=session.id)
        if (refusal := await metering.refused(session, command)) is not None:
            metering.finished(session, refusal)
            return refusal
        place = await metering.gate.enter(session.tenant)
        began = clock.now()
        try:
            if metering.quotas.bounds(caller, EXEC_SECONDS):
                result = await self._exec_on_account(caller, command, stdin, process_id)
            else:
                result = await self._sandbox.exec(command, stdin, process_id=process_id)
        except (asyncio.CancelledError, SandboxLost) as exc:
            metering.finished(session, _cut_short(exc, clock.now() - began, process_id))
            raise
        finally:
            place.leave()
        ended = clock.now()
        timed = result if result.reason is not Reason.SANDBOX_LOST else _timed(result, ended - began)
        metering.finished(session, timed, waited_s=ended - asked)
        return result

    async def _exec_on_account(
        self, caller: Caller, command: Command, stdin: bytes | AsyncIterable[bytes], process_id: str
    ) -> ExecResult:
        """Limits the command to the seconds that are left; if other commands use them up, cancels it."""
        quotas = self._metering.quotas
        if not await quotas.spend(caller, EXEC_SECONDS, 1):
            raise quotas.spent(caller, EXEC_SECONDS)
        affordable_s = self._metering.slice_s * (1 + await quotas.left(caller, EXEC_SECONDS))
        shortened = command.timeout_s is None or affordable_s < command.timeout_s
        if shortened:
            command = replace(command, timeout_s=affordable_s)
        payer, began = _Payer(self._metering, caller, self._sandbox.is_frozen), self._metering.clock.now()
        try:
            result = await self._sandbox.exec(command, stdin, process_id=process_id)
        except asyncio.CancelledError:
            if not payer.take_back_cancellation():
                raise
            ran_s = self._metering.clock.now() - began
            return replace(_cut_short(None, ran_s), written=output_of(stderr=_BROKEN_OFF))
        finally:
            payer.end()
        if shortened and result.reason is Reason.TIMEOUT:
            return replace(result, written=result.written.with_note(_OVER))
        return result

    async def start(self, command: Command, *, process_id: str = "", follow: bool = False) -> Process:
        """The span of a command that somebody follows lasts until its end, any other until it has started."""
        span = self._span("exec").start()
        try:
            process, is_followed = await self._start(command, process_id, follow, span)
        except BaseException as exc:
            span.end(exc)
            raise
        if not is_followed:
            span.end()
        return process

    async def _start(self, command: Command, process_id: str, follow: bool, span: Span) -> tuple[Process, bool]:
        metering, caller = self._metering, current_caller()
        note_command(command, session_id=self._session.id)
        if (refusal := await metering.refused(self._session, command)) is not None:
            metering.finished(self._session, refusal)
            return self._refused(refusal, follow=follow), False
        on_account = metering.quotas.bounds(caller, EXEC_SECONDS)
        if on_account and not await metering.quotas.spend(caller, EXEC_SECONDS, 1):
            raise metering.quotas.spent(caller, EXEC_SECONDS)
        place = await metering.gate.enter(self._session.tenant)
        try:
            process = await self._sandbox.start(command, process_id=process_id, follow=follow)
        finally:
            place.leave()
        if is_context(process_id):
            return process, False
        note(process_id=process.id)
        ending = self.until_ended(
            process, caller if on_account else None, background=not follow, span=span if follow else NO_SPAN
        )
        metering.follow(ending, f"following {process.id}")
        return process, follow

    def _refused(self, refusal: ExecResult, *, follow: bool) -> Process:
        if follow:  # somebody reads its output as a stream, which then says the refusal
            return RefusedProcess(refusal)
        raise CommandRefused(refusal.stderr.strip(), remedy="ask for another command, or another policy")

    async def until_ended(
        self, process: Process, payer: Caller | None, *, background: bool, had_s: float = 0.0, span: Span = NO_SPAN
    ) -> None:
        """Follows a process to its end, which is that of its span. `had_s`: how long it has run already."""
        metering = self._metering
        began = metering.clock.now() - had_s
        ended = asyncio.ensure_future(process.ended())
        try:
            if payer is not None and not await self._paid_while(payer, ended):
                await process.kill()
            result = await ended
        except WarrenError as exc:  # it was forgotten before it ended, or went with its sandbox
            result = _cut_short(exc, metering.clock.now() - began, process.id)
        except BaseException as exc:
            span.end(exc)
            raise
        finally:
            ended.cancel()
        _note_result(span, result)
        span.end()
        timed = _timed(result, metering.clock.now() - began)
        metering.finished(self._session, timed, background=background)
        self._note_end(process.id, timed)

    def _note_end(self, process_id: str, result: ExecResult) -> None:
        """Called with the end of each command that was started, for the log of the session."""

    async def _paid_while(self, caller: Caller, running: asyncio.Future[ExecResult]) -> bool:
        """Pays while the command runs; returns whether the seconds lasted until its end."""
        while not (await asyncio.wait([running], timeout=self._metering.slice_s))[0]:
            if not self._sandbox.is_frozen() and not await self._metering.can_go_on(caller):
                return False
        return True


class _Payer:
    """Pays for the task that created it, a second at a time; cancels the task when nothing is left.

    Most commands end before the second payment: until then it is only a timer.
    """

    def __init__(self, metering: CommandMetering, caller: Caller, frozen: Callable[[], bool]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._metering = metering
        self._frozen = frozen
        self._caller = caller
        self._cancelled = False
        self._paying: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(metering.slice_s, self._begin)

    def _begin(self) -> None:
        self._paying = asyncio.create_task(self._pay(), name="paying exec seconds")

    async def _pay(self) -> None:
        metering = self._metering
        while waits_for_room() or self._frozen() or await metering.can_go_on(self._caller):  # noqa: ASYNC110
            await asyncio.sleep(metering.slice_s)
        # If this was all there was, the command's own time-out is ending it at this moment.
        await asyncio.sleep(metering.slice_s / 4)
        self._cancelled = True
        self._task.cancel()

    def take_back_cancellation(self) -> bool:
        """Returns whether it was the payer alone that cancelled the task, and takes that cancellation back."""
        return self._cancelled and self._task.uncancel() == 0

    def end(self) -> None:
        self._timer.cancel()
        if self._paying is not None and not self._cancelled:
            self._paying.cancel()


def _note_result(span: Span, result: ExecResult) -> None:
    if span.is_recorded:
        span.note(reason=str(result.reason), exit_code=result.exit_code)


def _timed(result: ExecResult, ran_s: float) -> ExecResult:
    """Adds the time of a command whose sandbox was lost, which could not report it."""
    if result.reason is not Reason.SANDBOX_LOST:
        return result
    return replace(result, duration_ms=max(result.duration_ms, ran_s * 1000))


def _cut_short(why: BaseException | None, ran_s: float, process_id: str = "") -> ExecResult:
    """Returns a result for a command whose end nobody has seen."""
    reason = Reason.SANDBOX_LOST if isinstance(why, SandboxLost) else Reason.CANCELLED
    ran_ms = max(0.0, ran_s) * 1000
    return ExecResult(137, CommandOutput(), reason, None, ran_ms, 0.0, 0, truncated=False, process_id=process_id)
