"""The formats of a figure of matplotlib: a picture, and its data as a chart."""

from . import plain_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

shown: "set[int]" = set()  # figures that were shown as the value of an expression or by `display`


def bundle_of(figure: "Any") -> "dict[str, Any]":
    shown.add(id(figure))
    bundle: dict[str, Any] = {"text/plain": repr(figure)}
    if not figure.axes and not figure.lines and not figure.texts and not figure.images:
        return bundle
    bundle["image/png"] = _picture(figure)
    try:
        from . import charts

        bundle["chart"] = plain_values.plain(charts.chart_of(figure))
    except Exception:
        bundle["chart"] = {"type": "unknown", "title": None, "elements": []}
    return bundle


def _picture(figure: "Any") -> bytes:
    import io

    buffer = io.BytesIO()
    canvas = figure.canvas
    if not hasattr(canvas, "print_png"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        canvas = FigureCanvasAgg(figure)
    options = {"facecolor": figure.get_facecolor(), "edgecolor": figure.get_edgecolor(), "dpi": figure.dpi}
    canvas.print_figure(buffer, format="png", bbox_inches="tight", **options)
    return buffer.getvalue()
