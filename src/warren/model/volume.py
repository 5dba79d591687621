"""Volumes: named disks of a tenant that outlive sessions, and where sessions mount them.

An environment may name a volume by a template: `{tenant}`, `{user}` (the metadata `user` of the session) and `{thread}`
stand for values that callers choose. `render_name` writes them so that two values never become one name.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, Final

from warren.model.errors import InvalidRequest

MAX_MOUNTS: Final = 16
"""Of one session."""
MIN_MB, MAX_MB = 16, 1024 * 1024
_ID: Final = re.compile(r"vol_[0-9a-f]{32}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PLACEHOLDER: Final = re.compile(r"\{([a-z]*)\}")
_PLACEHOLDERS: Final = {
    "tenant": "",
    "user": "give the session the metadata `user`",
    "thread": "give the session a thread_id",
}
_MAX_VALUE: Final = 48
_OURS: Final = tuple(PurePosixPath(path) for path in ("/.warren", "/proc", "/sys", "/dev"))


class VolumeState(StrEnum):
    """MAKING and DELETING are hidden: a crash may have left them, and the next start removes what there is of them.
    What is MOVING to another worker cannot be used until it is there (sessions/volumes/moving.py)."""

    MAKING = "making"
    READY = "ready"
    DELETING = "deleting"
    MOVING = "moving"


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """Where a session has a volume. `volume` is its id."""

    volume: str
    name: str
    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class VolumeWish:
    """What a session or an environment asks for. A volume that is not there is made if `size_mb` says how large; 0
    leaves the size to the server, None wants one that is there."""

    name: str
    path: str
    read_only: bool = False
    size_mb: int | None = None

    def __post_init__(self) -> None:
        check_mount_path(self.path)
        if self.size_mb:
            check_size(self.size_mb)

    @classmethod
    def of_environment(cls, values: Mapping[str, Any]) -> "VolumeWish":
        """Reads an entry of an environment's file. Raises InvalidRequest."""
        known: dict[str, type | tuple[type, ...]] = {"name": str, "path": str, "read_only": bool, "size_mb": int}
        for name, value in values.items():
            if name not in known:
                raise InvalidRequest(f"a volume has no {name!r}", remedy=f"there are: {', '.join(known)}")
            if not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is int):
                raise InvalidRequest(f"the {name} of a volume is {value!r}")
        wish = cls(**{"name": "", "path": "", "size_mb": 0, **values})
        check_template(wish.name)
        return wish


@dataclass(frozen=True, slots=True)
class Volume:
    """`place` is the worker whose machine has it; empty where there is one machine only. `created_at` is a wall-clock
    time, and so is `moving_until`, after which a move has failed. `copies`: workers that may have an image left
    over."""

    id: str
    tenant: str
    name: str
    size_mb: int
    created_at: float
    place: str = ""
    state: VolumeState = VolumeState.MAKING
    metadata: dict[str, str] = field(default_factory=dict)
    moving_to: str = ""
    moving_until: float = 0.0
    copies: tuple[str, ...] = ()

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Volume":
        copies = tuple(values.get("copies", ()))
        return cls(**{**values, "state": VolumeState(values["state"]), "copies": copies})

    def settled(self) -> "Volume":
        """Returns the volume after a move that did not come to its end."""
        return replace(self, state=VolumeState.READY, moving_to="", moving_until=0.0)


def parse_mount(text: str) -> dict[str, Any]:
    """Reads NAME:PATH or NAME:PATH:ro. Raises InvalidRequest."""
    name, _, rest = text.partition(":")
    path, _, mode = rest.partition(":")
    if not name or not path or mode not in ("", "ro", "rw"):
        raise InvalidRequest(f"{text[:200]!r} is no volume", remedy="write NAME:PATH, or NAME:PATH:ro")
    return {"name": name, "path": path, "read_only": mode == "ro"}


def new_volume_id() -> str:
    return f"vol_{secrets.token_hex(16)}"


def is_volume_id(text: str) -> bool:
    return bool(_ID.fullmatch(text))


def check_volume_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name.startswith("vol_"):
        raise InvalidRequest(
            f"{name[:140]!r} cannot be a volume's name",
            remedy="1 to 128 letters, digits, dots, dashes or underscores; not one that begins with vol_, as ids do",
        )
    return name


def check_size(size_mb: int) -> int:
    if isinstance(size_mb, bool) or not isinstance(size_mb, int) or not MIN_MB <= size_mb <= MAX_MB:
        raise InvalidRequest(f"the size of a volume is {size_mb!r}, it must be between {MIN_MB} and {MAX_MB} MiB")
    return size_mb


def check_mount_path(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not path.startswith("/") or path.startswith("//") or "\0" in path or len(path) > 1024 or not path.isprintable():
        raise InvalidRequest(f"a volume cannot be at {path[:200]!r}", remedy="give an absolute path, such as /data")
    if ".." in parts or len(parts) < 2 or str(PurePosixPath(path)) != path:
        raise InvalidRequest(
            f"a volume cannot be at {path[:200]!r}", remedy="write the path without `.`, `..` and slashes at its end"
        )
    if any(PurePosixPath(path).is_relative_to(ours) for ours in _OURS):
        raise InvalidRequest(
            f"a volume cannot be at {path[:200]!r}, which is the sandbox's own", remedy="give another path"
        )
    return path


def check_mounts(mounts: Sequence[VolumeMount | VolumeWish]) -> None:
    """Raises InvalidRequest if one session cannot have all of them."""
    if len(mounts) > MAX_MOUNTS:
        raise InvalidRequest(f"a session has at most {MAX_MOUNTS} volumes")
    for texts, what in (([one.path for one in mounts], "at"), ([one.name for one in mounts], "named")):
        if twice := _first_twice(texts):
            raise InvalidRequest(f"there are two volumes {what} {twice!r}", remedy="leave one of them out")


def in_order(mounts: Iterable[VolumeMount]) -> list[VolumeMount]:
    """Those above others come first."""
    return sorted(mounts, key=lambda one: one.path)


def check_template(name: str) -> str:
    """Checks a name that may have placeholders. Raises InvalidRequest."""
    for unknown in set(_PLACEHOLDER.findall(name)) - set(_PLACEHOLDERS):
        raise InvalidRequest(
            f"the name {name!r} of a volume has {{{unknown}}}", remedy=f"there are: {', '.join(_PLACEHOLDERS)}"
        )
    check_volume_name(_PLACEHOLDER.sub("_", name))  # so it begins with a letter of its own
    for between in _PLACEHOLDER.split(name)[2:-1:2]:
        if "-" not in between and "." not in between:
            raise InvalidRequest(
                f"the name {name!r} of a volume has two values side by side",
                remedy="put a dash or a dot between them: other values could give the same name",
            )
    return name


def render_name(template: str, values: Mapping[str, str]) -> str:
    """Returns the name with each placeholder replaced. Raises InvalidRequest, which says how a value that is missing
    is given."""

    def value_of(match: re.Match[str]) -> str:
        value = values.get(match[1], "")
        if not value:
            raise InvalidRequest(
                f"the environment's volume {template!r} needs {match[0]}", remedy=_PLACEHOLDERS.get(match[1], "")
            )
        return _encoded(value)

    return check_volume_name(_PLACEHOLDER.sub(value_of, template))


def rendered(wish: VolumeWish, values: Mapping[str, str]) -> VolumeWish:
    return replace(wish, name=render_name(wish.name, values))


def _encoded(value: str) -> str:
    """Letters and digits stay; other bytes become `_` and two hexadecimal digits. A long value becomes `_h` and its
    hash, which no encoded value begins with."""
    data = value.encode(errors="surrogatepass")
    plain = "".join(chr(byte) if byte < 128 and chr(byte).isalnum() else f"_{byte:02X}" for byte in data)
    return plain if len(plain) <= _MAX_VALUE else f"_h{hashlib.sha256(data).hexdigest()[:40]}"


def _first_twice(texts: Sequence[str]) -> str:
    return next((text for at, text in enumerate(texts) if text in texts[:at]), "")
