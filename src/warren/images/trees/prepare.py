"""Prepares a root filesystem for sandboxes.

The root is read-only in most sandboxes, so the mount points, the sandbox user and a few files of /etc are made here,
once, wherever the tree came from.
"""

import os
import stat
from dataclasses import dataclass, replace

from warren.images.trees.command_defaults import prepare_defaults
from warren.images.trees.tree import Tree
from warren.model.errors import InvalidRequest
from warren.model.image import NO_CONFIG, ImageConfig
from warren.model.spec import HOME, USER, USER_UID, WRITABLE

_KERNEL_MOUNTS = ("/proc", "/dev", "/sys", "/.warren")
_HOSTS = "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback sandbox\n"
_MINIMAL_PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
_MINIMAL_GROUP = "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"
_TTY_GID = 5
_SET_ID = stat.S_ISUID | stat.S_ISGID


@dataclass(frozen=True, slots=True)
class TreeSize:
    """What `prepare` measured. `seeded` are the directories of WRITABLE that are not empty; `uid` is that of the user
    who runs commands that name no user."""

    files: int
    bytes: int
    seeded: tuple[str, ...] = ()
    uid: int = USER_UID


def check_is_root_filesystem(tree: Tree, what: str, *, shell_needed: bool = True) -> None:
    if shell_needed and not (tree.is_program("bin/sh") or tree.is_program("bin/bash")):
        raise InvalidRequest(
            f"{what} is not a root filesystem: it has no program /bin/sh or /bin/bash",
            remedy="choose the directory that holds bin/, usr/ and etc/, or pass --no-shell if it has none on purpose",
        )


def prepare(tree: Tree, shell: str = "", config: ImageConfig = NO_CONFIG) -> TreeSize:
    """Makes the tree ready for sandboxes, and measures it. Idempotent."""
    tree.make_directory("/", 0o755)
    tree.set_owner("/", 0, 0)
    for path in _KERNEL_MOUNTS:
        tree.make_directory(path, 0o755, replace_links=True)
    for path, mode in WRITABLE.items():
        tree.make_directory(path, mode, replace_links=True)
        tree.set_owner(path, USER_UID, USER_UID)
    tree.put_file("/.warren/agent", b"", 0o755)
    shell = shell or ("/bin/bash" if tree.is_program("bin/bash") else "/bin/sh")
    tree.put_file("/etc/passwd", passwd_with_user(tree.read_text("etc/passwd"), shell))
    tree.put_file("/etc/group", group_with_user(tree.read_text("etc/group")))
    tree.put_file("/etc/hosts", _HOSTS)
    tree.put_file("/etc/hostname", "sandbox\n")
    tree.put_file("/etc/resolv.conf", "")
    uid = prepare_defaults(tree, config)
    seeded = tuple(path for path in WRITABLE if tree.has_entries(path))
    return replace(_clean_and_measure(tree), seeded=seeded, uid=uid)


def passwd_with_user(text: str, shell: str) -> str:
    """Adds the sandbox user. It comes first, so that uid 1000 has its name; another user with that uid follows it."""
    ours = f"{USER}:x:{USER_UID}:{USER_UID}:{USER}:{HOME}:{shell}"
    return _joined([ours, *_others(text or _MINIMAL_PASSWD)])


def group_with_user(text: str) -> str:
    others = _others(text or _MINIMAL_GROUP)
    if not any(line.startswith("tty:") for line in others):
        others.append(f"tty:x:{_TTY_GID}:")
    return _joined([f"{USER}:x:{USER_UID}:", *others])


def _others(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.startswith(f"{USER}:")]


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _clean_and_measure(tree: Tree) -> TreeSize:
    """Clears set-id bits, lets pip install (a sandbox is disposable), and measures the tree."""
    files = size = 0
    seen: set[tuple[int, int]] = set()
    for _, directories, names, fd in os.fwalk(".", dir_fd=tree.fd, follow_symlinks=False):
        for name in (*directories, *names):
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
                if (found.st_dev, found.st_ino) in seen:
                    continue
                seen.add((found.st_dev, found.st_ino))
            if name == "EXTERNALLY-MANAGED" and stat.S_ISREG(found.st_mode):
                os.unlink(name, dir_fd=fd)
                continue
            if found.st_mode & _SET_ID and not stat.S_ISLNK(found.st_mode):
                _change_mode(fd, name, stat.S_IMODE(found.st_mode) & ~_SET_ID)
            files += 1
            size += found.st_blocks * 512
    return TreeSize(files, size)


def _change_mode(directory: int, name: str, mode: int) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.fchmod(fd, mode)
    finally:
        os.close(fd)
