"""Images that belong to one tenant, made by building its templates. The name of such an image contains its tenant."""

import hashlib
from typing import Final

TENANT_IMAGES: Final = "template/"


def tenant_image(tenant: str, template: str, build_id: str) -> str:
    return f"{_place_of(tenant)}{template}/{build_id}"


def template_in(image: str) -> str:
    """Returns the name of the template that an image belongs to, or ""."""
    return image.split("/")[2] if image.startswith(TENANT_IMAGES) else ""


def may_use_image(tenant: str, image: str) -> bool:
    """Returns whether the tenant may use the image: an image without an owner may be used by every tenant."""
    return not image.startswith(TENANT_IMAGES) or is_image_of(tenant, image)


def is_image_of(tenant: str, image: str) -> bool:
    return image.startswith(_place_of(tenant))


def tenant_mark(tenant: str) -> str:
    """Returns what stands for the tenant in names of images and directories."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:16]


def _place_of(tenant: str) -> str:
    return f"{TENANT_IMAGES}{tenant_mark(tenant)}/"
