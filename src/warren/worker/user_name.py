"""Gives the sandbox user another name, under which programs in the sandbox see it.

A program that looks up the number of a user takes the first line that has it. So a line before the usual one renames
the user for `whoami` and `ls -l`, and both names go on to mean the same user. Login shells of the user find the
programs that `pip` installs for it. `making.py` does this in sandboxes of environments with the key `user`, before
anybody gets them.
"""

import asyncio
from typing import Final

from warren.interfaces.sandbox import Sandbox
from warren.kernel.bounded_dict import BoundedDict
from warren.model.spec import USER_UID

_PASSWD: Final = "/etc/passwd"
_GROUP: Final = "/etc/group"
_PROFILE: Final = "/etc/profile.d/own-programs.sh"
_OWN_PROGRAMS: Final = b'if [ -d "$HOME/.local/bin" ]; then PATH="$HOME/.local/bin:$PATH"; fi\n'
_MAX_NAMES: Final = 1024 * 1024
_MAX_KEPT: Final = 64


class UserNames:
    """Remembers for each version of an image what to write: most sandboxes are of an image that was seen before."""

    def __init__(self) -> None:
        self._kept = BoundedDict[tuple[str, ...], dict[str, bytes]](_MAX_KEPT)

    async def add(self, sandbox: Sandbox, name: str, home: str, image: tuple[str, ...] = ()) -> None:
        """Gives the user of a sandbox another name. The sandbox must have a writable root and allow root. `image`
        identifies the contents of its image, and is empty if they are not known."""
        files = self._kept.get((*image, name)) if image else None
        if files is None:
            files = await _changed_files(sandbox, name, home)
            if image:
                self._kept[(*image, name)] = files
        await asyncio.gather(*(sandbox.write(path, data, mode=0o644, user="root") for path, data in files.items()))


async def _changed_files(sandbox: Sandbox, name: str, home: str) -> dict[str, bytes]:
    passwd, group = await asyncio.gather(_read(sandbox, _PASSWD), _read(sandbox, _GROUP))
    if max(len(passwd), len(group)) >= _MAX_NAMES:  # more than the agent reads
        return {}
    changed = (
        (_PASSWD, passwd, add_line(passwd, f"{name}:x:{USER_UID}:{USER_UID}::{home}:/bin/bash")),
        (_GROUP, group, add_line(group, f"{name}:x:{USER_UID}:")),
    )
    names = {path: after.encode(errors="surrogateescape") for path, before, after in changed if after != before}
    return {**names, _PROFILE: _OWN_PROGRAMS}


def add_line(text: str, line: str) -> str:
    """Returns the file with the line before all others that have its number. If the file has a line for that name
    already, that line is not changed: it is moved to that place if it has the number, and else stays where it is."""
    name, number = line.split(":")[0], line.split(":")[2]
    lines = text.splitlines(keepends=True)
    own = [each for each in lines if each.split(":")[0] == name]
    if own and _number(own[0]) != number:
        return text
    kept = [each for each in lines if each not in own]
    place = next((place for place, each in enumerate(kept) if _number(each) == number), len(kept))
    before = "".join(kept[:place])
    newline = "" if not before or before.endswith("\n") else "\n"
    return f"{before}{newline}{own[0].rstrip() if own else line}\n{''.join(kept[place:])}"


def _number(line: str) -> str:
    fields = line.rstrip("\n").split(":")
    return fields[2] if len(fields) > 2 else ""


async def _read(sandbox: Sandbox, path: str) -> str:
    pieces = [piece async for piece in sandbox.read(path, length=_MAX_NAMES)]
    return b"".join(pieces).decode(errors="surrogateescape")
