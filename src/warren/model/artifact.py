"""Artifacts, files that outlive the sandbox they were made in: what is known of one, and the rules for names.

Ids begin with a time that counts backwards, so sorted ids list the newest artifacts first.
"""

import mimetypes
import posixpath
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fnmatch import translate
from typing import Any, Final, NamedTuple

from warren.model.errors import InvalidRequest
from warren.model.spec import MIB, WORKSPACE

ARTIFACTS_DIR: Final = f"{WORKSPACE}/artifacts"
"""What lies below it is saved when the session ends."""
MAX_NAME_BYTES: Final = 1024
MAX_PATTERNS: Final = 64
MAX_TOLD: Final = 20
"""Of the files that were left out so many are named."""
_MAX_SHOWN: Final = 200
_LAST_MS: Final = (1 << 44) - 1
_ID: Final = re.compile(r"art_[0-9a-f]{27}")
_MIME: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}")
_TYPES: Final = mimetypes.MimeTypes(filenames=())  # without this machine's own table: all servers agree
BINARY: Final = "application/octet-stream"

# A browser might run anything else as a page of this server, so other types are sent as plain bytes.
_HARMLESS: Final = frozenset(
    {"image/png", "image/jpeg", "image/gif", "image/webp", "text/plain", "text/csv", "application/json"}
    | {"application/pdf", "application/zip", "application/gzip", "application/x-tar", "audio/mpeg", "video/mp4"}
)


@dataclass(frozen=True, slots=True)
class Artifact:
    """`path`: where it was in the sandbox; empty if it was not a file there. `place`: the worker that keeps its
    content; empty if every process can read it. Times are wall-clock times."""

    id: str
    tenant: str
    session_id: str
    thread_id: str
    name: str
    path: str
    size: int
    sha256: str
    mime: str
    created_at: float
    expires_at: float
    place: str = ""

    def as_mapping(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Artifact":
        """Reads an artifact. Fields that this version does not know are ignored: another version may have written
        them."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})

    @property
    def sent_as(self) -> str:
        """Returns a content type that makes a browser only save or show the artifact, never run it."""
        return self.mime if self.mime in _HARMLESS else BINARY


@dataclass(frozen=True, slots=True)
class ArtifactRules:
    """How much one session may save during its whole life, and how long artifacts are kept."""

    max_bytes: int = 1024 * MIB
    max_count: int = 1000
    ttl_s: float = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class LeftOut:
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class SaveResult:
    """The result of saving: the artifacts, and the first of the `left_out_count` files that were not saved."""

    artifacts: Sequence[Artifact] = ()
    left_out: Sequence[LeftOut] = ()
    left_out_count: int = 0


@dataclass(frozen=True, slots=True)
class SavedAtEnd:
    """What was saved of /workspace/artifacts when the session ended, as the session's row keeps it."""

    saved: int = 0
    bytes: int = 0
    left_out_count: int = 0
    left_out: tuple[LeftOut, ...] = ()


def new_artifact_id(now: float) -> str:
    return f"art_{_LAST_MS - int(now * 1000):011x}{secrets.token_hex(8)}"


def is_artifact_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def name_of(path: str) -> str:
    """Returns the artifact's name for a file: its path below the directory of artifacts, the workspace, or the root."""
    path = posixpath.normpath(path)
    for base in (ARTIFACTS_DIR, WORKSPACE):
        if path.startswith(f"{base}/"):
            return path[len(base) + 1 :]
    return path.lstrip("/")


def check_name(name: str) -> str:
    """Returns the name, a relative path of at most 1024 bytes, or raises InvalidRequest. Any byte but NUL is allowed,
    because the name never becomes a path on the server."""
    size = len(name.encode(errors="surrogateescape"))
    if not name or size > MAX_NAME_BYTES or "\0" in name or posixpath.normpath(name) != name or name[0] in "/":
        raise InvalidRequest(
            f"{name[:80]!r} cannot be the name of an artifact",
            remedy=f"a relative path of at most {MAX_NAME_BYTES} bytes, without `..` and doubled slashes",
        )
    if name == "." or name.split("/")[0] == "..":
        raise InvalidRequest(f"{name[:80]!r} cannot be the name of an artifact", remedy="give it a name of a file")
    return name


def check_mime(mime: str) -> str:
    if not _MIME.fullmatch(mime):
        raise InvalidRequest(f"{mime[:80]!r} is no mime type", remedy="such as image/png")
    return mime.lower()


def mime_of(name: str) -> str:
    found, encoding = _TYPES.guess_type(name.rsplit("/", 1)[-1])
    if encoding == "gzip":
        return "application/gzip"
    return found if found and not encoding else BINARY


def check_patterns(patterns: Sequence[str]) -> Sequence[str]:
    if len(patterns) > MAX_PATTERNS:
        raise InvalidRequest(f"{len(patterns)} paths are too many at once: at most {MAX_PATTERNS}")
    return patterns


class Filter(NamedTuple):
    """Selects artifacts. `name` is compiled from a glob in which * also matches slashes."""

    session_id: str = ""
    thread_id: str = ""
    name: re.Pattern[str] | None = None

    @classmethod
    def of(cls, *, session_id: str = "", thread_id: str = "", name: str = "") -> "Filter":
        # `fnmatch.fnmatch` would cache tens of thousands of globs that callers sent.
        return cls(session_id, thread_id, re.compile(translate(name)) if name else None)

    def fits(self, artifact: Artifact) -> bool:
        return (
            (not self.session_id or artifact.session_id == self.session_id)
            and (not self.thread_id or artifact.thread_id == self.thread_id)
            and (self.name is None or self.name.match(artifact.name) is not None)
        )


def short_path(path: str) -> str:
    return path if len(path) <= _MAX_SHOWN else f"{path[:_MAX_SHOWN]}…"
