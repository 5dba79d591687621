"""Finds the commands of IPython in a cell: `!command`, `%name`, `%%name`, `name?`; `magics` runs them.

A line is taken for one only where Python finds a syntax error, so that text in strings is left alone.
"""

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ASSIGNED = re.compile(r"^(\s*)([\w.,\[\]'\" ]+?)\s*=\s*([!%])(?!=)(.*)$")


def parse(source: str, filename: str, error: SyntaxError, flags: int) -> "tuple[Any, SyntaxError]":
    """Returns the tree of a cell with commands in it, or None and the error that remains."""
    stripped = source.lstrip()
    if stripped.startswith("%%"):
        return compile(_cell_magic(source), filename, "exec", flags, True), error
    lines = source.split("\n")
    for _ in range(len(lines)):
        number = _line_to_replace(lines, error)
        if number is None:
            return None, error
        _replace(lines, number)
        try:
            return compile("\n".join(lines), filename, "exec", flags, True), error
        except SyntaxError as exc:
            error = exc
    return None, error


def _cell_magic(source: str) -> str:
    blank = len(source) - len(source.lstrip())
    head, _, body = source[blank:].partition("\n")
    name, _, rest = head[2:].partition(" ")
    first = source.count("\n", 0, blank) + 1
    return "get_ipython()._run_cell_magic(%r, %r, %r, %d)" % (name.strip(), rest.strip(), body, first)


def _line_to_replace(lines: "list[str]", error: SyntaxError) -> "int | None":
    """Returns the number of the line with the error if that looks like a command, else of the first that does."""
    number = (error.lineno or 0) - 1
    if 0 <= number < len(lines) and _replacement(lines[number]) is not None:
        return number
    return next((index for index, line in enumerate(lines) if _replacement(line) is not None), None)


def _replace(lines: "list[str]", number: int) -> None:
    while lines[number].endswith("\\") and number + 1 < len(lines):
        lines[number] = lines[number][:-1] + lines[number + 1]
        del lines[number + 1]
        lines.append("")  # so that the numbers of the lines after the next error stay near
    lines[number] = _replacement(lines[number]) or ""


def _replacement(line: str) -> "str | None":
    text = line.strip()
    indent = line[: len(line) - len(line.lstrip())]
    if text.startswith("!!"):
        return "%sget_ipython().getoutput(%r)" % (indent, text[2:])
    if text.startswith("!"):
        return "%sget_ipython().system(%r)" % (indent, text[1:])
    if text.startswith("%") and text[1:2].isalpha():
        return indent + _line_call(text[1:])
    if text.startswith("?") or (text.endswith("?") and not text.startswith("#")):
        name = text.strip("?").strip()
        if re.match(r"^%?[\w.]+$", name):
            return "%sget_ipython().run_line_magic('pinfo', %r)" % (indent, name)
    found = _ASSIGNED.match(line)
    if found is None:
        return None
    indent, target, sign, rest = found.groups()
    if sign == "!":
        return "%s%s = get_ipython().getoutput(%r)" % (indent, target, rest)
    return "%s%s = %s" % (indent, target, _line_call(rest)) if rest[:1].isalpha() else None


def _line_call(text: str) -> str:
    name, _, rest = text.partition(" ")
    return "get_ipython().run_line_magic(%r, %r)" % (name, rest.strip())
