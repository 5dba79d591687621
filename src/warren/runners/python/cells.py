"""Runs a cell: reads the request, compiles and runs the code, shows what its last expression gives, reports the end."""

import _ast
import _signal
import builtins
import faulthandler
import os
import sys
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any, Callable

    from .main import Channel

HERE = os.path.dirname(__file__)
KEPT_SOURCES = 1000
KEPT_RESULTS = 50
MOST_TEXT = 1 << 20
MOST_RESULTS = 200
_FUTURE = 0x1FE0000  # what `from __future__ import …` leaves in a code object
_AWAITS = 0x280
_ONLY_AST, _TOP_LEVEL_AWAIT = 0x400, 0x2000
_PLAIN = frozenset((int, float, complex, bool, str, bytes, list, dict, tuple, set, type(None), range))

channel: "Channel"
main = sys.modules["__main__"]
namespace: "dict[str, Any]" = main.__dict__
sources: "dict[str, str]" = {}
count = 0
shown = 0  # results of this cell
after_cell: "list[Callable[[], object]]" = []  # what `get_ipython().events` was given
_flags = _TOP_LEVEL_AWAIT
_streams = (sys.stdout, sys.stderr)
_last: "dict[str, Any]" = {}


def start(of: "Channel") -> None:
    global channel
    channel = of
    namespace.update(__builtins__=builtins, In=[""], Out={})
    builtins.display = _display  # type: ignore[attr-defined]
    builtins.get_ipython = get_ipython  # type: ignore[attr-defined]
    builtins.input = _no_input
    sys.meta_path.insert(0, _Watcher)
    sys.meta_path.append(_LateFinder)
    faulthandler.enable()  # says where when the interpreter itself breaks
    for name in _WATCHED.intersection(sys.modules):
        from . import hooks

        hooks.after_import(sys.modules[name])


def serve(request: bytes) -> None:
    """Runs one cell. Always sends its end, once."""
    global count, shown
    count += 1
    shown = 0
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
    channel.send(b"x", encode({"execution_count": count, "error": reported}))


def recover(error: BaseException) -> None:
    """A signal handler of the user's has raised an error when no cell ran, or between its code and its end."""
    channel.check(error)
    channel.guarded = channel.in_cell = channel.pending = False
    if not channel.owes_end or channel.length >= 0:
        sys.excepthook(type(error), error, error.__traceback__)
    else:
        name = type(error).__name__
        reported = {"name": name, "value": "", "traceback": "%s (raised by a signal handler)\n" % name}
        channel.send(b"x", encode({"execution_count": count, "error": reported}))


def _execute(request: bytes) -> None:
    values = decode(request)
    channel.is_open = True
    while channel.held:
        channel.send(b"r", channel.held.pop(0))
    namespace.pop("__warningregistry__", None)
    restore = _set_env(values.get("env") or {})
    try:
        run_source(values["code"], "<cell %d>" % count, is_cell=True)
    finally:
        try:
            for function in list(after_cell):
                function()
            if "matplotlib._pylab_helpers" in sys.modules:
                from . import figures

                figures.show_open()
        finally:
            _restore_env(restore)


def run_source(source: str, filename: str, is_cell: bool = False) -> None:
    """Runs statements and shows the value of the last one, if that is an expression without a semicolon."""
    global _flags
    if "\r" in source:
        source = source.replace("\r\n", "\n").replace("\r", "\n")
    source = _dedented(source)
    remember(filename, source)
    if is_cell:
        _remember_input(source)
    tree = parse(source, filename)
    body, last = tree.body, None
    if body and type(body[-1]) is _ast.Expr and not _is_silenced(source, body[-1]):
        last = body.pop().value
    steps = []
    if body:
        steps.append(compile(tree, filename, "exec", _flags, True))
        _flags |= steps[0].co_flags & _FUTURE
    if last is not None:
        steps.append(compile(_ast.Expression(last), filename, "eval", _flags, True))
    value = run_steps(steps, source)
    if last is not None and value is not None:
        show_value(value)


def _dedented(source: str) -> str:
    """A cell that is indented as a whole is run all the same."""
    first = source.lstrip("\n")
    indent = first[: len(first) - len(first.lstrip(" \t"))]
    if not indent or first[len(indent) :].startswith(("#", "\n")):
        return source
    return "\n".join(line[len(indent) :] if line.startswith(indent) else line for line in source.split("\n"))


def parse(source: str, filename: str) -> "Any":
    try:
        return compile(source, filename, "exec", _flags | _ONLY_AST, True)
    except SyntaxError as exc:
        error = exc
    if "!" in source or "%" in source or "?" in source:
        from . import magics

        tree, error = magics.parse(source, filename, error, _flags | _ONLY_AST)
        if tree is not None:
            return tree
    raise error from None


def run_steps(steps: "list[CodeType]", source: str) -> "Any":
    if any(step.co_flags & _AWAITS for step in steps) or _wants_loop(source):
        from . import loops

        return loops.run(steps, namespace)
    value = None
    for step in steps:
        value = eval(step, namespace)
    return value


def _wants_loop(source: str) -> bool:
    """Code that makes tasks needs a loop that runs, code that starts a loop needs one that does not."""
    if "create_task(" not in source and "ensure_future(" not in source and "get_running_loop(" not in source:
        return False
    return "asyncio.run(" not in source and "run_until_complete(" not in source and "Runner(" not in source


def _is_silenced(source: str, last: "_ast.Expr") -> bool:
    if ";" not in source:
        return False
    line = source.split("\n")[(last.end_lineno or 1) - 1].encode()
    return line[last.end_col_offset :].lstrip().startswith(b";")


def show_value(value: "Any") -> None:
    _remember_value(value)
    if type(value) in _PLAIN:
        flush()
        text = text_of(value)
        cut = {"cut": ["text"]} if len(text) > MOST_TEXT else {}
        send_result({"type": "result", "is_main_result": True, "text": text[:MOST_TEXT], **cut})
    else:
        from . import display

        display.show(value, is_main=True)


def send_result(result: "dict[str, Any]") -> None:
    """Sends a result; of those above the bound only the first is told of, by a text."""
    global shown
    shown += 1
    if shown > MOST_RESULTS:
        if shown > MOST_RESULTS + 1:
            return
        text = "A cell shows at most %d results; the others were left out." % MOST_RESULTS
        result = {"type": "result", "is_main_result": False, "text": text, "cut": ["results"]}
    channel.send(b"r", encode(result))


def text_of(value: "Any") -> str:
    """`repr`, but of what is huge only a little more than the bound is ever built."""
    kind: Any = type(value)
    if isinstance(value, (str, bytes, bytearray)) and len(value) > MOST_TEXT:
        return repr(value[:MOST_TEXT])
    if kind in (list, tuple, set, dict) and len(value) > 512:
        parts, length = [], 0
        items = iter(value.items() if kind is dict else value)
        while length <= MOST_TEXT:
            some = kind(islice(items, 256))
            if not some:
                break
            text = repr(some)
            parts.append(text[1:-2] if text.endswith(",)") else text[1:-1])
            length += len(text)
        brackets = "[]" if kind is list else "()" if kind is tuple else "{}"
        return brackets[0] + ", ".join(parts) + brackets[1]
    return repr(value)


def flush() -> None:
    """What was printed before a result goes out before it."""
    for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None), *_streams):
        try:
            stream.flush()  # type: ignore[union-attr]
        except (AttributeError, OSError, ValueError):
            pass  # user code has closed it, or put something else there


def remember(filename: str, source: str) -> None:
    """Tracebacks, warnings and `inspect` find the lines of a cell in `linecache`."""
    sources[filename] = source
    if len(sources) > KEPT_SOURCES:
        oldest = next(iter(sources))
        del sources[oldest]
        if "linecache" in sys.modules:
            sys.modules["linecache"].cache.pop(oldest, None)
    if "linecache" in sys.modules:
        fill_line_cache((filename,))


def fill_line_cache(filenames: "Any") -> None:
    cache = sys.modules["linecache"].cache
    for filename in filenames:
        source = sources[filename]
        cache[filename] = (len(source), None, [line + "\n" for line in source.split("\n")], filename)


def _remember_input(source: str) -> None:
    inputs = namespace.get("In")
    if type(inputs) is list:
        inputs.extend([""] * (count - len(inputs)))
        inputs.append(source)
        if len(inputs) > KEPT_SOURCES:
            inputs[len(inputs) - KEPT_SOURCES] = ""


def _remember_value(value: "Any") -> None:
    """Sets `_`, `__`, `___` and `Out`; not if user code uses these names for something else."""
    results = namespace.get("Out")
    if value is results:
        return
    if type(results) is dict:
        results[count] = value
        if len(results) > KEPT_RESULTS:
            del results[next(iter(results))]
    if all(namespace.get(name, None) is _last.get(name, None) for name in ("_", "__", "___")):
        namespace.update({"___": _last.get("__"), "__": _last.get("_"), "_": value})
        _last.update({"___": _last.get("__"), "__": _last.get("_"), "_": value})


def _set_env(env: "dict[str, str]") -> "dict[str, tuple[str, str | None]]":
    before = {name: (value, os.environ.get(name)) for name, value in env.items()}
    os.environ.update(env)
    return before


def _restore_env(before: "dict[str, tuple[str, str | None]]") -> None:
    """What the cell itself has set stays."""
    for name, (given, former) in before.items():
        if os.environ.get(name) == given:
            if former is None:
                del os.environ[name]
            else:
                os.environ[name] = former


def _tidy() -> None:
    global _streams
    flush()
    for index, name in enumerate(("stdout", "stderr")):
        stream = getattr(sys, name, None)
        if stream is None or getattr(stream, "closed", False):
            if _streams[index].closed:
                fresh = open(index + 1, "w", 1, "utf-8", "backslashreplace", closefd=False)
                _streams = (fresh, _streams[1]) if index == 0 else (_streams[0], fresh)
            setattr(sys, name, _streams[index])
    if sys.modules.get("__main__") is not main:
        sys.modules["__main__"] = main


def _leave(error: "BaseException | None") -> None:
    """A child that user code forked has run its cell to the end: it ends as a script would."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        code = 1
        sys.stderr.write(_describe(error)["traceback"])
    flush()
    os._exit(code & 255)


def _describe(error: BaseException) -> "dict[str, str]":
    from . import errors

    return errors.describe(error)


def _display(*objects: "Any", **options: "Any") -> "Any":
    """Shows objects as results of the cell."""
    from . import display

    return display.display(*objects, **options)


def get_ipython() -> "Any":
    """The small part of IPython's shell that code asks for: magics, `system`, `user_ns`."""
    from . import magics

    return magics.shell


def _no_input(prompt: object = "", /) -> str:
    raise EOFError("input() cannot ask anybody here: put the value into the code.")


_no_input.__name__ = _no_input.__qualname__ = "input"
_display.__name__ = _display.__qualname__ = "display"

_WATCHED = frozenset(
    (
        "linecache",
        "matplotlib",
        "multiprocessing.spawn",
        "plotly.io._renderers",
        "IPython",
        "IPython.core",
        "IPython.display",
        "IPython.core.display",
        "IPython.core.display_functions",
    )
)


class _Watcher:
    """The first finder of modules: some are changed a little after their import."""

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


def _make_codec() -> "tuple[Callable[[bytes], Any], Callable[[Any], bytes]]":
    """JSON without the package `json`, whose import takes longer than the start of this program."""
    try:
        from _json import encode_basestring, make_encoder, make_scanner

        class Options:
            strict = False
            object_hook = object_pairs_hook = None
            parse_float, parse_int, parse_constant = float, int, float
            memo: "dict[str, str]" = {}

        scan: Any = make_scanner(Options())  # type: ignore[arg-type]
        encoder: Any = make_encoder(None, _unknown, encode_basestring, None, ":", ",", False, False, False)
        if "".join(encoder([1, "a"], 0)) != '[1,"a"]' or scan('{"a":1}', 0)[0] != {"a": 1}:
            raise ImportError
    except (ImportError, TypeError):
        import json

        scan = json.JSONDecoder(strict=False).scan_once  # type: ignore[attr-defined]
        encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).iterencode
    return (
        lambda text: scan(text.decode("utf-8", "replace").lstrip(), 0)[0],
        lambda value: "".join(encoder(value, 0)).encode("utf-8", "replace"),
    )


def _unknown(value: object) -> object:
    raise TypeError(type(value).__name__)


decode, encode = _make_codec()
