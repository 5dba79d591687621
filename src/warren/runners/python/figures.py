"""The backend of matplotlib: figures become results where `show` is called, or at the end of the cell."""

import sys

from matplotlib._pylab_helpers import Gcf
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends import backend_agg
from matplotlib.backends.backend_agg import FigureCanvasAgg

from . import display, figure_formats

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FigureCanvas = FigureCanvasAgg
FigureManager = FigureManagerBase
new_figure_manager = getattr(backend_agg, "new_figure_manager", None)
new_figure_manager_given_figure = getattr(backend_agg, "new_figure_manager_given_figure", None)


def show(*arguments: "Any", **options: "Any") -> None:
    """Makes results of the open figures and closes them; this is `plt.show()`."""
    _show_all()


def show_open() -> None:
    """Makes results of the figures of any backend that are still open at the end of a cell."""
    try:
        _show_all()
    finally:
        figure_formats.shown.clear()


def _show_all() -> None:
    managers = Gcf.get_all_fig_managers()
    if not managers:
        return
    try:
        for manager in managers:
            figure = manager.canvas.figure
            if id(figure) not in figure_formats.shown:
                display.show(figure)
    finally:
        sys.modules["matplotlib.pyplot"].close("all")
