"""Secrets that sandboxes use without having them: the hosts a secret is bound to, and how a request carries it.

A secret is set once and never shown. The broker, outside of the sandbox, adds it to requests for the bound hosts and to
no others. `broker_variables` returns the variables that make programs inside send their requests to the broker.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from urllib.parse import quote

from warren.model.errors import InvalidRequest
from warren.model.network import canonical_name
from warren.model.spec import HOME

MAX_SECRETS: Final = 100  # of a tenant
MAX_OF_SESSION: Final = 20
MAX_HOSTS: Final = 10
MIN_VALUE: Final = 8  # a shorter one could be guessed, and would occur in answers by chance
MAX_VALUE: Final = 8192
MAX_NAME: Final = 40
MAX_FORMAT: Final = 200
MAX_PATH: Final = 200

BROKER_DOMAIN: Final = "broker.internal"
CA_BUNDLE: Final = f"{HOME}/.warren/ca-bundle.crt"
"""A file in the sandbox: the certificate authorities of the image and that of the sandbox's broker."""
FAKE_KEY: Final = "the-broker-adds-the-key"

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?", re.ASCII)
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)
_PARAMETER: Final = re.compile(r"[A-Za-z0-9._~-]{1,100}", re.ASCII)
_PATH: Final = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*", re.ASCII)
_PLACEHOLDER: Final = re.compile(r"\{(?:base64)?\}")
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]*")
# Headers that frame a request, say where it goes, or belong to one connection: a secret must not replace them.
_RESERVED: Final = frozenset(
    {"accept-encoding", "connection", "content-encoding", "content-length", "content-type", "date", "expect"}
    | {"forwarded", "host", "http2-settings", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "via"}
)
_RESERVED_PREFIXES: Final = ("proxy-", "sec-")


class SecretKind(StrEnum):
    """The service a secret is for, if variables can tell programs in the sandbox how to use it."""

    NONE = ""
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    PIP = "pip"
    NPM = "npm"
    GIT = "git"


# For each kind: the header, its format, and the path of the service.
_USUAL: Final[Mapping[SecretKind, tuple[str, str, str]]] = {
    SecretKind.OPENAI: ("Authorization", "Bearer {}", "/v1"),
    SecretKind.ANTHROPIC: ("x-api-key", "{}", "/"),
    SecretKind.PIP: ("Authorization", "Basic {base64}", "/simple/"),
    SecretKind.NPM: ("Authorization", "Bearer {}", "/"),
    SecretKind.GIT: ("Authorization", "Basic {base64}", "/"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretBinding:
    """Everything about a secret but its value. Either `header` or `query` is set. Raises InvalidRequest.

    `format`: contains the value once, as `{}` or, encoded, as `{base64}`. `path`: where the service of `kind` begins.
    `scrub`: the value is also removed from answers. `expires_at`: a wall-clock time.
    """

    name: str
    hosts: tuple[str, ...]
    header: str = ""
    query: str = ""
    format: str = "{}"
    kind: SecretKind = SecretKind.NONE
    path: str = "/"
    scrub: bool = True
    expires_at: float | None = None

    def __post_init__(self) -> None:
        check_secret_name(self.name)
        if not 1 <= len(self.hosts) <= MAX_HOSTS:
            raise InvalidRequest(f"a secret is bound to 1 to {MAX_HOSTS} hosts, not {len(self.hosts)}")
        for host in self.hosts:
            if read_host(host) != host:
                raise InvalidRequest(f"the host {host[:260]!r} is not in its plain form")
        if bool(self.header) == bool(self.query):
            raise InvalidRequest(
                "a secret is carried by a header or by a query parameter", remedy="name one: header or query"
            )
        if self.header:
            check_header(self.header)
        elif not _PARAMETER.fullmatch(self.query):
            raise InvalidRequest("the name of a query parameter has 1 to 100 of letters, digits, . _ ~ and -")
        _check_format(self.format)
        if len(self.path) > MAX_PATH or not _PATH.fullmatch(self.path):
            raise InvalidRequest(f"the path of a secret's service begins with / and has at most {MAX_PATH} characters")

    @property
    def broker_host(self) -> str:
        return f"{self.name}.{BROKER_DOMAIN}"

    def is_expired(self, wall: float) -> bool:
        return self.expires_at is not None and wall >= self.expires_at


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundSecret(SecretBinding):
    """A secret with its value, as the broker gets it."""

    value: str = field(repr=False)  # keeps it out of logs and tracebacks

    @property
    def carried(self) -> str:
        """The content of the header, or of the query parameter before it is encoded."""
        encoded = base64.b64encode(self.value.encode()).decode()
        return (
            self.format.replace("{base64}", encoded)
            if "{base64}" in self.format
            else self.format.replace("{}", self.value)
        )

    @property
    def traces(self) -> tuple[bytes, ...]:
        """The spellings of the value that are removed from answers, longest first."""
        return tuple(sorted((text.encode() for text in spellings(self.value)), key=len, reverse=True))


def spellings(text: str) -> set[str]:
    """Returns a text as hosts may repeat it: as it is, in base64, percent-encoded, and in JSON, with slashes escaped or
    not."""
    escaped = json.dumps(text)[1:-1]
    encoded = base64.b64encode(text.encode()).decode()
    return {text, escaped, escaped.replace("/", r"\/"), encoded, quote(text, safe="")}


def new_binding(name: str, hosts: Iterable[str], **values: Any) -> SecretBinding:
    """Makes a binding from what a caller gave. Hosts may be in any case, and the kind has defaults. Raises
    InvalidRequest."""
    kind = read_kind(values.pop("kind", "") or "")
    header, form, path = _USUAL.get(kind, ("", "{}", "/"))
    if values.get("query"):
        header, form = "", "{}"
    given = {field: value for field, value in values.items() if value not in (None, "")}
    usual = {"header": header, "format": form, "path": path}
    found = tuple(dict.fromkeys(read_host(host) for host in hosts))
    return SecretBinding(name=name, hosts=found, kind=kind, **{**usual, **given})


def read_kind(text: str) -> SecretKind:
    try:
        return SecretKind(text)
    except ValueError:
        kinds = ", ".join(filter(None, SecretKind))
        raise InvalidRequest(f"there is no kind of secret {text[:80]!r}", remedy=f"there are: {kinds}") from None


def check_secret_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"the name of a secret has 1 to {MAX_NAME} of small letters, digits and -, with no - at its ends",
            remedy="name it after its service, such as openai",
        )
    return name


def check_value(value: str) -> str:
    """Returns the value or raises InvalidRequest. No error contains any part of the value."""
    if not MIN_VALUE <= len(value) <= MAX_VALUE:
        raise InvalidRequest(
            f"the value of a secret has {MIN_VALUE} to {MAX_VALUE} characters",
            remedy="one of fewer can be guessed, and would be blotted out of answers where it occurs by chance",
        )
    if not is_one_line(value):
        raise InvalidRequest(
            "the value of a secret is one line of printable ASCII, without spaces at its ends",
            remedy="a file with several lines cannot be sent in a header",
        )
    return value


def is_one_line(text: str) -> bool:
    """Whether a header can carry the text: printable ASCII, without spaces at its ends."""
    return _PRINTABLE.fullmatch(text) is not None and text == text.strip()


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the secrets that a session asks for, each once. Raises InvalidRequest."""
    wanted = tuple(dict.fromkeys(names))
    if len(wanted) > MAX_OF_SESSION:
        raise InvalidRequest(f"a session has at most {MAX_OF_SESSION} secrets, not {len(wanted)}")
    for name in wanted:
        check_secret_name(name)
    return wanted


def check_together(secrets: Iterable[SecretBinding]) -> None:
    """Raises InvalidRequest if two secrets would use the same header or parameter for the same host."""
    seen: dict[tuple[str, str, str], str] = {}
    for secret in secrets:
        for host in secret.hosts:
            place = (host, secret.header.lower(), secret.query)
            if place in seen:
                raise InvalidRequest(
                    f"the secrets {seen[place]!r} and {secret.name!r} are both sent to {host} in "
                    f"{secret.header or secret.query}",
                    remedy="give the session one of them",
                )
            seen[place] = secret.name


CA_VARIABLES: Final = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "AWS_CA_BUNDLE"),
    *("NODE_EXTRA_CA_CERTS", "DENO_CERT", "npm_config_cafile"),
)
"""Variables by which programs find the authorities they trust."""


def authority_variables() -> dict[str, str]:
    """Returns the variables by which programs in a sandbox trust its broker."""
    return dict.fromkeys(CA_VARIABLES, CA_BUNDLE)


def broker_variables(secrets: Sequence[SecretBinding]) -> dict[str, str]:
    """Returns the variables of every command in a sandbox with these secrets. They contain no value of a secret."""
    if not secrets:
        return {}
    found = authority_variables()
    git: list[tuple[str, str]] = []
    for secret in secrets:
        base = f"http://{secret.broker_host}{secret.path}"
        match secret.kind:
            case SecretKind.OPENAI:
                found |= {"OPENAI_BASE_URL": base.rstrip("/"), "OPENAI_API_KEY": FAKE_KEY}
            case SecretKind.ANTHROPIC:
                found |= {"ANTHROPIC_BASE_URL": base.rstrip("/"), "ANTHROPIC_API_KEY": FAKE_KEY}
            case SecretKind.PIP:
                found |= {"PIP_INDEX_URL": base, "PIP_TRUSTED_HOST": secret.broker_host}
            case SecretKind.NPM:
                found |= {"npm_config_registry": base}
            case SecretKind.GIT:
                key = f"url.http://{secret.broker_host}/.insteadOf"
                host = secret.hosts[0]
                git += [(key, f"https://{host}/"), (key, f"ssh://git@{host}/"), (key, f"git@{host}:")]
    if git:
        found["GIT_CONFIG_COUNT"] = str(len(git))
        for at, (key, value) in enumerate(git):
            found |= {f"GIT_CONFIG_KEY_{at}": key, f"GIT_CONFIG_VALUE_{at}": value}
    return found


def read_host(text: str, what: str = "a secret") -> str:
    """Returns the plain form of the name of a host to which `what` can be bound. Raises InvalidRequest."""
    remedy = "write a name, such as api.example.com; addresses, ports and wildcards are not taken"
    if not text or len(text) > 260 or any(each in text for each in "*:/[]@ "):
        raise InvalidRequest(f"{text[:260]!r} is not a host that {what} can be bound to", remedy=remedy)
    try:
        host = canonical_name(text)
    except InvalidRequest as exc:
        raise InvalidRequest(exc.message, remedy=remedy) from None
    if host == "localhost" or host.endswith((".localhost", f".{BROKER_DOMAIN}")) or host == BROKER_DOMAIN:
        raise InvalidRequest(f"{host!r} is not a host that {what} can be bound to", remedy=remedy)
    return host


def check_header(name: str, deed: str = "carry a secret") -> None:
    """Raises InvalidRequest for a header that does not exist or that must stay as the client sends it."""
    plain = name.lower().replace("_", "-")  # to CGI-like servers they are the same
    if not _TOKEN.fullmatch(name):
        raise InvalidRequest("that is not the name of a header", remedy="such as Authorization or X-API-Key")
    if plain in _RESERVED or plain.startswith(_RESERVED_PREFIXES):
        raise InvalidRequest(f"the header {name} cannot {deed}: it belongs to the connection")


def _check_format(form: str) -> None:
    places = _PLACEHOLDER.findall(form)
    rest = _PLACEHOLDER.sub("", form)
    if len(form) > MAX_FORMAT or len(places) != 1 or "{" in rest or "}" in rest or not _PRINTABLE.fullmatch(form):
        raise InvalidRequest(
            f"the format of a secret is printable ASCII, has at most {MAX_FORMAT} characters and one place for the "
            "value: {} or {base64}",
            remedy="such as 'Bearer {}'",
        )
