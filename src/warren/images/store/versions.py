"""Versions of images, the names that point to them, and who uses them.

    images/base                    the name: a link to .versions/3f9a12cd88ab
    images/.versions/3f9a12cd88ab  a version: image.json, config.json, rootfs/ and uses/; it never changes
    images/.making-…               where a version is made or removed; its owner holds a lock on it
    images/.ways/5c0e…             a link from a version's `uses/` to a folder of sandboxes

A use is a link in `uses/`, named after a sandbox, to the folder that holds the sandbox's directory. It counts as long
as that directory exists. The directory is made before the use and removed after it, so a use also ends if its process
is killed. All uses from one folder are hard links to one symbolic link, its way: some file systems are slow to make
files where many were removed lately. Where a way cannot have more hard links, a use is a symbolic link of its own, to
the directory itself. To give up a version, a process first removes the directory `uses/`. The kernel refuses that while
there is a use, and without the directory no use can begin. So several processes can use, replace and remove images
without asking each other. A lock on the folder serializes changes of names.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from warren.images.store.abandoned_builds import STATE, clear_abandoned
from warren.interfaces.images import ImageMetadata, ImageVersion, RootFs
from warren.kernel.logs import get_log
from warren.kernel.syncing import sync_file_system
from warren.model.errors import Conflict, ImageNotFound, InvalidRequest, NoSpace, PermissionDenied, WarrenError
from warren.model.image import ImageConfig
from warren.model.spec import check_image_name

VERSIONS: Final = ".versions"
WAYS: Final = ".ways"
BUILT: Final = "build.json"
"""The file of a version that was built of steps: its key, its layers with their bytes, and the bytes beside them."""
USES: Final = "uses"
"""The directory of a version that holds a link for each sandbox using the version."""
_TEMPORARY: Final = ".making-"
_TRIES: Final = 10
_MAX_CACHED: Final = 100
_FIRST: Final = ("name", "source", "created", "files", "size_bytes", "host_usr", "format")
_LATER: Final = tuple(each.name for each in fields(ImageMetadata) if each.name not in _FIRST)

_log = get_log(__name__)


class Versions:
    """The images of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._versions = folder / VERSIONS
        self._places: dict[str, str] = {}  # name -> path of its link
        # folder of sandboxes -> the relative path to it, and the way that holds this path
        self._ways: dict[Path, tuple[str, str]] = {}
        self._found: dict[str, RootFs] = {}  # by version; a version never changes

    # -- names

    def current(self, name: str) -> str:
        """Returns the version that the name points to, or "". Costs one readlink."""
        place = self._places.get(name)
        if place is None:
            if len(self._places) >= _MAX_CACHED:
                self._places.clear()
            place = self._places[name] = str(self.place(name))
        try:
            return os.readlink(place).rpartition("/")[2]
        except OSError as exc:
            if exc.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL):  # EINVAL: it is no link
                return ""
            raise PermissionDenied(f"the image {name} cannot be read: {exc.strerror}") from exc

    def place(self, name: str) -> Path:
        check_image_name(name)
        return self._folder / quote(name, safe="")

    def rootfs(self, version: str) -> RootFs | None:
        if version in self._found:
            return self._found[version]
        info = self._read(version)
        if info is None:
            return None
        if len(self._found) >= _MAX_CACHED:
            self._found.clear()
        self._found[version] = found = RootFs(
            *(self._versions / version / "rootfs", info.host_usr, version, info.config),
            uid=info.uid,
            seeded=info.seeded,
            size_bytes=info.size_bytes,
        )
        return found

    def info(self, version: str) -> ImageMetadata | None:
        return self._read(version)

    def path(self, version: str) -> Path:
        return self._versions / version

    def built(self, version: str) -> Mapping[str, Any]:
        """Returns what its builder has noted about a version; nothing if it was not built of steps."""
        try:
            noted = json.loads((self._versions / version / BUILT).read_text())
        except (OSError, ValueError):
            return {}
        return noted if isinstance(noted, dict) else {}

    def show_all(self) -> list[ImageVersion]:
        """Returns all versions by name, the newest first."""
        names = self._names()
        found = [self._show(version, names) for version in self._all()]
        return sorted(found, key=lambda one: (one.name, -one.created))

    def add(self, name: str, made: Path) -> str:
        """Makes a version of the directory `made`, which holds image.json and rootfs/, and points the name to it.
        Returns the version's id."""
        before = self.current(name)
        version = secrets.token_hex(6)
        (made / USES).mkdir(mode=0o755)
        sync_file_system(made)  # else a loss of power may leave an image whose files are empty
        with self.locked():
            self._versions.mkdir(mode=0o755, exist_ok=True)
            os.rename(made, self._versions / version)
            link = made.parent / version
            os.symlink(f"{VERSIONS}/{version}", link)
            # The rename replaces the old link atomically: at every moment the name points to a complete version.
            os.rename(link, self.place(name))
        if before:
            self._give_up([before])
        return version

    def remove(self, which: str, *, when_unused: bool) -> ImageVersion:
        """Removes the current version of a name, or a version by its id, and returns what it was. With `when_unused`,
        the name goes at once, and a version in use when its last sandbox ends. Raises ImageNotFound, Conflict."""
        version = self.current(which) or (which if which in self._all() else "")
        if not version:
            raise ImageNotFound(
                f"there is no image {which!r} on this machine", remedy="`warren image list` shows those there are"
            )
        with self.temporary() as temporary, self.locked():
            names = self._names()
            found = self._show(version, names)
            unused = self._retire(version)
            if not unused and not when_unused:
                raise Conflict(
                    f"{found.sandboxes} sandboxes use the image {found.name}, version {version}",
                    remedy="end their sessions, or give --when-unused to have it removed when the last one ends",
                )
            for name in names.get(version, ()):
                (self._folder / name).unlink(missing_ok=True)
            if unused:
                os.rename(self._versions / version, temporary / version)
        return found

    def prune(self) -> list[ImageVersion]:
        """Removes the versions that no name points to and nobody uses, and returns them."""
        names, versions = self._names(), self._all()
        unused = [version for version in versions if version not in names and not self._users(version)]
        return self._give_up(unused) if unused or any(self._folder.glob(f"{_TEMPORARY}*")) else []

    # -- uses

    def hold(self, name: str, user: Path) -> RootFs | None:
        """Returns the current version of a name, and keeps it as long as the directory `user` exists. Returns None if
        there is no such image."""
        for _ in range(_TRIES):
            version = self.current(name)
            rootfs = self.rootfs(version) if version else None
            if rootfs is None:
                return None
            try:
                self._begin_use(user, self._use(version, user))
            except FileNotFoundError:
                continue  # the version was given up after the name was read; the name points to another one now
            return rootfs
        return None

    def release(self, user: Path) -> None:
        """Ends the use of a version. Removes the version if nobody else uses it and no name points to it."""
        for version in self._all():
            try:
                os.unlink(self._use(version, user))
            except (FileNotFoundError, NotADirectoryError):
                continue
            if version not in self._names() and not self._users(version):
                self._give_up([version])

    def _begin_use(self, user: Path, link: str) -> None:
        """Makes the link of a use. Raises FileNotFoundError if the version is being given up."""
        with contextlib.suppress(FileExistsError):
            way, way_link = self._ways.get(user.parent) or self._make_way(user.parent)
            try:
                os.link(way_link, link, follow_symlinks=False)
            except FileExistsError:
                raise
            except OSError:  # the way is gone or has its maximum of hard links, or the file system has none
                self._ways.pop(user.parent, None)
                os.symlink(f"{way}/{user.name}", link)

    def _make_way(self, sandboxes: Path) -> tuple[str, str]:
        """Makes the way of a folder of sandboxes. Returns the relative path to the folder, which is right wherever the
        state directory is mounted, and the path of the way."""
        uses = self._versions.resolve() / "version" / USES
        folder = sandboxes.parent.resolve() / sandboxes.name  # the last component may itself be a link
        way = os.path.relpath(folder, uses)
        link = f"{self._folder}/{WAYS}/{hashlib.sha256(os.fsencode(way)).hexdigest()[:16]}"
        with contextlib.suppress(OSError):  # without a way each use becomes a symbolic link of its own
            os.makedirs(os.path.dirname(link), mode=0o755, exist_ok=True)
            os.symlink(way, link)
        if len(self._ways) >= _MAX_CACHED:
            self._ways.clear()
        self._ways[sandboxes] = way, link
        return way, link

    def _use(self, version: str, user: Path) -> str:
        return f"{self._versions}/{version}/{USES}/{user.name}"

    def _users(self, version: str) -> list[str]:
        """Returns the names of the uses whose sandboxes exist."""
        try:
            names = os.listdir(self._versions / version / USES)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [name for name in names if _may_exist(self._versions / version / USES / name)]

    # -- giving up

    def _give_up(self, versions: list[str]) -> list[ImageVersion]:
        """Removes the given versions, except those that a name points to or somebody uses. Returns the removed ones."""
        gone = []
        with self.temporary() as temporary, self.locked():
            names = self._names()
            for version in versions:
                if version in names:
                    continue
                found = self._show(version, names)
                if self._retire(version):
                    with contextlib.suppress(FileNotFoundError):  # another process was first
                        os.rename(self._versions / version, temporary / version)
                        gone.append(found)
        return gone

    def _retire(self, version: str) -> bool:
        """Removes `uses/`, so that no use can begin. Returns False if somebody uses the version."""
        uses = self._versions / version / USES
        living = self._users(version)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in set(os.listdir(uses)) - set(living):
                (uses / name).unlink(missing_ok=True)
            try:
                # The kernel decides: rmdir fails if a use began since the list was read.
                os.rmdir(uses)
            except OSError as exc:
                if exc.errno != errno.ENOTEMPTY:
                    raise
                return False
        return True

    # -- the folder

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Path]:
        """Yields a new directory beside the images and removes it afterwards. Also removes those of dead makers."""
        with contextlib.ExitStack() as held:
            with explain_errors("making the directory of the images", self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
                with self.locked():
                    self._sweep()
                    path = self._folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
                    path.mkdir(mode=0o700)
                    # Locked before the folder's lock is released: otherwise another process would take its maker for
                    # dead.
                    held.enter_context(_locked(path, fcntl.LOCK_EX))
            try:
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)

    def locked(self) -> contextlib.AbstractContextManager[None]:
        return _locked(self._folder, fcntl.LOCK_EX)

    def _sweep(self) -> None:
        for left in self._folder.glob(f"{_TEMPORARY}*"):
            # Its maker may be at work in it, or remove it at this moment.
            with contextlib.suppress(BlockingIOError, FileNotFoundError), _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB):
                if self._clear(left):
                    shutil.rmtree(left, ignore_errors=True)
        for way in self._folder.glob(f"{WAYS}/*"):
            with contextlib.suppress(FileNotFoundError):
                if way.lstat().st_nlink == 1:
                    way.unlink()

    def _clear(self, left: Path) -> bool:
        """Destroys the sandboxes of a build that died in this directory. Returns False if that is not possible now."""
        if (left / STATE).is_dir():
            try:
                clear_abandoned(left)
            except WarrenError as exc:
                _log.warning("build_not_cleared", path=left, error=exc)
                return False
        return True

    def _all(self) -> list[str]:
        try:
            return sorted(os.listdir(self._versions))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _names(self) -> dict[str, list[str]]:
        """Returns, by version, the quoted names that point to it."""
        names: dict[str, list[str]] = {}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.is_symlink():
                    names.setdefault(os.path.basename(os.readlink(entry.path)), []).append(entry.name)
        return names

    def _show(self, version: str, names: dict[str, list[str]]) -> ImageVersion:
        try:
            info = self._read(version)
        except WarrenError:
            info = None
        if info is None:
            name = unquote(names.get(version, [version])[0])
            info = ImageMetadata(name, "damaged: its image.json cannot be read", 0.0, 0, 0)
        return version_of(info, version, current=version in names, sandboxes=len(self._users(version)))

    def _read(self, version: str) -> ImageMetadata | None:
        return _read_info(self._versions / version, f"version {version}")


def _read_info(directory: Path, what: str) -> ImageMetadata | None:
    """Reads the description of an image. Returns None if the directory holds no image."""
    try:
        values: dict[str, Any] = json.loads((directory / "image.json").read_text())
        return ImageMetadata(**values, **_read_later_fields(directory))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise PermissionDenied(f"the image {what} cannot be read: {exc.strerror}") from exc
    except (ValueError, TypeError) as exc:
        raise WarrenError(
            f"the image {what} is damaged: its image.json cannot be read",
            remedy="make the image again, or `warren image remove` it",
        ) from exc


def _read_later_fields(directory: Path) -> dict[str, Any]:
    """Returns the fields of config.json, none if it is missing. Drops fields that only a later Warren knows."""
    try:
        values: dict[str, Any] = json.loads((directory / "config.json").read_text())
    except FileNotFoundError:
        return {}
    config, seeded = values.get("config", {}), tuple(values.get("seeded", ()))
    return {name: values[name] for name in _LATER if name in values} | {"config": config_of(config), "seeded": seeded}


def config_of(values: Mapping[str, Any]) -> ImageConfig:
    """Returns the config that was turned into these values by `asdict` and JSON."""
    known: dict[str, Any] = {each.name: values[each.name] for each in fields(ImageConfig) if each.name in values}
    for name, value in known.items():
        known[name] = tuple(value) if isinstance(value, list) else value
    return ImageConfig(**known)


def write_info(directory: Path, info: ImageMetadata) -> None:
    values = asdict(info)
    later = {name: values.pop(name) for name in _LATER}
    # image.json comes last: a directory that has it counts as an image.
    for name, content in (("config.json", later), ("image.json", values)):
        with open(directory / name, "w") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())


def version_of(info: ImageMetadata, version: str = "", *, current: bool = True, sandboxes: int = 0) -> ImageVersion:
    values = {each.name: getattr(info, each.name) for each in fields(info)}
    return ImageVersion(**values, version=version, current=current, sandboxes=sandboxes)


def _may_exist(link: Path) -> bool:
    """Returns whether the sandbox of a use exists. Returns True when that cannot be found out."""
    user = ""
    try:
        user = os.path.join(link.parent, os.readlink(link))
        if os.path.basename(user) != link.name:
            user = os.path.join(user, link.name)
        os.stat(user)
    except (FileNotFoundError, NotADirectoryError):
        return _is_elsewhere(os.path.dirname(user))
    except OSError:
        return True
    return True


def _is_elsewhere(folder: str) -> bool:
    """Returns whether a folder of sandboxes is out of sight: in the memory of another machine or container, or of an
    earlier boot, until Warren runs there again."""
    return os.path.islink(folder) and not os.path.exists(folder)


@contextlib.contextmanager
def _locked(directory: Path, operation: int) -> Iterator[None]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, operation)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def explain_errors(doing: str, where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(f"{doing}: the disk of {where.parent} is full", remedy="free some space first") from exc
        if exc.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise PermissionDenied(
                f"{doing}: no permission to write {exc.filename or where}",
                remedy="run it as root, or set WARREN_STATE_DIR to a directory of yours",
            ) from exc
        raise InvalidRequest(f"{doing}: {exc.strerror or exc} ({exc.filename or where})") from exc
