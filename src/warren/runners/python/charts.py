"""The data of a figure of matplotlib, in the shape that E2B's code interpreter gives to its clients.

Types: line, scatter, bar, pie, box_and_whisker, superchart (several axes) and unknown. Points of a chart are bounded.
"""

import re

from matplotlib.collections import PathCollection
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle, Wedge
from matplotlib.text import Text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_POINTS = 100_000  # of one line or cloud
_UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")


def chart_of(figure: "Any") -> "dict[str, Any]":
    axes = [axis for axis in figure.axes if not _is_colorbar(axis)]
    if len(axes) == 1:
        return _chart_of_axes(axes[0])
    title = figure._suptitle.get_text() if getattr(figure, "_suptitle", None) is not None else ""
    if not axes:
        return {"type": "unknown", "title": title or None, "elements": []}
    return {"type": "superchart", "title": title or None, "elements": [_chart_of_axes(axis) for axis in axes]}


def _is_colorbar(axis: "Any") -> bool:
    return getattr(axis, "_colorbar", None) is not None or axis.get_label() == "<colorbar>"


def _chart_of_axes(axis: "Any") -> "dict[str, Any]":
    kind = _kind_of(axis)
    chart: dict[str, Any] = {"type": kind, "title": axis.get_title() or None, "elements": []}
    if kind not in ("pie", "unknown"):
        chart.update(_labels(axis))
    fill = {"line": _fill_lines, "scatter": _fill_clouds, "bar": _fill_bars, "pie": _fill_slices}.get(kind)
    if kind == "box_and_whisker":
        fill = _fill_boxes
    if fill is not None:
        fill(axis, chart)
    return chart


def _kind_of(axis: "Any") -> str:
    artists = [item for item in axis.get_children() if item in _drawn(axis)]
    solid = [item for item in artists if not (isinstance(item, Line2D) and _is_straight(item))]
    if not artists:
        return "unknown"
    if all(isinstance(item, Line2D) for item in artists):
        return "box_and_whisker" if _looks_like_boxes(artists) else "line"
    if all(isinstance(item, (PathPatch, Line2D)) for item in artists):
        return "box_and_whisker"
    for kind, types in (("scatter", PathCollection), ("pie", Wedge), ("bar", Rectangle)):
        if solid and all(isinstance(item, types) for item in solid):
            return kind
    return "unknown"


def _drawn(axis: "Any") -> "set[Any]":
    """Returns what was plotted, without the spines, axes, titles and texts that every chart has."""
    everything = [*axis.lines, *axis.patches, *axis.collections, *axis.images, *axis.artists]
    return {item for item in everything if not isinstance(item, Text) and not _is_error_bar(axis, item)}


def _is_error_bar(axis: "Any", item: "Any") -> bool:
    for container in axis.containers:
        parts = getattr(getattr(container, "errorbar", None), "lines", None)
        if parts is not None and any(item is part for group in parts[1:] for part in group):
            return True
    return False


def _is_straight(line: Line2D) -> bool:
    """Returns whether it is a line across the axes, as `axhline` draws one, and not data."""
    xs, ys = list(line.get_xdata()), list(line.get_ydata())
    return len(xs) == 2 and (list(xs) == [0, 1] or list(ys) == [0, 1]) and (xs[0] == xs[1] or ys[0] == ys[1])


def _looks_like_boxes(lines: "list[Any]") -> bool:
    """Returns whether a line is a box: `boxplot` draws closed lines of five points, unless it fills them."""
    return any(_is_box(line) for line in lines)


def _is_box(item: "Any") -> bool:
    if isinstance(item, PathPatch):
        return True
    xs, ys = _pair(item)
    closed = len(xs) == 5 and xs[0] == xs[4] and ys[0] == ys[4]
    return closed and len(set(xs)) == 2 and len(set(ys)) <= 2


def _labels(axis: "Any") -> "dict[str, Any]":
    found: dict[str, Any] = {}
    for name, text in (("x", axis.get_xlabel()), ("y", axis.get_ylabel())):
        unit = _UNIT.search(text)
        found[name + "_label"] = text or None
        found[name + "_unit"] = (unit.group(1) or unit.group(2)) if unit else None
    return found


def _swap_labels(chart: "dict[str, Any]") -> None:
    for name in ("label", "unit"):
        chart["x_" + name], chart["y_" + name] = chart["y_" + name], chart["x_" + name]


def _fill_lines(axis: "Any", chart: "dict[str, Any]") -> None:
    _fill_ticks(axis, chart)
    number = 0
    for line in axis.get_lines():
        if _is_straight(line):
            continue
        number += 1
        label = str(line.get_label())
        if label.startswith("_"):
            label = "Line %s" % (label[6:] if label.startswith("_child") else number)
        points = zip(line.get_xdata(), line.get_ydata())
        chart["elements"].append({"label": label, "points": _points(points)})


def _fill_clouds(axis: "Any", chart: "dict[str, Any]") -> None:
    _fill_ticks(axis, chart)
    for collection in axis.collections:
        points = _points(collection.get_offsets())
        chart["elements"].append({"label": str(collection.get_label()), "points": points})


def _points(pairs: "Any") -> "list[tuple[Any, Any]]":
    points = []
    for x, y in pairs:
        points.append((x, y))
        if len(points) == _MAX_POINTS:
            break
    return points


def _fill_ticks(axis: "Any", chart: "dict[str, Any]") -> None:
    for name, one in (("x", axis.xaxis), ("y", axis.yaxis)):
        dates = _has_dates(one)
        ticks = list(one.get_ticklocs())
        labels = [label.get_text() for label in one.get_ticklabels()]
        if dates:
            from matplotlib.dates import num2date

            shown = [num2date(tick).isoformat() for tick in ticks]
        else:
            shown = [float(tick) for tick in ticks]
        chart[name + "_ticks"], chart[name + "_tick_labels"] = shown, labels
        chart[name + "_scale"] = "datetime" if dates else _scale(one.get_scale(), ticks, labels)


def _has_dates(one: "Any") -> bool:
    converter = one.get_converter() if hasattr(one, "get_converter") else one.converter
    return "Date" in type(converter).__name__


def _scale(scale: str, ticks: "list[Any]", labels: "list[str]") -> str:
    """Returns the scale. Categories are ticks at 0, 1, 2 … whose labels are something else."""
    if scale != "linear" or not ticks:
        return scale
    categories = all(tick == index and label != str(index) for index, (tick, label) in enumerate(zip(ticks, labels)))
    return "categorical" if categories else "linear"


def _fill_bars(axis: "Any", chart: "dict[str, Any]") -> None:
    groups = [group for group in axis.containers if all(isinstance(bar, Rectangle) for bar in group) and len(group)]
    if not groups:  # rectangles that `bar` did not draw
        groups = [list(axis.patches)]
    turned = all(_is_horizontal(group) for group in groups)
    if turned:
        _swap_labels(chart)
    places = _named_places(axis.yaxis if turned else axis.xaxis)
    for number, group in enumerate(groups):
        label = str(group.get_label()) if hasattr(group, "get_label") else ""
        if not label or label.startswith("_container"):
            label = "Group %s" % (label[10:] or number)
        for bar in group:
            start, size = (bar.get_y(), bar.get_height()) if turned else (bar.get_x(), bar.get_width())
            value = bar.get_width() if turned else bar.get_height()
            name = _name_at(places, start + size / 2)
            chart["elements"].append({"label": name, "value": value, "group": label})


def _is_horizontal(group: "Any") -> bool:
    orientation = getattr(group, "orientation", None)
    if orientation is not None:
        return bool(orientation == "horizontal")
    return len(group) > 1 and len({bar.get_height() for bar in group}) == 1 and len({bar.get_x() for bar in group}) == 1


def _named_places(one: "Any") -> "list[tuple[float, str]]":
    return [
        (float(place), label.get_text())
        for place, label in zip(one.get_ticklocs(), one.get_ticklabels())
        if label.get_text()
    ]


def _name_at(places: "list[tuple[float, str]]", middle: float) -> str:
    """Returns the tick label nearest to a bar, or its number if no label belongs to it."""
    if places:
        place, label = min(places, key=lambda named: abs(named[0] - middle))
        step = min((abs(a[0] - b[0]) for a, b in zip(places, places[1:])), default=1.0)
        if abs(place - middle) <= max(step, 1e-9) / 2:
            return label
    return "%g" % middle


def _fill_slices(axis: "Any", chart: "dict[str, Any]") -> None:
    for slice in axis.patches:
        angle = _rounded(abs(slice.theta2 - slice.theta1))
        chart["elements"].append({"label": str(slice.get_label()), "angle": angle, "radius": float(slice.r)})


def _fill_boxes(axis: "Any", chart: "dict[str, Any]") -> None:
    """Reads boxes, medians, whiskers and outliers from the lines that `boxplot` draws."""
    patches = [item for item in axis.patches if isinstance(item, PathPatch)]
    items = patches or [line for line in axis.lines if _is_box(line)]
    outlines = [_pair(item) for item in items]
    turned = _are_sideways(axis, outlines)
    if turned:
        _swap_labels(chart)
        outlines = [(ys, xs) for xs, ys in outlines]
    lines = [_pair(line) for line in axis.lines if not any(line is item for item in items)]
    lines = [(ys, xs) for xs, ys in lines] if turned else lines
    places = _named_places(axis.yaxis if turned else axis.xaxis)
    for xs, ys in outlines:
        chart["elements"].append(_box(xs, ys, lines, places))


def _box(xs: "list[float]", ys: "list[float]", lines: "Any", places: "Any") -> "dict[str, Any]":
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    ends, median, outliers = [low, high], None, []
    for line_xs, line_ys in lines:
        if not line_xs or not all(left - 1e-9 <= x <= right + 1e-9 for x in line_xs):
            continue
        is_level = len(line_ys) == 2 and line_ys[0] == line_ys[1]
        is_wide = len(line_xs) == 2 and abs(abs(line_xs[1] - line_xs[0]) - (right - left)) < 1e-6
        if is_level and is_wide and low <= line_ys[0] <= high:
            median = line_ys[0]
        elif len(line_ys) == 2 and line_xs[0] == line_xs[1]:
            ends += line_ys
        elif not is_level:
            outliers += line_ys
    return {
        "label": _name_at(places, (left + right) / 2),
        "min": min(ends),
        "first_quartile": low,
        "median": (low + high) / 2 if median is None else median,
        "third_quartile": high,
        "max": max(ends),
        "outliers": outliers,
    }


def _are_sideways(axis: "Any", outlines: "Any") -> bool:
    """Returns whether boxes lie sideways: their whiskers, lines of two points, then start level at a box's middle."""
    for line in axis.lines:
        xs, ys = _pair(line)
        if len(xs) == 2 and (xs[0] == xs[1]) != (ys[0] == ys[1]):
            for box_xs, box_ys in outlines:
                if xs[0] == xs[1] and abs(xs[0] - (min(box_xs) + max(box_xs)) / 2) < 1e-9:
                    return False
                if ys[0] == ys[1] and abs(ys[0] - (min(box_ys) + max(box_ys)) / 2) < 1e-9 and xs[0] in box_xs:
                    return True
    return False


def _pair(item: "Any") -> "tuple[list[float], list[float]]":
    if isinstance(item, PathPatch):
        corners = item.get_path().vertices
        return [_rounded(x) for x in corners[:, 0]], [_rounded(y) for y in corners[:, 1]]
    xs, ys = item.get_xdata(orig=False), item.get_ydata(orig=False)
    return [_rounded(x) for x in xs], [_rounded(y) for y in ys]


def _rounded(value: "Any") -> float:
    """Rounds away what binary fractions add in the last digits."""
    return float("%.10g" % value)
