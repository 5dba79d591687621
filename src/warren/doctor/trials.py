"""Trials that need a process of their own. Runs as a program, and imports nothing else of Warren.

usage: trials.py userns UID | trials.py idmap DIRECTORY. Exits with 0 if it works, otherwise with 1 and a line on
stdout.
"""

import ctypes
import os
import struct
import sys

_CLONE_NEWUSER = 0x10000000
_OPEN_TREE, _MOUNT_SETATTR = 428, 442  # system calls; the same numbers on all architectures
_AT_FDCWD, _AT_EMPTY_PATH, _OPEN_TREE_CLONE = -100, 0x1000, 1
_ATTR_IDMAP = 0x00100000
_BASE = 0x78000000

_libc = ctypes.CDLL(None, use_errno=True)


def check(doing: str, result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{doing}: {os.strerror(ctypes.get_errno())}")
    return result


def try_user_namespace(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    check("making a user namespace", _libc.unshare(_CLONE_NEWUSER))


def try_idmapped_mount(directory: str) -> None:
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go[1])
        check("making a user namespace", _libc.unshare(_CLONE_NEWUSER))
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.close(ready[1])
    os.read(ready[0], 1)
    try:
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(f"0 {_BASE} 65536")
        namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
        tree = check(
            "open_tree", _libc.syscall(_OPEN_TREE, _AT_FDCWD, directory.encode(), _OPEN_TREE_CLONE | os.O_CLOEXEC)
        )
        wanted = struct.pack("4Q", _ATTR_IDMAP, 0, 0, namespace)
        check("mapping ids of a mount", _libc.syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, wanted, len(wanted)))
    finally:
        os.close(go[1])
        os.waitpid(pid, 0)


def main() -> int:
    try:
        if sys.argv[1] == "userns":
            try_user_namespace(int(sys.argv[2]))
        else:
            try_idmapped_mount(sys.argv[2])
    except OSError as exc:
        sys.stdout.write(f"{exc.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
