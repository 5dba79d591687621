"""System calls by number, and the account of what was tried."""

import ctypes
import errno
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable, Iterable

CONTAINED, THROUGH, NOT_APPLICABLE = "contained", "through", "n/a"
ProbeVerdict = tuple[str, str]

# The errors by which the kernel, or the filter in front of it, refuses a call before it looks at anything else.
REFUSED = (errno.EPERM, errno.ENOSYS, errno.EACCES)

# name: number on x86_64, on aarch64 (-1: not there)
_NUMBERS = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "cachestat": (451, 451),
    "capset": (126, 91),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fcntl": (72, 25),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_cancel": (210, 3),
    "io_destroy": (207, 1),
    "io_getevents": (208, 4),
    "io_setup": (206, 0),
    "io_submit": (209, 2),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, -1),
    "iopl": (172, -1),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "listmount": (458, 458),
    "lookup_dcookie": (212, 18),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mmap": (9, 222),
    "modify_ldt": (154, -1),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "preadv2": (327, 286),
    "prlimit64": (302, 261),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "seccomp": (317, 277),
    "setdomainname": (171, 162),
    "setfsuid": (122, 151),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setrlimit": (160, 164),
    "setsockopt": (54, 208),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "statmount": (457, 457),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
_NEW_MOUNTS, _PRIVATE = 0x00020000, 0x40000 | 0x4000  # CLONE_NEWNS, MS_PRIVATE with MS_REC
_MACHINES = {"x86_64": 0, "aarch64": 1}

libc = ctypes.CDLL(None, use_errno=True)


def number(name: str) -> int:
    """-1 where this machine has no such call."""
    return _NUMBERS[name][_MACHINES[platform.machine()]]


def call(name: "str | int", *args: object) -> "tuple[int, int]":
    """(result, errno); errno is 0 when it worked."""
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in args]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(name if isinstance(name, int) else number(name)), *words)
    return result, ctypes.get_errno() if result == -1 else 0


def in_child(work: "Callable[[], tuple[int, int]]") -> "tuple[int, int]":
    """Does `work` in a child, for calls that would change this process; a killed child gives (-1, -signal)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, struct.pack("qq", *work()))
        finally:
            os._exit(0)
    os.close(writer)
    answer = os.read(reader, 16)
    os.close(reader)
    status = os.waitpid(pid, 0)[1]
    if len(answer) == 16:
        result, code = struct.unpack("qq", answer)
        return result, code
    if os.WIFSIGNALED(status):
        return -1, -os.WTERMSIG(status)
    raise RuntimeError("a child of the probe ended without an answer")


def apart(work: "Callable[[], tuple[int, int]]") -> "tuple[int, int]":
    """Like `in_child`, and in a mount namespace of its own where one can be had: a mount that works, or an unmount,
    must not take away what the next attacks need."""

    def alone() -> "tuple[int, int]":
        if call("unshare", _NEW_MOUNTS)[1] == 0:
            call("mount", b"none", b"/", None, _PRIVATE, None)
        return work()

    return in_child(alone)


def ready(*words: object) -> None:
    """Reports to the waiting host that everything is in place."""
    sys.stdout.write(" ".join(map(str, ("ready", *words))) + "\n")
    sys.stdout.flush()


def waited_s() -> float:
    """Returns for how many seconds this process was ready and had no processor; 0 if the kernel does not tell."""
    try:
        with open("/proc/self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def name_of(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return errno.errorcode.get(code, str(code))


class Account:
    """What was tried, and how it ended. One success means that the attack got through."""

    def __init__(self) -> None:
        self.through: list[str] = []
        self.held: dict[str, list[str]] = {}

    def note(self, what: str, code: int, refusals: "Iterable[int]" = REFUSED) -> None:
        """`code` 0 is success; one that is not among the refusals means that the request got as far as the kernel."""
        if code < 0 or code in refusals:
            self.held.setdefault(name_of(code), []).append(what)
        else:
            self.through.append(f"{what} worked" if code == 0 else f"{what} was let in ({name_of(code)})")

    def attempt(self, what: str, work: "Callable[[], object]") -> None:
        """Any OSError is a refusal; coming back is a success, and what came back the evidence."""
        try:
            came = work()
        except OSError as exc:
            self.held.setdefault(name_of(exc.errno or 0), []).append(what)
        else:
            self.through.append(f"{what} worked" + (f": {came!r:.120}" if came is not None else ""))

    def verdict(self, nothing_tried: str = "") -> ProbeVerdict:
        if self.through:
            return THROUGH, "; ".join(self.through[:6]) + (" …" if len(self.through) > 6 else "")
        if not self.held:
            if nothing_tried:
                return CONTAINED, nothing_tried
            raise RuntimeError("nothing was tried")
        return CONTAINED, "; ".join(f"{code}: {_shortened(what)}" for code, what in self.held.items())


def _shortened(names: "list[str]") -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
