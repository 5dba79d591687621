"""What a program can do in a volume, besides reading and writing its files."""

import fcntl
import os
import struct
from functools import partial

from .calls import Account, ProbeVerdict, apart, call

_CALLS = (
    ("FIFREEZE", 0xC0045877, 0),
    ("FITRIM", 0xC0185879, struct.pack("QQQ", 0, 1 << 62, 0)),
    ("EXT4_IOC_RESIZE_FS", 0x40086610, struct.pack("Q", 1 << 20)),
    ("EXT4_IOC_SHUTDOWN", 0x8004587D, struct.pack("I", 2)),
    ("EXT4_IOC_SWAP_BOOT", 0x6611, 0),
    ("FS_IOC_SETFSLABEL", 0x41009432, b"x" * 256),
    ("FS_IOC_SETFLAGS immutable", 0x40086602, struct.pack("L", 0x10)),
    ("FS_IOC_SETFLAGS journalled", 0x40086602, struct.pack("L", 0x4000)),
)
_BLOCK, _CHARACTER = 0o060600, 0o020600
_REMOUNT = 0x20


def beyond_files(at: str) -> ProbeVerdict:
    """Reaches for the block device below the volume, for the whole file system, and for how it is mounted."""
    account, device = Account(), os.stat(at).st_dev
    for folder in (at, "/tmp", "/dev/shm"):
        for kind, of in ((_BLOCK, device), (_CHARACTER, os.makedev(10, 237))):
            account.attempt(f"a device node in {folder}", partial(os.mknod, f"{folder}/.node", kind, of))
    for name in (f"/dev/loop{os.minor(device)}", f"/dev/block/7:{os.minor(device)}", "/dev/loop-control"):
        account.attempt(name, partial(os.open, name, os.O_RDONLY))
    with open(f"{at}/.file", "wb") as file:
        fd = file.fileno()
        os.fchmod(fd, 0o6755)
        for name, number, argument in _CALLS:
            account.attempt(name, partial(fcntl.ioctl, fd, number, argument))
        for name in ("trusted.warren", "security.capability"):
            account.attempt(name, partial(os.setxattr, fd, name, b"x" * 20))
    mount = os.fsencode(at)
    account.note("remounting it", apart(lambda: call("mount", None, mount, None, _REMOUNT, None))[1])
    account.note("taking it away", apart(lambda: call("umount2", mount, 2))[1])
    if not os.statvfs(at).f_flag & os.ST_NOSUID:
        account.note("programs with the set-user-id bit", 0)
    os.unlink(f"{at}/.file")
    return account.verdict()


def write_all_ways(at: str) -> ProbeVerdict:
    """Changes a volume that is mounted read-only; `file` is in it, and anybody may write to it."""
    account, file = Account(), f"{at}/file"
    account.attempt("opening", lambda: os.close(os.open(file, os.O_RDWR)))
    held = os.open(file, os.O_RDONLY)
    account.attempt("opening by descriptor", lambda: os.close(os.open(f"/proc/self/fd/{held}", os.O_WRONLY)))
    account.attempt("truncating", lambda: os.truncate(file, 0))
    account.attempt("a new file", lambda: os.close(os.open(f"{at}/new", os.O_CREAT | os.O_WRONLY)))
    account.attempt("a link", lambda: os.link(file, f"{at}/link"))
    account.attempt("renaming", lambda: os.rename(file, f"{at}/other"))
    account.attempt("removing", lambda: os.unlink(file))
    account.attempt("its mode", lambda: os.chmod(file, 0o777))
    account.attempt("its times", lambda: os.utime(file, (1, 1)))
    account.attempt("an attribute", lambda: os.setxattr(file, "user.note", b"x"))
    account.note("remounting", apart(lambda: call("mount", None, os.fsencode(at), None, _REMOUNT, None))[1])
    os.close(held)
    return account.verdict()
