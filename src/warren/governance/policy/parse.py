"""Finds the commands in a shell text, and what cannot be known about it.

`parse` walks the syntax tree with a stack of its own, so that nesting costs nothing. It finds every simple command: in
pipes, lists, loops, functions, substitutions. expand.py finds what a command starts in its turn.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from warren.governance.policy.here_documents import Cut, cut_here_documents
from warren.governance.policy.shell_words import Word
from warren.governance.policy.syntax import gap_doubt, odd_doubt, text_doubt, token_doubt
from warren.governance.policy.tokens import SourceText

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Tree

LONGEST_TEXT = 256 * 1024
_PLACE_CHARS = 60
# Shells run what is in the code variables, or take from them what names stand for; they find programs by the others.
_CODE_VARIABLES = frozenset({
    "BASH_ALIASES", "BASH_CMDS", "BASH_ENV", "BASHOPTS", "ENV", "PROMPT_COMMAND", "PS0", "PS4", "SHELLOPTS",
})  # fmt: skip
_LOOKUP_VARIABLES = frozenset({"PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT"})
_READS = frozenset({"simple_expansion", "expansion"})
_LAST_COUNTS = frozenset({"pipeline", "list", "negated_command"})
_COMMANDS = frozenset({"declaration_command", "unset_command", "test_command"})
_QUOTED = frozenset({"concatenation", "raw_string", "ansi_c_string", "string", "word"})
_FAR = re.compile("[\x80-\ud7ff\ue000-\U0010ffff]")  # but for bytes that are no text
_BRACKET = re.compile(r"\[|(?<!\$)\(")
_EVALUATING = re.compile(rb"^\$\{!|:[^-+=?]")  # `${!x}`, `${x:offset}`
_ASSIGNING = re.compile(rb"\$\{(!?)(\w+)(?:\[[^]]*\])?:?=")
_COMPARES = frozenset({b"-eq", b"-ne", b"-lt", b"-le", b"-gt", b"-ge", b"-v"})
_EVALUATES = frozenset({"arithmetic_expansion", "((", "subscript", "c_style_for_statement"})
_EVALUATORS = frozenset(
    {"let", "declare", "typeset", "local", "export", "readonly", "printf", "read", "unset", "test", "[", "wait"}
)


@dataclass(frozen=True, slots=True)
class FoundCommand:
    """A command with its words.

    `place` is its part of the line; `route` names the programs that start it (`bash -c`, `find -exec`). `stdin` holds
    the here-documents it reads; None: other input may come. `function`: a function of that name was surely defined
    before. `guess`: these words may well be no command.
    """

    words: tuple[Word, ...]
    place: str = ""
    route: tuple[str, ...] = ()
    stdin: tuple[str, ...] | None = None
    function: bool = False
    guess: bool = False

    @property
    def name(self) -> str:
        return self.words[0].text or ""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something that cannot be known before it runs. `lookup`: only which program a name stands for.

    `found` is the command in doubt, if an allow rule may vouch for it.
    """

    why: str
    place: str = ""
    route: tuple[str, ...] = ()
    lookup: bool = False
    found: FoundCommand | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Says that a text has a substitution `stored` in brackets, or that the shell `evaluates` what a variable holds.
    Either is harmless without the other; both may be anywhere in the command."""

    stored: bool
    evaluates: bool


@dataclass(frozen=True, slots=True)
class Script:
    """Text that a shell will read."""

    text: str
    route: tuple[str, ...] = ()
    place: str = ""
    guess: bool = False


@cache
def _grammar() -> "Language":
    """Loads the grammar with the first text: a server without policies does not need it."""
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Language(tree_sitter_bash.language())


def _tree(text: str) -> "Tree":
    """Parses a text, with a parser of its own: a parser serves one thread. Raises UnicodeEncodeError.

    To a shell every character beyond ASCII is an ordinary one that no name has in it. The grammar looks some of them up
    in a table of 256 (`isdigit` after `{`, `isalpha` after `-`, `$` and `?`), and a far one would end this process: so
    it is given others that take as many bytes, and its nodes are where they are in the text itself.
    """
    import tree_sitter

    plain = text if text.isascii() else _FAR.sub(_near, text)
    return tree_sitter.Parser(_grammar()).parse(plain.encode("utf-8", "surrogateescape"))


def _near(far: "re.Match[str]") -> str:
    size = len(far[0].encode())
    return "\u00d7" * (size // 2) + "x" * (size % 2)


def is_code_variable(name: str) -> bool:
    """Whether a shell may run what is in the variable, or in an element of it (`BASH_CMDS[ls]`)."""
    return name.partition("[")[0] in _CODE_VARIABLES or name.startswith("BASH_FUNC_")


def is_lookup_variable(name: str) -> bool:
    return name.partition("[")[0] in _LOOKUP_VARIABLES


def parse(script: Script) -> list[FoundCommand | Doubt | Evaluation]:
    """Finds the commands in a text, and the doubts about it. Never raises; takes time in proportion to the text."""
    if len(script.text) > LONGEST_TEXT:
        why = f"it is longer than {LONGEST_TEXT // 1024} KiB"
        return [Doubt(why, _excerpt(script.text), script.route)]
    without = cut_here_documents(script.text)
    walk = _Walk(script, without)
    if walk.run() and walk.marks_seen == set(without.bodies):
        return walk.result
    if without.bodies:
        walk = _Walk(script, Cut(script.text, {}))
        walk.run()
    return walk.result


class _Walk:
    """Walks through the syntax tree of one text, once."""

    def __init__(self, script: Script, without: Cut) -> None:
        self._script = script
        self._cut = without
        self.result: list[FoundCommand | Doubt | Evaluation] = []
        self.marks_seen: set[str] = set()
        self._functions: set[str] = set()
        self._done: set[int] = set()
        self._stored = self._evaluates = False

    def run(self) -> bool:
        """Fills `result`. Returns whether the text could be parsed at all."""
        text = self._cut.text
        if why := text_doubt(text):
            self._doubt(why, text)
            return False
        if why := odd_doubt(text):
            self._doubt(why, text)
        try:
            raw = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            self._doubt("it has characters in it that no shell can be given", text)
            return False
        self._source = SourceText(raw, self._cut.bodies)
        stack: list[tuple[Node, str]] = [(_tree(text).root_node, "")]
        while stack:
            node, parent = stack.pop()
            self._visit(node, parent)
            stack += [(child, node.type) for child in reversed(node.children)]
        self.marks_seen = self._source.marks_seen
        self.result.append(Evaluation(self._stored, self._evaluates))
        return True

    def _visit(self, node: "Node", parent: str) -> None:
        if why := token_doubt(node, parent, self._source.raw) or gap_doubt(node, self._source.raw):
            self._doubt(why, self._source.text(node))
        self._look_for_evaluation(node, parent)
        kind = node.type
        if kind == "redirected_statement":
            self._redirected(node)
        elif kind == "command" or kind in _COMMANDS:
            if node.id not in self._done:
                self._command(node, [])
        elif kind == "command_name" and parent != "command":
            self._found(node, (self._source.word(node),), None)
        elif kind == "heredoc_body":
            self._source.body(node)
        elif kind == "function_definition" and parent == "program":
            self._define(node)
        elif kind == "variable_name" and parent not in _READS:
            self._assigned(self._source.text(node), node)

    def _redirected(self, node: "Node") -> None:
        """Redirections of a pipeline or a list are really those of its last command."""
        body: Node | None = node.children[0]
        while body is not None and body.type in _LAST_COUNTS:
            body = body.children[-1] if body.children else None
        if body is not None and (body.type == "command" or body.type in _COMMANDS):
            self._done.add(body.id)
            self._command(body, node.children[1:])
        elif any(self._source.words_after(redirect) for redirect in node.children[1:]):
            self._doubt("words stand behind a redirection", self._source.text(node))

    def _command(self, node: "Node", redirects: "list[Node]") -> None:
        words: list[Word] = []
        own: list[Node] = []
        for child in node.children:
            if child.type.endswith("_redirect"):
                own.append(child)
            elif child.type == "variable_assignment" and not words:
                continue
            elif child.type in ("subshell", "compound_statement"):
                words.append(Word(None, many=True))
            else:
                words.append(self._source.word(child))
        named = [child.type for child in node.children if child.type == "command_name"]
        for redirect in (*own, *redirects):
            words += self._source.words_after(redirect)
        if words and words[0].text == "[[" and node.type == "test_command":
            return
        if named or node.type != "command":
            self._found(node, tuple(words), self._source.stdin([*own, *redirects]))
        elif words:
            self._doubt("its syntax is not understood", self._source.text(node))

    def _found(self, node: "Node", words: tuple[Word, ...], stdin: tuple[str, ...] | None) -> None:
        name = words[0].text or ""
        if any(word.text in _EVALUATORS for word in words):
            self._evaluates = True
        if name == "unset":
            self._functions.clear()
        place = _excerpt(self._source.text(node))
        known = name in self._functions
        self.result.append(FoundCommand(words, place, self._script.route, stdin, known, self._script.guess))

    def _define(self, node: "Node") -> None:
        after = node.next_sibling
        name = next((child for child in node.children if child.type == "word"), None)
        if name is not None and (after is None or after.type != "&"):
            self._functions.add(self._source.text(name))

    def _assigned(self, name: str, node: "Node") -> None:
        if is_code_variable(name):
            self._doubt(f"a shell may run what {name} has in it", self._source.text(node))
        elif is_lookup_variable(name):
            self._doubt(f"{name} is changed, so names may stand for other programs", self._source.text(node), True)

    def _look_for_evaluation(self, node: "Node", parent: str) -> None:
        kind = node.type
        raw = self._source.raw[node.start_byte : node.end_byte]
        if (
            kind in _EVALUATES
            or (kind == "test_operator" and raw in _COMPARES)
            or (kind == "expansion" and _EVALUATING.search(raw))
            or (kind == "array" and b"]=" in raw)
        ):
            self._evaluates = True
        elif kind in _QUOTED and has_code_in_brackets(self._source.literal(node)):
            self._stored = True
        if kind == "expansion" and (found := _ASSIGNING.match(raw)):
            self._assigned(found[2].decode(), node)
            if found[1]:
                self._doubt("which variable an expansion sets is known only when it runs", self._source.text(node))
        if kind == "@" and parent == "expansion":
            self._doubt("an expansion with @ may run what the variable has in it", raw.decode(errors="replace"))

    def _doubt(self, why: str, place: str, lookup: bool = False) -> None:
        self.result.append(Doubt(why, _excerpt(place), self._script.route, lookup))


def has_code_in_brackets(text: str) -> bool:
    """Whether a substitution stands in a subscript or a list. Where arithmetic or a declaration finds these in a value,
    the shell evaluates them once more."""
    bracket = _BRACKET.search(text)
    return bracket is not None and ("$(" in text[bracket.end() :] or "`" in text[bracket.end() :])


def _excerpt(text: str) -> str:
    line = text[: _PLACE_CHARS * 4].strip().partition("\n")[0]
    return line if len(line) <= _PLACE_CHARS else f"{line[:_PLACE_CHARS]}…"
