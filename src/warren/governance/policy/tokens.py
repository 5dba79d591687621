"""Turns nodes of the grammar into words, and finds what a command reads."""

from typing import TYPE_CHECKING

from warren.governance.policy.shell_words import (
    Word,
    WordPart,
    decode_ansi,
    in_double_quotes,
    in_here_document,
    join_parts,
    without_backslashes,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_BARE = frozenset({"word", "number", "variable_name", "special_variable_name", "test_operator"})
_NESTED = frozenset({"command_name", "concatenation", "variable_assignment"})
_SEVERAL = ("$@", "$*", "[@]", "[*]", "@}", "*}")
_SUBSTITUTES = frozenset("$`")
_READING = frozenset({"<", "<&", "<>", "<&-"})


class SourceText:
    """A text, and the bodies of here-documents that were cut out of it."""

    def __init__(self, raw: bytes, bodies: dict[str, str]) -> None:
        self.raw = raw
        self._bodies = bodies
        self.marks_seen: set[str] = set()

    def text(self, node: "Node") -> str:
        return self.raw[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")

    def word(self, node: "Node") -> Word:
        return join_parts(self._parts(node))

    def literal(self, node: "Node") -> str:
        """The text of a word as far as it is written out."""
        known = [part for part in self._parts(node) if part.text is not None]
        return "".join(without_backslashes(part.text or "") if part.bare else part.text or "" for part in known)

    def words_after(self, redirect: "Node") -> list[Word]:
        """Returns the words behind the file of a redirection: they belong to the command."""
        named = [child for child in redirect.named_children if child.type != "file_descriptor"]
        if redirect.type == "heredoc_redirect":
            return [word for child in named if child.type == "file_redirect" for word in self.words_after(child)]
        return [self.word(child) for child in named[1:]]

    def stdin(self, redirects: "list[Node]") -> tuple[str, ...] | None:
        """Returns the texts that a command reads, or None if it may read something else."""
        texts: list[str] = []
        for redirect in [part for outer in redirects for part in (outer, *_within(outer))]:
            if not _is_input(redirect):
                continue
            text = self._input(redirect)
            if text is None:
                return None
            texts.append(text)
        return tuple(texts) or None

    def body(self, node: "Node") -> str | None:
        """Returns the text of a here-document; None if it has expansions in it. Notes its mark as seen."""
        text = self.text(node)
        mark = text.strip("\t\n")
        if mark in self._bodies:
            self.marks_seen.add(mark)
            return self._bodies[mark]
        return None if any(child.type != "heredoc_content" for child in node.named_children) else text

    def _input(self, redirect: "Node") -> str | None:
        if redirect.type == "herestring_redirect":
            words = [child for child in redirect.named_children if child.type != "file_descriptor"]
            text = self.word(words[0]).text if words else None
            return None if text is None else f"{text}\n"
        if redirect.type != "heredoc_redirect":
            return None
        parts = {child.type: child for child in redirect.children}
        if "heredoc_body" not in parts or "heredoc_start" not in parts:
            return None
        text = self.body(parts["heredoc_body"])
        if text is None or self.text(parts["heredoc_body"]).strip("\t\n") in self._bodies:
            return text
        if "<<-" in parts:
            text = "\n".join(line.lstrip("\t") for line in text.split("\n"))
        return in_here_document(text) if self.text(parts["heredoc_start"]).isalnum() else text

    def _parts(self, node: "Node") -> list[WordPart]:
        kind, text = node.type, self.text(node)
        if kind in _NESTED:
            return self._nested(node)
        if kind in _BARE:
            return [WordPart(text, bare=True)]
        if kind == "raw_string":
            return [WordPart(text[1:-1])]
        if kind == "ansi_c_string":
            return [WordPart(decode_ansi(text[2:-1]))]
        if kind == "string":
            return self._in_string(node)
        if not node.is_named and not _SUBSTITUTES.intersection(text):
            return [WordPart(text, bare=True)]
        return [WordPart(None, many=True)]

    def _nested(self, node: "Node") -> list[WordPart]:
        """Returns the parts of concatenations, which may stand in each other. Without recursion: they may be nested as
        deeply as the text is long."""
        parts: list[WordPart] = []
        stack = [node]
        while stack:
            inner = stack.pop()
            if inner.type in _NESTED:
                stack += reversed(inner.children)
            else:
                parts += self._parts(inner)
        return parts

    def _in_string(self, node: "Node") -> list[WordPart]:
        parts: list[WordPart] = []
        place = node.start_byte + 1
        for child in node.named_children:
            if child.type == "string_content":
                continue
            parts.append(self._literal(place, child.start_byte))
            expansion = self.text(child)
            parts.append(WordPart(None, many=expansion.endswith(_SEVERAL)))
            place = child.end_byte
        return [*parts, self._literal(place, node.end_byte - 1)]

    def _literal(self, start: int, end: int) -> WordPart:
        return WordPart(in_double_quotes(self.raw[start:end].decode("utf-8", "surrogateescape")))


def _within(redirect: "Node") -> "list[Node]":
    return [child for child in redirect.children if child.type.endswith("_redirect")]


def _is_input(redirect: "Node") -> bool:
    kinds = [child.type for child in redirect.children]
    number = next((child.text for child in redirect.children if child.type == "file_descriptor"), None)
    reads = redirect.type != "file_redirect" or bool(_READING.intersection(kinds))
    return reads and (number is None or number == b"0")
