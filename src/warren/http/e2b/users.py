"""The users of a sandbox under the names that E2B's clients give them.

At E2B the usual user is `user` with the home `/home/user`. Here that is the sandbox user, who has the same number
(1000). Others are those of the sandbox's image, with their homes.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from warren.interfaces.sandbox import Sandbox
from warren.model.errors import FileNotFound, PermissionDenied, UnknownUser
from warren.model.operations import check_user
from warren.model.spec import USER

DEFAULT_USER: Final = "user"
DEFAULT_HOME: Final = "/home/user"
_MAX_PASSWD: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class SandboxUser:
    """`name` is the user's name in the sandbox, for commands and files. `env` has the variables that tell a command
    who it is, and relative paths and `~` start in `home`."""

    name: str
    home: str
    env: dict[str, str] = field(default_factory=dict)


def _user(name: str, home: str, called: str) -> SandboxUser:
    return SandboxUser(name, home, {"HOME": home, "USER": called, "LOGNAME": called})


USUAL: Final = _user(USER, DEFAULT_HOME, DEFAULT_USER)
ROOT: Final = _user("root", "/root", "root")


async def resolve(sandbox: Sandbox, name: str = "") -> SandboxUser:
    """Returns the user that a client names; "" is the usual one. Raises UnknownUser. Whether root is allowed is decided
    by the sandbox when something is done as root."""
    if name in ("", DEFAULT_USER):
        return USUAL
    if name == ROOT.name:
        return ROOT
    check_user(name)
    if home := await _home_in_passwd(sandbox, name):
        return _user(name, home, name)
    raise UnknownUser(f"invalid username: {name[:80]!r}")  # in E2B's words: clients look for them


async def _home_in_passwd(sandbox: Sandbox, name: str) -> str:
    try:
        data = b"".join([piece async for piece in sandbox.read("/etc/passwd", length=_MAX_PASSWD)])
    except (FileNotFound, PermissionDenied):
        return ""
    # Not line by line: the file is the sandbox's, and may have very many.
    called = re.escape(name.encode(errors="surrogateescape"))
    line = re.search(rb"^%s:(?:[^:\n]*:){4}([^:\n]*):" % called, data, re.MULTILINE)
    if line is None or ":" in name:
        return ""
    home = line[1].decode(errors="surrogateescape")
    return home if home.startswith("/") else "/"
