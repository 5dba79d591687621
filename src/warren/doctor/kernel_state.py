"""Checks what all sandboxes share in the kernel: the core handler, terminals, the accounting of locks, networks."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from warren.doctor.check import Check, fail, ok, warn
from warren.sandboxes.host import file_locks, network_settings
from warren.sandboxes.providers.hardening import TERMINALS

_KERNEL = Path("/proc/sys/kernel")
_SUID_DUMPABLE = Path("/proc/sys/fs/suid_dumpable")
_LDISC_AUTOLOAD = Path("/proc/sys/dev/tty/ldisc_autoload")
_ENOUGH_FOR = 48  # sandboxes, if each opens as many terminals as it may


def check_kernel_state() -> Iterable[Check]:
    yield check_cores((_KERNEL / "core_pattern").read_text().strip())
    yield check_dumpable(_SUID_DUMPABLE.read_text().strip())
    yield check_line_disciplines(_LDISC_AUTOLOAD.read_text().strip() if _LDISC_AUTOLOAD.exists() else "")
    yield check_terminals(*(int((_KERNEL / "pty" / name).read_text()) for name in ("max", "reserve")))
    yield check_locks(file_locks.is_counted())
    yield check_network(network_settings.lacking())


def check_cores(pattern: str) -> Check:
    remedy = "sysctl kernel.core_pattern=core, unless other programs of this machine need it"
    if pattern.startswith("|"):
        found = f"a crash starts {pattern[1:].split()[0]} as root, but not one in a sandbox (its limit of cores is 1)"
        return warn("core dumps", found, remedy)
    if pattern.startswith("@"):
        found = "a crash connects to a socket of this machine, also one in a sandbox: no limit prevents it"
        return warn("core dumps", found, remedy)
    return ok("core dumps", "crashes start no program")


def check_dumpable(value: str) -> Check:
    """With 1 a process that has changed its user, as the agent does, can be traced and dumped by the new one."""
    if value == "1":
        found = "fs.suid_dumpable is 1: processes that have changed their user can be traced and dumped"
        return fail("dumpable processes", found, "sysctl fs.suid_dumpable=0")
    return ok("dumpable processes", f"none that has changed its user (fs.suid_dumpable is {value})")


def check_line_disciplines(autoload: str) -> Check:
    """`autoload`: dev.tty.ldisc_autoload; empty before Linux 5.1, which does not have it."""
    found = "sandboxes cannot choose one"
    if autoload != "0":
        found += "; other programs of this machine can have the kernel load them (sysctl dev.tty.ldisc_autoload=0)"
    return ok("line disciplines", found)


def check_terminals(most: int, reserve: int) -> Check:
    shared = most - reserve
    found = f"{shared} for all sandboxes, at most {TERMINALS} for each, {reserve} kept for this machine"
    if shared >= TERMINALS * _ENOUGH_FOR and reserve > 0:
        return ok("terminals", found)
    return warn("terminals", found, "sysctl kernel.pty.max=4096 kernel.pty.reserve=1024, or more")


def check_locks(is_counted: bool) -> Check:
    how = "counted" if is_counted else "listed (this kernel does not tell their number)"
    return ok("file locks", f"{how} several times a second; a sandbox may hold {file_locks.MAX_LOCKS}")


def check_network(lacking: Mapping[str, str]) -> Check:
    if not lacking:
        return ok("network settings", "those of each sandbox are its own")
    found = "sockets may keep what they sent with its timestamps, in memory that no limit of a sandbox counts"
    return warn("network settings", found, f"sysctl {' '.join(f'{name}={value}' for name, value in lacking.items())}")
