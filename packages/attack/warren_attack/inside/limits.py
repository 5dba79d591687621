"""Using up what there is: processes, memory, disk, files, time."""

import contextlib
import ctypes
import errno
import mmap
import os
import resource
import signal
import socket
import threading
import time

from .calls import CONTAINED, THROUGH, Account, ProbeVerdict, libc

_MIB = 1 << 20


def fork_bomb(seconds: float) -> ProbeVerdict:
    """Forks as fast as it can, in every child too; all of them ignore SIGTERM and sit in sessions of their own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if os.fork() == 0:
                os.setsid()
        except OSError:
            time.sleep(0.01)
    time.sleep(3600)
    return THROUGH, "nobody ended this"


def threads(most: int) -> ProbeVerdict:
    started, stop = 0, threading.Event()
    threading.stack_size(256 * 1024)
    try:
        while started <= most:
            threading.Thread(target=stop.wait, daemon=True).start()
            started += 1
    except RuntimeError:
        return CONTAINED, f"no more than {started} threads"
    finally:
        stop.set()
    return THROUGH, f"{started} threads, above the limit of {most}"


def eat_memory(mib: int) -> ProbeVerdict:
    hoard = []
    for _ in range(mib):
        hoard.append(bytearray(os.urandom(64)) * (_MIB // 64))
    return THROUGH, f"{len(hoard)} MiB could be had"


def allocate(mib: int) -> ProbeVerdict:
    """What an honest program does after an attack."""
    block = mmap.mmap(-1, mib * _MIB)
    for at in range(0, mib * _MIB, 4096):
        block[at] = 1
    return CONTAINED, f"{mib} MiB could be had"


def eat_kernel_memory(kind: str, mib: int) -> ProbeVerdict:
    """Memory that outlives the process which took it: SysV objects belong to nobody the kernel could kill."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("0")
    if kind == "shm":
        libc.shmat.restype = ctypes.c_void_p
        for _ in range(mib // 16):
            shm = libc.shmget(0, 16 * _MIB, 0o600)
            place = libc.shmat(shm, None, 0) if shm >= 0 else -1
            if place in (None, -1, ctypes.c_void_p(-1).value):
                return CONTAINED, f"refused: {errno.errorcode[ctypes.get_errno()]}"
            ctypes.memset(place, 1, 16 * _MIB)
            libc.shmdt(ctypes.c_void_p(place))
    elif kind == "msg":
        message = ctypes.create_string_buffer(b"\1".ljust(8, b"\0") + bytes(8000))
        for _ in range(mib * 64):
            queue = libc.msgget(0, 0o600)
            if queue < 0:
                return CONTAINED, f"refused: {errno.errorcode[ctypes.get_errno()]}"
            while libc.msgsnd(queue, message, 8000, 0o4000) == 0:
                pass
    elif kind == "sem":
        for _ in range(mib):
            if libc.semget(0, 16000, 0o600) < 0:
                return CONTAINED, f"refused: {errno.errorcode[ctypes.get_errno()]}"
    elif kind == "sockets":
        _fill_sockets(mib)
    return CONTAINED, f"{kind} was filled up"


def _fill_sockets(mib: int) -> None:
    """Data in sockets is the kernel's memory, so this process looks small by its own size."""
    children = []
    for _ in range(3):
        children.append(os.fork())
        if children[-1] == 0:
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # dies with its parent
            children = []
            break
    held = []
    with contextlib.suppress(OSError):
        for _ in range(mib * 16):
            ends = socket.socketpair()
            held.append(ends)
            ends[0].setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    ends[0].send(b"x" * 65536)
    for pid in children:
        os.waitpid(pid, 0)


def remove_ipc() -> ProbeVerdict:
    """Tidies up after `eat_kernel_memory`."""
    for index in range(40000):
        for remove in (libc.shmctl, libc.msgctl):
            remove(index, 0, None)
        libc.semctl(index, 0, 0, 0)
    return CONTAINED, "done"


def fill_tmpfs(path: str, mib: int) -> ProbeVerdict:
    size = 0
    try:
        with open(f"{path}/attack-fill", "wb") as file:
            while size <= mib * _MIB:
                size += file.write(bytes(_MIB))
                file.flush()
    except OSError as exc:
        return CONTAINED, f"{errno.errorcode[exc.errno or 0]} after {size // _MIB} MiB"
    finally:
        with contextlib.suppress(OSError):
            os.unlink(f"{path}/attack-fill")
    return THROUGH, f"{size // _MIB} MiB went into {path}"


def fill_disk(folders: "list[str]", mib: int) -> ProbeVerdict:
    """Really allocated, in files of 32 MiB, over all writable places together."""
    total, reason = 0, ""
    for folder in folders:
        for index in range(mib // 32 + 2):
            try:
                fd = os.open(f"{folder}/attack-fill-{index}", os.O_CREAT | os.O_WRONLY)
                try:
                    os.posix_fallocate(fd, 0, 32 * _MIB)
                finally:
                    os.close(fd)
            except OSError as exc:
                reason = errno.errorcode[exc.errno or 0]
                break
            total += 32
            if total > mib:
                return THROUGH, f"{total} MiB could be allocated, the limit is {mib}"
    if reason not in ("ENOSPC", "EDQUOT"):
        return THROUGH, f"it ended with {reason or 'nothing'} after {total} MiB"
    with contextlib.suppress(OSError), open(f"{folders[0]}/attack-fill-last", "wb") as file:
        while True:
            file.write(bytes(65536))
            file.flush()
    return CONTAINED, f"{reason} after {total} MiB, the limit is {mib}"


def fill_inodes(folder: str, most: int) -> ProbeVerdict:
    """Only a full disk or a refusal is a limit: any other error decides nothing."""
    count = 0
    try:
        os.makedirs(f"{folder}/attack-inodes", exist_ok=True)
        while count <= most:
            os.close(os.open(f"{folder}/attack-inodes/{count}", os.O_CREAT | os.O_WRONLY))
            count += 1
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return CONTAINED, f"{errno.errorcode[exc.errno]} after {count} files"
    return THROUGH, f"{count} files could be made"


def tidy(folders: "list[str]") -> ProbeVerdict:
    for folder in folders:
        for name in os.listdir(folder):
            if name.startswith("attack-fill"):
                os.unlink(f"{folder}/{name}")
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(f"{folder}/attack-inodes"):
                os.unlink(f"{folder}/attack-inodes/{name}")
            os.rmdir(f"{folder}/attack-inodes")
    return CONTAINED, "done"


def burn(seconds: float, count: int) -> ProbeVerdict:
    end = time.monotonic() + seconds
    for _ in range(count - 1):
        if os.fork() == 0:
            break
    while time.monotonic() < end:
        pass
    return CONTAINED, "burnt"


def open_files(most: int) -> ProbeVerdict:
    held: list[int] = []
    try:
        while len(held) <= most:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as exc:
        code = errno.errorcode[exc.errno or 0]
    else:
        return THROUGH, f"{len(held)} files are open, the limit is {most}"
    finally:
        for fd in held:
            os.close(fd)
    return CONTAINED, f"{code} after {len(held)}"


def raise_limits() -> ProbeVerdict:
    account = Account()
    for name in ("NOFILE", "NPROC", "CORE", "FSIZE", "MEMLOCK", "NICE", "RTPRIO", "SIGPENDING", "MSGQUEUE"):
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        if hard == resource.RLIM_INFINITY:
            account.through.append(f"{name} has no limit")
            continue
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (hard + 1, hard + 1))
        if resource.getrlimit(kind)[1] > hard:
            account.through.append(f"{name} raised to {hard + 1}")
        else:
            account.note(name, errno.EPERM)
    account.attempt("nice -20", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
    account.attempt("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
    return account.verdict()


def lock_memory(mib: int) -> ProbeVerdict:
    account = Account()
    block = mmap.mmap(-1, mib * _MIB)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    code = 0 if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(mib * _MIB)) == 0 else ctypes.get_errno()
    account.note(f"mlock {mib} MiB", code, (errno.EPERM, errno.ENOMEM, errno.EAGAIN))
    return account.verdict()


def big_file(mib: int) -> ProbeVerdict:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = "/workspace/attack-big"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        os.ftruncate(fd, 1 << 40)
    except OSError as exc:
        return CONTAINED, f"a sparse file of 1 TiB: {errno.errorcode[exc.errno or 0]} (the disk has {mib} MiB)"
    finally:
        os.close(fd)
        os.unlink(path)
    return THROUGH, "a sparse file of 1 TiB could be made"


def dump_core() -> ProbeVerdict:
    os.chdir("/tmp")
    before = set(os.listdir("."))
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
        os.abort()
    status = os.waitpid(pid, 0)[1]
    files = [name for name in set(os.listdir(".")) - before if name.startswith("core")]
    for name in files:
        os.unlink(name)
    if os.WCOREDUMP(status) or files:
        return THROUGH, f"a core was dumped {files}"
    return CONTAINED, "no core was dumped"


def zombie_storm(count: int) -> ProbeVerdict:
    """Makes orphans that end at once: the process that adopts them must reap them."""
    made = 0
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
        os.waitpid(pid, 0)
        made += 1
    return CONTAINED, f"{made} orphans were made"


def count_zombies() -> ProbeVerdict:
    zombies = []
    for pid in (name for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "Z":
                zombies.append(pid)
    if len(zombies) > 2:
        return THROUGH, f"{len(zombies)} zombies are left"
    return CONTAINED, f"{len(zombies)} zombies are left"


def daemons(count: int, token: str) -> ProbeVerdict:
    """Processes that do all a daemon does to detach itself, and then stay. The host finds them by `token`."""
    for _ in range(count):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                libc.prctl(36, 1, 0, 0, 0)  # sub-reaper
                os.chdir("/")
                os.closerange(0, 100)
                os.execvp("python3", ["python3", "-I", "-c", _STAY, token])
            os._exit(0)
    time.sleep(3600)
    return THROUGH, "nobody ended this"


_STAY = """
import signal, time
for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)
time.sleep(3600)
"""
