"""The devices that the cgroup of a sandbox may open, as the kernel reports it.

On cgroup v1 that is a list in a file. On v2 it is a program that the kernel runs each time a device is opened: it is
read back and interpreted here, with the numbers in question. Such a program only compares numbers, so a few
instructions suffice. If it does anything else, or the kernel does not return it, the answer is unknown.
"""

import ctypes
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warren.sandboxes.host import bpf
from warren.sandboxes.host.cgroups import SandboxCgroup

_PROG_GET_FD, _GET_INFO = 13, 15
_AT_DEVICE: Final = 6  # BPF_CGROUP_DEVICE
_EFFECTIVE: Final = 1
_MAX_BYTES: Final = 64 * 1024
_MAX_STEPS: Final = 10_000
_CHARACTER, _READ, _WRITE = 2, 2, 4  # fields of bpf_cgroup_dev_ctx
_UNLIKELY: Final = (4095, 1048575)  # numbers that no device has
_MASK: Final = (1 << 64) - 1


class NotUnderstood(Exception):
    """The program does something other than comparing numbers."""


@dataclass(frozen=True, slots=True)
class DeviceRules:
    """The rules of a cgroup. `allows` returns whether a character device may be read and written; None if unknown."""

    evidence: str
    allows: Callable[[int, int], bool | None]

    @property
    def allows_all(self) -> bool:
        return self.allows(*_UNLIKELY) is True


def read_rules(cgroup: SandboxCgroup) -> DeviceRules:
    directory = cgroup.directories.get("devices")
    if directory is not None and Path(directory, "devices.list").exists():
        text = Path(directory, "devices.list").read_text()
        return DeviceRules(f"{len(text.splitlines())} device rules of cgroup v1", lambda *at: list_allows(text, *at))
    directory = cgroup.directories.get("")
    if directory is None:
        return DeviceRules("no device rules can be read", lambda *at: None)
    try:
        programs = _read_programs(Path(directory))
    except OSError as exc:
        return DeviceRules(f"the device rules cannot be read: {exc.strerror}", lambda *at: None)
    if not programs:
        return DeviceRules("there are no device rules", lambda *at: True)
    count = sum(len(program) // 8 for program in programs)
    return DeviceRules(
        f"{len(programs)} device program of {count} instructions", lambda *at: programs_allow(programs, *at)
    )


def list_allows(text: str, major: int, minor: int) -> bool:
    for line in text.splitlines():
        kind, numbers, access = (*line.split(), "", "")[:3]
        wanted = numbers.partition(":")[::2]
        same = wanted[0] in ("*", str(major)) and wanted[1] in ("*", str(minor))
        if kind in ("a", "c") and same and {"r", "w"} <= set(access):
            return True
    return False


def programs_allow(programs: Sequence[bytes], major: int, minor: int) -> bool | None:
    """Returns whether all programs allow the device, as the kernel requires; None if that is unknown."""
    try:
        return all(run_program(program, major, minor) for program in programs)
    except NotUnderstood:
        return None


def run_program(program: bytes, major: int, minor: int) -> bool:
    """Returns whether the program lets a character device be opened for reading and writing. Raises NotUnderstood."""
    context = struct.pack("<III", (_READ | _WRITE) << 16 | _CHARACTER, major, minor)
    registers, at = [0] * 11, 0
    for _ in range(_MAX_STEPS):
        if not 0 <= at < len(program) // 8:
            raise NotUnderstood
        code, which, offset, value = struct.unpack_from("<BBhi", program, at * 8)
        target, source = which & 15, which >> 4
        at += 1
        if code == 0x95:  # exit
            return bool(registers[0] & 0xFFFFFFFF)
        if code in (0x61, 0x69):  # load a word, or half a word, of the context that r1 points to
            if source != 1 or not 0 <= offset <= len(context) - 4:
                raise NotUnderstood
            registers[target] = struct.unpack_from("<I" if code == 0x61 else "<H", context, offset)[0]
            continue
        operand = registers[source] if code & 8 else value & (_MASK if code & 7 in (5, 7) else 0xFFFFFFFF)
        if code & 7 in (4, 7):
            registers[target] = _computed(code, registers[target], operand)
        elif code & 7 in (5, 6):
            left, right = registers[target], operand
            if code & 7 == 6:
                left, right = left & 0xFFFFFFFF, right & 0xFFFFFFFF
            at += offset if _jumps(code, left, right) else 0
        else:
            raise NotUnderstood
    raise NotUnderstood


def _computed(code: int, left: int, right: int) -> int:
    mask = _MASK if code & 7 == 7 else 0xFFFFFFFF
    left, right = left & mask, right & mask
    match code & 0xF0:
        case 0x00:
            return left + right & mask
        case 0x40:
            return left | right
        case 0x50:
            return left & right
        case 0x60:
            return left << (right & 63) & mask
        case 0x70:
            return left >> (right & 63)
        case 0xB0:
            return right
        case 0xA0:
            return left ^ right
        case _:
            raise NotUnderstood


def _jumps(code: int, left: int, right: int) -> bool:
    match code & 0xF0:
        case 0x00:
            return True
        case 0x10:
            return left == right
        case 0x50:
            return left != right
        case 0x20:
            return left > right
        case 0x30:
            return left >= right
        case 0x40:
            return bool(left & right)
        case 0xA0:
            return left < right
        case 0xB0:
            return left <= right
        case _:
            raise NotUnderstood


def _read_programs(directory: Path) -> list[bytes]:
    """Returns the programs in force for a process in this cgroup. Raises OSError."""
    cgroup = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return [_read_program(number) for number in bpf.attached(cgroup, _AT_DEVICE, _EFFECTIVE)]
    finally:
        os.close(cgroup)


def _read_program(number: int) -> bytes:
    program, _ = bpf.call(_PROG_GET_FD, struct.pack("<III", number, 0, 0))
    try:
        room = ctypes.create_string_buffer(_MAX_BYTES)
        # struct bpf_prog_info: type, id, tag[8], jited_len, xlated_len, jited_insns, xlated_insns, …
        info = ctypes.create_string_buffer(struct.pack("<II8sIIQQ", 0, 0, b"", 0, len(room), 0, ctypes.addressof(room)))
        size = len(info.raw) - 1
        bpf.call(_GET_INFO, struct.pack("<IIQ", program, size, ctypes.addressof(info)))
        return room.raw[: struct.unpack_from("<I", info.raw, 20)[0]]
    finally:
        os.close(program)
