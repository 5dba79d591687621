"""What a sandbox can learn about the host and the other sandboxes."""

import os
import socket
import stat

from .calls import CONTAINED, THROUGH, Account, ProbeVerdict, call

SECRETS = [
    "/proc/kcore",
    "/proc/kallsyms",
    "/proc/keys",
    "/proc/key-users",
    "/proc/timer_list",
    "/proc/kmsg",
    "/proc/modules",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/interrupts",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/slabinfo",
    "/proc/vmallocinfo",
    "/proc/sched_debug",
    "/proc/partitions",
    "/proc/swaps",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/kpagecgroup",
    "/proc/latency_stats",
    "/proc/softirqs",
    "/proc/zoneinfo",
    "/proc/pressure/memory",
    "/proc/sysvipc/shm",
    "/proc/acpi",
    "/proc/asound",
    "/proc/scsi",
    "/dev/core",
    "/dev/mem",
    "/dev/kmem",
    "/dev/port",
    "/dev/kmsg",
]
_NEEDED_OF_PROC = ("cpuinfo", "devices", "filesystems", "loadavg", "meminfo", "stat", "sys", "uptime", "version")
PRIVATE = [
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/sudoers",
    "/root/.ssh",
    "/root/.bashrc",
    "/etc/ssh/ssh_host_ed25519_key",
]
_DEVICES = frozenset(
    [
        "null",
        "zero",
        "full",
        "random",
        "urandom",
        "tty",
        "ptmx",
        "pts",
        "shm",
        "fd",
        "stdin",
        "stdout",
        "stderr",
        "core",
        "mqueue",
        "console",
    ]
)
_MORE_DEVICES = [
    "mem",
    "kmem",
    "port",
    "kvm",
    "fuse",
    "loop-control",
    "loop0",
    "vda",
    "sda",
    "net/tun",
    "vhost-vsock",
    "vsock",
    "userfaultfd",
    "snd",
    "dri",
]
_TEXTS = (
    "/proc/self/mountinfo",
    "/proc/self/mounts",
    "/proc/self/mountstats",
    "/proc/self/cgroup",
    "/proc/self/environ",
)
_OWN_TEXTS = ("/proc/1/cmdline", "/etc/hosts", "/etc/hostname", "/proc/cmdline", "/proc/swaps", "/etc/machine-id")


def write_sysctl() -> ProbeVerdict:
    """Opens every setting for writing, and writes nothing."""
    account, seen = Account(), 0
    for folder, _, names in os.walk("/proc/sys"):
        for name in names:
            path = os.path.join(folder, name)
            if stat.S_ISCHR(os.stat(path).st_mode):
                continue  # a mask
            seen += 1
            account.attempt(path, lambda path=path: os.close(os.open(path, os.O_WRONLY)))  # type: ignore[misc]
    if not seen:
        raise RuntimeError("/proc/sys is empty, nothing could be tried")
    account.attempt("/proc/sysrq-trigger", lambda: os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY)))
    return account.verdict()


def write_proc() -> ProbeVerdict:
    """Files of /proc that are not about processes, for writing."""
    account = Account()
    for name in os.listdir("/proc"):
        path = f"/proc/{name}"
        if name.isdigit() or os.path.islink(path) or os.path.isdir(path) or stat.S_ISCHR(os.stat(path).st_mode):
            continue
        account.attempt(path, lambda path=path: os.close(os.open(path, os.O_WRONLY)))  # type: ignore[misc]
    return account.verdict()


def read_kernel_secrets() -> ProbeVerdict:
    told, silent = [], 0
    for path in SECRETS:
        if _tells_something(path):
            told.append(path)
        silent += 1
    if told:
        return THROUGH, f"can be read: {', '.join(told)}"
    return CONTAINED, f"{silent} files of the kernel say nothing"


def top_of_proc() -> ProbeVerdict:
    """Whatever is there beside processes, links, and what programs need: also what only later kernels have."""
    told, silent = [], 0
    for name in sorted(os.listdir("/proc")):
        path = f"/proc/{name}"
        if name.isdigit() or name in _NEEDED_OF_PROC or os.path.islink(path):
            continue
        if _tells_something(path):
            told.append(path)
        silent += 1
    if told:
        return THROUGH, f"can be read: {', '.join(told)}"
    return CONTAINED, f"{silent} other files and directories say nothing"


def _tells_something(path: str) -> bool:
    try:
        if os.path.isdir(path):
            return bool(os.listdir(path))
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return bool(os.read(fd, 64))
        finally:
            os.close(fd)
    except OSError:
        return False


def kernel_log() -> ProbeVerdict:
    account = Account()
    for action in (3, 10, 9):
        account.note(f"syslog {action}", call("syslog", action, None, 0)[1])
    return account.verdict()


def sys_tree() -> ProbeVerdict:
    """/sys may be absent or present; nothing in it may be writable or describe the host."""
    account, seen = Account(), 0
    for folder, _, names in os.walk("/sys"):
        for name in names:
            seen += 1
            path = os.path.join(folder, name)
            account.attempt(f"write {path}", lambda path=path: os.close(os.open(path, os.O_WRONLY)))  # type: ignore[misc]
            if seen > 20000:
                return account.verdict()
    told = [name for name in ("kernel", "firmware", "fs", "module", "power") if _entries(f"/sys/{name}")]
    if told:
        account.through.append(f"can be read: {', '.join(f'/sys/{name}' for name in told)}")
    return account.verdict("/sys is empty")


def _entries(path: str) -> "list[str]":
    try:
        return os.listdir(path)
    except OSError:
        return []


def cgroup_tree() -> ProbeVerdict:
    with open("/proc/self/mountinfo") as file:
        mounted = [line.split()[4] for line in file if " - cgroup" in line]
    with open("/proc/self/cgroup") as file:
        places = {line.strip().split(":", 2)[2] for line in file}
    if mounted or _entries("/sys/fs/cgroup"):
        return THROUGH, f"cgroups are mounted: {mounted or '/sys/fs/cgroup'}"
    if places != {"/"}:
        return THROUGH, f"the cgroup's place on the host shows: {sorted(places)[:3]}"
    account = Account()
    for name in ("release_agent", "cgroup.procs", "notify_on_release"):
        path = f"/sys/fs/cgroup/{name}"
        account.attempt(path, lambda path=path: os.close(os.open(path, os.O_WRONLY)))  # type: ignore[misc]
    verdict, evidence = account.verdict()
    return verdict, f"no cgroup is mounted, and its place is /; {evidence}"


def devices(granted: "list[str]") -> ProbeVerdict:
    """`granted` are the nodes of the graphics processors that the sandbox was to have."""
    extra = [name for name in os.listdir("/dev") if name not in _DEVICES and name not in granted]
    account = Account()
    if extra:
        account.through.append(f"in /dev: {', '.join(extra)}")
    for name in _MORE_DEVICES:
        account.attempt(f"/dev/{name}", lambda name=name: os.close(os.open(f"/dev/{name}", os.O_RDWR)))  # type: ignore[misc]
    return account.verdict()


def host_texts(needles: "list[str]", host_name: str) -> ProbeVerdict:
    """`needles` are paths of the host that no sandbox should be able to find out."""
    found = []
    for path in (*_TEXTS, *_OWN_TEXTS):
        try:
            with open(path, errors="replace") as file:
                text = file.read()
        except OSError:
            continue
        found += [f"{needle} in {path}" for needle in needles if needle in text]
    found += [f"{needle} in the environment" for needle in needles if needle in repr(dict(os.environ))]
    if os.uname().nodename == host_name or socket.gethostname() == host_name:
        found.append(f"the host's name {host_name}")
    if found:
        return THROUGH, "; ".join(found[:6])
    return CONTAINED, f"none of {len(needles)} host paths shows; the name here is {os.uname().nodename}"


def mount_table() -> ProbeVerdict:
    """Not an attack: prints the mount table, for the host to look at."""
    with open("/proc/self/mountinfo") as file:
        return CONTAINED, file.read()


def find_token(token: str) -> ProbeVerdict:
    """Looks for a word in every process's command line and environment, every file's name, and this environment."""
    found = [f"environment {name}" for name, value in os.environ.items() if token in value]
    for pid in (name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()):
        for name in ("cmdline", "environ"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    if token.encode() in file.read():
                        found.append(f"/proc/{pid}/{name}")
            except OSError:
                continue
    count = 0
    for folder, folders, names in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/sys", "/usr")]
        count += len(names)
        found += [os.path.join(folder, name) for name in names if token in name]
    if found:
        return THROUGH, "found: " + ", ".join(found[:5])
    return CONTAINED, f"not in any process or environment, nor among {count} files"


def host_files(paths: "list[str]") -> ProbeVerdict:
    """A file of the host, by every road that might lead there."""
    account = Account()
    for path in paths:
        for road in ("", "/proc/1/root", "/proc/1/cwd", "/proc/self/root/../../..", "/workspace/../../.."):
            account.attempt(f"{road}{path}", lambda road=road, path=path: os.stat(f"{road}{path}").st_size)  # type: ignore[misc]
    return account.verdict()


def private_files() -> ProbeVerdict:
    account = Account()
    for path in PRIVATE:
        account.attempt(path, lambda path=path: os.close(os.open(path, os.O_RDONLY)))  # type: ignore[misc]
    return account.verdict()


def touch_devices() -> ProbeVerdict:
    """Not an attack by itself: the host looks whether its own devices changed."""
    tried = []
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        for what in ("now", "then", "mode"):
            try:
                _touch(f"/dev/{name}", what)
                tried.append(name)
            except OSError:
                continue
    return CONTAINED, f"changed inside: {sorted(set(tried))}"


def _touch(path: str, what: str) -> None:
    if what == "mode":
        os.chmod(path, 0o600)
    else:
        os.utime(path, None if what == "now" else (1, 1))
