"""The backend of matplotlib: figures become results where `show` is called, or at the end of the cell."""

import sys

from matplotlib._pylab_helpers import Gcf
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends import backend_agg
from matplotlib.backends.backend_agg import FigureCanvasAgg

from . import display

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FigureCanvas = FigureCanvasAgg
FigureManager = FigureManagerBase
new_figure_manager = getattr(backend_agg, "new_figure_manager", None)
new_figure_manager_given_figure = getattr(backend_agg, "new_figure_manager_given_figure", None)
_shown: "set[int]" = set()  # figures that were shown as the value of an expression or by `display`


def show(*arguments: "Any", **options: "Any") -> None:
    """`plt.show()`: the open figures become results here, and are closed."""
    _show_all()


def show_open() -> None:
    """At the end of a cell: figures of any backend that are still open."""
    try:
        _show_all()
    finally:
        _shown.clear()


def _show_all() -> None:
    managers = Gcf.get_all_fig_managers()
    if not managers:
        return
    try:
        for manager in managers:
            figure = manager.canvas.figure
            if id(figure) not in _shown:
                display.show(figure)
    finally:
        sys.modules["matplotlib.pyplot"].close("all")


def bundle_of(figure: "Any") -> "dict[str, Any]":
    _shown.add(id(figure))
    bundle: dict[str, Any] = {"text/plain": repr(figure)}
    if not figure.axes and not figure.lines and not figure.texts and not figure.images:
        return bundle
    bundle["image/png"] = _picture(figure)
    try:
        from . import charts

        bundle["chart"] = display.plain(charts.chart_of(figure))
    except Exception:
        bundle["chart"] = {"type": "unknown", "title": None, "elements": []}
    return bundle


def _picture(figure: "Any") -> bytes:
    import io

    buffer = io.BytesIO()
    canvas = figure.canvas
    if not hasattr(canvas, "print_png"):
        canvas = FigureCanvasAgg(figure)
    options = {"facecolor": figure.get_facecolor(), "edgecolor": figure.get_edgecolor(), "dpi": figure.dpi}
    canvas.print_figure(buffer, format="png", bbox_inches="tight", **options)
    return buffer.getvalue()
