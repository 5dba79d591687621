"""Prepares an image's tree for its own USER and WORKDIR; sandboxes/providers/image_defaults.py says what they mean."""

import stat
from typing import Final

from warren.images.trees.tree import Tree
from warren.model.errors import InvalidRequest
from warren.model.image import ImageConfig
from warren.model.numbers import read_digits
from warren.model.spec import USER_UID, WORKSPACE
from warren.sandboxes.providers.image_defaults import default_directory, default_user

_LAST_ID: Final = 65534  # the agent accepts uids and gids up to this one


def prepare_defaults(tree: Tree, config: ImageConfig) -> int:
    """Makes the working directory if it is missing, and adds or corrects the user's line in /etc/passwd. Returns the
    user's uid. Raises InvalidRequest if no sandbox can have that user."""
    uid = _prepare_user(tree, config)
    directory = default_directory(config)
    found = tree.stat(directory) if directory else None
    if directory and found is None:
        tree.make_directory(directory, 0o755)
        tree.set_owner(directory, uid, uid)
    elif found is not None and not stat.S_ISDIR(found.st_mode):
        raise InvalidRequest(f"the working directory {directory!r} of the image is no directory")
    return uid


def _prepare_user(tree: Tree, config: ImageConfig) -> int:
    name, group = default_user(config), config.user.partition(":")[2]
    if not name:
        return USER_UID
    lines = tree.read_text("etc/passwd").splitlines()
    number = next((number for number, line in enumerate(lines) if _is_of(line, name)), None)
    if number is None and not name.isdecimal():
        raise InvalidRequest(f"the image says USER {name[:100]}, whom its /etc/passwd does not have")
    parts = lines[number].split(":") if number is not None else [name, "x", name, name, "", WORKSPACE, "/bin/sh"]
    gid = _group_id(tree, group) if group else ""
    changed = [*parts[:3], gid if gid not in ("", "0") else parts[3], *parts[4:]]
    if not all(read_digits(part, _LAST_ID) for part in changed[2:4]):
        raise InvalidRequest(
            f"the image says USER {config.user[:100]}, of the ids {changed[2][:20]}:{changed[3][:20]}",
            remedy=f"the ids of users in sandboxes are 1 to {_LAST_ID}",
        )
    if number is None or changed != parts:
        place = len(lines) if number is None else number
        lines[place : place + 1] = [":".join(changed)]
        tree.put_file("etc/passwd", "".join(f"{line}\n" for line in lines))
    return int(changed[2])


def _is_of(line: str, name: str) -> bool:
    parts = line.split(":")
    return len(parts) >= 7 and (parts[2] if name.isdecimal() else parts[0]) == name


def _group_id(tree: Tree, group: str) -> str:
    if group.isdecimal():
        number = read_digits(group, _LAST_ID)
        return group if number is None else str(number)
    for line in tree.read_text("etc/group").splitlines():
        parts = line.split(":")
        if parts[0] == group and len(parts) > 2:
            return parts[2]
    raise InvalidRequest(f"the image says USER …:{group[:100]}, a group that its /etc/group does not have")
