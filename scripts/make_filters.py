"""Compiles the rules for system calls (hardening.py) for both machines, with and without tracing.

usage: make_filters.py [--check]

Writes sandboxes/providers/filters/*.bpf, which the launcher loads into sandboxes of the runtime `direct`, and
digests.json, with their hashes and the version of the library that made them. It is libseccomp, which crun uses too.
With --check it changes nothing, and fails if the files are not what it would write; where the library is missing or of
another version, which may know more calls, it checks instead that the files allow nothing beyond the rules.
"""

import argparse
import ctypes
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from warren.sandboxes.host.seccomp_program import SystemCallFilter
from warren.sandboxes.providers.hardening import seccomp_oci

FOLDER = Path(__file__).resolve().parents[1] / "src/warren/sandboxes/providers/filters"
MACHINES = ("aarch64", "x86_64")
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NATIVE = 0
_UNKNOWN = -1
_COMPARISONS = {"SCMP_CMP_NE": 1, "SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}


class Comparison(ctypes.Structure):
    _fields_ = (
        ("index", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("value", ctypes.c_uint64),
        ("value_two", ctypes.c_uint64),
    )


class Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_uint), ("minor", ctypes.c_uint), ("micro", ctypes.c_uint))


class Library:
    """libseccomp. Raises OSError if it is not installed."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._library.seccomp_version.restype = ctypes.POINTER(Version)
        self._library.seccomp_arch_resolve_name.restype = ctypes.c_uint32

    @property
    def version(self) -> str:
        found = self._library.seccomp_version().contents
        return f"{found.major}.{found.minor}.{found.micro}"

    def compile(self, machine: str, ptrace: bool) -> bytes:
        rules = seccomp_oci(ptrace=ptrace, machine=machine)
        context = ctypes.c_void_p(self._library.seccomp_init(ctypes.c_uint32(_ERRNO | rules["defaultErrnoRet"])))
        self._choose(context, machine)
        for rule in rules["syscalls"]:
            action = _ALLOW if rule["action"] == "SCMP_ACT_ALLOW" else _ERRNO | rule["errnoRet"]
            arguments = [
                Comparison(each["index"], _COMPARISONS[each["op"]], each["value"], each["valueTwo"])
                for each in rule.get("args", ())
            ]
            array = (Comparison * len(arguments))(*arguments)
            for name in rule["names"]:
                number = self._library.seccomp_syscall_resolve_name(name.encode())
                if number != _UNKNOWN:
                    self._must(
                        f"{name} on {machine}",
                        self._library.seccomp_rule_add_array(
                            context, ctypes.c_uint32(action), number, ctypes.c_uint(len(arguments)), array
                        ),
                    )
        return self._export(context)

    def _choose(self, context: ctypes.c_void_p, machine: str) -> None:
        wanted = self._library.seccomp_arch_resolve_name(machine.encode())
        if self._library.seccomp_arch_exist(context, ctypes.c_uint32(wanted)):
            self._must(machine, self._library.seccomp_arch_add(context, ctypes.c_uint32(wanted)))
            self._must("the native machine", self._library.seccomp_arch_remove(context, ctypes.c_uint32(_NATIVE)))

    def _export(self, context: ctypes.c_void_p) -> bytes:
        fd = os.memfd_create("filter")
        try:
            self._must("export", self._library.seccomp_export_bpf(context, fd))
            return os.pread(fd, 1 << 20, 0)
        finally:
            os.close(fd)
            self._library.seccomp_release(context)

    def _must(self, what: str, outcome: int) -> None:
        if outcome:
            raise SystemExit(f"libseccomp, {what}: {os.strerror(-outcome)}")


def kinds() -> Iterator[tuple[str, str, bool]]:
    for machine in MACHINES:
        yield machine, machine, False
        yield f"{machine}-ptrace", machine, True


def compile_all(library: Library) -> dict[str, bytes]:
    return {name: library.compile(machine, ptrace) for name, machine, ptrace in kinds()}


def faults(committed: dict[str, Any], library: Library | None) -> Iterator[str]:
    digests = committed["sha256"]
    fresh = compile_all(library) if library and library.version == committed["libseccomp"] else {}
    for name, machine, ptrace in kinds():
        program = (FOLDER / f"{name}.bpf").read_bytes()
        if hashlib.sha256(program).hexdigest() != digests.get(name):
            yield f"{name}.bpf does not have the hash of digests.json"
        if name in fresh and fresh[name] != program:
            yield f"{name}.bpf is not what the rules are compiled to"
        rules = seccomp_oci(ptrace=ptrace, machine=machine)["syscalls"]
        _, excess = SystemCallFilter(rules, machine, marks=Path("/nonexistent")).excess([program])
        if excess:
            yield f"{name}.bpf: {excess}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    try:
        library: Library | None = Library()
    except OSError:
        library = None
    if check:
        found = list(faults(json.loads((FOLDER / "digests.json").read_text()), library))
        if found:
            raise SystemExit("; ".join(found) + ": run scripts/make_filters.py")
        return
    if library is None:
        raise SystemExit("libseccomp.so.2 is missing: apt-get install libseccomp2")
    programs = compile_all(library)
    FOLDER.mkdir(exist_ok=True)
    for name, program in programs.items():
        (FOLDER / f"{name}.bpf").write_bytes(program)
    digests = {name: hashlib.sha256(program).hexdigest() for name, program in programs.items()}
    text = json.dumps({"libseccomp": library.version, "sha256": digests}, indent=4)
    (FOLDER / "digests.json").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
