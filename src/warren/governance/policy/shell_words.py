"""The words of a command line after the shell has removed their quotes. Pure.

The grammar tells where a word and its parts are, this module what they mean. A part that is known only when the line
runs (a variable, a substitution, a glob) is a hole.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_SIMPLE = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip
_ANSI = re.compile(
    r"\\(?:([abeEfnrtv\\'\"?])|([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|c(.))", re.S
)
_OUTSIDE = re.compile(r"\\(\n|.)", re.S)
_IN_DOUBLE = re.compile(r'\\([\n"\\$`])')
_GLOB = re.compile(r"[*?\[{]")
_IN_DOCUMENT = re.compile(r"\\([\n\\$`])")


@dataclass(frozen=True, slots=True)
class Word:
    """`text` is None where it cannot be known; `begins` is then what it surely begins with.

    `many` says that it may turn out to be no word or several.
    """

    text: str | None
    many: bool = False
    begins: str = ""


@dataclass(frozen=True, slots=True)
class WordPart:
    """A piece of a word. None is a hole; `bare` text stands outside of quotes, with its backslashes."""

    text: str | None
    bare: bool = False
    many: bool = False


def join_parts(parts: Iterable[WordPart]) -> Word:
    known, begins, whole, many, bare = [], "", True, False, ""
    for part in parts:
        if part.text is None:
            whole, many = False, many or part.many
            bare += "x"
            continue
        text = without_backslashes(part.text) if part.bare else part.text
        bare += _OUTSIDE.sub("x", part.text) if part.bare else "x" * bool(text)
        known.append(text)
        begins += text if whole else ""
    if is_pattern(bare):
        return Word(None, many=True, begins=_GLOB.split(begins)[0])
    return Word("".join(known)) if whole else Word(None, many, begins)


def is_pattern(bare: str) -> bool:
    """Whether the shell would make file names or several words of it; quoted characters are given as `x`."""
    globs = "*" in bare or "?" in bare or ("[" in bare and "]" in bare.partition("[")[2])
    inside = bare.partition("{")[2].rpartition("}")[0]
    return globs or "," in inside or ".." in inside


def without_backslashes(text: str) -> str:
    return _OUTSIDE.sub(lambda found: "" if found[1] == "\n" else found[1], text)


def in_double_quotes(text: str) -> str:
    return _IN_DOUBLE.sub(lambda found: "" if found[1] == "\n" else found[1], text)


def in_here_document(text: str) -> str:
    return _IN_DOCUMENT.sub(lambda found: "" if found[1] == "\n" else found[1], text)


def decode_ansi(text: str) -> str | None:
    """Decodes the inside of `$'…'`. Returns None if it has a NUL, at which shells differ, or a number that is no
    character."""
    try:
        found = _ANSI.sub(_ansi_character, text)
    except (ValueError, OverflowError):
        return None
    return None if "\0" in found else found


def _ansi_character(found: re.Match[str]) -> str:
    simple, octal, hexadecimal, short, long, control = found.groups()
    if simple:
        return _SIMPLE[simple]
    if control:
        return chr(ord(control) & 0x1F)
    if octal or hexadecimal:
        value = int(octal, 8) & 0xFF if octal else int(hexadecimal, 16)
        return bytes([value]).decode("utf-8", "surrogateescape")
    return chr(int(short or long, 16))
