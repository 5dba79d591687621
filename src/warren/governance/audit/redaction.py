"""Removes secrets from text. Pure.

Two ways: known values (a session's variables) are removed wherever they occur; and so is what looks like a secret, by
its own shape (a token with a known beginning) or by what precedes it (`--password`, `API_KEY=`). A doubtful value is
removed. A reference to a variable (`$DB_PASSWORD`) is no secret and stays.

The work for one text is bounded: it is cut before it is searched, and the searched part is so much longer than what
stays that no secret is cut in two. There is a bound on how many values are searched for, and on how much of each.
"""

import base64
import re
import shlex
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote, quote_plus

GONE: Final = "[redacted]"
SHORTEST: Final = 6  # shorter values occur by chance in many texts
MAX_SECRETS: Final = 256  # if there are more values, none is searched for and no text is kept
MAX_SECRETS_HELD: Final = 32 * 1024  # the same for the characters of all values together
_LOOKED_AT: Final = 2  # a long text is searched for shapes up to this multiple of what may stay
_MAX_FORM: Final = 2048  # only this much of a longer value is searched for, and nothing behind it is kept
_MAX_STAYS: Final = 2048  # characters of a text that stay
MAX_TEXT_HELD: Final = _LOOKED_AT * _MAX_STAYS + 2 * _MAX_FORM  # no more of a text is looked at

# One value as a shell, JSON or a program writes it. A quote that is never closed reaches to the end of the text.
_QUOTED: Final = r"""(?:\\"(?:(?!\\").)*+(?:\\"|\Z)|"(?:[^"\\]|\\.)*+(?:"|\Z)|'[^']*+(?:'|\Z)|`[^`]*+(?:`|\Z))"""
_BARE: Final = (
    r"""(?:\[redacted\]|\$\([^)]*+\)?|\$\{[^}]*+\}?|[^\s"'&;|<>,)}\]\\]|\\.|["',)}\]](?=[^\s"'&;|<>,)}\]]))++"""
)
_REFERENCE: Final = r"""(?!["']?\$(?:[A-Z_][A-Z0-9_]*+|\{[A-Z_][A-Z0-9_]*+\})(?:[\s"';&|,)}]|\Z))"""
_VALUE: Final = rf"{_REFERENCE}(?:{_QUOTED}|{_BARE})"
_ENDINGS: Final = (
    "password passwd passphrase passcode secret token credential credentials apikey accesskey "
    "_key -key _key_base _pwd -pwd _pass -pass"
)
_TYPE: Final = r"(?!(?:str|int|bool|bytes|float|object|string|number|boolean|any|none|null|optional|list|dict)\b)"


def _ending(endings: str) -> str:
    """Returns an expression that matches behind a name with one of these endings."""
    return f"(?:{'|'.join(f'(?<={ending})' for ending in endings.split())})"


_NAME: Final = rf"(?:pass(?![\w.-])|[\w.-]{{1,80}}+{_ending(_ENDINGS)})"
_HEADER: Final = rf"[\w-]{{1,80}}+{_ending('authorization cookie api-key apikey token secret')}"


class _Shape(NamedTuple):
    """`hints`: the pattern finds something only in a text that contains one of these (in lower case). `put` replaces
    what it finds."""

    hints: Sequence[str]
    pattern: re.Pattern[str]
    put: str


def _shape(hints: str, pattern: str, put: str = rf"\g<1>{GONE}") -> _Shape:
    return _Shape(hints.split(), re.compile(pattern, re.IGNORECASE | re.DOTALL), put)


def _token(hint: str, pattern: str) -> _Shape:
    """Returns the shape of a secret that is known by its beginning, in capitals and small letters as given."""
    return _Shape([hint], re.compile(rf"(?<![\w-])(?:{pattern})", re.ASCII), GONE)


_NAMES: Final = "pass secret token credential key _pwd -pwd"
_SHAPES: Final = (
    _shape(
        "private",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
        r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
        GONE,
    ),
    _token("akia", r"AKIA[A-Z0-9]{16}(?![A-Z0-9])"),
    _token("asia", r"ASIA[A-Z0-9]{16}(?![A-Z0-9])"),
    _token("gh", r"gh[pousr]_[A-Za-z0-9]{20,}+"),
    _token("github_pat_", r"github_pat_\w{20,}+"),
    _token("glpat-", r"glpat-[\w-]{16,}+"),
    _token("xox", r"xox[abeoprs]-[\w-]{10,}+"),
    _token("sk-", r"sk-(?=[A-Za-z_-]{0,200}\d)[\w-]{16,}+"),
    _token("k_", r"[sr]k_(?:live|test)_\w{10,}+"),
    _token("wk_", r"wk_[\w-]{8,}+"),
    _token("t_", r"w[et]t_[0-9a-f]{32}_[0-9a-f]{40}"),
    _token("aiza", r"AIza[\w-]{30,}+"),
    _token("npm_", r"npm_[A-Za-z0-9]{30,}+"),
    _token("pypi-ag", r"pypi-Ag[\w-]{20,}+"),
    _token("hf_", r"hf_[A-Za-z0-9]{20,}+"),
    _token("e2b_", r"e2b_[0-9a-f]{20,}+"),
    _token("ey", r"eyJ[\w-]{5,}+\.[\w-]{5,}+\.[\w-]*+"),
    # A header within quotes goes to its closing quote, any other to the end of its word.
    _shape(
        "authorization cookie key token secret",
        rf"""(?<=")({_HEADER}\s*:)[^"\\]++""",
        rf"\g<1> {GONE}",
    ),
    _shape(
        "authorization cookie key token secret",
        rf"""(?<=')({_HEADER}\s*:)[^']++""",
        rf"\g<1> {GONE}",
    ),
    _shape(
        "authorization",
        rf"""(?<!\w)(authorization\\?["']?\s*[:=]\s*\\?["']?(?:(?:bearer|basic|token|digest|negotiate|apikey)\s+)?+)"""
        rf"""{_REFERENCE}(?!\[redacted)[^\s"'\\]++""",
    ),
    _shape("bearer", r"\b(bearer\s+)(?=[\w.~+/=-]{0,200}\d)[\w.~+/=-]{8,}+"),
    _shape(
        "://",
        r"""(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{0,20}://[^\s/@:"'<>]{0,256}:)[^\s/"'<>]*@""",
        rf"\g<1>{GONE}@",
    ),
    _shape("://", r"""(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{0,20}://)[^\s/@:"'<>]{16,}+@""", rf"\g<1>{GONE}@"),
    _shape(
        "-u",
        r"""((?<!\S)(?:-u|--(?:proxy-)?user)[=\s]*["']?(?!\d+:\d+(?:\s|\Z))[^\s:"'/=]{1,256}:)(?!//)[^\s"']++""",
    ),
    _shape("mysql mariadb", r"(\b(?:mysql|mariadb)[\w-]*+\s[^|;&\n]{0,100}?(?<=\s)-p)(?!\s)[^\s]++"),
    _shape("sshpass", rf"(\bsshpass\s+-p\s*){_VALUE}"),
    _shape(
        "login", rf"(\b(?:docker|podman|helm\s+registry|az|oc)\s+login\s[^|;&\n]{{0,100}}?(?<=\s)-p[=\s]\s*){_VALUE}"
    ),
    _shape("redis-cli", rf"(\bredis-cli\s[^|;&\n]{{0,100}}?(?<=\s)-a\s+){_VALUE}"),
    _shape("pass:", r"(?<!\w)(pass:)[^\s\"']++"),
    _shape(_NAMES, rf"((?<![\w.-])-{{1,2}}+(?!no-){_NAME}(?:=|\s+)){_VALUE}"),
    _shape(_NAMES, rf"""((?<![\w.-]){_NAME}\\?["']?\]?\s*(?:==|!=|:=|:|=|=>)\s*)(?={_REFERENCE}){_QUOTED}"""),
    _shape(_NAMES, rf"((?<![\w.-]){_NAME}=)(?!=){_VALUE}"),
    _shape(_NAMES, rf"((?<![\w.-]){_NAME}\s+=\s+)(?=[\w+/=-]{{0,200}}\d)[\w+/=-]{{16,}}+"),
    _shape(_NAMES, rf"((?<![\w.-]){_NAME}\s*:\s+){_TYPE}(?!\[redacted){_VALUE}"),
)

_KEYS_AND_TOKENS: Final = tuple(shape for shape in _SHAPES if shape.put == GONE)
_ALL_HINTS: Final = {hint for shape in _SHAPES for hint in shape.hints}
_HINTS: Final = tuple(  # those that do not contain another one
    sorted(hint for hint in _ALL_HINTS if not any(other in hint for other in _ALL_HINTS - {hint}))
)


class CutText(str):
    """The beginning of a long text, as much of it as is looked at, and how long it was ("7 words")."""

    was: str

    @classmethod
    def of(cls, text: str, was: str = "") -> Self:
        cut = cls(text[:MAX_TEXT_HELD])
        cut.was = was or f"{len(text)} characters"
        return cut


def cut_words(words: Sequence[Any]) -> tuple[Any, ...] | None:
    """Returns the first arguments of a long command, as many as are looked at, with a last one that says how many there
    were. Returns None if the command is not long."""
    kept: list[Any] = []
    length = 0
    for word in words:
        if length > MAX_TEXT_HELD:
            return (*kept, CutText.of("", f"{len(words)} words"))
        kept.append(word[:MAX_TEXT_HELD] if isinstance(word, str) else word)
        length += 1 + (len(word) if isinstance(word, str) else 0)
    return tuple(kept) if length > MAX_TEXT_HELD else None


def joined(words: Sequence[Any], forms: "Forms") -> str:
    """Joins arguments to one text, as a shell would take them. Removes the known values before that, because quoting
    could change how they look."""
    kept = cut_words(words) or words
    was = getattr(kept[-1], "was", "") if kept else ""
    clean = without("\0".join(map(str, kept[:-1] if was else kept)), forms)
    text = shlex.join(clean.split("\0"))
    return CutText.of(text, was) if was else text


class Forms(NamedTuple):
    """How values look in texts. `too_long` has the beginnings of values that are too long to be searched for whole."""

    whole: tuple[str, ...] = ()
    too_long: tuple[str, ...] = ()


NO_FORMS: Final = Forms()


def forms_of(values: Iterable[str]) -> Forms:
    """Returns the values, and how they look when they were encoded for an address, in base64 or for a shell. Longest
    first."""
    forms: set[str] = set()
    for value in values:
        forms.update(_forms_of_value(value[: _MAX_FORM + 1]))
    whole = sorted((form for form in forms if len(form) <= _MAX_FORM), key=lambda form: (-len(form), form))
    return Forms(tuple(whole), tuple({form[:_MAX_FORM] for form in forms if len(form) > _MAX_FORM}))


@lru_cache(512)
def _forms_of_value(value: str) -> frozenset[str]:
    forms = set()
    for one in (value, value.strip()):
        if len(one) >= SHORTEST:
            raw = one.encode(errors="surrogatepass")
            whole = raw if len(raw) <= _MAX_FORM else raw[: _MAX_FORM // 3 * 3]  # else its end would be padded
            coded = base64.b64encode(whole).decode()
            # `echo VALUE | base64` codes a newline, too: the beginning is the same whatever follows the value.
            forms |= {one, coded, coded[: len(whole) * 8 // 6]}
            if not (one.isascii() and one.isalnum()):
                forms |= {quote(raw, safe=""), quote_plus(raw)}
                forms |= {one.replace("'", "'\\''"), one.replace("'", "'\"'\"'"), one.replace('"', '\\"')}
    return frozenset(forms)


def without(text: str, forms: Forms) -> str:
    """Removes the forms from the text. Nothing that follows the beginning of a value that is too long is kept: nobody
    knows where it ends."""
    for form in forms.too_long:
        before, found, _ = text.partition(form)
        if found:
            text = before + GONE
    for form in forms.whole:
        if form in text:
            text = text.replace(form, GONE)
    return text


def contains_any(text: str, values: Iterable[str]) -> bool:
    """Whether one of the values is in the text, in any of its forms."""
    return any(form[:_MAX_FORM] in text for value in values for form in _forms_of_value(value[: _MAX_FORM + 1]))


def may_have_shapes(text: str) -> bool:
    small = text.lower()
    return any(map(small.__contains__, _HINTS))


def without_tokens(text: str) -> str:
    """Removes private keys and tokens that are known by their beginnings: what has a shape of its own. In a long output
    what precedes a value says little, and looking for that takes thirty times as long."""
    return _without(text, _KEYS_AND_TOKENS)


def without_shapes(text: str) -> str:
    return _without(text, _SHAPES) if may_have_shapes(text) else text


def _without(text: str, shapes: Sequence[_Shape]) -> str:
    small = text.lower()
    for hints, pattern, put in shapes:
        if any(hint in small for hint in hints):
            text = pattern.sub(put, text)
    return text


def redacted(text: str, forms: Forms = NO_FORMS, most: int = _MAX_STAYS) -> str:
    """Returns at most `most` characters of the text without its secrets, then how long it was. A secret that was cut in
    two is removed too."""
    was = getattr(text, "was", "")
    looked_at = _LOOKED_AT * most
    held = looked_at + 2 * _MAX_FORM
    clean = without(text[:held], forms)
    if was or len(text) > held:
        # A value that was cut in two begins in the last part, which is replaced by at most twice its length.
        clean = clean[: max(0, min(looked_at, len(clean) - 2 * _MAX_FORM))]
        clean = _without_last_word(clean)
    elif len(clean) > looked_at:
        clean = _without_last_word(clean[:looked_at])
    clean = without_shapes(clean)
    if len(clean) <= most and len(text) <= looked_at and not was:
        return clean
    return f"{clean[:most]}… [cut: it had {was or f'{len(text)} characters'}]"


def _without_last_word(text: str) -> str:
    """Removes the last word of a text that was cut: half a token is not recognised as one."""
    end = len(text)
    while end and not (text[end - 1].isspace() or text[end - 1] in "\"'"):
        end -= 1
    return text[:end]
