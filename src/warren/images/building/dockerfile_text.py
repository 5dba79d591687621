"""The text of a Dockerfile: instructions with their lines, words, and variables in them.

Reading takes linear time: nothing here backtracks, and the values of variables are bounded. It goes character by
character where words are quoted, about a second for a mebibyte, so the text outside of here-documents is bounded too.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from warren.model.errors import InvalidRequest

MAX_BYTES: Final = 8 * 1024 * 1024
MAX_INSTRUCTIONS: Final = 5000
_MAX_PARSED: Final = 1024 * 1024  # characters outside of here-documents
_LONGEST_VALUE: Final = 128 * 1024  # the kernel limits an argument or variable to this
_DEEPEST: Final = 20
_DIRECTIVE: Final = re.compile(r"#\s*([A-Za-z][A-Za-z0-9_-]*)\s*=\s*(\S.*?)\s*$")
_HEREDOC: Final = re.compile(r"(?<!\S)\d*<<(-?)(?:\"([^\s\"<>]+)\"|'([^\s'<>]+)'|([^\s<>|&;()\"'\\]+))")
_HEREDOC_INSTRUCTIONS: Final = frozenset({"RUN", "COPY", "ADD"})
_PLAIN: Final = re.compile(r"[^\\`\"'$}]+")
_PLAIN_WORD: Final = re.compile(r"[^\\`\"'\s]+")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Heredoc:
    """A here-document. `head` is how the instruction refers to it, such as `<<-EOF`."""

    name: str
    head: str
    body: str


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `word` is in capitals; `rest` is what follows it, joined to one line."""

    word: str
    rest: str
    line: int
    heredocs: tuple[Heredoc, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.word} {self.rest}".strip()


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a Dockerfile, for error messages."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def refuse(self, what: str, remedy: str = "") -> NoReturn:
        raise InvalidRequest(f"{self}: {what}", remedy=remedy)


def read_instructions(text: str, file: str) -> tuple[list[Instruction], str]:
    """Returns the instructions, and the escape character. Raises InvalidRequest."""
    if len(text) > MAX_BYTES:
        raise InvalidRequest(f"{file} has {len(text)} characters; {MAX_BYTES} are the most")
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    escape, first = _read_directives(lines, file)
    found: list[Instruction] = []
    for instruction in _join_lines(lines, first, escape, file):
        found.append(instruction)
        if len(found) > MAX_INSTRUCTIONS:
            Place(file, instruction.line).refuse(f"{MAX_INSTRUCTIONS} instructions are the most")
    return found, escape


def _read_directives(lines: list[str], file: str) -> tuple[str, int]:
    """Returns the escape character and the first line after the directives. Directives are comments at the very
    beginning; `syntax` and `check` are for other builders."""
    escape = "\\"
    for number, line in enumerate(lines):
        match = _DIRECTIVE.match(line.strip()) if len(line) < 1000 else None
        if match is None or match[1].lower() not in ("escape", "syntax", "check"):
            return escape, number
        if match[1].lower() == "escape":
            if match[2] not in ("\\", "`"):
                Place(file, number + 1).refuse(f"escape is {match[2][:20]!r}", "it may be \\ or `")
            escape = match[2]
    return escape, len(lines)


def _join_lines(lines: list[str], first: int, escape: str, file: str) -> Iterator[Instruction]:
    continued = re.compile(re.escape(escape) + r"[ \t]*\Z")
    number, parsed = first, 0
    while number < len(lines):
        start, parts = number, list[str]()
        while number < len(lines):
            line, number = lines[number], number + 1
            parsed += len(line) + 1
            if parsed > _MAX_PARSED:
                Place(file, number).refuse(
                    f"the instructions have more than {_MAX_PARSED} characters so far, which is the most",
                    "COPY what is long, or write it as a here-document",
                )
            bare = line.lstrip()
            if bare.startswith("#") or not bare:
                if not parts:
                    break  # an empty line between instructions
                continue  # comments and empty lines do not end a continued instruction
            tail = line.rstrip(" \t")
            more = tail.endswith(escape) and continued.search(line, max(0, len(tail) - 1))
            parts.append(tail[:-1] if more else line)
            if not more:
                break
        if not parts:
            continue
        word, _, rest = "".join(parts).strip().replace("\t", " ", 1).partition(" ")
        found = Instruction(word.upper(), rest.strip(), start + 1)
        if found.word in _HEREDOC_INSTRUCTIONS and "<<" in rest:
            heredocs, number = _read_heredocs(found, lines, number, file)
            found = Instruction(found.word, found.rest, found.line, heredocs)
        yield found


def _read_heredocs(
    instruction: Instruction, lines: list[str], number: int, file: str
) -> tuple[tuple[Heredoc, ...], int]:
    if instruction.rest.startswith("["):
        return (), number
    found = []
    for match in _HEREDOC.finditer(instruction.rest):
        name = match[2] or match[3] or match[4]
        body: list[str] = []
        while True:
            if number >= len(lines):
                Place(file, instruction.line).refuse(f"the text that ends with {name[:40]!r} has no end")
            line, number = lines[number], number + 1
            line = line.lstrip("\t") if match[1] else line
            if line == name:
                break
            body.append(line + "\n")
        found.append(Heredoc(name, match[0], "".join(body)))
    return tuple(found), number


class Expander:
    """Splits words and replaces variables by their values, as the reference of Dockerfiles defines it."""

    def __init__(self, variables: Mapping[str, str], escape: str, place: Place) -> None:
        self._variables = variables
        self._escape = escape
        self._place = place

    def words(self, text: str) -> list[str]:
        """Splits the text at blanks outside of quotes. Quotes and variables stay in the words."""
        found: list[str] = []
        begin, quote, position, inside = 0, "", 0, False
        while position < len(text):
            character = text[position]
            if character == self._escape and quote != "'" and position + 1 < len(text):
                inside, position = True, position + 2
                continue
            if quote:
                quote = "" if character == quote else quote
            elif character in "\"'":
                quote, inside = character, True
            elif character in " \t":
                if inside:
                    found.append(text[begin:position])
                inside, begin = False, position + 1
                position += 1
                continue
            inside = True
            plain = _PLAIN_WORD.match(text, position + 1)
            position = plain.end() if plain else position + 1
        if quote:
            self._place.refuse(f"a {quote} has no end")
        if inside:
            found.append(text[begin:])
        return found

    def expand(self, text: str) -> str:
        """Returns the word without quotes, with the values of its variables. Raises InvalidRequest."""
        if (plain := _PLAIN.match(text)) and plain.end() == len(text) <= _LONGEST_VALUE:
            return text
        value, _ = self._read(text, 0, "", 0)
        return value

    def _read(self, text: str, position: int, until: str, depth: int) -> tuple[str, int]:
        if depth > _DEEPEST:
            self._place.refuse(f"variables are nested more than {_DEEPEST} deep")
        out: list[str] = []
        size, quote = 0, ""
        while position < len(text):
            character = text[position]
            if until and not quote and character == until:
                return "".join(out), position
            if quote == "'":
                piece, position = ("", position + 1) if character == "'" else (character, position + 1)
                quote = "" if character == "'" else quote
            elif character == self._escape:
                piece, position = self._escaped(text, position, quote)
            elif character == '"' or (character == "'" and not quote):
                quote = "" if quote else character
                piece, position = "", position + 1
            elif character == "$":
                piece, position = self._variable(text, position + 1, depth)
            else:
                plain = _PLAIN.match(text, position)
                piece = plain[0] if plain and character != self._escape else character
                position += len(piece)
            out.append(piece)
            size += len(piece)
            if size > _LONGEST_VALUE:
                self._place.refuse(f"a value has more than {_LONGEST_VALUE} characters")
        if quote:
            self._place.refuse(f"a {quote} has no end")
        if until:
            self._place.refuse(f"a {until} is missing after ${{")
        return "".join(out), position

    def _escaped(self, text: str, position: int, quote: str) -> tuple[str, int]:
        following = text[position + 1 : position + 2]
        if not following:
            return self._escape, position + 1
        if quote == '"' and following not in ('"', "$", self._escape):
            return self._escape, position + 1
        return following, position + 2

    def _variable(self, text: str, position: int, depth: int) -> tuple[str, int]:
        braced = text[position : position + 1] == "{"
        match = _NAME.match(text, position + braced)
        if match is None:
            if braced:
                self._place.refuse("${ is not followed by the name of a variable")
            return "$", position  # a lone dollar sign
        name, position = match[0], match.end()
        value = self._variables.get(name)
        if not braced:
            return value or "", position
        colon = text[position : position + 1] == ":"
        operator = text[position + colon : position + colon + 1]
        if operator == "}" and not colon:
            return value or "", position + 1
        if not operator:
            self._place.refuse("a } is missing after ${")
        if operator not in ("-", "+", "?"):
            self._place.refuse(
                f"${{{name}{text[position : position + 2]}…}} is not supported",
                "${x}, ${x:-word}, ${x:+word} and ${x:?word} are",
            )
        word, end = self._read(text, position + colon + 1, "}", depth + 1)
        is_set = bool(value) if colon else value is not None
        if operator == "?" and not is_set:
            self._place.refuse(f"the variable {name} has no value: {word[:200]}")
        if operator == "+":
            return (word if is_set else ""), end + 1
        return (value or "") if is_set or operator == "?" else word, end + 1
