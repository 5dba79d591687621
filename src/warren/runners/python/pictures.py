"""Lets images of PIL become results: `image.show()` does so, and for clients of E2B `image.save("file.png")` too."""

import functools
import os

from . import context, display

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def extend_images(module: "Any") -> None:
    """Makes an image that a cell of E2B's saves under a name a result. `module` is `PIL.Image`."""
    save = module.Image.save

    @functools.wraps(save)
    def save_and_show(self: "Any", fp: "Any", format: "Any" = None, **params: "Any") -> "Any":
        saved = save(self, fp, format, **params)
        is_shown = isinstance(fp, str) and "E2B_SANDBOX" in os.environ and not context.channel.is_child
        if is_shown and context.shown <= context.MAX_RESULTS:
            display.show(self)
        return saved

    module.Image.save = save_and_show


def extend_viewers(module: "Any") -> None:
    """Asks this viewer before others: there is no screen for programs. `module` is `PIL.ImageShow`."""

    class Results(module.Viewer):  # type: ignore[misc]
        def show(self, image: "Any", **options: "Any") -> int:
            display.show(image)
            return 1

    module.register(Results, 0)
