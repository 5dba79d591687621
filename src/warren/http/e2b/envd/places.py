"""Where a client's path leads, and with whose rights. Used by all file services.

E2B handles files as root, and gives what it creates to the user. This server does the same where a sandbox allows root;
elsewhere the user's own rights hold.
"""

import base64
import binascii
import posixpath
from dataclasses import dataclass
from typing import Any

from warren.http.e2b import users
from warren.http.e2b.call import E2bCall
from warren.http.e2b.template_defaults import usual_user
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import InvalidPath, Unauthorized
from warren.model.operations import check_path
from warren.model.session import Session
from warren.sessions.request_context import note


@dataclass(frozen=True, slots=True)
class Rights:
    """`user` is who acts, `owner` who gets what is created ("": the same). Relative paths start in `home`."""

    user: str
    owner: str
    home: str

    def path(self, path: str, noted_as: str = "path") -> str:
        """Returns the path as it is in the sandbox: absolute, or from the home on. Notes it for the audit record."""
        try:
            path.encode(errors="surrogateescape")
        except UnicodeEncodeError:
            raise InvalidPath("the path is not valid text") from None
        if path.startswith("~"):
            if path[1:2] not in ("", "/"):
                raise InvalidPath(f"{path[:80]!r}: only the user's own home can be written as ~")
            path = posixpath.normpath(f"{self.home}/{path[1:]}")
        elif not path.startswith("/"):
            path = posixpath.normpath(f"{self.home}/{path}")
        note(**{noted_as: check_path(path)})
        return path


async def rights_of(call: E2bCall, session: Session, sandbox: Sandbox, name: str) -> Rights:
    """`name` is the user that the client names, "" if it names none. Raises UnknownUser."""
    user = await users.resolve(sandbox, name or await usual_user(call, session))
    if user.name != "root" and await call.envd.allows_root(sandbox):
        return Rights("root", user.name, user.home)
    return Rights(user.name, "", user.home)


def called_user(call: E2bCall) -> str:
    """The user that a remote procedure call names, as `Basic name:`; "" if it names none."""
    kind, _, value = call.header("authorization").partition(" ")
    if kind.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[0]
    except (binascii.Error, UnicodeDecodeError):
        raise Unauthorized("the Authorization header has no user") from None


def text_field(message: dict[str, Any], *names: str) -> str:
    """Returns a text of a message, by any of its names."""
    for name in names:
        if (value := message.get(name)) is not None:
            if not isinstance(value, str):
                raise InvalidPath(f"{names[0]} must be a text")
            return value
    return ""
