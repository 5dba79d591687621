"""Against the agent (PID 1) and the supervisor of this very command (our parent)."""

import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import stat
import struct
import time

from .calls import CONTAINED, REFUSED, THROUGH, Account, ProbeVerdict, call, in_child, ready

_GONE = (*REFUSED, errno.ESRCH)
_READABLE = ["environ", "mem", "maps", "smaps", "auxv", "stack", "syscall", "io", "pagemap", "personality", "timers"]
_WRITABLE = [
    "mem",
    "oom_score_adj",
    "oom_adj",
    "clear_refs",
    "coredump_filter",
    "sched",
    "autogroup",
    "setgroups",
    "uid_map",
    "gid_map",
]
_LINKS = ("cwd", "root", "exe")
_OWN_FDS = (59, 60)  # the shell's text and state, which are the command's to read and write


def _target(who: str) -> int:
    return 1 if who == "agent" else os.getppid()


def signals(who: str) -> ProbeVerdict:
    """Every signal, in every way there is to send one."""
    pid, account = _target(who), Account()
    pidfd = call("pidfd_open", pid, 0)[0]
    for sig in (9, *range(1, 65)):
        info = ctypes.create_string_buffer(struct.pack("iii", sig, 0, -1), 128)
        account.note(f"kill -{sig}", call("kill", pid, sig)[1])
        account.note(f"tgkill {sig}", call("tgkill", pid, pid, sig)[1])
        account.note(f"sigqueue {sig}", call("rt_sigqueueinfo", pid, sig, info)[1])
        account.note(f"tgsigqueue {sig}", call("rt_tgsigqueueinfo", pid, pid, sig, info)[1])
        if pidfd >= 0:
            account.note(f"pidfd {sig}", call("pidfd_send_signal", pidfd, sig, None, 0)[1])
    return account.verdict()


def signal_by_descriptor(who: str) -> ProbeVerdict:
    """Lets the kernel send the signal: the owner of a pipe is told when something can be read."""
    pid = _target(who)
    for sig in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGIO, signal.SIGRTMIN + 1):
        reader, writer = os.pipe()
        try:
            fcntl.fcntl(reader, fcntl.F_SETOWN, pid)
            fcntl.fcntl(reader, fcntl.F_SETSIG, sig)
            fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
            os.write(writer, b"x")
        except OSError:
            continue
        finally:
            os.close(reader)
            os.close(writer)
    time.sleep(0.05)
    with open(f"/proc/{pid}/stat") as file:
        state = file.read().rpartition(")")[2].split()[0]
    return (THROUGH, f"{who} is in state {state}") if state in "TtZX" else (CONTAINED, f"{who} is in state {state}")


def trace(who: str) -> ProbeVerdict:
    pid, account = _target(who), Account()
    for name, request in {"attach": 16, "seize": 0x4206}.items():
        account.note(f"ptrace {name}", call("ptrace", request, pid, 0, 0)[1])
    return account.verdict()


def trace_another_command() -> ProbeVerdict:
    pid, account = _sleeper(), Account()
    try:
        for name, request in {"attach": 16, "seize": 0x4206}.items():
            account.note(f"ptrace {name}", in_child(lambda r=request: call("ptrace", r, pid, 0, 0))[1])  # type: ignore[misc]
        account.note("ptrace traceme", in_child(lambda: call("ptrace", 0, 0, 0, 0))[1])
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return account.verdict()


def read_memory(who: str) -> ProbeVerdict:
    pid, account = _target(who), Account()
    room = ctypes.create_string_buffer(16)
    local = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(room), 16))
    remote = ctypes.create_string_buffer(struct.pack("QQ", 0x400000, 16))
    account.note("process_vm_readv", call("process_vm_readv", pid, local, 1, remote, 1, 0)[1])
    account.note("process_vm_writev", call("process_vm_writev", pid, local, 1, remote, 1, 0)[1])
    account.note("kcmp", call("kcmp", pid, os.getpid(), 0, 0, 0)[1])
    pidfd = call("pidfd_open", pid, 0)[0]
    for fd in range(8):
        account.note(f"pidfd_getfd {fd}", call("pidfd_getfd", pidfd, fd, 0)[1])
    return account.verdict()


def read_proc(who: str) -> ProbeVerdict:
    folder, account = f"/proc/{_target(who)}", Account()
    for name in _READABLE:
        if os.path.exists(f"{folder}/{name}"):
            account.attempt(name, lambda name=name: _read(f"{folder}/{name}"))  # type: ignore[misc]
    for name in _LINKS:
        account.attempt(f"link {name}", lambda name=name: os.readlink(f"{folder}/{name}"))  # type: ignore[misc]
    for name in ("root", "root/etc", "cwd", "fd", "fdinfo", "map_files"):
        account.attempt(f"list {name}", lambda name=name: os.listdir(f"{folder}/{name}"))  # type: ignore[misc]
    for fd in range(8):
        account.attempt(f"fd/{fd}", lambda fd=fd: os.close(os.open(f"{folder}/fd/{fd}", os.O_RDONLY)))  # type: ignore[misc]
    return account.verdict()


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 256)
    finally:
        os.close(fd)


def write_proc(who: str) -> ProbeVerdict:
    folder, account = f"/proc/{_target(who)}", Account()
    for name in _WRITABLE:
        if os.path.exists(f"{folder}/{name}"):
            account.attempt(name, lambda name=name: os.close(os.open(f"{folder}/{name}", os.O_WRONLY)))  # type: ignore[misc]
    return account.verdict()


def starve(who: str) -> ProbeVerdict:
    """Its limits, its priority, its processors."""
    pid, account = _target(who), Account()
    for name in ("NOFILE", "NPROC", "AS", "CPU", "STACK"):
        kind = getattr(resource, f"RLIMIT_{name}")
        account.attempt(f"prlimit {name}", lambda kind=kind: resource.prlimit(pid, kind, (0, 0)))  # type: ignore[misc]
    account.attempt("setpriority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    account.note("ioprio_set", call("ioprio_set", 1, pid, 3 << 13)[1])
    account.note("sched_setaffinity", call("sched_setaffinity", pid, 8, ctypes.create_string_buffer(b"\1", 8))[1])
    account.note("sched_setscheduler", call("sched_setscheduler", pid, 5, ctypes.create_string_buffer(4))[1])
    account.attempt("setpgid", lambda: os.setpgid(pid, os.getpgrp()))
    return account.verdict()


def find_agent_socket() -> ProbeVerdict:
    """Every socket with a name: in the file system, and in the abstract space."""
    found = [path for path in _walk("/") if _is_socket(path)]
    with open("/proc/net/unix") as file:
        names = [line.split()[7] for line in file.readlines()[1:] if len(line.split()) > 7]
    account = Account()
    for path in found:
        account.attempt(f"connect {path}", lambda path=path: _connect(path))  # type: ignore[misc]
    for name in names:
        address = "\0" + name[1:] if name.startswith("@") else name
        account.attempt(f"connect {name}", lambda address=address: _connect(address))  # type: ignore[misc]
    return account.verdict("no socket with a name is to be seen, in the file system or abstract")


def _connect(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)


def _walk(top: str) -> "list[str]":
    found = []
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/sys")]
        found += [os.path.join(folder, name) for name in names]
    return found


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def inherited_descriptors() -> ProbeVerdict:
    """Nothing but the three standard streams may come with a command."""
    extra = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if int(name) > 2 and not target.endswith("/fd") and int(name) not in _OWN_FDS:
            extra[name] = target
    if extra:
        return THROUGH, f"inherited: {extra}"
    return CONTAINED, "only stdin, stdout and stderr"


def own_oom_score() -> ProbeVerdict:
    """A command that makes itself the last to be killed leaves the agent to be killed first."""
    with open("/proc/1/oom_score_adj") as file:
        of_agent = int(file.read())
    with open("/proc/self/oom_score_adj") as file:
        before = lowest = int(file.read())
    for wanted in (-1000, -500, -1, 0, 100, 400, before - 1):
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write(str(wanted))
        except OSError:
            continue
        lowest = min(lowest, wanted)
        break
    evidence = f"ours was {before} and went down to {lowest}, the agent's is {of_agent}"
    # At the same score the kernel takes the bigger one; the probe `oom-agent` tries what that means.
    return (CONTAINED if lowest >= of_agent else THROUGH), evidence


def _sleeper() -> int:
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    return pid


def stop_everything(seconds: float) -> ProbeVerdict:
    """Sends SIGSTOP to every process, over and over, even to those that the agent is just starting.

    One process only: two would stop each other.
    """
    end = time.monotonic() + seconds
    ready()
    while time.monotonic() < end:
        try:
            os.kill(-1, signal.SIGSTOP)
        except OSError:
            continue
    return CONTAINED, "done"
