"""Stands in for `IPython` and `IPython.display` where IPython is not installed, so that `display(HTML(…))` works."""

import sys

from . import display, magics

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_MIMES = {
    "HTML": "text/html",
    "Markdown": "text/markdown",
    "SVG": "image/svg+xml",
    "JSON": "application/json",
    "Latex": "text/latex",
    "Math": "text/latex",
    "Javascript": "application/javascript",
    "Pretty": "text/plain",
}


def find_spec(name: str) -> "Any":
    from importlib.machinery import ModuleSpec

    return ModuleSpec(name, _Loader(), is_package=not name.endswith("display"))  # type: ignore[arg-type]


class _Loader:
    @staticmethod
    def create_module(spec: "Any") -> None:
        return None

    @staticmethod
    def exec_module(module: "ModuleType") -> None:
        names: dict[str, Any] = {}
        if module.__name__ == "IPython":
            # matplotlib leaves the event loop alone where it sees this version or a later one.
            names = {"get_ipython": magics.get_ipython, "display": display, "version_info": (8, 24, 0, "")}
            names["__version__"] = "8.24.0"
        elif module.__name__ != "IPython.core":
            names = {name: _class(name, mime) for name, mime in _MIMES.items()}
            names["Image"] = Image
            for function in (display.display, display.clear_output, display.update_display, display.DisplayHandle):
                names[function.__name__] = function
        for name, value in names.items():
            setattr(module, name, value)
        if names and module.__name__ != "IPython":
            sys.modules["IPython"].display = module  # type: ignore[attr-defined]


class _Shown:
    """Data of one mime type: given, or read from a file."""

    mime = ""

    def __init__(self, data: "Any" = None, url: "str | None" = None, filename: "str | None" = None, **_: "Any") -> None:
        if filename is not None:
            with open(filename, "rb") as file:
                data = file.read()
        if data is None and url is not None:
            raise ValueError("IPython is not installed here, so nothing is loaded from addresses: give the data.")
        if isinstance(data, bytes) and self.mime.startswith(("text/", "image/svg")):
            data = data.decode()
        self.data = data

    def _repr_mimebundle_(self, include: "Any" = None, exclude: "Any" = None) -> "dict[str, Any]":
        return {self.mime: self.data, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return "<IPython.core.display.%s object>" % type(self).__name__


def _class(name: str, mime: str) -> type:
    return type(name, (_Shown,), {"mime": mime, "__module__": "IPython.display"})


class Image(_Shown):
    def __init__(self, data: "Any" = None, filename: "str | None" = None, **options: "Any") -> None:
        if isinstance(data, str):
            data, filename = None, data
        super().__init__(data, filename=filename, **options)
        self.mime = "image/jpeg" if bytes(self.data[:2]) == b"\xff\xd8" else "image/png"
