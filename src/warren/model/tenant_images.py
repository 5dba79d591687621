"""Images that belong to one tenant: those of the templates that it has built. The name of an image says whose it is."""

import hashlib
from typing import Final

TENANT_IMAGES: Final = "template/"


def tenant_image(tenant: str, template: str, build_id: str) -> str:
    return f"{_place_of(tenant)}{template}/{build_id}"


def template_in(image: str) -> str:
    """The name of the template that an image belongs to, or ""."""
    return image.split("/")[2] if image.startswith(TENANT_IMAGES) else ""


def may_use_image(tenant: str, image: str) -> bool:
    """Images that belong to nobody are for everybody."""
    return not image.startswith(TENANT_IMAGES) or is_image_of(tenant, image)


def is_image_of(tenant: str, image: str) -> bool:
    return image.startswith(_place_of(tenant))


def tenant_mark(tenant: str) -> str:
    """What stands for the tenant in names of images and directories."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:16]


def _place_of(tenant: str) -> str:
    return f"{TENANT_IMAGES}{tenant_mark(tenant)}/"
