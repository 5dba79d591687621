"""Ways out: namespaces, mounts, devices, other identities."""

import ctypes
import os
import stat
import struct
import subprocess
import sys

from .calls import CONTAINED, THROUGH, Account, ProbeVerdict, apart, call, in_child

NEW = {
    "user": 0x10000000,
    "mount": 0x00020000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "cgroup": 0x02000000,
    "time": 0x00000080,
}
_SIGCHLD = 17
_HIGH_BIT = 1 << 32
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC = 1, 32, 4096, 16384
_AT_FDCWD = -100
_ATTR_RDONLY = 1


def unshare_namespaces() -> ProbeVerdict:
    account = Account()
    for kind, flag in NEW.items():
        account.note(f"unshare {kind}", in_child(lambda flag=flag: call("unshare", flag))[1])  # type: ignore[misc]
    both = NEW["user"] | NEW["mount"]
    account.note("unshare user and mount", in_child(lambda: call("unshare", both))[1])
    return account.verdict()


def _clone(flags: int) -> "tuple[int, int]":
    result, code = call("clone", flags | _SIGCHLD, 0, 0, 0, 0)
    if result == 0:
        os._exit(0)
    if result > 0:
        os.waitpid(result, 0)
        return 0, 0
    return result, code


def clone_namespaces() -> ProbeVerdict:
    account = Account()
    for kind, flag in NEW.items():
        if kind != "time":  # clone has no bit for it
            account.note(f"clone {kind}", in_child(lambda flag=flag: _clone(flag))[1])  # type: ignore[misc]
            high = flag | _HIGH_BIT
            account.note(f"clone {kind}, high bit set", in_child(lambda high=high: _clone(high))[1])  # type: ignore[misc]
    return account.verdict()


def clone3_namespaces() -> ProbeVerdict:
    def clone3(flag: int) -> "tuple[int, int]":
        text = ctypes.create_string_buffer(struct.pack("11Q", flag, 0, 0, 0, _SIGCHLD, 0, 0, 0, 0, 0, 0))
        result, code = call("clone3", text, 88)
        if result == 0:
            os._exit(0)
        if result > 0:
            os.waitpid(result, 0)
            return 0, 0
        return result, code

    account = Account()
    for kind, flag in NEW.items():
        account.note(f"clone3 {kind}", in_child(lambda flag=flag: clone3(flag))[1])  # type: ignore[misc]
    return account.verdict()


def enter_namespaces() -> ProbeVerdict:
    account = Account()
    for pid in ("1", "self"):
        for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
            try:
                fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
            except OSError as exc:
                account.note(f"open ns/{kind} of {pid}", exc.errno or 0)
                continue
            account.note(f"setns {kind} of {pid}", in_child(lambda fd=fd: call("setns", fd, 0))[1])  # type: ignore[misc]
            os.close(fd)
    return account.verdict()


def mount_filesystems() -> ProbeVerdict:
    account = Account()
    for kind in (
        b"tmpfs",
        b"proc",
        b"sysfs",
        b"devpts",
        b"overlay",
        b"cgroup",
        b"cgroup2",
        b"mqueue",
        b"ext4",
        b"fuse",
    ):
        _note_apart(account, f"mount {kind.decode()}", "mount", b"none", b"/tmp", kind, 0, None)
    _note_apart(account, "bind /proc", "mount", b"/proc", b"/tmp", None, _MS_BIND | _MS_REC, None)
    return account.verdict()


def remount_writable() -> ProbeVerdict:
    attributes = ctypes.create_string_buffer(struct.pack("4Q", 0, _ATTR_RDONLY, 0, 0))
    account = Account()
    for path in _present(b"/", b"/usr", b"/proc/sys", b"/.warren/agent"):
        name = path.decode()
        for flags in (_MS_REMOUNT, _MS_REMOUNT | _MS_BIND):
            _note_apart(account, f"remount {name} rw", "mount", None, path, None, flags, None)
        _note_apart(account, f"mount_setattr {name} rw", "mount_setattr", _AT_FDCWD, path, 0, attributes, 32)
    return account.verdict()


def new_mount_calls() -> ProbeVerdict:
    account = Account()
    for name, arguments in {
        "fsopen": (b"tmpfs", 0),
        "open_tree": (_AT_FDCWD, b"/", 1),
        "move_mount": (_AT_FDCWD, b"/proc", _AT_FDCWD, b"/tmp", 0),
        "fspick": (_AT_FDCWD, b"/", 0),
        "fsmount": (0, 0, 0),
        "fsconfig": (0, 6, None, None, 0),
    }.items():
        _note_apart(account, name, name, *arguments)
    return account.verdict()


def unmount() -> ProbeVerdict:
    account = Account()
    for path in _present(b"/proc/kallsyms", b"/proc/sys", b"/proc/keys", b"/proc", b"/dev/shm", b"/usr", b"/"):
        for flags in (0, 2):
            _note_apart(account, f"umount {path.decode()}", "umount2", path, flags)
    return account.verdict()


def _note_apart(account: Account, what: str, name: str, *arguments: object) -> None:
    account.note(what, apart(lambda: call(name, *arguments))[1])


def _present(*paths: bytes) -> "list[bytes]":
    """The kernel looks for a path before it looks for the right to mount there: ENOENT would be no refusal."""
    return [path for path in paths if os.path.lexists(path)]


def change_root() -> ProbeVerdict:
    account = Account()
    account.note("chroot", in_child(lambda: call("chroot", b"/tmp"))[1])
    account.note("pivot_root", in_child(lambda: call("pivot_root", b"/tmp", b"/tmp"))[1])
    return account.verdict()


def write_system_files() -> ProbeVerdict:
    account = Account()
    for folder in (
        "/",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/etc",
        "/opt",
        "/root",
        "/run",
        "/var",
        "/var/lib",
        "/.warren",
        "/.warren/runners",
    ):
        path = os.path.join(folder, "warren-attack")
        account.attempt(f"create in {folder}", lambda path=path: _create_and_remove(path))  # type: ignore[misc]
    for path in ("/etc/passwd", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/.warren/agent", "/bin/sh"):
        account.attempt(f"open {path} for writing", lambda path=path: os.close(os.open(path, os.O_WRONLY)))  # type: ignore[misc]
        account.attempt(f"chmod {path}", lambda path=path: _chmod_and_back(path))  # type: ignore[misc]
        account.attempt(f"rename {path}", lambda path=path: _rename_and_back(path))  # type: ignore[misc]
    return account.verdict()


def _create_and_remove(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    os.unlink(path)


def _chmod_and_back(path: str) -> None:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    os.chmod(path, 0o777)
    os.chmod(path, mode)


def _rename_and_back(path: str) -> None:
    os.rename(path, f"{path}.old")
    os.rename(f"{path}.old", path)


def make_devices() -> ProbeVerdict:
    devices = {
        "mem": (stat.S_IFCHR, 1, 1),
        "null": (stat.S_IFCHR, 1, 3),
        "kmsg": (stat.S_IFCHR, 1, 11),
        "tun": (stat.S_IFCHR, 10, 200),
        "kvm": (stat.S_IFCHR, 10, 232),
        "loop": (stat.S_IFBLK, 7, 0),
        "vda": (stat.S_IFBLK, 254, 0),
        "sda": (stat.S_IFBLK, 8, 0),
    }
    account = Account()
    for folder in ("/workspace", "/tmp", "/dev", "/dev/shm"):
        for name, (kind, major, minor) in devices.items():
            path = f"{folder}/attack-{name}"
            device = os.makedev(major, minor)
            account.attempt(f"mknod {path}", lambda p=path, k=kind, d=device: _mknod(p, k, d))  # type: ignore[misc]
    return account.verdict()


def _mknod(path: str, kind: int, device: int) -> None:
    os.mknod(path, kind | 0o666, device)
    os.unlink(path)


def become_root() -> ProbeVerdict:
    account = Account()
    changes = {
        "setuid 0": lambda: os.setuid(0),
        "setgid 0": lambda: os.setgid(0),
        "setresuid 0": lambda: os.setresuid(0, 0, 0),
        "setresgid 0": lambda: os.setresgid(0, 0, 0),
        "setgroups 0": lambda: os.setgroups([0]),
        "setuid 1001": lambda: os.setuid(1001),
        "chown to root": lambda: _chown_own(0),
        "chown to another": lambda: _chown_own(1001),
    }
    for name, change in changes.items():
        account.attempt(name, change)
    call("setfsuid", 0)
    if call("setfsuid", 0)[0] == 0:
        account.through.append("setfsuid 0 worked")
    return account.verdict()


def _chown_own(uid: int) -> None:
    path = f"/tmp/attack-chown-{os.getpid()}"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    try:
        os.chown(path, uid, -1)
    finally:
        os.unlink(path)


def capability_sets() -> ProbeVerdict:
    status = _status()
    sets = {name: status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    full = [f"{name} {value}" for name, value in sets.items() if int(value, 16)]
    if full:
        return THROUGH, "capabilities: " + ", ".join(full)
    account = Account()
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    for capability in (1, 7, 21):
        wanted = ctypes.create_string_buffer(struct.pack("6I", *(1 << capability,) * 3, 0, 0, 0))
        account.note(f"capset {capability}", call("capset", header, wanted)[1])
    verdict, evidence = account.verdict()
    return verdict, f"all five sets are empty; {evidence}"


def no_new_privileges() -> ProbeVerdict:
    status = _status()
    if status.get("NoNewPrivs") != "1":
        return THROUGH, f"NoNewPrivs is {status.get('NoNewPrivs')}"
    return CONTAINED, "NoNewPrivs is 1"


def seccomp_filter() -> ProbeVerdict:
    status = _status()
    if status.get("Seccomp") != "2":
        return THROUGH, f"Seccomp is {status.get('Seccomp')}: no filter is in force"
    return CONTAINED, f"Seccomp is 2, {status.get('Seccomp_filters', '?')} filter(s)"


def _status() -> "dict[str, str]":
    with open("/proc/self/status") as file:
        pairs = (line.partition(":") for line in file)
        return {name: value.strip() for name, _, value in pairs}


def setuid_programs() -> ProbeVerdict:
    """The dynamic loader obeys LD_DEBUG only where the kernel did not raise privileges: that tells whether it did."""
    if b"LD_DEBUG" not in _loader_help(sys.executable):
        raise RuntimeError("the loader of this image does not tell whether privileges were raised")
    tried, raised = [], []
    for path in _privileged_programs():
        if not os.access(path, os.X_OK):
            continue
        tried.append(path)
        if b"LD_DEBUG" not in _loader_help(path):
            raised.append(path)
    if raised:
        return THROUGH, f"these ran with raised privileges: {', '.join(raised)}"
    writable = [path for path in ("/workspace", "/tmp", "/home/sandboxuser", "/dev/shm") if _suid(path)]
    if writable:
        return THROUGH, f"mounted without nosuid: {', '.join(writable)}"
    return CONTAINED, f"{len(tried)} setuid programs ran without effect; what can be written is nosuid"


def _loader_help(path: str) -> bytes:
    environ = {"LD_DEBUG": "help"}
    done = subprocess.run([path], env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)
    return done.stdout + done.stderr


def _suid(path: str) -> bool:
    return os.path.isdir(path) and not os.statvfs(path).f_flag & os.ST_NOSUID


def _privileged_programs() -> "list[str]":
    found = []
    for folder in ("/usr/bin", "/usr/sbin", "/usr/lib/openssh", "/usr/lib/dbus-1.0", "/usr/local/bin"):
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            path = f"{folder}/{name}"
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                continue
            if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
                found.append(path)
    return found
