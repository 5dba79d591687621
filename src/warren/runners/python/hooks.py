"""What is done after the import of some modules, so that what they show becomes a result of the cell."""

import sys

from . import context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def find_spec(name: str, path: "Any", target: "Any", watcher: object) -> "Any":
    """Returns the spec that other finders give, with a loader that calls `after_import`."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = None if finder is watcher or find is None else find(name, path, target)
        if spec is not None:
            _extend(spec.loader)
            return spec
    if name in ("IPython", "IPython.core", "IPython.display", "IPython.core.display"):
        from . import ipython

        return ipython.find_spec(name)
    return None


def find_in_new_directory(name: str) -> "Any":
    """Finds a module in the user's directory of packages if that was made since the start: Python looks only then."""
    import os
    import site

    folder = site.getusersitepackages() if site.ENABLE_USER_SITE else ""
    if not folder or folder in sys.path or not os.path.isdir(folder):
        return None
    from importlib.machinery import PathFinder

    known = len(sys.path)
    site.addsitedir(folder)
    added, first = sys.path[known:], known
    for index, entry in enumerate(sys.path[:known]):
        if entry.endswith(("site-packages", "dist-packages")):
            first = index
            break
    del sys.path[known:]
    sys.path[first:first] = added
    return PathFinder.find_spec(name)


def _extend(loader: "Any") -> None:
    original = getattr(loader, "exec_module", None)
    if original is None or isinstance(loader, type):
        return

    def exec_module(module: "ModuleType") -> None:
        original(module)
        loader.__dict__.pop("exec_module", None)
        after_import(module)

    loader.exec_module = exec_module


def after_import(module: "ModuleType") -> None:
    name = module.__name__
    if name == "linecache":
        context.fill_line_cache(list(context.sources))
    elif name == "matplotlib":
        _use_figures(module)
    elif name == "multiprocessing.spawn":
        from . import spawn

        spawn.extend(module)
    elif name in ("PIL.Image", "PIL.ImageShow"):
        from . import pictures

        (pictures.extend_images if name == "PIL.Image" else pictures.extend_viewers)(module)
    elif name == "plotly.io._renderers":
        from . import plotly_figures

        plotly_figures.extend(module)
    elif name.startswith("IPython.") and name != "IPython.core":
        from . import display

        for function in (display.display, display.clear_output, display.update_display, display.publish_display_data):
            if hasattr(module, function.__name__):
                setattr(module, function.__name__, function)


def _use_figures(matplotlib: "Any") -> None:
    """Sets our backend, unless the environment or the code asks for another one."""
    import os

    if not os.environ.get("MPLBACKEND"):
        matplotlib.rcParams["backend"] = "module://_warren.figures"
