"""Names of images in registries: HOST[:PORT]/PATH[:TAG][@DIGEST]. Pure.

The first part of a name is a host if it contains a dot or a port or is `localhost`, as in other tools. A name without a
host refers to the registry that the operator has set, or else to Docker Hub: `ubuntu` is `docker.io/library/ubuntu`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from warren.model.errors import InvalidRequest
from warren.model.spec import is_image_name

_HOST: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?")
_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH: Final = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_MARKS: Final = re.compile(r"[:/@]")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
HUB: Final = "docker.io"
HUB_HOSTS: Final = (HUB, "index.docker.io", "registry-1.docker.io")  # the name, the key of passwords, what serves it
_HUB_SERVER: Final = "registry-1.docker.io"
_HUB_FOLDER: Final = "library"
_REMEDY: Final = "write it like registry.example.com/team/image:tag, or with @sha256:… instead of the tag"


@dataclass(frozen=True, slots=True)
class Reference:
    """`host` includes the port, if one was written. Without a tag and a digest the tag is `latest`."""

    host: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def wanted(self) -> str:
        """The tag or digest to request from the registry."""
        return self.digest or self.tag or "latest"

    def served_by(self, mirrors: Iterable[str]) -> "Reference":
        """Returns what to request, and from which host: the mirror's, if one of `mirrors` (`HOST=HOST[:PORT][/PATH]`)
        stands for this registry."""
        for mirror in mirrors:
            mirrored, _, place = mirror.partition("=")
            if mirrored == self.host:
                host, _, folder = place.partition("/")
                return replace(self, host=host, path=f"{folder}/{self.path}" if folder else self.path)
        return replace(self, host=_HUB_SERVER) if self.host == HUB else self

    def __str__(self) -> str:
        tag = f":{self.tag or 'latest'}" if self.tag or not self.digest else ""
        return f"{self.host}/{self.path}{tag}" + (f"@{self.digest}" if self.digest else "")


def read_reference(text: str, registry: str = "") -> Reference:
    """Reads a name. Raises InvalidRequest.

    `registry` is HOST[:PORT][/PATH], for names without a host; by default Docker Hub. Its path is put before names of
    one part only: a name such as `team/image` already says where it is.
    """
    name, _, digest = text.partition("@")
    name, tag = _without_tag(name)
    host, path = _without_host(name)
    if not host:
        host, _, folder = (registry or HUB).partition("/")
        path = f"{folder}/{path}" if folder and "/" not in path else path
    host = canonical_host(host)
    if host == HUB:
        path = path if "/" in path else f"{_HUB_FOLDER}/{path}"
    return _checked(Reference(host, path, tag, digest), text)


def canonical_host(host: str) -> str:
    """Returns the name by which references know the host of a registry: Docker Hub has several."""
    return HUB if host.lower() in HUB_HOSTS else host.lower()


def is_image_reference(text: str) -> bool:
    """Returns whether a text that may name an environment names an image instead: it has a tag, a digest or a path."""
    return bool(_MARKS.search(text)) and is_image_name(text)


def has_host(text: str) -> bool:
    """Returns whether a name says which registry it is in."""
    return bool(_without_host(text)[0])


def is_digest(text: object) -> bool:
    return isinstance(text, str) and bool(_DIGEST.fullmatch(text))


def _without_tag(name: str) -> tuple[str, str]:
    start, colon, last = name.rpartition(":")
    return (start, last) if colon and "/" not in last else (name, "")


def _without_host(name: str) -> tuple[str, str]:
    first, slash, rest = name.partition("/")
    is_host = bool(slash) and (first == "localhost" or any(mark in first for mark in ".:["))
    return (first, rest) if is_host else ("", name)


def _checked(reference: Reference, text: str) -> Reference:
    host = _HOST.fullmatch(reference.host)
    if host is None or ".." in reference.host or not 0 < int(host[1] or 1) < 65536:
        raise InvalidRequest(f"{reference.host!r} in {text[:300]!r} is not the host of a registry", remedy=_REMEDY)
    if not _PATH.fullmatch(reference.path) or len(reference.path) > 255:
        raise InvalidRequest(
            f"{text[:300]!r} is not the name of an image: its path is in small letters", remedy=_REMEDY
        )
    if reference.tag and not _TAG.fullmatch(reference.tag):
        raise InvalidRequest(f"{reference.tag[:200]!r} in {text[:300]!r} is not a tag", remedy=_REMEDY)
    if "@" in text and not is_digest(reference.digest):
        raise InvalidRequest(
            f"{text[:300]!r} has no digest of 64 small hexadecimal digits after sha256:", remedy=_REMEDY
        )
    return reference
