"""What a loaded filter allows beyond its rules, for programs written here by hand."""

import asyncio
import os
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from warren.model.errors import SandboxLost
from warren.sandboxes.host.cgroups import CgroupLimits
from warren.sandboxes.host.process_facts import gather
from warren.sandboxes.host.seccomp_program import ProgramReader, SystemCallFilter, Unreadable, read_programs
from warren.sandboxes.host.system_calls import numbers
from warren.sandboxes.providers.hardening import allowed_names

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL, EPERM = 0x7FFF0000, 0x80000000, 0x00050001
LOAD, EQUAL, AT_LEAST, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06

Line = tuple[int, int, int, int]


def assemble(*lines: Line) -> bytes:
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


def returned(value: int) -> Line:
    return RETURN, 0, 0, value


def program(machine: str, *body: Line, other_abi: int = KILL) -> bytes:
    """Starts with the call's number loaded."""
    return assemble((LOAD, 0, 0, 4), (EQUAL, 1, 0, ARCH[machine]), returned(other_abi), (LOAD, 0, 0, 0), *body)


def allows(machine: str, *names: str) -> bytes:
    tests = [line for name in names for line in ((EQUAL, 0, 1, numbers(machine)[name]), returned(ALLOW))]
    return program(machine, *tests, returned(EPERM))


def rule(*names: str, **values: Any) -> dict[str, Any]:
    return {"names": list(names), "action": "SCMP_ACT_ALLOW", **values}


@pytest.fixture
def excess(tmp_path: Path) -> Any:
    def find(machine: str, rules: list[dict[str, Any]], *programs: bytes) -> str:
        return SystemCallFilter(rules, machine, tmp_path / "marks").excess(programs)[1]

    return find


@pytest.mark.parametrize("machine", ARCH)
class TestCalls:
    def test_what_is_listed_is_no_excess(self, excess: Any, machine: str) -> None:
        assert excess(machine, [rule("read", "openat", "write")], allows(machine, "read", "openat")) == ""

    def test_a_call_that_is_not_listed_is_named(self, excess: Any, machine: str) -> None:
        assert excess(machine, [rule("read")], allows(machine, "read", "mount")) == "it allows mount"

    def test_a_call_that_no_table_knows_is_found_by_its_number(self, excess: Any, machine: str) -> None:
        loaded = program(machine, (EQUAL, 0, 1, 123456), returned(ALLOW), returned(EPERM))
        assert excess(machine, [rule("read")], loaded) == "it allows call 123456"

    def test_a_range_of_numbers_is_found(self, excess: Any, machine: str) -> None:
        loaded = program(machine, (AT_LEAST, 0, 1, 0x40000000), returned(ALLOW), returned(EPERM))
        assert excess(machine, [rule("read")], loaded).startswith("it allows call 1073741824")

    def test_another_abi_is_found(self, excess: Any, machine: str) -> None:
        loaded = program(machine, returned(EPERM), other_abi=ALLOW)
        assert "another ABI" in excess(machine, [rule("read")], loaded)

    def test_one_filter_that_refuses_is_enough(self, excess: Any, machine: str) -> None:
        loaded = allows(machine, "read", "mount"), allows(machine, "read")
        assert excess(machine, [rule("read")], *loaded) == ""

    def test_a_call_that_is_only_recorded_is_allowed(self, excess: Any, machine: str) -> None:
        loaded = program(machine, returned(0x7FFC0000))
        assert excess(machine, [], loaded).startswith("it allows")

    def test_a_condition_that_was_dropped_is_found(self, excess: Any, machine: str) -> None:
        condition = {"index": 1, "value": 0xF0, "valueTwo": 0x20, "op": "SCMP_CMP_MASKED_EQ"}
        number = numbers(machine)["ioctl"]
        masked = ((LOAD, 0, 0, 24), (AND, 0, 0, 0xF0), (EQUAL, 0, 1, 0x20), returned(ALLOW), returned(EPERM))
        exact = program(machine, (EQUAL, 1, 0, number), returned(EPERM), *masked)
        assert excess(machine, [rule("ioctl", args=[condition])], exact) == ""
        found = excess(machine, [rule("ioctl", args=[condition])], allows(machine, "ioctl"))
        assert found.startswith("it allows ioctl(0x0, ")

    def test_a_value_that_only_the_program_knows_is_found(self, excess: Any, machine: str) -> None:
        condition = {"index": 0, "value": 1, "valueTwo": 0, "op": "SCMP_CMP_EQ"}
        low, high = (LOAD, 0, 0, 16), (LOAD, 0, 0, 20)
        body = (low, (EQUAL, 1, 0, 1), (EQUAL, 0, 3, 40), high, (EQUAL, 0, 1, 0), returned(ALLOW), returned(EPERM))
        loaded = program(machine, (EQUAL, 1, 0, numbers(machine)["socket"]), returned(EPERM), *body)
        assert excess(machine, [rule("socket", args=[condition])], loaded) == "it allows socket(0x28)"


@pytest.mark.parametrize("machine", ARCH)
def test_every_call_that_sandboxes_may_make_has_a_number(machine: str) -> None:
    anywhere = numbers("x86_64").keys() | numbers("aarch64").keys()
    assert allowed_names(ptrace=True) <= anywhere
    assert {"openat", "execve", "futex", "clone3", "mseal"} <= numbers(machine).keys()


def test_numbers_agree_with_the_kernel_s() -> None:
    x86_64, aarch64 = numbers("x86_64"), numbers("aarch64")
    assert [x86_64[name] for name in ("mount", "seccomp", "rseq", "uretprobe")] == [165, 317, 334, 335]
    assert [aarch64[name] for name in ("mount", "seccomp", "rseq", "kexec_file_load")] == [40, 277, 293, 294]
    for name, number in {"clone3": 435, "landlock_create_ruleset": 444, "futex_wake": 454, "listns": 470}.items():
        assert x86_64[name] == aarch64[name] == number


def test_a_good_program_is_known_to_the_next_process(tmp_path: Path) -> None:
    good, bad = allows("x86_64", "read"), allows("x86_64", "mount")
    for _ in range(2):
        found = SystemCallFilter([rule("read")], "x86_64", tmp_path / "marks")
        assert found.excess([good])[1] == ""
        assert found.excess([bad])[1] == "it allows mount"
    (mark,) = (tmp_path / "marks").iterdir()
    assert len(mark.name) == 64 + 1 + 64  # whole hashes: a shorter one could be hit by a program that was searched for
    other_rules = SystemCallFilter([rule("write")], "x86_64", tmp_path / "marks")
    assert other_rules.excess([good])[1] == "it allows read"


SLEEPER = "import sys, time; print('ready', flush=True); time.sleep(60)"


def test_a_process_without_a_filter_has_no_programs_and_runs_on() -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            for _ in range(3):
                with suppress(Unreadable):
                    assert asyncio.run(read_programs(process.pid)) == ()
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert "TracerPid:\t0\n" in status
            assert "\nState:\tt" not in status
        finally:
            process.kill()


def test_a_process_that_is_gone_is_said_to_be() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises(ProcessLookupError):
        asyncio.run(read_programs(process.pid))


async def kill_while_stopped(pid: int, read_first: bool) -> None:
    async with ProgramReader(pid) as reader:
        if read_first:
            with suppress(Unreadable):  # it has stopped all the same
                await reader.read()
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("read_first", [False, True])
def test_the_parent_of_a_process_that_dies_while_it_is_looked_at_sees_its_end(read_first: bool) -> None:
    script = "sleep 60 & echo $!; wait $!; echo ended"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            asyncio.run(kill_while_stopped(pid, read_first))
        except Unreadable:  # this machine lets nobody look at a process
            os.kill(pid, signal.SIGKILL)
        assert parent.stdout.readline() == b"ended\n"
        assert not Path(f"/proc/{pid}").exists()


def test_facts_of_a_zombie_say_that_it_has_ended() -> None:
    with subprocess.Popen(["true"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read()
        while "\nState:\tZ" not in Path(f"/proc/{process.pid}/status").read_text():
            time.sleep(0.001)
        with pytest.raises(SandboxLost, match="has ended"):
            asyncio.run(gather(process.pid, CgroupLimits()))
