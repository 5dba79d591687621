"""Finds out which system calls a loaded seccomp filter lets through.

`ProgramReader` gets the filters of a process from the kernel, as the instructions it runs. `SystemCallFilter` knows the
rules that were asked for and says what the programs allow beyond them. For each call that no rule names it follows all
paths of a program; for a call with conditions it tries the values at which the rules or the program decide differently.
So it finds a rule that a runtime dropped or a library misread. A call that is refused although a rule names it is no
excess: older libraries do not know the newest calls.

The answer is cached by the programs' hash, in memory and, if it is good, for other processes until the machine
restarts. So a sandbox with a known filter costs one reading and a look-up.
"""

import asyncio
import ctypes
import errno
import hashlib
import json
import operator
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, product
from pathlib import Path
from typing import Any, Final, Self

from warren.kernel.shielding import run_shielded
from warren.sandboxes.host.system_calls import numbers

MARKS: Final = Path("/run/warren/filters")

_SEIZE, _INTERRUPT, _DETACH, _GET_FILTER = 0x4206, 0x4207, 17, 0x420C
_WALL: Final = 0x40000000
_MAX_INSTRUCTIONS: Final = 4096  # the kernel's own limit
_MAX_FILTERS: Final = 16
_STOP_S: Final = 2.0
_BURY_LOOKS: Final = 400
_KEPT: Final = 64
_MAX_VALUES: Final = 64
_MAX_COMBINATIONS: Final = 4096

_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_FOREIGN_ARCH: Final = (0x40000003, 0x40000028, 0)  # i386, arm, none
_HIGH: Final = 1 << 32
_WORD: Final = 0xFFFFFFFF

# struct seccomp_data, in words: nr, arch, instruction pointer (2), six arguments (2 each)
_ARGUMENTS: Final = 4
_ACTION: Final = 0xFFFF0000
_REFUSING: Final = frozenset({0x80000000, 0x00000000, 0x00030000, 0x00050000})  # kill process, kill thread, trap, errno

_COMPARISONS: Final[Mapping[int, Callable[[int, int], object]]] = {
    0x15: operator.eq,
    0x25: operator.gt,
    0x35: operator.ge,
    0x45: operator.and_,
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long

Program = tuple[tuple[int, int, int, int], ...]
Rule = Mapping[str, Any]


class Unreadable(Exception):
    """This machine does not let a filter be read; the message says why."""


class ProgramReader:
    """Stops a process while its filters are read; use it as a context. Raises Unreadable, ProcessLookupError.

    A process needs a moment to stop: work done before `read` costs no time, and mostly `read` does not have to wait.
    ptrace requires that all of it happens in one thread. A cancellation waits until the process runs again.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stopped = False
        _ptrace(_SEIZE, pid)

    async def __aenter__(self) -> Self:
        _ptrace(_INTERRUPT, self._pid)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._wait()
            _ptrace(_DETACH, self._pid)
        except ProcessLookupError:
            await run_shielded(_bury(self._pid))
        except Unreadable:
            pass  # the process does not stop; the kernel releases it when this thread ends

    async def read(self) -> tuple[bytes, ...]:
        """Returns the filters of the process. Raises Unreadable, ProcessLookupError."""
        await self._wait()
        return tuple(_filters(self._pid))

    async def _wait(self) -> None:
        if not self._stopped:
            self._stopped = _has_stopped(self._pid) or await run_shielded(_wait_for_stop(self._pid))


async def read_programs(pid: int) -> tuple[bytes, ...]:
    """Returns the filters of a process, which is stopped for a moment. Raises Unreadable, ProcessLookupError."""
    async with ProgramReader(pid) as reader:
        return await reader.read()


def _filters(pid: int) -> Iterator[bytes]:
    room = ctypes.create_string_buffer(_MAX_INSTRUCTIONS * 8)
    for index in range(_MAX_FILTERS):
        try:
            count = _ptrace(_GET_FILTER, pid, index, ctypes.addressof(room))
        except FileNotFoundError:
            return
        yield ctypes.string_at(room, count * 8)
    raise Unreadable(f"there are more than {_MAX_FILTERS} filters")


async def _wait_for_stop(pid: int) -> bool:
    pause, end = 0.0002, time.monotonic() + _STOP_S
    while time.monotonic() < end:
        await asyncio.sleep(pause)
        if _has_stopped(pid):
            return True
        pause = min(pause * 2, 0.005)
    raise Unreadable("the process does not stop to be looked at")


def _has_stopped(pid: int) -> bool:
    """Returns whether the process has stopped. Raises ProcessLookupError if it has ended instead."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG | _WALL)
    except ChildProcessError:
        raise ProcessLookupError(errno.ESRCH, "the process has ended") from None
    if found and not os.WIFSTOPPED(status):
        raise ProcessLookupError(errno.ESRCH, "the process has ended")
    return bool(found)


async def _bury(pid: int) -> None:
    """Waits for the end of a process that dies while it is traced: it stays a zombie until its tracer has seen the
    end."""
    with suppress(ProcessLookupError):
        for _ in range(_BURY_LOOKS):
            _has_stopped(pid)
            await asyncio.sleep(0.005)


def _ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> int:
    result = int(_libc.ptrace(request, pid, address, data))
    if result >= 0:
        return result
    number = ctypes.get_errno()
    if number == errno.ESRCH:
        raise ProcessLookupError(number, os.strerror(number))
    if number == errno.ENOENT:
        raise FileNotFoundError(number, os.strerror(number))
    raise Unreadable(_why_not(number))


def _why_not(number: int) -> str:
    if number == errno.EACCES:
        return "this process has a filter itself, or lacks CAP_SYS_ADMIN"
    if number == errno.EPERM:
        return "this process may not trace others (CAP_SYS_PTRACE), or the sandbox is traced already"
    if number in (errno.EIO, errno.EINVAL):
        return "the kernel has no CONFIG_CHECKPOINT_RESTORE"
    return os.strerror(number)


class SystemCallFilter:
    """Compares filters with rules. `rules` are as in an OCI config.json: a call without an SCMP_ACT_ALLOW rule is
    refused.

    `marks` is a directory of root that is empty after a boot: a file in it says that a program was found good.
    """

    def __init__(self, rules: Iterable[Rule], machine: str, marks: Path = MARKS) -> None:
        self._marks = marks
        self._identity = ""
        self._arch = _ARCH[machine]
        self._numbers = numbers(machine)
        self._names = {number: name for name, number in self._numbers.items()}
        self._rules: dict[str, list[Sequence[Rule]]] = {}
        for rule in rules:
            if rule["action"] == "SCMP_ACT_ALLOW":
                for name in rule["names"]:
                    self._rules.setdefault(name, []).append(rule.get("args") or ())
        self._known: dict[str, str] = {}

    def knows(self, programs: Sequence[bytes]) -> bool:
        """Returns whether `excess` has the answer at once."""
        return not programs or _digest(programs) in self._known

    def excess(self, programs: Sequence[bytes]) -> tuple[str, str]:
        """Returns the hash of the programs, and what they allow beyond the rules: "" if nothing."""
        digest = _digest(programs)
        found = self._known.get(digest)
        if found is None:
            found = "" if self._is_marked(digest) else self._find_excess([_parse(program) for program in programs])
            if len(self._known) < _KEPT:
                self._known[digest] = found
            if not found:
                self._mark(digest)
        return digest, found

    def _mark_of(self, digest: str) -> Path:
        if not self._identity:
            rules = json.dumps(self._rules, sort_keys=True).encode()
            self._identity = hashlib.sha256(rules + Path(__file__).read_bytes()).hexdigest()
        return self._marks / f"{self._identity}-{digest}"

    def _is_marked(self, digest: str) -> bool:
        try:
            return self._mark_of(digest).stat().st_uid == os.geteuid()
        except OSError:
            return False

    def _mark(self, digest: str) -> None:
        with suppress(OSError):  # without the mark the next process checks again
            self._marks.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._mark_of(digest).touch(mode=0o600)

    def _find_excess(self, programs: Sequence[Program]) -> str:
        try:
            extra = list(self._extra_calls(programs))
        except (IndexError, NotImplementedError) as exc:
            return f"it cannot be followed ({exc})"
        names = ", ".join(extra[:5])
        return f"it allows {names}{f' and {len(extra) - 5} more' if len(extra) > 5 else ''}" if extra else ""

    def _extra_calls(self, programs: Sequence[Program]) -> Iterator[str]:
        for arch in _FOREIGN_ARCH:
            if _may_allow(programs, [None, arch]):
                yield f"calls of another ABI ({arch:#x})"
        for number in _turning_numbers(programs):
            name = self._names.get(number, f"call {number}")
            conditions = self._rules.get(name)
            if conditions is None and _may_allow(programs, [number, self._arch]):
                yield name
            if conditions is not None and all(conditions):
                yield from self._extra_arguments(programs, name, number, conditions)

    def _extra_arguments(
        self, programs: Sequence[Program], name: str, number: int, conditions: Sequence[Sequence[Rule]]
    ) -> Iterator[str]:
        turns: dict[int, set[int]] = {}
        starts = [_first_look_at_arguments(program, [number, self._arch]) for program in programs]
        for program, start in zip(programs, starts, strict=True):
            _outcomes(program, [number, self._arch], start, turns)
        for arguments in dict.fromkeys((*_samples(conditions), *_turning_arguments(turns))):
            wanted = any(all(_holds(condition, arguments) for condition in rule) for rule in conditions)
            if not wanted and _may_allow(programs, _data(number, self._arch, arguments), starts):
                yield f"{name}({', '.join(f'{value:#x}' for value in arguments[: _most(conditions) + 1])})"
                return


def _digest(programs: Sequence[bytes]) -> str:
    """Returns a hash of the programs and of where each ends: a verdict for one must never be found for another."""
    lengths = struct.pack(f"<{len(programs)}Q", *map(len, programs))
    return hashlib.sha256(b"".join((lengths, *programs))).hexdigest()


def _turning_numbers(programs: Sequence[Program]) -> list[int]:
    """Returns numbers that stand for all calls: the programs only compare numbers, so between these nothing changes."""
    constants = {operand for program in programs for code, _, _, operand in program if code & 0x07 == 0x05}
    near = {value + step for value in constants for step in (-1, 0, 1)}
    return sorted(value for value in near | {0, _WORD} if 0 <= value <= _WORD)


def _turning_arguments(turns: Mapping[int, set[int]]) -> Iterator[tuple[int, ...]]:
    """Yields all combinations of the values that the programs compare the arguments' lower halves with."""
    values = [sorted(turns.get(_ARGUMENTS + 2 * index, set()))[:_MAX_VALUES] or [0] for index in range(6)]
    return islice(product(*values), _MAX_COMBINATIONS)


def _most(conditions: Sequence[Sequence[Rule]]) -> int:
    return max(int(condition["index"]) for rule in conditions for condition in rule)


def _samples(conditions: Sequence[Sequence[Rule]]) -> Iterable[tuple[int, ...]]:
    """Returns arguments at which the rules decide differently: matching ones, with single bits flipped, and ones that
    no rule matches."""
    found: dict[tuple[int, ...], None] = {}
    violating = [0] * 6
    for rule in conditions:
        matching = [0] * 6
        for condition in rule:
            index, mask, value = condition["index"], *_mask_and_value(condition)
            matching[index] = value
            violating[index] = (violating[index] & ~mask) | (~value & mask)
        for condition in rule:
            index, mask = condition["index"], _mask_and_value(condition)[0]
            flips = [0, *(1 << bit for bit in range(64) if mask >> bit & 1), _HIGH]
            found.update(dict.fromkeys(_with(matching, index, matching[index] ^ flip) for flip in flips))
    for high in (0, _HIGH, _WORD << 32):
        for index in range(_most(conditions) + 1):
            found[_with(violating, index, (violating[index] & _WORD) | high)] = None
    return found


def _with(arguments: Sequence[int], index: int, value: int) -> tuple[int, ...]:
    return (*arguments[:index], value, *arguments[index + 1 :])


def _mask_and_value(condition: Rule) -> tuple[int, int]:
    if condition["op"] == "SCMP_CMP_MASKED_EQ":
        return condition["value"], condition["valueTwo"]
    return _WORD + (_WORD << 32), condition["value"]


def _holds(condition: Rule, arguments: Sequence[int]) -> bool:
    found, value = arguments[condition["index"]], condition["value"]
    match condition["op"]:
        case "SCMP_CMP_MASKED_EQ":
            return bool(found & value == condition["valueTwo"])
        case "SCMP_CMP_EQ":
            return bool(found == value)
        case "SCMP_CMP_NE":
            return bool(found != value)
        case "SCMP_CMP_LT":
            return bool(found < value)
        case "SCMP_CMP_LE":
            return bool(found <= value)
        case "SCMP_CMP_GE":
            return bool(found >= value)
        case "SCMP_CMP_GT":
            return bool(found > value)
        case other:
            raise NotImplementedError(f"the condition {other}")


def _data(number: int, arch: int, arguments: Sequence[int]) -> list[int | None]:
    words: list[int | None] = [number, arch, 0, 0]
    for value in arguments:
        words += [value & _WORD, value >> 32]
    return words


def _parse(program: bytes) -> Program:
    return tuple(struct.iter_unpack("<HBBI", program))


def _may_allow(programs: Sequence[Program], data: Sequence[int | None], starts: Sequence[int] = ()) -> bool:
    """Returns whether no program refuses for certain. Words that `data` lacks, or has as None, may have any value."""
    pairs = zip(programs, starts or [0] * len(programs), strict=True)
    return not any(_outcomes(program, data, start) <= _REFUSING for program, start in pairs)


def _first_look_at_arguments(program: Program, data: Sequence[int | None]) -> int:
    """Returns where a call's path stops depending on its number alone, so that the part before is walked only once."""
    at, value = 0, 0
    while True:
        code, if_true, if_false, operand = program[at]
        if code == 0x20 and operand >> 2 < len(data):
            value = data[operand >> 2] or 0
            at += 1
        elif code in _COMPARISONS:
            at += 1 + (if_true if _COMPARISONS[code](value, operand) else if_false)
        elif code == 0x05:
            at += 1 + operand
        else:
            return at


def _outcomes(
    program: Program, data: Sequence[int | None], start: int = 0, turns: dict[int, set[int]] | None = None
) -> set[int]:
    """Returns the actions that a program can return on all paths. Adds to `turns` what each unknown word is compared
    with."""
    known = len(data)
    outcomes: set[int] = set()
    todo: list[tuple[int, int, int | None]] = [(start, 0, 0)]
    seen: set[int] = set()
    while todo:
        at, word, value = todo.pop()
        while True:
            code, if_true, if_false, operand = program[at]
            at += 1
            if code == 0x15 and value is not None:  # the most common instruction in every filter
                at += if_true if value == operand else if_false
            elif code == 0x20:  # load a word
                word = operand >> 2
                value = data[word] if word < known else None
            elif code == 0x06:  # return
                outcomes.add(operand & _ACTION)
                break
            elif code == 0x54:  # and
                value = None if value is None else value & operand
            elif code == 0x05:  # jump
                at += operand
            elif code not in _COMPARISONS:
                raise NotImplementedError(f"instruction {code:#x}")
            elif value is not None:
                at += if_true if _COMPARISONS[code](value, operand) else if_false
            else:
                if turns is not None:
                    turns.setdefault(word, set()).add(operand)
                if at in seen:
                    break
                seen.add(at)
                todo.append((at + if_false, word, None))
                at += if_true
    return outcomes
