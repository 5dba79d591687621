"""Whether the grammar can be believed about a text.

The grammar of the parser is not bash's own. Where both are known to part ways, or where a token has something in
it that a shell would have read as more than that token, the text counts as one that cannot be known. The checks are
on tokens and the gaps between them, so a mistake of the grammar cannot hide a command.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

STRUCTURE_BYTES = 16 * 1024
STRUCTURE_SIGNS = 1500
_SIGNS = re.compile(r"[|()<>{}\[\]=;&`#]")
_ODD_SPACES = re.compile(r"[\r\v\f\x1c-\x1f\x85]|[^\x00-\x7f](?<=\s)")
_SPLIT_WORD = re.compile(r"[^\s\\](?:\\\\)*\\\n\S|^\\\n\S")
_ESCAPED = re.compile(rb"\\.", re.S)
_MORE_THAN_A_WORD = re.compile(rb"[`\"';|&<>()\s]|\$[A-Za-z_0-9({'\"@*#?!$-]")
_SUBSTITUTES = re.compile(rb"`|\$\(|<\(|>\(")
_IN_STRING = re.compile(rb"[`\"]|\$[A-Za-z_0-9({@*#?!$-]")
_IN_DOCUMENT = re.compile(rb"`|\$[A-Za-z_0-9({@*#?!$-]")
_BEFORE_COMMENT = b" \t\n;&|()`"
_DELIMITER = re.compile(rb"'([\w.-]+)'|\"([\w.-]+)\"|\\([\w.-]+)|(\w+)")
_LOOSE = frozenset({"expansion", "test_command", "binary_expression", "case_item", "regex", "extglob_pattern"})
_PATTERNS = frozenset({"regex", "extglob_pattern"})
_OF_WORDS = frozenset({"command", "declaration_command", "unset_command"})
_ON_ONE_LINE = _OF_WORDS | {
    "redirected_statement", "file_redirect", "herestring_redirect", "variable_assignment", "pipeline", "list",
    "negated_command", "test_command", "concatenation",
}  # fmt: skip
# Tokens that may have text of their own between their parts.
_WITH_TEXT = frozenset({"string", "heredoc_body", "translated_string"})


def text_doubt(text: str) -> str:
    """Returns why a text is not parsed at all, because that could take long; empty if it may be parsed."""
    if len(text) > STRUCTURE_BYTES or len(text.encode(errors="replace")) > STRUCTURE_BYTES:
        return f"it is longer than {STRUCTURE_BYTES // 1024} KiB without its here-documents"
    if len(_SIGNS.findall(text)) > STRUCTURE_SIGNS:
        return f"it has more than {STRUCTURE_SIGNS} signs of shell syntax"
    return ""


def odd_doubt(text: str) -> str:
    """Returns why a text has characters that the shell and the grammar take differently; empty if it has none."""
    if _ODD_SPACES.search(text):
        return "it has white space in it that is no white space to a shell"
    if _SPLIT_WORD.search(text):
        return "a backslash at the end of a line is within a word"
    return ""


def token_doubt(node: "Node", parent: str, source: bytes) -> str:
    """Returns what is wrong with a token, or with the text directly in a string. `parent` is the type of the node
    around it."""
    if node.is_error or node.is_missing:
        return "its syntax is not understood"
    kind, text = node.type, source[node.start_byte : node.end_byte]
    if kind == "``":
        return "there is nothing within backquotes"
    if kind == "comment":
        return _comment_doubt(node, parent, source)
    if kind == "heredoc_redirect":
        return _document_doubt(node, source)
    if kind == "string":
        return _wrong(_IN_STRING, own_text(node, source)[1:-1]) if text[-1:] == b'"' else "a string has no end"
    if kind == "raw_string":
        return "" if text[:1] == b"'" == text[-1:] and text.count(b"'") == 2 else "a string has no end"
    if kind in ("word", "number", "variable_name"):
        return _wrong(_SUBSTITUTES if parent in _LOOSE else _MORE_THAN_A_WORD, text)
    if kind in _PATTERNS:
        return _wrong(_SUBSTITUTES, text) or ("a pattern has more than one line" if b"\n" in text else "")
    if kind == "command_substitution" and text[:1] == b"`" and b"\\" in text:
        return "there is a backslash within backquotes"
    return ""


def gap_doubt(node: "Node", source: bytes) -> str:
    """Returns what is wrong with the text of a node that none of its parts covers."""
    if node.type in _WITH_TEXT or not node.child_count:
        return ""
    place, before = node.start_byte, None
    for child in node.children:
        gap = source[place : child.start_byte].replace(b"\\\n", b"")
        if gap.strip(b" \t\n"):
            return "its syntax is not understood"
        if before is not None and before.is_named and b"\n" in gap and node.type in _ON_ONE_LINE:
            return "it cannot be told where a command ends"
        if gap and node.type == "concatenation":
            return "it cannot be told where a word ends"
        touching = before is not None and place == child.start_byte and "redirect" not in before.type + child.type
        if touching and node.type in _OF_WORDS:
            return "it cannot be told where a word ends"
        place, before = max(place, child.end_byte), child
    return ""


def own_text(node: "Node", source: bytes) -> bytes:
    """The text of a node without what its expansions cover."""
    pieces, place = [], node.start_byte
    for child in node.children:
        if child.is_named and child.type not in ("string_content", "heredoc_content"):
            pieces.append(source[place : child.start_byte])
            place = child.end_byte
    pieces.append(source[place : node.end_byte])
    return b" ".join(pieces) if len(pieces) > 1 else pieces[0]


def _wrong(pattern: "re.Pattern[bytes]", text: bytes) -> str:
    return "its quotes are not understood" if pattern.search(_ESCAPED.sub(b"x", text)) else ""


def _comment_doubt(node: "Node", parent: str, source: bytes) -> str:
    before = source[max(0, node.start_byte - 2) : node.start_byte]
    begins_word = not before or before[-1] in _BEFORE_COMMENT
    if not begins_word or before[:-1] == b"\\" or parent in _LOOSE | _WITH_TEXT | {"arithmetic_expansion"}:
        return "it cannot be told what is a comment"
    return ""


def _document_doubt(node: "Node", source: bytes) -> str:
    """Returns a doubt unless a here-document begins and ends where a shell would begin and end it."""
    parts = {child.type: source[child.start_byte : child.end_byte] for child in node.children}
    bodies = [child for child in node.children if child.type == "heredoc_body"]
    found = _DELIMITER.fullmatch(parts.get("heredoc_start", b""))
    if not found or len(bodies) != 1 or "heredoc_end" not in parts:
        return "it cannot be told where a here-document ends"
    wanted = next(group for group in found.groups() if group)
    lines = parts["heredoc_body"].split(b"\n")
    ends = [line.lstrip(b"\t") if "<<-" in parts else line for line in lines]
    if parts["heredoc_end"].strip() != wanted or wanted in ends:
        return "it cannot be told where a here-document ends"
    plain = found.group(4) is not None
    return _wrong(_IN_DOCUMENT, own_text(bodies[0], source)) if plain else ""
