"""Makes text of the output of a command as its log keeps it: without secrets, also if these come in two pieces. Pure.

Removed are the values of variables and of the session's secrets, in all forms that redaction.py knows, and keys and
tokens by their own shapes. The end of a piece that could be the beginning of a value waits for the next piece.
"""

import codecs
import re
from typing import Final

from warren.governance.audit.redaction import GONE, NO_FORMS, Forms, without, without_tokens

_LONGEST_LINE: Final = 4096  # so much of a line waits for its end
_SHORT: Final = 3  # where output is missing, shorter parts of a value stay
_KEY: Final = "-----BEGIN PRIVATE KEY-----"
_KEY_BEGINS: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")


class StreamText:
    """The text of one stream of a command."""

    def __init__(self, forms: Forms = NO_FORMS) -> None:
        self._forms = forms
        self._beginnings = (*forms.whole, *forms.too_long)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._after_gap = self._in_key = False

    def __repr__(self) -> str:
        return f"<StreamText, {len(self._held)} characters held>"

    def add(self, data: bytes, *, wait: bool = False) -> str:
        """Returns what can be shown now. With `wait` the beginning of a line waits for its end."""
        text = self._held + self._decoder.decode(data)
        if self._after_gap and text:
            text, self._after_gap = self._without_rest(text), False
        text = without(text, self._forms)
        keep = self._begun(text)
        if wait and (line := len(text) - text.rfind("\n") - 1) <= _LONGEST_LINE:
            keep = max(keep, line)
        self._held = text[len(text) - keep :]
        return self._without_tokens(text[: len(text) - keep])

    def skip(self) -> str:
        """Returns what is left before a part that is missing: the parts of a value on both sides of it are removed."""
        text = self._held + self._decoder.decode(b"", final=True)
        self._decoder.reset()
        begun, self._held, self._after_gap = self._begun(text), "", True
        if begun >= _SHORT:
            text = text[: len(text) - begun] + GONE
        return self._without_tokens(text)

    def finish(self) -> str:
        text, self._held = self._held + self._decoder.decode(b"", final=True), ""
        self._decoder.reset()
        return self._without_tokens(text)

    def _begun(self, text: str) -> int:
        """Returns the length of the longest end of the text that is the beginning of a value."""
        longest = 0
        for form in self._beginnings:
            begin = max(0, len(text) - len(form) + 1)
            while (begin := text.find(form[0], begin)) >= 0:
                if form.startswith(text[begin:]):
                    longest = max(longest, len(text) - begin)
                    break
                begin += 1
        return longest

    def _without_rest(self, text: str) -> str:
        longest = 0
        for form in self._forms.whole:
            end = min(len(text), len(form) - 1)
            while (end := text.rfind(form[-1], 0, end)) >= 0:
                if form.endswith(text[: end + 1]):
                    longest = max(longest, end + 1)
                    break
        return text if longest < _SHORT else GONE + text[longest:]

    def _without_tokens(self, text: str) -> str:
        if not text:
            return text
        if self._in_key:
            text = _KEY + text
        begins = [found.start() for found in _KEY_BEGINS.finditer(text)]
        self._in_key = bool(begins) and "-----END " not in text[begins[-1] :]
        return without_tokens(text)
