"""Starts the real agent as PID 1 of throw-away namespaces: enough to test it with, not a sandbox.

    python namespace_launcher.py AGENT LISTEN_FD DISK_MB

A user namespace of its own (so it is never the host's root), pid, mount, network, ipc and uts
namespaces, and a root directory in a tmpfs with the host's /usr, read-only. SIGTERM ends it all. So
does the death of this process, by the death signal, until the agent first opens a terminal: for that
it changes its identity for files, and the kernel then takes the death signal back.
"""

import ctypes
import os
import select
import signal
import sys
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_NAMESPACES = 0x10000000 | 0x20000000 | 0x00020000 | 0x40000000 | 0x08000000 | 0x04000000
_BIND, _REC, _PRIVATE, _REMOUNT, _RDONLY, _NOSUID = 4096, 16384, 1 << 18, 32, 1, 2
_OUTER_UID = 1_500_000_000
_PASSWD = "root:x:0:0:root:/root:/bin/sh\nsandboxuser:x:1000:1000::/home/sandboxuser:/bin/bash\n"
_OWN = ("workspace", "home/sandboxuser", "tmp", "var/tmp")


def check(result: int) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    check(_libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()))


def die_with_parent() -> None:
    check(_libc.prctl(1, 9, 0, 0, 0))


def build_root(root: str, disk_mb: str) -> None:
    mount("none", "/", "", _REC | _PRIVATE)
    mount("tmpfs", root, "tmpfs", _NOSUID, f"size={disk_mb}m,mode=755")
    for name in ("usr", "proc", "dev", "etc", "root", *_OWN):
        Path(root, name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        os.symlink(f"usr/{name}", f"{root}/{name}")
    mount("/usr", f"{root}/usr", "", _BIND | _REC)
    mount("proc", f"{root}/proc", "proc", _NOSUID)
    for name in ("null", "zero", "urandom"):
        Path(root, "dev", name).touch()
        mount(f"/dev/{name}", f"{root}/dev/{name}", "", _BIND)
    Path(root, "dev/pts").mkdir()
    mount("devpts", f"{root}/dev/pts", "devpts", _NOSUID, "newinstance,ptmxmode=0666,mode=620")
    os.symlink("pts/ptmx", f"{root}/dev/ptmx")
    Path(root, "etc/passwd").write_text(_PASSWD)
    Path(root, "etc/group").write_text("root:x:0:\nsandboxuser:x:1000:\n")
    for name in _OWN:
        os.chown(f"{root}/{name}", 1000, 1000)
    os.chmod(f"{root}/tmp", 0o1777)


def first_process(agent: str, listen_fd: str, disk_mb: str, parents_life: int) -> None:
    die_with_parent()
    if select.select([parents_life], [], [], 0)[0]:  # it died before we asked
        os._exit(1)
    program = os.open(agent, os.O_RDONLY)
    build_root("/mnt", disk_mb)
    os.chroot("/mnt")
    os.chdir("/")
    os.set_inheritable(int(listen_fd), True)
    arguments = ["warren-agent", "--listen-fd", listen_fd, "--nproc", "200"]
    os.set_inheritable(program, True)
    os.execve(f"/proc/self/fd/{program}", arguments, {})


def main(agent: str, listen_fd: str, disk_mb: str) -> None:
    mapped_r, mapped_w = os.pipe()
    apart_r, apart_w = os.pipe()
    agent_r, agent_w = os.pipe()
    launcher = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent()
        check(_libc.unshare(_NAMESPACES))
        os.write(apart_w, b"x")
        os.read(mapped_r, 1)
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        os.setgroups([])
        die_with_parent()  # once more: a change of identity takes it back
        if os.getppid() != launcher:
            os._exit(1)
        life_r, life_w = os.pipe()
        first = os.fork()
        if first == 0:
            os.close(life_w)
            first_process(agent, listen_fd, disk_mb, life_r)
        os.write(agent_w, str(first).encode())
        os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 255)

    def end(*_: object) -> None:
        if select.select([agent_r], [], [], 0)[0]:
            os.kill(int(os.read(agent_r, 20)), signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    os.read(apart_r, 1)
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{child}/{name}").write_text(f"0 {_OUTER_UID} 65536")
    os.write(mapped_w, b"x")
    os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
