"""Which images a server pulls by itself. Pure.

The operator decides with `image_pull`. What an environment names is the operator's own: it is pulled under its name
unless `image_pull` is off. What a tenant names is pulled for that tenant alone (model/tenant_images.py): anything with
`on`, and with `allow-list` what `image_pull_allowed` names.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import quote

from warren.model.errors import ImageNotFound, InvalidRequest
from warren.model.image_reference import Reference, read_reference
from warren.model.tenant_images import OWNED_IMAGES, pulled_image, reference_in

OFF: Final = "off"
ALLOW_LIST: Final = "allow-list"
ON: Final = "on"
MODES: Final = (OFF, ALLOW_LIST, ON)
RESERVED: Final = (*OWNED_IMAGES, "environment/")
"""How the names begin of images that no registry has: those of tenants, and those that environments describe."""
_LONGEST: Final = 255  # of a file's name, which is the image's name quoted
_STAR: Final = "warren-any"  # stands for `*` while a pattern is read as a name


@dataclass(frozen=True, slots=True)
class ImagePattern:
    """`ghcr.io/team/*`, `python:3.*` or `docker.io/library/*`. `*` stands for any characters of a path or of a tag.
    Without a tag every tag and digest fits; with one no digest does, which could name any image of that path."""

    host: str
    path: str
    tag: str

    def fits(self, reference: Reference) -> bool:
        if reference.host != self.host or not fnmatchcase(reference.path, self.path):
            return False
        return not self.tag or (not reference.digest and fnmatchcase(reference.tag or "latest", self.tag))


def read_pattern(text: str, registry: str = "") -> ImagePattern:
    """Raises InvalidRequest for a text that is no name of an image, with or without stars in its path and tag."""
    if re.search(r"[][?@]", text) or _STAR in text:
        raise InvalidRequest(
            f"{text[:300]!r} is no pattern of images", remedy="write it like ghcr.io/team/* or python:3.*"
        )
    name, colon, tag = text.rpartition(":")
    if not colon or "/" in tag:
        name, tag = text, ""
    # A star may stand for a whole component or for a part of one, so letters take its place while the name is checked.
    found = read_reference(name.replace("*", _STAR), registry)
    if _STAR in found.host:
        raise InvalidRequest(f"{text[:300]!r} has a star in its host", remedy="name the host of the registry")
    return ImagePattern(found.host, found.path.replace(_STAR, "*"), tag)


@dataclass(frozen=True, slots=True)
class PullRules:
    """The operator's decision. `registry` is the one of names without a host. `is_own`: whoever names an image is the
    operator, so there are no tenants to pull for."""

    mode: str = OFF
    allowed: tuple[ImagePattern, ...] = ()
    registry: str = ""
    is_own: bool = False

    @classmethod
    def read(cls, mode: str, allowed: Iterable[str], registry: str = "") -> "PullRules":
        return cls(mode, tuple(read_pattern(text, registry) for text in allowed), registry)

    def pulls_own(self, image: str) -> bool:
        """Returns whether an image that the operator has named is pulled when it is missing."""
        return self.mode != OFF and self._reference(image) is not None

    def pulls_for_tenant(self, image: str) -> bool:
        """Returns whether an image is pulled by the name that `image_for` has made, or that a tenant has made up."""
        if self.mode == OFF or not (named := reference_in(image)):
            return False
        reference = self._reference(named)
        return reference is not None and (self.mode == ON or self.is_named(reference))

    def is_named(self, reference: Reference) -> bool:
        """Returns whether `image_pull_allowed` names the image."""
        return any(pattern.fits(reference) for pattern in self.allowed)

    def image_for(self, tenant: str, image: str) -> str:
        """Returns the name under which an image that a tenant asks for is pulled; "" if the server pulls nothing for
        tenants, or if the text cannot be the name of an image in a registry. Raises ImageNotFound if the image is not
        allowed, and InvalidRequest if its name is too long."""
        image = reference_in(image) or image  # a tenant may also name an image as its machine does
        reference = self._reference(image)
        if self.mode == OFF or reference is None:
            return ""
        if self.mode == ALLOW_LIST and not self.is_named(reference):
            raise ImageNotFound(
                f"there is no image {image[:300]!r} on this server, and it is not one of those that it pulls",
                remedy="the operator pulls it with `warren image pull`, or adds it to image_pull_allowed",
            )
        if self.is_own:
            return ""
        name = pulled_image(tenant, image)
        if len(quote(name, safe="")) > _LONGEST:
            raise InvalidRequest(
                f"the name {image[:300]!r} is too long for an image that is pulled for you",
                remedy="the operator pulls it under a shorter one: `warren image pull --name`",
            )
        return name

    def _reference(self, image: str) -> Reference | None:
        if image.startswith(RESERVED):
            return None
        try:
            return read_reference(image, self.registry)
        except InvalidRequest:
            return None


NO_PULLS: Final = PullRules()
