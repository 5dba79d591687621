"""Pulls images for tenants, each of which has its own copies and a bound on them.

A tenant may have `max_bytes` of pulled images, as they lie on the disk, and MAX_IMAGES of them. An image counts as at
least FILE_BYTES for each of its files: a disk has room for a number of files, and empty ones take no bytes. When one
image more is too many, those that the tenant's sandboxes have used longest ago are removed; those in use stay. Until
there is room, the new one does not count as pulled. While an image is pulled, its layers and its files may take up to
twice the bound besides.
"""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from warren.images.registry.pull import PullOptions, pull_image
from warren.images.store.store import ImageStore
from warren.images.trees.own_images import Progress
from warren.interfaces.images import ImageVersion
from warren.model.errors import ImageNotFound, LimitReached
from warren.model.image_pulls import PullRules
from warren.model.image_reference import has_host, read_reference
from warren.model.spec import MIB
from warren.model.tenant_images import pulled_for, reference_in

MAX_IMAGES: Final = 50
FILE_BYTES: Final = 8192


def pull_for_tenant(
    store: ImageStore, image: str, progress: Progress, *, options: PullOptions, rules: PullRules, max_bytes: int
) -> ImageVersion:
    """Pulls the image of a name that `pulled_image` has made. Raises ImageNotFound if the operator does not allow that
    (any more), and what `pull_image` and `make_room` raise."""
    text = reference_in(image)
    if not rules.pulls_for_tenant(image):
        raise ImageNotFound(f"there is no image {text!r} on this server, which does not pull it")
    caps = options.caps
    caps = replace(caps, size=min(caps.size, max_bytes), members=min(caps.members, max_bytes // FILE_BYTES))
    return pull_image(
        *(store, text, image, progress),
        options=replace(_options_for(text, options, rules), caps=caps),
        make_room=partial(make_room, store, image, max_bytes=max_bytes),
    )


def make_room(store: ImageStore, image: str, size_bytes: int, files: int = 0, *, max_bytes: int) -> None:
    """Removes images of the tenant whose image this is, until one of `size_bytes` with that many files fits; does
    nothing for an image that is not a tenant's. Raises LimitReached, and removes none, if too many are in use."""
    mark = pulled_for(image)
    if not mark:
        return
    own = [one for one in store.list() if pulled_for(one.name) == mark and not _is_replaced(one, image)]
    size = _counted_bytes(size_bytes, files) + sum(_counted_bytes(one.size_bytes, one.files) for one in own)
    count, gone = 1 + len(own), list[ImageVersion]()
    removable = [one for one in own if one.current and not one.sandboxes and one.name != image]
    removable.sort(key=lambda one: store.last_used(one.version), reverse=True)
    while removable and (size > max_bytes or count > MAX_IMAGES):
        oldest = removable.pop()
        gone.append(oldest)
        size, count = size - _counted_bytes(oldest.size_bytes, oldest.files), count - 1
    if size > max_bytes or count > MAX_IMAGES:
        raise LimitReached(
            f"the images that were pulled for you take more than {max_bytes // MIB} MiB together"
            if size > max_bytes
            else f"{MAX_IMAGES} images that were pulled for you are in use, and that is the most",
            remedy="end sessions that use others of them, or ask the operator to raise image_pull_mb",
            retry_after_s=60.0,
        )
    for one in gone:
        with suppress(ImageNotFound):
            store.remove(one.name, when_unused=True)


def _counted_bytes(size_bytes: int, files: int) -> int:
    return max(size_bytes, files * FILE_BYTES)


def _is_replaced(one: ImageVersion, image: str) -> bool:
    """Returns whether a version goes by itself when `image` points to a new one."""
    return one.name == image and one.current and not one.sandboxes


def _options_for(text: str, options: PullOptions, rules: PullRules) -> PullOptions:
    """A tenant gets the operator's passwords, and registries at private addresses, only for images that the operator
    has named. What serves names without a host, and a mirror, is the operator's choice too, but not what it serves."""
    reference = read_reference(text, options.registry)
    if rules.is_named(reference):
        return options
    is_mirrored = reference.served_by(options.mirrors) != reference.served_by(())
    is_chosen = is_mirrored or (bool(options.registry) and not has_host(text))
    networks = options.networks if is_chosen else ()  # to which the operator's registries send on
    return replace(options, trusted=is_chosen, credentials=None, networks=networks)
