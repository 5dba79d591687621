"""Shows objects: asks them for their formats as IPython does, keeps to the bounds and sends them as results."""

import sys

from . import context, plain_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FIELD = 8 << 20
MAX_RESULT = 15 << 20
_MAX_CELLS = 1_000_000  # of a data frame

FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "text/javascript": "javascript",
}
_METHODS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_pdf_", "application/pdf"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)
_SHORTENED = frozenset(("text", "markdown", "latex"))
_STRUCTURES = frozenset(("json", "data", "chart", "extra"))


def display(
    *objects: "Any",
    include: "Any" = None,
    exclude: "Any" = None,
    metadata: "Any" = None,
    transient: "Any" = None,
    display_id: "Any" = None,
    raw: bool = False,
    clear: bool = False,
    **options: "Any",
) -> "DisplayHandle | None":
    """Shows objects as results of the cell. With a `display_id` it returns a handle that shows another in its place."""
    if clear:
        clear_output(wait=True)
    if display_id is True:
        import os

        display_id = os.urandom(16).hex()
    for value in objects:
        if raw:
            publish(value, display_id=display_id)
        else:
            show(value, include=include, exclude=exclude, display_id=display_id)
    return DisplayHandle(display_id) if display_id is not None else None


def update_display(value: "Any", *, display_id: str, **options: "Any") -> None:
    options.pop("update", None)
    display(value, display_id=display_id, **options)


def publish_display_data(
    data: "dict[str, Any]", metadata: "Any" = None, *, transient: "Any" = None, **_: "Any"
) -> None:
    publish(data, display_id=(transient or {}).get("display_id"))


def clear_output(wait: bool = False) -> None:
    context.flush()
    context.shown = 0
    context.channel.send(b"r", context.encode({"type": "clear_output", "wait": bool(wait)}))


class DisplayHandle:
    """The place of a result, which another one can take."""

    def __init__(self, display_id: str) -> None:
        self.display_id = display_id

    def display(self, value: "Any", **options: "Any") -> None:
        display(value, display_id=self.display_id, **options)

    update = display

    def __repr__(self) -> str:
        return "<DisplayHandle display_id=%s>" % self.display_id


_main_depth = 0  # the value of the cell's last expression is being shown


def show(
    value: "Any", is_main: bool = False, include: "Any" = None, exclude: "Any" = None, display_id: "str | None" = None
) -> None:
    global _main_depth
    own = None if isinstance(value, type) else getattr(value, "_ipython_display_", None)
    if callable(own):
        _main_depth += is_main
        try:
            own()
        finally:
            _main_depth -= is_main
        return
    publish(bundle_of(value, include, exclude), is_main, display_id)


def bundle_of(value: "Any", include: "Any" = None, exclude: "Any" = None) -> "dict[str, Any]":
    """Returns the formats of an object by their mime types."""
    bundle: dict[str, Any] = {}
    if not isinstance(value, type):
        bundle.update(_special(value))
        _add_own(value, bundle, include, exclude)
    if "text/plain" not in bundle:
        bundle["text/plain"] = context.text_of(value)
    if include or exclude:
        kept = include or bundle
        bundle = {key: bundle[key] for key in bundle if key in kept and key not in (exclude or ())}
    return bundle


def _add_own(value: "Any", bundle: "dict[str, Any]", include: "Any", exclude: "Any") -> None:
    own = getattr(value, "_repr_mimebundle_", None)
    if callable(own):
        given = _attempt(own, include=include, exclude=exclude)
        given = given[0] if isinstance(given, tuple) and given else given
        if isinstance(given, dict):
            bundle.update(given)
    for name, mime in _METHODS:
        if mime not in bundle:
            own = getattr(value, name, None)
            given = _attempt(own) if callable(own) else None
            if given is not None:
                bundle[mime] = given[0] if isinstance(given, tuple) else given


def _attempt(method: "Any", **options: "Any") -> "Any":
    """Calls a method that gives one format. If it fails, its traceback goes to standard error, and None is returned."""
    try:
        return method(**options)
    except NotImplementedError:
        return None
    except Exception as exc:
        from . import errors

        errors.print_error(exc)
        return None


def _special(value: "Any") -> "dict[str, Any]":
    """Returns formats that objects do not give themselves: pictures of figures, values of data frames."""
    modules, kind = sys.modules, type(value)
    figure = modules.get("matplotlib.figure")
    if figure is not None and isinstance(value, getattr(figure, "Figure", ())):
        from . import figure_formats

        return figure_formats.bundle_of(value)
    if kind.__name__ == "DataFrame" and kind.__module__.split(".")[0] == "pandas":
        if value.size > _MAX_CELLS:
            return {"data": _TOO_LARGE}
        return {"data": _attempt(value.to_dict, orient="list")}
    return {}


_TOO_LARGE = object()


def publish(bundle: "dict[str, Any]", is_main: bool = False, display_id: "str | None" = None) -> None:
    """Sends a bundle of formats as one result."""
    result: Any = {}
    cut: list[str] = []
    extra: Any = {}
    for mime, value in bundle.items():
        if mime in ("data", "chart"):
            result[mime] = value
        elif mime in FIELDS:
            result[FIELDS[mime]] = value
        elif value is not None:
            extra[mime] = plain_values.encoded_bytes(value)
    if extra:
        result["extra"] = extra
    parts = {}
    for field, value in result.items():
        if value is None:
            continue
        part = b"" if value is _TOO_LARGE else _encoded(field, value, cut)
        if part and len(part) <= MAX_FIELD:
            parts[field] = part
        else:
            cut.append(field)
    while sum(map(len, parts.values())) > MAX_RESULT:
        largest = max(parts, key=lambda field: len(parts[field]))
        del parts[largest]
        cut.append(largest)
    head: Any = {"type": "result", "is_main_result": is_main or _main_depth > 0}
    if cut:
        head["cut"] = cut
    if display_id is not None:
        head["display_id"] = str(display_id)
    if context.channel.is_child:
        sys.stdout.write("%s\n" % (bundle.get("text/plain", ""),))
        return
    context.flush()
    context.shown += 1
    if context.shown > context.MAX_RESULTS:
        context.shown -= 1
        context.send_result({})
        return
    body = b"".join(b',"%s":%s' % (field.encode(), part) for field, part in parts.items())
    context.channel.send(b"r", context.encode(head)[:-1] + body + b"}")


def _encoded(field: str, value: "Any", cut: "list[str]") -> bytes:
    if field in _STRUCTURES:
        try:
            return context.encode(value)
        except (TypeError, ValueError, RecursionError):
            return context.encode(plain_values.plain(value))
    value = plain_values.encoded_bytes(value)
    if not isinstance(value, str):
        value = str(value)
    most = context.MAX_TEXT if field == "text" else MAX_FIELD // 2
    if field in _SHORTENED and len(value) > most:
        value = value[:most]
        cut.append(field)
    return context.encode(value)
