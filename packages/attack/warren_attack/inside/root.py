"""As root of the sandbox's user namespace: what its rights end at."""

import ctypes
import errno
import os
import resource
import signal
import stat
import struct
import subprocess
import time

from .calls import CONTAINED, THROUGH, Account, ProbeVerdict, call, in_child, ready

_CAP_SETFCAP_DATA = struct.pack("<IIIIII", 0x03000001, 0x2000, 0, 0, 0, 0)  # revision 3, CAP_NET_RAW, of root
_SETPCAP, _MKNOD, _SYS_ADMIN = 8, 27, 21
_REFUSED_HERE = (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBUSY)


def capability_sets(allowed: int) -> ProbeVerdict:
    """None beyond the list, and no way to get one."""
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    sets = {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    more = [f"{name} {value:x}" for name, value in sets.items() if value & ~allowed]
    if more or status["NoNewPrivs"] != "1":
        return THROUGH, f"NoNewPrivs {status['NoNewPrivs']}, beyond {allowed:x}: {', '.join(more)}"
    account = Account()
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    for capability in (_SETPCAP, _SYS_ADMIN, _MKNOD):
        wanted = ctypes.create_string_buffer(struct.pack("6I", *(1 << capability,) * 3, 0, 0, 0))
        account.note(f"capset {capability}", call("capset", header, wanted)[1])
    program = "/tmp/attack-capable"
    subprocess.run(["cp", "/bin/true", program], check=True)
    account.attempt("capabilities of a file", lambda: os.setxattr(program, "security.capability", _CAP_SETFCAP_DATA))
    verdict, evidence = account.verdict()
    return verdict, f"effective {sets['CapEff']:x}; {evidence}"


def setuid_program() -> ProbeVerdict:
    """A setuid program of root that a user runs must not make it root."""
    path = "/usr/local/bin/attack-id" if os.access("/usr/local/bin", os.W_OK) else "/tmp/attack-id"
    subprocess.run(["cp", "/usr/bin/id", path], check=True)
    os.chmod(path, 0o6755)
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(1000, 1000, 1000)
        os.setresuid(1000, 1000, 1000)
        done = subprocess.run([path, "-u"], capture_output=True, text=True, check=False)
        os._exit(7 if done.stdout.strip() == "0" else 0)
    raised = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return (THROUGH, "a setuid program raised privileges") if raised else (CONTAINED, "it ran as its caller")


def agent_memory(agent_uid: int) -> ProbeVerdict:
    """As root, and as the uid that the agent has: memory, files, namespaces, ids and limits of it and a supervisor."""
    account, targets = Account(), (1, os.getppid())
    for who in ("root", "the agent's uid"):
        pid = os.fork() if who != "root" else 0
        if pid:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if code:
                return THROUGH, f"as {who} it could be opened"
            continue
        if who != "root":
            os.setgroups([])
            os.setresgid(agent_uid, agent_uid, agent_uid)
            os.setresuid(agent_uid, agent_uid, agent_uid)
        for target in targets:
            folder = f"/proc/{target}"
            for name in ("mem", "maps", "environ", "auxv", "pagemap", "fd/0", "fd/3", "ns/mnt", "root/etc", "exe"):
                account.attempt(name, lambda path=f"{folder}/{name}": os.close(os.open(path, os.O_RDONLY)))  # type: ignore[misc]
            for name in ("mem", "exe"):
                account.attempt(name, lambda path=f"{folder}/{name}": os.close(os.open(path, os.O_RDWR)))  # type: ignore[misc]
            for name in ("uid_map", "gid_map", "setgroups"):
                account.attempt(name, lambda path=f"{folder}/{name}": _write(path, b"0 0 1\n"))  # type: ignore[misc]
            account.note("ptrace", call("ptrace", 16, target, 0, 0)[1])
            account.note("process_vm_readv", call("process_vm_readv", target, 0, 0, 0, 0, 0)[1])
            account.attempt("prlimit", lambda target=target: resource.prlimit(target, resource.RLIMIT_CPU))  # type: ignore[misc]
        if who != "root":
            os._exit(1 if account.through else 0)
    return account.verdict()


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def signal_the_agent() -> ProbeVerdict:
    """Every signal, by every call, which root may send; the host looks whether the agent has borne it."""
    pidfd = call("pidfd_open", 1, 0)[0]
    for sig in range(1, 65):
        info = ctypes.create_string_buffer(struct.pack("iii", sig, 0, -1) + bytes(8) + struct.pack("i", 5), 128)
        call("kill", 1, sig)
        call("tgkill", 1, 1, sig)
        call("rt_sigqueueinfo", 1, sig, info)
        call("pidfd_send_signal", pidfd, sig, None, 0)
    return CONTAINED, "sent"


def kill_own_supervisor() -> ProbeVerdict:
    """Leaves a tree of processes behind, and takes away what would end it."""
    for _ in range(5):
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if os.fork() == 0:
                time.sleep(300)
            time.sleep(300)
    time.sleep(0.2)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(300)
    return THROUGH, "nobody ended this"


def bomb_of_many_users(seconds: float) -> ProbeVerdict:
    """The limit of processes that a user has is no limit for whoever can be all users."""
    end, uid = time.monotonic() + seconds, 2000
    ready()
    while time.monotonic() < end:
        uid += 1
        if uid > 2300:
            time.sleep(0.05)
            continue
        try:
            if os.fork() == 0:
                os.setresuid(uid, uid, uid)
                while time.monotonic() < end:
                    try:
                        os.fork()
                    except OSError:
                        time.sleep(0.01)
                time.sleep(300)
        except OSError:
            time.sleep(0.01)
    time.sleep(300)
    return THROUGH, "nobody ended this"


def kernel_settings() -> ProbeVerdict:
    """Whatever of /proc and /sys is not about a process, written to as it is: opening is enough."""
    account = Account()
    for top in ("/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/driver", "/proc/tty", "/sys"):
        for folder, _, names in os.walk(top):
            for name in names:
                path = os.path.join(folder, name)
                if stat.S_ISCHR(os.stat(path).st_mode):  # masked by /dev/null
                    continue
                account.attempt(path, lambda path=path: os.close(os.open(path, os.O_WRONLY)))  # type: ignore[misc]
    for name in sorted(os.listdir("/proc")):
        path = f"/proc/{name}"
        if (
            not name.isdigit()
            and os.path.isfile(path)
            and not os.path.islink(path)
            and not stat.S_ISCHR(os.stat(path).st_mode)
        ):
            account.attempt(path, lambda path=path: os.close(os.open(path, os.O_WRONLY)))  # type: ignore[misc]
            account.attempt(f"chmod {path}", lambda path=path: os.chmod(path, 0o777))  # type: ignore[misc]
    return account.verdict()


def agents_own_files() -> ProbeVerdict:
    account = Account()
    account.attempt("write the agent", lambda: os.close(os.open("/.warren/agent", os.O_WRONLY)))
    account.attempt("remove the agent", lambda: os.unlink("/.warren/agent"))
    account.attempt("replace the agent", lambda: os.rename("/usr/bin/env", "/.warren/agent"))
    account.attempt("chmod the agent", lambda: os.chmod("/.warren/agent", 0o777))
    account.attempt("create beside it", lambda: os.close(os.open("/.warren/x", os.O_CREAT | os.O_WRONLY)))
    account.attempt("move its directory", lambda: os.rename("/.warren", "/moved"))
    for path in ("/dev/null", "/dev/tty", "/dev"):
        account.attempt(f"chmod {path}", lambda path=path: os.chmod(path, 0o600))  # type: ignore[misc]
    account.attempt("remove /dev/null", lambda: os.unlink("/dev/null"))
    return account.verdict()


def overlay_marks() -> ProbeVerdict:
    """What means something to an overlay must not come from inside."""
    account = Account()
    for name in ("opaque", "redirect", "metacopy", "origin", "upper"):
        key = f"trusted.overlay.{name}"
        account.attempt(key, lambda key=key: os.setxattr("/etc", key, b"y"))  # type: ignore[misc]
    account.attempt("whiteout", lambda: os.mknod("/etc/attack-whiteout", stat.S_IFCHR, 0))
    account.note("chroot", in_child(lambda: call("chroot", b"/tmp"))[1])
    return account.verdict()


def plant_links() -> ProbeVerdict:
    """For the file operations of another user to follow."""
    os.makedirs("/tmp/attack-closed", exist_ok=True)
    with open("/tmp/attack-closed/secret", "w") as file:
        file.write("secret of root")
    os.chmod("/tmp/attack-closed", 0o700)
    for name, target in (("file", "secret"), ("new", "new"), ("folder", "")):
        path = f"/workspace/attack-{name}"
        if os.path.islink(path):
            os.unlink(path)
        os.symlink(f"/tmp/attack-closed/{target}", path)
    return CONTAINED, "planted"


def replace_shells() -> ProbeVerdict:
    """Every command of the agent's that needs a shell runs this instead, with the rights of its user."""
    for path in ("/usr/bin/bash", "/usr/bin/sh"):
        if os.path.exists(path):
            os.rename(path, f"{path}.attacked")
            with open(path, "w") as file:
                file.write("#!/usr/bin/python3\nimport os\nprint('fake', os.getuid(), os.geteuid())\n")
            os.chmod(path, 0o755)
    return CONTAINED, "replaced"


def put_shells_back() -> ProbeVerdict:
    for path in ("/usr/bin/bash", "/usr/bin/sh"):
        if os.path.exists(f"{path}.attacked"):
            os.rename(f"{path}.attacked", path)
    return CONTAINED, "put back"
