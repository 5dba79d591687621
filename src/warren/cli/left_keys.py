"""The first key of a server, as it is left for the clients of its user, and how it is taken away again.

`leave_key` writes it to the credentials file and notes in the state directory which file that was, with the digest of
the key. `warren uninstall --purge` looks for the key there, in the file of the user who runs it, and in that of the
user who called sudo: quickstart.sh copies the key of root's server there, and writes it to a file for curl.
`replace_key` keeps these files up to date when their key is rotated.
"""

import contextlib
import hashlib
import json
import os
import pwd
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warren.config.settings import sudo_caller
from warren.sdk.discovery import credentials_path, read_keys, remove_keys, write_key

_NOTE: Final = "left-key.json"
_HEADER: Final = "X-API-Key: "


def leave_key(state: Path, path: Path | None, known: Mapping[str, str], key: str) -> None:
    """Writes the key for each server of `known` that has no other one in the file. Raises OSError."""
    if path is None:
        raise OSError("this user has no home directory")
    # Before the deed: a key that is left and not noted would stay for good.
    note = json.dumps({"sha256": _digest(key), "file": str(path.absolute())})
    with open(os.open(state / _NOTE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(note)
    others = [url for url, other in known.items() if other not in ("", key)]
    for url in known:
        if url not in others:
            write_key(path, url, key)
    if others:
        raise OSError(f"{path} has another key for {', '.join(others)}")


def replace_key(old: str, new: str) -> Path | None:
    """Puts the new secret of a key in the place of the old one in this user's files. Returns the credentials file if it
    had the old one, else None. Raises OSError."""
    path = credentials_path()
    urls = [url for url, key in read_keys(path).items() if key == old] if path else []
    if path is None or not urls:
        return None
    for url in urls:
        write_key(path, url, new)
    for header in path.parent.glob("header-*"):
        if _key_of_header(header) == old:
            header.write_text(f"{_HEADER}{new}\n")
    return path


@dataclass(frozen=True, slots=True)
class LeftKeys:
    """Keys of removed servers in a credentials file, and in files for curl beside it. `uid`: whose files these are."""

    path: Path
    keys: frozenset[str]
    headers: tuple[Path, ...]
    uid: int

    def remove(self) -> None:
        """Raises OSError."""
        with _rights_of(self.uid):
            for header in self.headers:
                header.unlink(missing_ok=True)
            if self.keys:
                remove_keys(self.path, self.keys)
            if self.path.parent.name == "warren":
                with contextlib.suppress(OSError):
                    self.path.parent.rmdir()  # only if nothing is left in it


def find_left_keys(states: Iterable[Path]) -> list[LeftKeys]:
    """Returns where the keys are that servers with these state directories have left."""
    notes = [note for state in states if (note := _read_note(state))]
    digests = {note["sha256"] for note in notes}
    files = dict.fromkeys((Path(note["file"]) for note in notes), os.geteuid())
    if own := credentials_path():
        files[own.absolute()] = os.geteuid()
    if (caller := sudo_caller()) is not None:
        with contextlib.suppress(KeyError):
            files.setdefault(Path(pwd.getpwuid(caller).pw_dir, ".config/warren/credentials.json"), caller)
    found = [_look(path, digests, uid) for path, uid in files.items()]
    return [left for left in found if left.keys or left.headers]


def _look(path: Path, digests: set[str], uid: int) -> LeftKeys:
    with _rights_of(uid):
        keys = {key for key in read_keys(path).values() if _digest(str(key)) in digests}
        headers = [file for file in path.parent.glob("header-*") if _digest(_key_of_header(file)) in digests]
    return LeftKeys(path, frozenset(keys), tuple(headers), uid)


def _key_of_header(file: Path) -> str:
    try:
        return file.read_text().strip().removeprefix(_HEADER)
    except (OSError, ValueError):
        return ""


def _read_note(state: Path) -> dict[str, str]:
    try:
        note = json.loads((state / _NOTE).read_text())
        return {"sha256": str(note["sha256"]), "file": str(note["file"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@contextlib.contextmanager
def _rights_of(uid: int) -> Iterator[None]:
    """Has the rights of a user for a while: root must not follow a link that a user has put into its own folder."""
    if uid == os.geteuid():
        yield
        return
    groups, gid = os.getgroups(), os.getegid()
    user = pwd.getpwuid(uid)
    os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid))
    os.setegid(user.pw_gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)
