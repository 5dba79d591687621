"""What the files of this runner share: the channel, the namespace of the cells, their sources, how results are sent.

`cells` counts the cells here. No module that this one imports imports it.
"""

import os
import sys
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any, Callable, Protocol

    class Channel(Protocol):
        """What the other files use of the channel in main.py, which imports them."""

        held: list[bytes]
        length: int
        is_open: bool
        in_cell: bool
        owes_end: bool
        guarded: bool
        pending: bool
        is_child: bool

        def send(self, kind: bytes, payload: bytes) -> None: ...
        def check(self, error: BaseException) -> None: ...
        def guard(self, function: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]: ...
        def on_interrupt(self, number: int, frame: FrameType | None) -> None: ...
        def restore_descriptors(self) -> None: ...


HERE = os.path.dirname(__file__)
MAX_TEXT = 1 << 20
MAX_RESULTS = 200
KEPT_SOURCES = 1000
ONLY_AST, TOP_LEVEL_AWAIT = 0x400, 0x2000
_AWAITS = 0x280

channel: "Channel"
main = sys.modules["__main__"]
namespace: "dict[str, Any]" = main.__dict__
sources: "dict[str, str]" = {}
count = 0  # of the cell that runs, or ran last
shown = 0  # results of this cell
after_cell: "list[Callable[[], object]]" = []  # what `get_ipython().events` was given
flags = TOP_LEVEL_AWAIT  # of the compiler: with what earlier cells have imported from `__future__`
streams = (sys.stdout, sys.stderr)


def use(to: "Channel") -> None:
    """Sends results on this channel from now on."""
    global channel
    channel = to


# -- code


def parse(source: str, filename: str) -> "Any":
    """Returns the tree of a cell, which may have commands of IPython in it. Raises SyntaxError."""
    try:
        return compile(source, filename, "exec", flags | ONLY_AST, True)
    except SyntaxError as exc:
        error = exc
    if "!" in source or "%" in source or "?" in source:
        from . import magic_syntax

        tree, error = magic_syntax.parse(source, filename, error, flags | ONLY_AST)
        if tree is not None:
            return tree
    raise error from None


def run_steps(steps: "list[CodeType]", source: str) -> "Any":
    """Runs compiled pieces one after the other and returns the value of the last; on an event loop if they need one."""
    if any(step.co_flags & _AWAITS for step in steps) or _wants_loop(source):
        from . import loops

        return loops.run(steps, namespace)
    value = None
    for step in steps:
        value = eval(step, namespace)
    return value


def _wants_loop(source: str) -> bool:
    """Returns whether code needs a running event loop: it makes tasks, and does not start a loop of its own."""
    if "create_task(" not in source and "ensure_future(" not in source and "get_running_loop(" not in source:
        return False
    return "asyncio.run(" not in source and "run_until_complete(" not in source and "Runner(" not in source


def remember(filename: str, source: str) -> None:
    """Keeps the source of a cell, also in `linecache`, where tracebacks, warnings and `inspect` look for it."""
    sources[filename] = source
    if len(sources) > KEPT_SOURCES:
        oldest = next(iter(sources))
        del sources[oldest]
        if "linecache" in sys.modules:
            sys.modules["linecache"].cache.pop(oldest, None)
    if "linecache" in sys.modules:
        fill_line_cache((filename,))


def fill_line_cache(filenames: "Any") -> None:
    """Gives the lines of these cells to `linecache`, which is loaded."""
    cache = sys.modules["linecache"].cache
    for filename in filenames:
        source = sources[filename]
        cache[filename] = (len(source), None, [line + "\n" for line in source.split("\n")], filename)


# -- results


def send_result(result: "dict[str, Any]") -> None:
    """Sends a result. The first one above the bound is replaced by a text that says so; later ones are dropped."""
    global shown
    shown += 1
    if shown > MAX_RESULTS:
        if shown > MAX_RESULTS + 1:
            return
        text = "A cell shows at most %d results; the others were left out." % MAX_RESULTS
        result = {"type": "result", "is_main_result": False, "text": text, "cut": ["results"]}
    channel.send(b"r", encode(result))


def text_of(value: "Any") -> str:
    """Returns the `repr` of a value; of a huge one only a little more than MAX_TEXT is built."""
    kind: Any = type(value)
    if isinstance(value, (str, bytes, bytearray)) and len(value) > MAX_TEXT:
        return repr(value[:MAX_TEXT])
    if kind in (list, tuple, set, dict) and len(value) > 512:
        parts, length = [], 0
        items = iter(value.items() if kind is dict else value)
        while length <= MAX_TEXT:
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
    """Writes out what was printed, so that it comes before the result that follows."""
    for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None), *streams):
        try:
            stream.flush()  # type: ignore[union-attr]
        except (AttributeError, OSError, ValueError):
            pass  # user code has closed it, or put something else there


def _make_codec() -> "tuple[Callable[[bytes], Any], Callable[[Any], bytes]]":
    """Returns a decoder and an encoder of JSON without the package `json`, whose import takes longer than our start."""
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
