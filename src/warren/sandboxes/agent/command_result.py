"""Turns what the agent reports about a command into the result that its caller gets."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from warren.model.code import is_context
from warren.model.command_output import CommandOutput, output_of
from warren.model.errors import ProtocolError
from warren.model.operations import Command, ExecResult, ProcessStatus, Reason, check_path
from warren.sandboxes.agent.agent_errors import printable
from warren.sandboxes.agent.wire import Flag, WireEnd, WireFields, WireTag, fields

_REASONS = {
    int(WireEnd.EXITED): Reason.EXITED,
    int(WireEnd.SIGNAL): Reason.SIGNAL,
    int(WireEnd.TIMEOUT): Reason.TIMEOUT,
    int(WireEnd.CANCELLED): Reason.CANCELLED,
}


_RESULT = (
    *(WireTag.EXIT_CODE, WireTag.REASON, WireTag.BYTES, WireTag.SIGNAL, WireTag.DURATION_US, WireTag.CPU_US),
    *(WireTag.KILLED, WireTag.SURVIVORS, WireTag.BACKGROUND),
)
REMEMBERED = 4096  # commands of a sandbox; the agent has 1,024 at most
_TITLE = 1000  # characters of a command's title; the agent sends 200 bytes
_TERMINAL, _CARRY, _UNTIL_CLOSED = int(Flag.TERMINAL), int(Flag.CARRY), int(Flag.UNTIL_CLOSED)


def base_env_fields(env: Mapping[str, str]) -> bytes:
    return fields((WireTag.BASE_ENV, f"{name}={value}") for name, value in env.items())


def start_payload(command: Command, process_id: str, base_env: bytes, flags: int) -> bytes:
    """Returns the fields of START. `base_env` are the encoded variables that the command's `env` overrides."""
    if command.terminal is not None:
        flags |= _TERMINAL
    if command.shell and command.carry_state:
        flags |= _CARRY
    if command.until_closed:
        flags |= _UNTIL_CLOSED
    items: list[tuple[WireTag, int | str | bytes]] = [(WireTag.ID, process_id), (WireTag.FLAGS, flags)]
    if command.shell:
        items.append((WireTag.SHELL, command.shell))
    items += [(WireTag.ARGV, argument) for argument in command.argv]
    items += [(WireTag.ENV, f"{name}={value}") for name, value in command.env.items()]
    if command.cwd:
        items.append((WireTag.CWD, check_path(command.cwd)))
    if command.user:
        items.append((WireTag.USER, command.user))
    if command.timeout_s is not None:
        items.append((WireTag.TIMEOUT_MS, max(1, round(command.timeout_s * 1000))))
    items += [(WireTag.GRACE_MS, round(command.grace_s * 1000)), (WireTag.KEEP, command.keep_bytes)]
    if command.terminal is not None:
        items += [(WireTag.ROWS, command.terminal.rows), (WireTag.COLS, command.terminal.columns)]
    return fields(items) + base_env


def exec_result(end: WireFields, written: CommandOutput, process_id: str, oom: "OomTracker | None") -> ExecResult:
    """Returns the result of a command that has ended; `oom` tells whether it ran out of memory. Raises ProtocolError if
    the agent's report contradicts itself."""
    code, number, total, signal, duration_us, cpu_us, killed, survivors, background = end.numbers(*_RESULT)
    if total < written.end:
        raise ProtocolError("a command with more output than it wrote")
    written.total = total
    code, reason = _checked_exit_code(code), _checked_reason(number)
    is_oom = oom is not None and oom.end(process_id, code, signal)
    return ExecResult(
        exit_code=code,
        written=written,
        reason=Reason.OOM if is_oom and reason in (Reason.EXITED, Reason.SIGNAL) else reason,
        signal=signal if 0 < signal < 128 else None,
        duration_ms=duration_us / 1000,
        cpu_ms=cpu_us / 1000,
        bytes_total=total,
        truncated=total > written.kept,
        killed=killed,
        survivors=survivors,
        background=background,
        process_id=process_id,
    )


def lost_result(why: str, process_id: str) -> ExecResult:
    return ExecResult(
        exit_code=-1, written=output_of(stderr=why), reason=Reason.SANDBOX_LOST, signal=None,
        duration_ms=0.0, cpu_ms=0.0, bytes_total=0, truncated=False, process_id=process_id,
    )  # fmt: skip


def _checked_exit_code(code: int) -> int:
    if code > 255:
        raise ProtocolError(f"an exit code of {code}")
    return code


def _checked_reason(number: int) -> Reason:
    if number not in _REASONS:
        raise ProtocolError(f"a command that ended for the unknown reason {number}")
    return _REASONS[number]


def process_info(found: WireFields) -> ProcessStatus:
    running = bool(found.number(WireTag.RUNNING))
    return ProcessStatus(
        id=printable(found.text(WireTag.ID), 128),
        command=_title(found.text(WireTag.COMMAND)),
        user=printable(found.text(WireTag.USER), 64),
        running=running,
        terminal=bool(found.number(WireTag.TERMINAL)),
        pid=found.number(WireTag.PID),
        bytes_total=found.number(WireTag.BYTES),
        truncated=bool(found.number(WireTag.TRUNCATED)),
        started_s_ago=found.number(WireTag.AGE_MS) / 1000,
        exit_code=None if running else _checked_exit_code(found.number(WireTag.EXIT_CODE)),
        reason=None if running else _checked_reason(found.number(WireTag.REASON)),
        background=found.number(WireTag.BACKGROUND),
    )


def drop_oldest(known: dict[str, Any]) -> None:
    """Forgets what was noted of commands before the last REMEMBERED ones."""
    while len(known) > REMEMBERED:
        del known[next(iter(known))]


def _title(text: str) -> str:
    return text[:_TITLE].encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class _RunningCommand:
    __slots__ = ("alone", "oom_kills_before")

    def __init__(self, oom_kills_before: int, *, alone: bool = True) -> None:
        self.oom_kills_before = oom_kills_before
        self.alone = alone


class OomTracker:
    """Decides whether running out of memory ended a command.

    The kernel counts, per sandbox, the processes that it killed for want of memory. A command that died of signal 9
    (or that exits with 137) while that count rose ran out of memory. A command that failed in another way, because
    only a child of it was killed, did so as well, unless another command ran at the same time: then nobody can tell
    whose child that was. A code context that waits is no such command; its cells are.

    It remembers the answers for the last commands that ended: the agent remembers fewer.
    """

    def __init__(self, oom_kills: Callable[[], int]) -> None:
        self._oom_kills = oom_kills
        self._running: dict[str, _RunningCommand] = {}
        self._adopted: dict[str, int] = {}  # by process id: the kernel's count when it was found
        self._results: dict[str, bool] = {}

    @property
    def running(self) -> int:
        return len(self._running)

    def begin(self, process_id: str) -> None:
        command = _RunningCommand(self._oom_kills())
        if not is_context(process_id):
            others = [other for name, other in self._running.items() if not is_context(name)]
            command.alone = not others
            for other in others:
                other.alone = False
        self._running[process_id] = command

    def adopt(self, found: Iterable[ProcessStatus]) -> None:
        """Follows what runs of an earlier server's commands, from now on. What ended before is not known."""
        before, self._adopted, kills = self._adopted, {}, self._oom_kills()
        for info in found:
            if info.id in self._running or info.id in self._results:
                continue
            if info.running:
                self._adopted[info.id] = before.get(info.id, kills)
            elif info.id in before:
                self._results[info.id] = info.exit_code == 137 and kills > before[info.id]
        drop_oldest(self._results)

    def end(self, process_id: str, exit_code: int, signal: int | None) -> bool:
        """Whether the command ran out of memory. Calling it again gives the same answer."""
        command = self._running.pop(process_id, None)
        if command is None and (before := self._adopted.pop(process_id, None)) is not None:
            command = _RunningCommand(before, alone=False)
        if command is not None:
            killed = exit_code != 0 and self._oom_kills() > command.oom_kills_before
            self._results[process_id] = killed and (signal == 9 or exit_code == 137 or command.alone)
            if len(self._results) > REMEMBERED:
                drop_oldest(self._results)
        return self._results.get(process_id, False)

    def forget(self, process_id: str) -> None:
        self._running.pop(process_id, None)
        self._adopted.pop(process_id, None)
        self._results.pop(process_id, None)
