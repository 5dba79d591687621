"""Images that belong to one tenant: those of its templates, and those pulled for it. The name of such an image contains
its tenant."""

import hashlib
from typing import Final

TENANT_IMAGES: Final = "template/"
PULLED_IMAGES: Final = "pulled/"
OWNED_IMAGES: Final = (TENANT_IMAGES, PULLED_IMAGES)


def tenant_image(tenant: str, template: str, build_id: str) -> str:
    return f"{_place_of(tenant)}{template}/{build_id}"


def template_in(image: str) -> str:
    """Returns the name of the template that an image belongs to, or ""."""
    return image.split("/")[2] if image.startswith(TENANT_IMAGES) else ""


def pulled_image(tenant: str, reference: str) -> str:
    """Returns the name of an image that is pulled for the tenant."""
    return f"{PULLED_IMAGES}{tenant_mark(tenant)}/{reference}"


def reference_in(image: str) -> str:
    """Returns the name by which a tenant knows an image that was pulled for it; "" for any other image."""
    return image.removeprefix(PULLED_IMAGES).partition("/")[2] if image.startswith(PULLED_IMAGES) else ""


def pulled_for(image: str) -> str:
    """Returns the mark of the tenant that an image was pulled for; "" for any other image."""
    return image.removeprefix(PULLED_IMAGES).partition("/")[0] if image.startswith(PULLED_IMAGES) else ""


def owner_of(image: str) -> str:
    """Returns the mark of the tenant that an image belongs to; "" for any other image."""
    return image.split("/")[1] if image.startswith(OWNED_IMAGES) else ""


def may_use_image(tenant: str, image: str) -> bool:
    """Returns whether the tenant may use the image: an image without an owner may be used by every tenant."""
    if image.startswith(PULLED_IMAGES):
        return pulled_for(image) == tenant_mark(tenant)
    return not image.startswith(TENANT_IMAGES) or is_image_of(tenant, image)


def is_image_of(tenant: str, image: str) -> bool:
    """Returns whether the image is that of a template of the tenant."""
    return image.startswith(_place_of(tenant))


def tenant_mark(tenant: str) -> str:
    """Returns what stands for the tenant in names of images and directories."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:16]


def _place_of(tenant: str) -> str:
    return f"{TENANT_IMAGES}{tenant_mark(tenant)}/"
