"""Lets processes that `multiprocessing` spawns find what cells have defined.

Such a process imports the file of `__main__`. There is none here, so one is written when a process is spawned: the
imports, functions, classes and plain constants of all cells, in their order.
"""

import ast
import atexit
import os
import tempfile

from . import context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_path = ""


def extend(module: "Any") -> None:
    """Lets `multiprocessing.spawn` tell new processes the file to import."""
    original = module.get_preparation_data

    def get_preparation_data(name: str) -> "Any":
        data = original(name)
        if "init_main_from_name" not in data and "init_main_from_path" not in data:
            data["init_main_from_path"] = _write()
        return data

    module.get_preparation_data = get_preparation_data


def _write() -> str:
    global _path
    if not _path:
        descriptor, _path = tempfile.mkstemp(prefix="cells-", suffix=".py")
        os.close(descriptor)
        atexit.register(_remove, _path, os.getpid())
    fresh = _path + ".new"
    with open(fresh, "w", encoding="utf-8", errors="surrogateescape") as file:
        for filename in list(context.sources):
            file.write(_definitions(filename))
    os.replace(fresh, _path)
    return _path


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner and os.path.exists(path):
        os.unlink(path)


def _definitions(filename: str) -> str:
    """Returns code that repeats a cell's definitions; an error in it, such as a missing module, stops no other cell."""
    source = context.sources[filename]
    try:
        body = context.parse(source, filename).body
    except SyntaxError:
        return ""
    lines, found = source.split("\n"), []
    for node in body:
        if _is_definition(node):
            first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", ()))])
            found += lines[first - 1 : node.end_lineno]
    if not found:
        return ""
    code = "\n".join(found) + "\n"
    return "try:\n    exec(compile(%r, %r, 'exec'))\nexcept Exception:\n    pass\n" % (code, filename)


def _is_definition(node: "Any") -> bool:
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return True
    if not isinstance(node, ast.Assign) or not all(isinstance(target, ast.Name) for target in node.targets):
        return False
    try:
        ast.literal_eval(node.value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
