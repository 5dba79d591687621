"""The file system of the fake sandbox: a tree of nodes in memory, with owners and modes.

It has only what the contract needs: no hard links, no times but the modification time, and no rights but those of the
owner and of everybody. It never touches the host.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace

from warren.model.errors import (
    FileExists,
    FileNotFound,
    InvalidPath,
    InvalidRequest,
    IsDirectory,
    NoSpace,
    NotADirectory,
    PermissionDenied,
    UnknownUser,
)
from warren.model.operations import Change, FileEvent, FileInfo, FileKind, check_path
from warren.model.spec import MIB, USER, USER_UID, WRITABLE

UIDS = {"": USER_UID, USER: USER_UID, "root": 0}
_NAMES = {USER_UID: USER, 0: "root"}
_MAX_LINKS = 40


@dataclass
class FakeNode:
    kind: FileKind
    uid: int
    mode: int
    data: bytes = b""
    target: str = ""
    modified: float = field(default_factory=time.time)
    children: dict[str, "FakeNode"] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)

    def allows(self, uid: int, right: int) -> bool:
        return uid == 0 or bool(self.mode >> (6 if uid == self.uid else 0) & right)


@dataclass
class _Mount:
    node: FakeNode
    below: FakeNode
    read_only: bool


class FakeFiles:
    """Maps paths to nodes and raises typed errors. Calls each of `watchers` with every change."""

    def __init__(self, disk_mb: int) -> None:
        self._root = _new_directory(0, 0o755)
        self._limit = disk_mb * MIB
        self.used = 0
        self.mounts: dict[str, _Mount] = {}
        self.watchers: list[Callable[[FileEvent], None]] = []
        for path, mode in {"/etc": 0o755, "/root": 0o700, "/usr/bin": 0o755}.items():
            self._make_directory(path, 0, mode)
        for path, mode in WRITABLE.items():
            self._make_directory(path, USER_UID, mode)

    def copy_tree(self) -> FakeNode:
        return deepcopy(self._root)

    def replace_tree(self, root: FakeNode) -> None:
        """Begins with another tree."""
        self._root = root
        self.used = size_of(root)

    def mount(self, path: str, node: FakeNode, *, read_only: bool) -> None:
        """Lets a tree that others share too be at a directory."""
        if (self.find(path, 0, follow=False)).kind is not FileKind.DIRECTORY:
            raise InvalidPath("the path leads through a link, or to no directory")
        parent, name = self.parent(path, 0)
        self.mounts[path] = _Mount(node, parent.children[name], read_only)
        parent.children[name] = node

    def unmount(self, path: str) -> None:
        parent, name = self.parent(path, 0)
        parent.children[name] = self.mounts.pop(path).below

    def _may_change(self, directory: FakeNode, uid: int) -> bool:
        mount = self._mount_of(directory)
        return directory.allows(uid, 2) and not (mount and mount.read_only)

    def _mount_of(self, directory: FakeNode) -> "_Mount | None":
        return next((mount for mount in self.mounts.values() if _holds(mount.node, directory)), None)

    def _make_directory(self, path: str, uid: int, mode: int) -> None:
        node = self._root
        for name in _parts(path):
            node = node.children.setdefault(name, _new_directory(0, 0o755))
        node.uid, node.mode = uid, mode

    def find(self, path: str, uid: int, *, follow: bool = True) -> FakeNode:
        parent, name = self.parent(path, uid)
        node = parent.children.get(name) if name else parent
        if node is None:
            raise FileNotFound(f"{path!r} does not exist")
        if node.kind is FileKind.SYMLINK and follow:
            return self.find(_link_target(path, node.target), uid)
        return node

    def parent(self, path: str, uid: int, links: int = 0) -> tuple[FakeNode, str]:
        """Returns the directory that contains a path's last name, and that name. The root is its own parent, with no
        name."""
        parts = _parts(path)
        node, walked = self._root, ""
        for at, name in enumerate(parts[:-1]):
            node = _child(node, name, path, uid)
            walked += f"/{name}"
            if node.kind is FileKind.SYMLINK:
                if links == _MAX_LINKS:
                    raise InvalidPath(f"{path!r} has too many links in it")
                return self.parent("/".join((_link_target(walked, node.target), *parts[at + 1 :])), uid, links + 1)
        if node.kind is not FileKind.DIRECTORY:
            raise NotADirectory(f"{path!r} goes through a file")
        if parts and len(parts[-1].encode(errors="surrogateescape")) > 255:
            raise InvalidPath(f"a name in {path[:80]!r} is longer than 255 bytes")
        if not node.allows(uid, 1):
            raise PermissionDenied(f"{path!r} is not yours to see")
        return node, parts[-1] if parts else ""

    def stat(self, path: str, uid: int, *, details: bool = False) -> FileInfo:
        node = self.find(path, uid, follow=False)
        return self._detailed(path, node, uid) if details else _file_info(path, node)

    def _detailed(self, path: str, node: FakeNode, uid: int) -> FileInfo:
        name, info = _NAMES.get(node.uid, str(node.uid)), _file_info(path, node)
        info = replace(info, owner=name, group=name, metadata=dict(node.metadata))
        if node.kind is not FileKind.SYMLINK:
            return info
        try:
            at, target = self._follow(path, uid)
        except (FileNotFound, NotADirectory):
            return info
        return replace(info, target_path=at, target_kind=target.kind, target_mode=target.mode)

    def _follow(self, path: str, uid: int) -> tuple[str, FakeNode]:
        node = self.find(path, uid, follow=False)
        if node.kind is FileKind.SYMLINK:
            return self._follow(_link_target(path, node.target), uid)
        return "/" + "/".join(_parts(path)), node

    def read(self, path: str, uid: int) -> bytes:
        node = self.find(path, uid)
        if node.kind is FileKind.DIRECTORY:
            raise IsDirectory(f"{path!r} is a directory")
        if not node.allows(uid, 4):
            raise PermissionDenied(f"{path!r} is not yours to read")
        return node.data

    def write(
        self,
        path: str,
        data: bytes,
        mode: int | None,
        uid: int,
        *,
        in_place: bool = False,
        metadata: Mapping[str, str] | None = None,
        details: bool = False,
    ) -> FileInfo:
        if path.endswith("/"):
            raise IsDirectory(f"{path!r} is a directory's name")
        self.make_parents(path, uid)
        parent, name = self.parent(path, uid)
        old = parent.children.get(name)
        if not name or (old is not None and old.kind is FileKind.DIRECTORY):
            raise IsDirectory(f"{path!r} is a directory")
        if old is not None and old.kind is FileKind.SYMLINK:
            target = _link_target(path, old.target)
            return self.write(target, data, mode, uid, in_place=in_place, metadata=metadata, details=details)
        if not self._may_change(parent, uid):
            raise PermissionDenied(f"{path!r} is not yours to write")
        if self._mount_of(parent) is None:
            self._reserve(len(data) - (len(old.data) if old else 0))
        kept = mode if mode is not None else old.mode if old else 0o644
        node = FakeNode(FileKind.FILE, uid, kept, data)
        node.metadata = dict(metadata or (old.metadata if old and in_place and metadata is None else {}))
        parent.children[name] = node
        if in_place:
            self._notify_steps(path, old, node)
        else:
            self._notify(Change.MODIFIED if old else Change.CREATED, path, False)
        return self.stat(path, uid, details=details)

    def _notify_steps(self, path: str, old: FakeNode | None, new: FakeNode) -> None:
        """Reports the steps of writing in place: the file is created, or given to the user and emptied; then it is
        written; then its metadata is set."""
        steps = [Change.CREATED, Change.ATTRIBUTES] if old is None else [Change.ATTRIBUTES]
        if new.data or (old is not None and old.data):
            steps.append(Change.MODIFIED)
        if (old.metadata if old else {}) != new.metadata:
            steps.append(Change.ATTRIBUTES)
        for step in steps:
            self._notify(step, path, False)

    def make_parents(self, path: str, uid: int) -> None:
        parts = _parts(path)[:-1]
        for depth in range(1, len(parts) + 1):
            folder = "/" + "/".join(parts[:depth])
            try:
                self.find(folder, uid)
            except FileNotFound:
                self.mkdir(folder, 0o755, uid)

    def mkdir(self, path: str, mode: int, uid: int) -> None:
        self.make_parents(path, uid)
        self._add(path, _new_directory(uid, mode), uid)

    def link(self, path: str, target: str, uid: int) -> None:
        self._add(path, FakeNode(FileKind.SYMLINK, uid, 0o777, target=target), uid)

    def _add(self, path: str, node: FakeNode, uid: int) -> None:
        parent, name = self.parent(path, uid)
        if not name or name in parent.children:
            raise FileExists(f"{path!r} exists")
        if not self._may_change(parent, uid):
            raise PermissionDenied(f"{path!r} is not yours to write")
        parent.children[name] = node
        self._notify(Change.CREATED, path, node.kind is FileKind.DIRECTORY)

    def remove(self, path: str, recursive: bool, uid: int) -> None:
        parent, name = self.parent(path, uid)
        node = self.find(path, uid, follow=False)
        if not name or not self._may_change(parent, uid):
            raise PermissionDenied(f"{path!r} is not yours to remove")
        if node.kind is FileKind.DIRECTORY and not recursive:
            raise IsDirectory(f"{path!r} is a directory", remedy="remove it recursively")
        del parent.children[name]
        self.used -= sum(len(found.data) for _, found in _walk(path, node, 1 << 30)) + len(node.data)
        self._notify(Change.REMOVED, path, node.kind is FileKind.DIRECTORY)

    def rename(self, source: str, target: str, uid: int) -> None:
        node = self.find(source, uid, follow=False)
        parent, name = self.parent(source, uid)
        into, new = self.parent(target, uid)
        old = into.children.get(new)
        if not (self._may_change(parent, uid) and self._may_change(into, uid) and name and new):
            raise PermissionDenied(f"{source!r} is not yours to rename to {target!r}")
        if old is not None and old is not node and old.kind is FileKind.DIRECTORY:
            if node.kind is not FileKind.DIRECTORY:
                raise IsDirectory(f"{target!r} is a directory")
            if old.children:
                raise FileExists(f"{target!r} is a directory with something in it")
        if node.kind is FileKind.DIRECTORY:
            if old is not None and old.kind is not FileKind.DIRECTORY:
                raise NotADirectory(f"{target!r} is no directory")
            if f"{target}/".startswith(f"{source}/") and source != target:
                raise InvalidRequest(f"{source!r} cannot be moved into itself")
        del parent.children[name]
        into.children[new] = node
        self._notify(Change.MOVED_FROM, source, node.kind is FileKind.DIRECTORY)
        self._notify(Change.MOVED_TO, target, node.kind is FileKind.DIRECTORY)

    def walk(self, path: str, depth: int, uid: int, *, details: bool = False) -> list[tuple[FileInfo, FakeNode]]:
        node = self.find(path, uid)
        if node.kind is not FileKind.DIRECTORY:
            raise NotADirectory(f"{path!r} is not a directory")
        if not node.allows(uid, 4):
            raise PermissionDenied(f"{path!r} is not yours to read")
        return [
            (self._detailed(at, found, uid) if details else _file_info(at, found), found)
            for at, found in _walk(path.rstrip("/"), node, depth)
        ]

    def _reserve(self, size: int) -> None:
        if self.used + size > self._limit:
            raise NoSpace(f"the disk of {self._limit // MIB} MiB is full")
        self.used += size

    def _notify(self, change: Change, path: str, directory: bool) -> None:
        for tell in list(self.watchers):
            tell(FileEvent(change, "/" + "/".join(_parts(path)), directory))


def uid_of(user: str) -> int:
    if user not in UIDS:
        raise UnknownUser(f"there is no user {user!r} in this sandbox")
    return UIDS[user]


def normalize_path(path: str) -> str:
    """Returns the absolute path without `.` and `..`; keeps a slash at its end."""
    return "/" + "/".join(_parts(check_path(path))) + ("/" if path.endswith("/") and path.strip("/") else "")


def _holds(node: FakeNode, wanted: FakeNode) -> bool:
    return node is wanted or any(_holds(child, wanted) for child in node.children.values())


def _new_directory(uid: int, mode: int) -> FakeNode:
    return FakeNode(FileKind.DIRECTORY, uid, mode)


def _parts(path: str) -> list[str]:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return parts


def _link_target(path: str, target: str) -> str:
    return target if target.startswith("/") else f"{path.rsplit('/', 1)[0]}/{target}"


def _child(node: FakeNode, name: str, path: str, uid: int) -> FakeNode:
    if node.kind is not FileKind.DIRECTORY:
        raise NotADirectory(f"{path!r} goes through a file")
    if not node.allows(uid, 1):
        raise PermissionDenied(f"{path!r} is not yours to see")
    if name not in node.children:
        raise FileNotFound(f"{path!r} does not exist")
    return node.children[name]


def _walk(path: str, node: FakeNode, depth: int) -> Iterator[tuple[str, FakeNode]]:
    for name, child in sorted(node.children.items()):
        yield f"{path}/{name}", child
        if child.kind is FileKind.DIRECTORY and depth > 1:
            yield from _walk(f"{path}/{name}", child, depth - 1)


def _file_info(path: str, node: FakeNode) -> FileInfo:
    size = len(node.data) if node.kind is FileKind.FILE else len(node.target)
    return FileInfo(path.rstrip("/") or "/", node.kind, size, node.mode, node.uid, node.uid, node.modified, node.target)


def size_of(node: FakeNode) -> int:
    return len(node.data) + sum(map(size_of, node.children.values()))
