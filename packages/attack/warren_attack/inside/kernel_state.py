"""State of the kernel that all sandboxes of a machine share: what one can use up of it, and what it shows of others."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import select
import signal
import socket
import stat
import struct
import time

from .calls import CONTAINED, THROUGH, Account, ProbeVerdict, call, libc, name_of, ready

_HIGH = 1 << 32
_CORE, _F_OFD_SETLK = 4, 37
_PROGRAMS = {"SO_ATTACH_FILTER": 26, "SO_ATTACH_BPF": 50, "SO_ATTACH_REUSEPORT_CBPF": 51, "SO_LOCK_FILTER": 44}
_KEPT = {  # what the kernel keeps for a socket and charges to nobody: family, level, option, value
    "IP_ADD_MEMBERSHIP": (2, 0, 35, socket.inet_aton("225.1.2.3") + struct.pack("=4si", bytes(4), 1)),
    "IP_ADD_SOURCE_MEMBERSHIP": (2, 0, 39, bytes(12)),
    "MCAST_JOIN_GROUP": (2, 0, 42, bytes(136)),
    "IPV6_ADD_MEMBERSHIP": (10, 41, 20, b"\xff\x05" + bytes(13) + b"\1" + struct.pack("=i", 1)),
    "IPV6_JOIN_ANYCAST": (10, 41, 27, bytes(20)),
    "IPV6_FLOWLABEL_MGR": (10, 41, 32, bytes(15) + b"\1" + struct.pack("=IBBHHHI", 0, 0, 255, 1, 6, 6, 0)),
    "MCAST_JOIN_GROUP of IPv6": (10, 41, 42, bytes(136)),
    "TCP_MD5SIG": (2, 6, 14, struct.pack("=HxxI120xBBHI", 2, 0x0100007F, 0, 0, 8, 0) + b"password".ljust(80, b"\0")),
}
_RETURN_ALL = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)  # to a filter of calls this means: allow

# Sums for the whole machine that ordinary programs ask for, and random numbers.
_KNOWN_TO_CHANGE = (
    "/proc/cpuinfo",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/kernel/random/",
    "/proc/uptime",
)


# -- figures of the machine


def own_figures(memory_kb: int, cpus: int, most_uptime_s: float) -> ProbeVerdict:
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1])
    with open("/proc/stat") as file:
        shown = sum(line.startswith("cpu") and line[3].isdigit() for line in file)
    with open("/proc/cpuinfo") as file:
        listed = file.read().count("processor\t")
    with open("/proc/loadavg") as file:
        load = file.read().split()[:3]
    with open("/proc/uptime") as file:
        uptime = float(file.read().split()[0])
    figures = f"{memory} kB, {shown} and {listed} processors, load {' '.join(load)}, up for {uptime:.0f} s"
    own = memory == memory_kb and shown <= cpus and listed <= cpus and load == ["0.00"] * 3
    return (CONTAINED if own and uptime < most_uptime_s else THROUGH), figures


# -- cores


def change_core_limit() -> ProbeVerdict:
    """Where the host has a core handler, the kernel starts it, as root, for every limit but 1."""
    limit = ctypes.create_string_buffer(16)
    for number in (_CORE, _CORE | _HIGH):
        for value in (0, 2, (1 << 64) - 1):
            pair = ctypes.create_string_buffer(struct.pack("QQ", value, value))
            call("setrlimit", number, pair)
            for pid in (0, os.getpid(), os.getppid()):
                call("prlimit64", pid, number, pair, None)
    _, code = call("prlimit64", 0, _CORE, None, limit)
    if code:
        raise RuntimeError(f"the limit cannot be read: {name_of(code)}")
    found = struct.unpack("QQ", limit.raw)
    if found != (1, 1):
        return THROUGH, f"the limit of cores is {found}: a crash starts the program that core_pattern may name"
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.abort()
    if os.WCOREDUMP(os.waitpid(pid, 0)[1]):
        return THROUGH, "a core was dumped"
    return CONTAINED, "the limit of cores is 1 and stays so; a crash dumps none"


# -- what only some get


def take_terminals(seconds: float) -> ProbeVerdict:
    held, code = _terminals(10_000)
    ready(len(held), code)
    time.sleep(seconds)
    return CONTAINED, f"{len(held)} terminals"


def open_terminals(count: int) -> ProbeVerdict:
    held, code = _terminals(count)
    if len(held) < count:
        return THROUGH, f"only {len(held)} terminals can be had here: {code}"
    return CONTAINED, f"{count} terminals can be had here"


def _terminals(most: int) -> "tuple[list[int], str]":
    held: list[int] = []
    try:
        while len(held) < most:
            held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
    except OSError as exc:
        return held, name_of(exc.errno or 0)
    return held, "no limit"


def native_aio() -> ProbeVerdict:
    account = Account()
    context = ctypes.c_ulong(0)
    account.note("io_setup", call("io_setup", 4096, ctypes.byref(context))[1])
    for name in ("io_submit", "io_getevents", "io_destroy", "io_cancel"):
        account.note(name, call(name, 0, 0, 0, 0, 0)[1])
    return account.verdict()


def huge_pages() -> ProbeVerdict:
    """With arguments for which the kernel itself has another answer, also where it has no huge pages."""
    account, refused = Account(), (errno.ENOMEM, errno.EPERM)
    for high in (0, _HIGH):
        account.note("memfd of huge pages", call("memfd_create", b"huge", 0x4 | high)[1], refused)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000 | 60 << 26 | high  # pages of 2 ** 60 bytes
        account.note("mmap of huge pages", call("mmap", 0, 1 << 21, 3, flags, -1, 0)[1], refused)
        account.note("shmget of huge pages", call("shmget", 0, 0, 0o1600 | 0x800 | high)[1], refused)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000
    account.attempt("8 MiB of huge pages", lambda: mmap.mmap(-1, 8 << 20, flags=flags).close())
    return account.verdict()


def kernel_programs() -> ProbeVerdict:
    """Programs that the kernel compiles; their room is the whole machine's, and the memory limit counts a part."""
    account, code = Account(), ctypes.create_string_buffer(_RETURN_ALL)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(code)))
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as inet, socket.socket(socket.AF_UNIX, kind) as local:
            for sock in (inet, local):
                for name, option in _PROGRAMS.items():
                    for level, number in ((1, option), (1 | _HIGH, option), (1, option | _HIGH)):
                        account.note(name, call("setsockopt", sock.fileno(), level, number, program, 16)[1])
    filters = (errno.EINVAL, errno.EPERM, errno.ENOSYS)
    account.note("prctl(PR_SET_SECCOMP)", call("prctl", 22, 2, program, 0, 0)[1], filters)
    account.note("prctl(PR_SET_SECCOMP), high bit", call("prctl", 22 | _HIGH, 2, program, 0, 0)[1], filters)
    account.note("seccomp", call("seccomp", 1, 0, program)[1], filters)
    return account.verdict()


def kept_for_sockets() -> ProbeVerdict:
    """Memberships whose end locks the networks of the whole machine, labels of which it has 4,096, keys, errors."""
    account, refused = Account(), (errno.ENODEV, errno.ENOPROTOOPT, errno.EPERM)
    for name, (family, level, option, value) in _KEPT.items():
        kind = socket.SOCK_STREAM if level == socket.IPPROTO_TCP else socket.SOCK_DGRAM
        try:
            sock = socket.socket(family, kind)
        except OSError:
            continue  # a kernel without IPv6
        with sock:
            for high in (0, _HIGH):
                code = call("setsockopt", sock.fileno(), level | high, option, value, len(value))[1]
                account.note(name, code, refused)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        account.note("SO_TIMESTAMPING", call("setsockopt", sock.fileno(), 1, 37, struct.pack("=i", 2), 4)[1], refused)
        sock.sendmsg([b"to nobody"], [(1, 37, struct.pack("=i", 2))], 0, ("127.0.0.1", 1))
        sock.setsockopt(socket.IPPROTO_IP, 11, 1)
        for _ in range(3):
            with contextlib.suppress(ConnectionRefusedError):
                sock.sendto(b"to nobody", ("127.0.0.1", 1))
        try:
            sock.recvmsg(100, 1000, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
            account.through.append("errors or timestamps are kept for a socket")
        except BlockingIOError:
            account.note("errors and timestamps", errno.EPERM)
    return account.verdict()


# -- locks


def linger() -> ProbeVerdict:
    """A close that waits, for as long as its sender likes, waits in whatever process closes last."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
        lingers, seconds = struct.unpack("ii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))
    if lingers and seconds:
        return THROUGH, f"a close waits for {seconds} s"
    return CONTAINED, "no socket can be made to linger"


def unowned_locks() -> ProbeVerdict:
    """Locks whose owner the kernel does not show, so that nobody could be ended for having too many."""
    account = Account()
    fd = os.open("/tmp/attack-lock", os.O_RDWR | os.O_CREAT, 0o600)
    lock = ctypes.create_string_buffer(struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0))
    for command in (_F_OFD_SETLK, _F_OFD_SETLK + 1, _F_OFD_SETLK | _HIGH):
        account.note(f"fcntl {command:#x}", call("fcntl", fd, command, lock)[1], (errno.EINVAL, errno.EPERM))
    clone_files = 0x400 | signal.SIGCHLD
    result, code = call("clone", clone_files, 0, 0, 0, 0)
    if result == 0 and code == 0:
        os._exit(0)
    account.note("a process that shares open files", code)
    return account.verdict()


def take_locks(count: int, seconds: float) -> ProbeVerdict:
    """Records of one byte, of alternating kinds so that the kernel cannot join them, in files of a thousand each."""
    ready()
    end = time.monotonic() + seconds
    for index in range(count // 1000):
        fd = os.open(f"/tmp/attack-locks-{index}", os.O_RDWR | os.O_CREAT, 0o600)
        for place in range(1000):
            fcntl.lockf(fd, fcntl.LOCK_EX if place % 2 else fcntl.LOCK_SH, 1, place)
            if time.monotonic() > end:
                return THROUGH, f"{index * 1000 + place} locks were taken in {seconds:g} s, and nobody ended this"
    time.sleep(max(0.0, end - time.monotonic()))
    return THROUGH, f"{count} locks were held"


# -- queues


def fill_netlink(sockets: int, processes: int, seconds: float) -> ProbeVerdict:
    """Requests that make no sense: the answers carry them back, and nobody reads them."""
    for _ in range(processes - 1):
        if os.fork() == 0:
            break
    request = struct.pack("IHHII", 32016, 9999, 5, 0, 0) + bytes(32000)
    held = []
    for _ in range(sockets):
        held.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
        held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        for _ in range(16):
            try:
                held[-1].send(request, socket.MSG_DONTWAIT)
            except OSError:
                break
    time.sleep(seconds)
    return THROUGH, f"{processes} processes filled {len(held)} sockets each, and nobody ended this"


def fill_backlog(connections: int, processes: int, seconds: float) -> ProbeVerdict:
    """Connections that nobody accepts: the kernel charges neither their sockets nor what is sent to them."""
    for _ in range(processes - 1):
        if os.fork() == 0:
            break
    listeners, data = [], bytes(1 << 16)
    for index in range(connections):
        if index % 100 == 0:
            listeners.append(socket.create_server(("127.0.0.1", 0), backlog=4096))
            listeners[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        with contextlib.suppress(OSError), socket.create_connection(listeners[-1].getsockname(), 1) as client:
            for _ in range(16):
                client.send(data, socket.MSG_DONTWAIT)
    time.sleep(seconds)
    return THROUGH, f"{processes} processes sent to {connections} connections each, and nobody ended this"


# -- what shows of others


def _masks() -> "list[str]":
    """The files that a mask hides: devices where the kernel has none."""
    found = []
    for folder, folders, names in os.walk("/proc"):
        folders[:] = [name for name in folders if not name.isdigit() and name not in ("self", "thread-self", "net")]
        for name in names:
            path = os.path.join(folder, name)
            try:
                if stat.S_ISCHR(os.lstat(path).st_mode):
                    found.append(path)
            except OSError:
                continue
    return found


def hold_masks(seconds: float) -> ProbeVerdict:
    held = []
    for path in [*_masks()[:1], "/dev/null"]:
        held.append(os.open(path, os.O_RDONLY))
        try:
            fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # the same file as the one before
    ready(len(held))
    time.sleep(seconds)
    return CONTAINED, "held"


def see_masks() -> ProbeVerdict:
    masks, felt = _masks(), []
    if not masks:
        raise RuntimeError("no file of /proc is masked, that shows nothing")
    for path in masks:
        fd = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            felt.append(path)
        os.close(fd)
    if felt:
        return THROUGH, f"a lock that is not ours is felt on {', '.join(felt[:4])}"
    return CONTAINED, f"{len(masks)} masked files can be locked although others have locked theirs"


def watch_masks(seconds: float) -> ProbeVerdict:
    fd = libc.inotify_init1(os.O_NONBLOCK)
    watched = [path for path in _masks() if libc.inotify_add_watch(fd, path.encode(), 0xFFF) >= 0]
    if not watched:
        raise RuntimeError("no mask can be watched, that shows nothing")
    ready()
    time.sleep(seconds)
    if select.select([fd], [], [], 0)[0]:
        return THROUGH, f"{len(os.read(fd, 65536)) // 16} accesses of others were seen on masked files"
    return CONTAINED, f"nothing was seen on {len(watched)} masked files while others used theirs"


def watch_kernel(seconds: float) -> ProbeVerdict:
    """Compares every file of /proc and /sys before and after the others have worked; reads those of no process."""
    before = _snapshot()
    ready(len(before))
    time.sleep(seconds)
    after = _snapshot()
    changed = sorted(path for path in {**before, **after} if before.get(path) != after.get(path))
    leaks = [path for path in changed if not path.startswith(_KNOWN_TO_CHANGE)]
    if leaks:
        return THROUGH, f"{len(leaks)} of {len(before)} files changed: {', '.join(leaks[:8])}"
    return CONTAINED, f"of {len(before)} files only sums for the machine changed: {', '.join(changed)}"


def _snapshot() -> "dict[str, bytes]":
    content = {}
    for top in ("/proc", "/sys"):
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if not (folder == "/proc" and name.isdigit())]
            for path in (os.path.join(folder, name) for name in names):
                try:
                    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                except OSError:
                    continue
                try:
                    content[path] = os.read(fd, 1 << 20)
                except OSError:
                    pass
                finally:
                    os.close(fd)
    return content


def work(seconds: float) -> ProbeVerdict:
    """What a busy neighbour does: processes, files, terminals, sockets, memory, locks."""
    end, held = time.monotonic() + seconds, _terminals(5)[0]
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    while time.monotonic() < end:
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        client.send(b"x")
        with open("/workspace/attack-work", "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
        for index in range(50):
            open(f"/workspace/attack-work-{index}", "w").close()
    for index in range(50):
        os.unlink(f"/workspace/attack-work-{index}")
    return CONTAINED, f"worked, with {len(held)} terminals"


def evict_shared_pages() -> ProbeVerdict:
    """Pages of the image are every sandbox's: evicting them and looking whether they come back shows who reads."""
    path = _unused_library()
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        missing = []
        for _ in range(3):  # the kernel may evict some by itself
            file.seek(0)
            file.read()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            missing.append(_missing_pages(file.fileno(), size))
        buffer = ctypes.create_string_buffer(4096)
        vector = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(buffer), 4096))
        looks = Account()
        for name, flag in (("RWF_NOWAIT", 0x08), ("RWF_DONTCACHE", 0x80)):
            code = call("preadv2", file.fileno(), vector, 1, 0, 0, flag)[1]
            looks.note(name, code, (errno.EOPNOTSUPP, errno.EPERM))
        looks.note("cachestat", call("cachestat", file.fileno(), vector, buffer, 0)[1])
    if min(missing) * mmap.PAGESIZE * 2 > size:
        return THROUGH, f"{path}: {min(missing)} pages had to be read again after POSIX_FADV_DONTNEED"
    verdict, evidence = looks.verdict()
    return verdict, f"pages of {path} stay in the cache; {evidence}"


def _unused_library() -> str:
    """A big file of the image that no process of this sandbox has mapped: mapped pages are not evicted."""
    with open("/proc/self/maps") as file:
        mapped = {line.split()[-1] for line in file}
    found = []
    for folder in ("/usr/lib", "/usr/bin"):
        for place, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(place, name)
                if path not in mapped and not os.path.islink(path) and os.access(path, os.R_OK):
                    found.append((os.path.getsize(path), path))
    return min((pair for pair in found if pair[0] > 1 << 18), default=(0, "/bin/sh"))[1]


def _missing_pages(fd: int, size: int) -> int:
    """Pages that have to be read from the disk when they are touched, as the kernel counts it for this process."""
    block = mmap.mmap(fd, size, prot=mmap.PROT_READ)
    block.madvise(mmap.MADV_RANDOM)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    for place in range(0, size, mmap.PAGESIZE):
        block[place]
    missing = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before
    block.close()
    return missing
