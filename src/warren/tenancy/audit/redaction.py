"""Removes secrets from text. Pure.

Two ways: known values (a session's variables) are removed wherever they occur; and so is what looks like a secret, by
its own shape (a token with a known beginning) or by what precedes it (`--password`, `API_KEY=`). A doubtful value is
removed. A reference to a variable (`$DB_PASSWORD`) is no secret and stays.
"""

import base64
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, quote_plus

GONE: Final = "[redacted]"
SHORTEST: Final = 6  # shorter values stand in every other text
_LOOKED_AT: Final = 2  # times what may stay: so much of a long text is searched for shapes

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
    """Behind a whole name: it ends like this."""
    return f"(?:{'|'.join(f'(?<={ending})' for ending in endings.split())})"


_NAME: Final = rf"(?:pass(?![\w.-])|[\w.-]{{1,80}}+{_ending(_ENDINGS)})"
_HEADER: Final = rf"[\w-]{{1,80}}+{_ending('authorization cookie api-key apikey token secret')}"


class _Shape(NamedTuple):
    """`hints`: without one of them (in small letters) there is nothing to find. `put` is put in its place."""

    hints: Sequence[str]
    pattern: re.Pattern[str]
    put: str


def _shape(hints: str, pattern: str, put: str = rf"\g<1>{GONE}") -> _Shape:
    return _Shape(hints.split(), re.compile(pattern, re.IGNORECASE | re.DOTALL), put)


def _token(hint: str, pattern: str) -> _Shape:
    """A secret that is known by its own beginning; capitals count."""
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

_ANY_HINT: Final = re.compile("|".join(sorted({re.escape(hint) for shape in _SHAPES for hint in shape.hints})))


def forms_of(values: Iterable[str]) -> tuple[str, ...]:
    """The values, and how they look when they were encoded for an address, in base64 or for a shell. Longest first."""
    forms = set()
    for value in values:
        for one in (value, value.strip()):
            if len(one) >= SHORTEST:
                raw = one.encode(errors="surrogatepass")
                forms |= {one, quote(raw, safe=""), quote_plus(raw), base64.b64encode(raw).decode()}
                forms |= {one.replace("'", "'\\''"), one.replace("'", "'\"'\"'"), one.replace('"', '\\"')}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def without(text: str, forms: Sequence[str]) -> str:
    for form in forms:
        text = text.replace(form, GONE)
    return text


def without_shapes(text: str) -> str:
    small = text.lower()
    if not _ANY_HINT.search(small):
        return text
    for hints, pattern, put in _SHAPES:
        if any(hint in small for hint in hints):
            text = pattern.sub(put, text)
    return text


def redacted(text: str, forms: Sequence[str] = (), most: int = 2048) -> str:
    """At most `most` characters of it, then a note of how long it was; no part of a secret that was cut in two."""
    clean = without(text, forms)
    if len(clean) > _LOOKED_AT * most:
        clean = _without_last_word(clean[: _LOOKED_AT * most])
    clean = without_shapes(clean)
    if len(clean) <= most and len(text) <= _LOOKED_AT * most:
        return clean
    return f"{clean[:most]}… [cut: it had {len(text)} characters]"


def _without_last_word(text: str) -> str:
    """Where a text was cut, half a token is no longer known for one."""
    end = len(text)
    while end and not (text[end - 1].isspace() or text[end - 1] in "\"'"):
        end -= 1
    return text[:end]
