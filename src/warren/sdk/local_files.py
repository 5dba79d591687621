"""Files and archives on the machine of a client, for both clients.

Everything here blocks. Few programs need `tarfile` and `tempfile`, so they are imported when they are used: the client
loads quickly.
"""

from pathlib import Path
from typing import IO, TYPE_CHECKING

from warren.model.errors import FileNotFound, FileProblem, InvalidRequest, IsDirectory

if TYPE_CHECKING:
    import tarfile


def open_local(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise FileNotFound(f"there is no file {path} on this machine") from None
    except IsADirectoryError:
        raise IsDirectory(f"{path} is a directory", remedy="use upload_dir") from None
    except OSError as exc:
        raise FileProblem(f"{path} cannot be read: {exc.strerror}") from exc


def create_local(path: Path) -> IO[bytes]:
    try:
        return path.open("wb")
    except OSError as exc:
        raise FileProblem(f"{path.parent} cannot be written to: {exc.strerror}") from exc


def temporary_file() -> IO[bytes]:
    import tempfile

    return tempfile.TemporaryFile()


def pack(path: Path, file: IO[bytes]) -> int:
    import tarfile

    def clean(member: "tarfile.TarInfo") -> "tarfile.TarInfo | None":
        if not (member.isfile() or member.isdir() or member.issym()):
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        # A file with two names is sent twice: sandboxes accept no hard links from outside.
        tar.inodes = _NoLinks()  # type: ignore[attr-defined]
        for entry in sorted(path.iterdir()):
            tar.add(entry, entry.name, filter=clean)
    return file.tell()


class _NoLinks(dict[tuple[int, int], str]):
    def __contains__(self, _: object) -> bool:
        return False


def unpack(file: IO[bytes], target: Path) -> None:
    import tarfile

    file.seek(0)
    target.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            tar.extractall(target, filter=_LinkCheck())
    except (tarfile.TarError, OSError) as exc:
        raise InvalidRequest(f"the archive of the sandbox cannot be unpacked into {target}: {exc}") from exc


class _LinkCheck:
    """tarfile's own filter, after a look at the names alone.

    That filter asks the file system where a name leads, and up to Python 3.11.12, 3.12.10 and 3.13.3 believes it for
    paths too long to follow, so that an archive could write anywhere. With `..` only at the beginning of a link, and
    nothing beneath one, a name leads where it says.
    """

    def __init__(self) -> None:
        self._links: set[str] = set()

    def __call__(self, member: "tarfile.TarInfo", path: str) -> "tarfile.TarInfo | None":
        import tarfile

        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if any("/".join(parts[:depth]) in self._links for depth in range(1, len(parts))):
            raise tarfile.FilterError(f"{member.name!r} lies beneath a link of the same archive")
        if member.issym():
            names = [part for part in member.linkname.split("/") if part not in ("", ".")]
            ups = next((at for at, part in enumerate(names) if part != ".."), len(names))
            if member.linkname.startswith("/") or ups >= max(1, len(parts)) or ".." in names[ups:]:
                raise tarfile.FilterError(f"{member.name!r} is a link that may lead out of it, to {member.linkname!r}")
            self._links.add("/".join(parts))
        return tarfile.data_filter(member, path)
