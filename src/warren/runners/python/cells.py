"""Runs a cell: reads the request, compiles and runs the code, shows what its last expression gives, reports the end."""

import _ast
import _signal
import builtins
import faulthandler
import os
import sys

from . import context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .context import Channel

KEPT_RESULTS = 50
_FUTURE = 0x1FE0000  # what `from __future__ import …` leaves in a code object
_PLAIN = frozenset((int, float, complex, bool, str, bytes, list, dict, tuple, set, type(None), range))

_last: "dict[str, Any]" = {}


def start(channel: "Channel") -> None:
    """Prepares the interpreter for cells: names, finders of modules, and what says where the interpreter breaks."""
    context.use(channel)
    context.namespace.update(__builtins__=builtins, In=[""], Out={})
    builtins.display = _display  # type: ignore[attr-defined]
    builtins.get_ipython = _get_ipython  # type: ignore[attr-defined]
    builtins.input = _no_input
    sys.meta_path.insert(0, _Watcher)
    sys.meta_path.append(_LateFinder)
    faulthandler.enable()  # says where when the interpreter itself breaks
    for name in _WATCHED.intersection(sys.modules):
        from . import hooks

        hooks.after_import(sys.modules[name])


def serve(request: bytes) -> None:
    """Runs one cell. Always sends its end, once."""
    channel = context.channel
    context.count += 1
    context.shown = 0
    _, error = channel.guard(_execute, request)
    if channel.is_child:
        _leave(error)
    reported = None
    if error is not None:
        reported, failure = channel.guard(_describe, error)
        if failure is not None:
            name = type(error).__name__
            reported = {"name": name, "value": "", "traceback": "%s (it cannot be printed)\n" % name}
    error = None
    channel.guard(_tidy)
    channel.restore_descriptors()
    _signal.signal(_signal.SIGINT, channel.on_interrupt)
    channel.in_cell = channel.pending = False
    channel.send(b"x", context.encode({"execution_count": context.count, "error": reported}))


def recover(error: BaseException) -> None:
    """Reports an error that a signal handler of the user's raised when no cell ran, or between its code and its end."""
    channel = context.channel
    channel.check(error)
    channel.guarded = channel.in_cell = channel.pending = False
    if not channel.owes_end or channel.length >= 0:
        sys.excepthook(type(error), error, error.__traceback__)
    else:
        name = type(error).__name__
        reported = {"name": name, "value": "", "traceback": "%s (raised by a signal handler)\n" % name}
        channel.send(b"x", context.encode({"execution_count": context.count, "error": reported}))


def _execute(request: bytes) -> None:
    channel = context.channel
    values = context.decode(request)
    channel.is_open = True
    while channel.held:
        channel.send(b"r", channel.held.pop(0))
    context.namespace.pop("__warningregistry__", None)
    restore = _set_env(values.get("env") or {})
    try:
        _run_cell(values["code"], "<cell %d>" % context.count)
    finally:
        try:
            for function in list(context.after_cell):
                function()
            if "matplotlib._pylab_helpers" in sys.modules:
                from . import figures

                figures.show_open()
        finally:
            _restore_env(restore)


def _run_cell(source: str, filename: str) -> None:
    """Runs statements and shows the value of the last one, if that is an expression without a semicolon."""
    if "\r" in source:
        source = source.replace("\r\n", "\n").replace("\r", "\n")
    source = _dedented(source)
    context.remember(filename, source)
    _remember_input(source)
    tree = context.parse(source, filename)
    body, last = tree.body, None
    if body and type(body[-1]) is _ast.Expr and not _is_silenced(source, body[-1]):
        last = body.pop().value
    steps = []
    if body:
        steps.append(compile(tree, filename, "exec", context.flags, True))
        context.flags |= steps[0].co_flags & _FUTURE
    if last is not None:
        steps.append(compile(_ast.Expression(last), filename, "eval", context.flags, True))
    value = context.run_steps(steps, source)
    if last is not None and value is not None:
        _show_value(value)


def _dedented(source: str) -> str:
    """Removes the indentation of a cell that is indented as a whole."""
    first = source.lstrip("\n")
    indent = first[: len(first) - len(first.lstrip(" \t"))]
    if not indent or first[len(indent) :].startswith(("#", "\n")):
        return source
    return "\n".join(line[len(indent) :] if line.startswith(indent) else line for line in source.split("\n"))


def _is_silenced(source: str, last: "_ast.Expr") -> bool:
    if ";" not in source:
        return False
    line = source.split("\n")[(last.end_lineno or 1) - 1].encode()
    return line[last.end_col_offset :].lstrip().startswith(b";")


def _show_value(value: "Any") -> None:
    _remember_value(value)
    if type(value) in _PLAIN:
        context.flush()
        text = context.text_of(value)
        cut = {"cut": ["text"]} if len(text) > context.MAX_TEXT else {}
        context.send_result({"type": "result", "is_main_result": True, "text": text[: context.MAX_TEXT], **cut})
    else:
        from . import display

        display.show(value, is_main=True)


def _remember_input(source: str) -> None:
    inputs = context.namespace.get("In")
    if type(inputs) is list:
        inputs.extend([""] * (context.count - len(inputs)))
        inputs.append(source)
        if len(inputs) > context.KEPT_SOURCES:
            inputs[len(inputs) - context.KEPT_SOURCES] = ""


def _remember_value(value: "Any") -> None:
    """Sets `_`, `__`, `___` and `Out`; not if user code uses these names for something else."""
    results = context.namespace.get("Out")
    if value is results:
        return
    if type(results) is dict:
        results[context.count] = value
        if len(results) > KEPT_RESULTS:
            del results[next(iter(results))]
    if all(context.namespace.get(name, None) is _last.get(name, None) for name in ("_", "__", "___")):
        context.namespace.update({"___": _last.get("__"), "__": _last.get("_"), "_": value})
        _last.update({"___": _last.get("__"), "__": _last.get("_"), "_": value})


def _set_env(env: "dict[str, str]") -> "dict[str, tuple[str, str | None]]":
    before = {name: (value, os.environ.get(name)) for name, value in env.items()}
    os.environ.update(env)
    return before


def _restore_env(before: "dict[str, tuple[str, str | None]]") -> None:
    """Restores the variables from before the cell, except those that the cell itself has changed."""
    for name, (given, former) in before.items():
        if os.environ.get(name) == given:
            if former is None:
                del os.environ[name]
            else:
                os.environ[name] = former


def _tidy() -> None:
    context.flush()
    for index, name in enumerate(("stdout", "stderr")):
        stream = getattr(sys, name, None)
        if stream is None or getattr(stream, "closed", False):
            if context.streams[index].closed:
                fresh = open(index + 1, "w", 1, "utf-8", "backslashreplace", closefd=False)
                context.streams = (fresh, context.streams[1]) if index == 0 else (context.streams[0], fresh)
            setattr(sys, name, context.streams[index])
    if sys.modules.get("__main__") is not context.main:
        sys.modules["__main__"] = context.main


def _leave(error: "BaseException | None") -> None:
    """Ends a child that user code forked, when it has run its cell to the end, as a script would end."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        code = 1
        sys.stderr.write(_describe(error)["traceback"])
    context.flush()
    os._exit(code & 255)


def _describe(error: BaseException) -> "dict[str, str]":
    from . import errors

    return errors.describe(error)


def _display(*objects: "Any", **options: "Any") -> "Any":
    """Shows objects as results of the cell."""
    from . import display

    return display.display(*objects, **options)


def _get_ipython() -> "Any":
    """Returns the part of IPython's shell that code asks for: magics, `system`, `user_ns`."""
    from . import magics

    return magics.shell


def _no_input(prompt: object = "", /) -> str:
    raise EOFError("input() cannot ask anybody here: put the value into the code.")


_get_ipython.__name__ = _get_ipython.__qualname__ = "get_ipython"
_no_input.__name__ = _no_input.__qualname__ = "input"
_display.__name__ = _display.__qualname__ = "display"

_WATCHED = frozenset(
    (
        "linecache",
        "matplotlib",
        "multiprocessing.spawn",
        "plotly.io._renderers",
        "PIL.Image",
        "PIL.ImageShow",
        "IPython",
        "IPython.core",
        "IPython.display",
        "IPython.core.display",
        "IPython.core.display_functions",
    )
)


class _Watcher:
    """The first finder of modules: lets `hooks` change some modules after their import."""

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name not in _WATCHED:
            return None
        from . import hooks

        return hooks.find_spec(name, path, target, _Watcher)


class _LateFinder:
    """The last finder of modules: pip may have made the user's directory of packages since the start."""

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if path is not None:
            return None
        from . import hooks

        return hooks.find_in_new_directory(name)
