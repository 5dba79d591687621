"""Every option there is, one row each: settings, flags of `warren serve` and docs/configuration.md are made from it.

A row says what the option takes, what it is when nobody says anything, and under which names it can be given.
Its variable is WARREN_ and its name in capitals; `aliases` are variables of older systems, the first that is set
counts. Nothing here reads the environment or a file: that is warren.config.

`python -m warren.options` prints the table of docs/configuration.md.
"""

import functools
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from warren.model.environment import MOST_POOLED, PoolSize
from warren.model.errors import InvalidRequest
from warren.model.session import IDLE_TIMEOUT_S, LONGEST_S, MAX_LIFETIME_S
from warren.model.spec import MIB, check_image_name

PROVIDERS = ("oci", "docker", "fake")
CONFIG_VARIABLE = "WARREN_CONFIG"
_NOTHING = "(none)"
_MULTIPLES = {"": 1, "k": 1024, "m": MIB, "g": 1024 * MIB, "t": MIB * MIB}
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_QUOTA_PERIOD_US = 100_000  # Docker's CPU quota is microseconds of every 100 ms
_HOST_NAME = r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*"


@dataclass(frozen=True, slots=True)
class Kind:
    """How a text becomes a value: `parse` raises ValueError for a text that is not what `takes` says."""

    takes: str
    metavar: str
    parse: Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """A row. `default_text` is for a default that depends on something; `known_as` is its name in Settings, if another.

    An alias that has a Kind of its own takes something else than the option does.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    aliases: Mapping[str, Kind | None] = field(default_factory=dict)
    flag: str = ""
    secret: bool = False
    default_text: str = ""
    known_as: str = ""

    @property
    def variable(self) -> str:
        return f"WARREN_{self.name.upper()}"

    @property
    def attribute(self) -> str:
        return self.known_as or self.name

    @property
    def variables(self) -> dict[str, Kind]:
        """All variables it can be given by, with what they take; the first that is set counts."""
        return {self.variable: self.kind, **{name: kind or self.kind for name, kind in self.aliases.items()}}

    @property
    def default_shown(self) -> str:
        return self.show(self.default)

    def parse(self, text: str, kind: Kind) -> Any:
        """Raises ValueError; InvalidRequest when there is more to say. An empty text is what an empty default says."""
        if not text and self.default in ("", None, ()):
            return self.default
        return kind.parse(text)

    def show(self, value: Any) -> str:
        if self.default_text and value == self.default:
            return self.default_text
        if value in ("", None, ()):
            return _NOTHING
        if self.secret:
            return "(set)"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        return f"{value}m" if self.kind is MEMORY else str(value)


def check_provider(name: str) -> str:
    if name not in PROVIDERS:
        raise InvalidRequest(f"there is no provider {name!r}", remedy=f"there are: {', '.join(PROVIDERS)}")
    return name


def _must(holds: object) -> None:
    if not holds:
        raise ValueError


def _whole(low: int, high: int) -> Kind:
    def parse(text: str) -> int:
        _must(re.fullmatch(r"[0-9]{1,12}", text) and low <= int(text) <= high)
        return int(text)

    return Kind(f"a whole number from {low} to {high}", "N", parse)


def _number(low: float, high: float) -> Kind:
    def parse(text: str) -> float:
        _must(re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text) and low <= float(text) <= high)
        return float(text)

    return Kind(f"a number from {low:g} to {high:g}", "N", parse)


def _time(low: float, high: float) -> Kind:
    def parse(text: str) -> float:
        found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?) ?([smhd]?)", text)
        if not found:
            raise ValueError
        seconds = float(found[1]) * _UNITS_S[found[2] or "s"]
        _must(low <= seconds <= high)
        return seconds

    return Kind(f"a time from {low:g}s to {high / 86400:g}d (like 90, 30s, 10m or 1h)", "TIME", parse)


def _one_of(*names: str) -> Kind:
    def parse(text: str) -> str:
        _must(text.lower() in names)
        return text.lower()

    return Kind(f"one of {', '.join(names)}", "|".join(names), parse)


def _matching(pattern: str, takes: str, metavar: str = "NAME") -> Kind:
    def parse(text: str) -> str:
        _must(re.fullmatch(pattern, text))
        return text

    return Kind(takes, metavar, parse)


def _parse_switch(text: str) -> bool:
    _must(text.lower() in _SWITCH)
    return _SWITCH[text.lower()]


def _parse_path(text: str) -> Path:
    _must(text and text.isprintable())
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as exc:  # ~ of nobody
        raise ValueError from exc


def _parse_memory(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15}) ?(?:([kmgt])(?:i?b)?|b)?", text.lower())
    if not found:
        raise ValueError
    megabytes = int(found[1]) * _MULTIPLES[found[2] or ""] // MIB
    _must(64 <= megabytes <= MIB)
    return megabytes


def _parse_quota(text: str) -> float:
    _must(re.fullmatch(r"[0-9]{1,12}", text) and 5000 <= int(text) <= 256 * _QUOTA_PERIOD_US)
    return int(text) / _QUOTA_PERIOD_US


def _parse_image(text: str) -> str:
    try:
        check_image_name(text)
    except InvalidRequest as exc:
        raise ValueError from exc
    return text


def _parse_host(text: str) -> str:
    """A name or an address; an IPv6 address with or without its brackets."""
    if re.fullmatch(_HOST_NAME, text) and not re.fullmatch(r"[0-9.]+", text):
        return text.lower()
    return str(ipaddress.ip_address(text.removeprefix("[").removesuffix("]")))


def _parse_hosts(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_parse_host(part.strip().removesuffix(".")) for part in text.split(",")))


def _parse_networks(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_parse_network(part.strip()) for part in text.split(",")))


def _parse_network(text: str) -> str:
    network = ipaddress.ip_network(text)
    return str(network.network_address if network.num_addresses == 1 else network)


_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
SWITCH = Kind("one of 1, 0, true, false, yes, no, on, off", "BOOL", _parse_switch)
MEMORY = Kind("an amount of memory from 64m to 1t (like 512m, 1g or 536870912)", "SIZE", _parse_memory)
_CORES = _number(0.05, 256)
_QUOTA = Kind("a number of microseconds in 100 ms from 5000 to 25600000 (50000 is half a core)", "N", _parse_quota)
_PATH = Kind("a path", "PATH", _parse_path)
_IMAGE = Kind("the name of an image", "IMAGE", _parse_image)
_HOST = Kind("a name or an address, without a port", "HOST", _parse_host)
_HOSTS = Kind("a list of names or addresses without ports, with commas between them", "LIST", _parse_hosts)
_NETWORKS = Kind(
    "a list of addresses and networks such as 10.0.0.0/8, with commas between them", "LIST", _parse_networks
)
_PROVIDER = Kind(f"one of {', '.join(PROVIDERS)}", "|".join(PROVIDERS[:2]), check_provider)
_TEXT = _matching(r"[!-~]{1,4096}", "a text without spaces")
_ENVIRONMENT = _matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", "the name of an environment")
_WORKER = _matching(r"[A-Za-z0-9._-]{1,64}", "a name of 1 to 64 letters, digits, '.', '_' and '-'")
_SECRET = _matching(r"[!-~]{1,4096}", "a text of ASCII characters without spaces", "KEY")
_POOL = _whole(0, MOST_POOLED)
_POOLED = PoolSize()
_SESSION_TIME = _time(1, LONGEST_S)
_NETWORK_TIME = _time(0.1, 86400)
_MEGABYTES = _whole(0, 2**30)

_ROWS = (
    Option("state_dir", _PATH, None, "Where images, sandboxes and sessions live.", flag="--state-dir",
           default_text="/var/lib/warren for root, else ~/.local/state/warren"),
    Option("bin_dir", _PATH, None, "Where the agent and the launcher are.", default_text="inside the package"),
    Option("provider", _PROVIDER, "oci", "What makes sandboxes; fake makes none and is for tests.", flag="--provider"),
    Option("runtime", _TEXT, "", "The OCI runtime: crun, runc, runsc or a path.", flag="--runtime",
           default_text="the best that works here"),
    Option("registry_dir", _PATH, None, "A registry of your own, beside the built-in one.", flag="--registry-dir"),
    Option("docker_url", _TEXT, "", "Where the Docker engine listens.", {"DOCKER_HOST": None},
           default_text="unix:///var/run/docker.sock"),
    Option("terminal", _TEXT, "xterm-256color", "What `warren shell` says the terminal is.", {"TERM": None}),
    Option("debug", SWITCH, False, "Shows stack traces of internal errors.", flag="--debug"),
    Option("host", _HOST, "127.0.0.1", "The address the server listens on.", flag="--host"),
    Option("port", _whole(1, 65535), 8000, "The TCP port the server listens on.", {"PORT": None}, "--port"),
    Option("worker_id", _WORKER, "local", "The name of this worker.", {"WORKER_ID": None}, "--worker-id"),
    Option("store", _one_of("sqlite", "memory"), "sqlite", "Where sessions are kept; memory forgets them at the end.",
           flag="--store"),
    Option("default_environment", _ENVIRONMENT, "base", "The environment of a session that asks for none.",
           flag="--environment"),
    Option("container_image", _IMAGE, "", "The image of the default environment, instead of its own.",
           {"CONTAINER_IMAGE": None}, "--container-image"),
    Option("pool_size", _POOL, _POOLED.size, "How many sandboxes are made ahead in quiet times.",
           {"POOL_SIZE": None}, "--pool-size"),
    Option("pool_min", _POOL, _POOLED.min, "Below this the pool is refilled at full speed.",
           {"MIN_POOL_SIZE": None, "POOL_MIN": None}, "--pool-min"),
    Option("pool_max", _POOL, _POOLED.max, "How many are made ahead at most, when they are in demand.",
           {"MAX_POOL_SIZE": None}, "--pool-max"),
    Option("idle_timeout_s", _SESSION_TIME, IDLE_TIMEOUT_S, "A session that is not used for this long ends.",
           {"IDLE_TIMEOUT": None}, "--idle-timeout"),
    Option("max_lifetime_s", _SESSION_TIME, MAX_LIFETIME_S, "A session ends after this time in any case.",
           {"SESSION_TIMEOUT": None}, "--max-lifetime"),
    Option("memory_limit", MEMORY, None, "The memory of a sandbox.", {"MEMORY_LIMIT": None}, "--memory-limit",
           default_text="what the environment says, else 512m", known_as="memory_mb"),
    Option("cpus", _CORES, None, "The cores of a sandbox.", {"CPU_QUOTA": _QUOTA}, "--cpus",
           default_text="what the environment says, else 0.5"),
    Option("claim_timeout_s", _NETWORK_TIME, 30.0, "How long a caller waits for a sandbox."),
    Option("command_timeout_s", _time(0.1, LONGEST_S), 120.0, "The time a command has, if the caller does not say."),
    Option("max_command_timeout_s", _time(0.1, LONGEST_S), 86400.0, "The most time a caller can ask for."),
    Option("min_free_memory_mb", _MEGABYTES, 0, "No sandbox is made when the machine has less free memory.",
           default_text="0 (automatic)"),
    Option("min_free_disk_mb", _MEGABYTES, 0, "No sandbox is made when the state directory has less free space.",
           default_text="0 (automatic)"),
    Option("max_sandboxes", _whole(1, 100_000), 4000, "How many sandboxes there may be at once.",
           flag="--max-sandboxes"),
    Option("max_body_mb", _whole(1, 1024), 4, "The largest JSON body that is taken."),
    Option("header_timeout_s", _NETWORK_TIME, 10.0, "The time a client has to send the head of a request."),
    Option("body_timeout_s", _NETWORK_TIME, 30.0, "A client that sends no more of a body for this long is cut off."),
    Option("send_timeout_s", _NETWORK_TIME, 60.0, "A client that takes nothing for this long is cut off."),
    Option("keep_alive_s", _NETWORK_TIME, 75.0, "An unused connection is closed after this time."),
    Option("max_connections", _whole(1, 1_000_000), 10_000, "How many connections there may be at once."),
    Option("stream_keepalive_s", _NETWORK_TIME, 15.0, "A silent stream gets a sign of life this often."),
    Option("stop_grace_s", _time(0, 86400), 30.0, "The time running requests have when the server is stopped.",
           flag="--stop-grace"),
    Option("on_stop", _one_of("keep", "destroy"), "keep", "What becomes of the sandboxes when the server is stopped.",
           flag="--on-stop"),
    Option("key_retention_s", _time(1, 365 * 86400), 86400.0,
           "How long Idempotency-Keys and ended sessions are remembered."),
    Option("allowed_hosts", _HOSTS, (), "The names the server may be addressed by, beside those of loopback.",
           flag="--allowed-hosts"),
    Option("auth", SWITCH, True, "Whether requests need a key or a token; without, only loopback is served.",
           flag="--auth/--no-auth"),
    Option("api_key", _SECRET, "", "A key that may do everything, beside those made with `warren keys`.", secret=True),
    Option("jwt_jwks", _TEXT, "", "Tokens signed by keys of this JWKS (a file or an address) are accepted.",
           flag="--jwt-jwks"),
    Option("jwt_issuer", _TEXT, "", "Who must have issued a token.", flag="--jwt-issuer"),
    Option("jwt_audience", _TEXT, "", "Whom a token must be for.", flag="--jwt-audience"),
    Option("jwt_tenant_claim", _TEXT, "tenant", "The claim that names the tenant."),
    Option("jwt_scopes_claim", _TEXT, "scope", "The claim that lists the scopes."),
    Option("secrets_key", _SECRET, "", "What stored secrets are sealed with: 64 hexadecimal digits.", secret=True,
           default_text="made at the first start, in the state directory"),
    Option("audit", SWITCH, True, "Whether it is written down who did what.", flag="--audit/--no-audit"),
    Option("audit_commands", _one_of("redacted", "none"), "redacted",
           "Whether the record has the text of commands, without what looks like a secret."),
    Option("audit_mb", _whole(1, 1_000_000), 256, "How much of the record is kept; the oldest goes first."),
    Option("webhook_networks", _NETWORKS, (), "Networks that webhooks may call although they are not public."),
    Option("tls_cert", _PATH, None, "The server's certificate, in PEM; with it and its key the server speaks HTTPS.",
           flag="--tls-cert"),
    Option("tls_key", _PATH, None, "The key of the certificate, in PEM and without a password.", flag="--tls-key"),
    Option("trusted_proxies", _NETWORKS, (), "The proxies whose X-Forwarded-For and X-Forwarded-Proto are believed.",
           flag="--trusted-proxies"),
    Option("log_level", _one_of("debug", "info", "warning", "error"), "info", "How much is logged.",
           flag="--log-level"),
    Option("log_format", _one_of("text", "json"), "text", "How log lines look.", flag="--log-format"),
)  # fmt: skip

OPTIONS: Mapping[str, Option] = MappingProxyType({option.name: option for option in _ROWS})


def serve_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives `command` the flags of the table, and --config.

    It is called with `flags`, a dict of those that were given (by the option's name, as text; --config as
    "config"), made for `read_settings(flags=flags)`, and with the arguments it has beside them.
    """
    flagged = [option for option in _ROWS if option.flag]
    names = ("config", *(option.name for option in flagged))

    @functools.wraps(command)
    def call(*positional: Any, **arguments: Any) -> Any:
        given = {name: arguments.pop(name) for name in names}
        return command(*positional, flags={k: v for k, v in given.items() if v is not None}, **arguments)

    decorated: Callable[..., Any] = call
    for option in reversed(flagged):
        decorated = _click_option(option)(decorated)
    return click.option("--config", metavar="FILE", help="A TOML file with options.")(decorated)


def _click_option(option: Option) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    words = option.help if option.default_shown == _NOTHING else f"{option.help}  [{option.default_shown}]"
    if option.kind is SWITCH and "/" in option.flag:
        return click.option(option.flag, option.name, default=None, callback=_as_text, help=words)
    if option.kind is SWITCH:
        return click.option(option.flag, option.name, is_flag=True, flag_value="true", type=str, help=words)
    return click.option(option.flag, option.name, metavar=option.kind.metavar, help=words)


def _as_text(context: click.Context, parameter: click.Parameter, value: bool | None) -> str | None:
    return None if value is None else str(value).lower()


def markdown_rows() -> list[str]:
    """The table of docs/configuration.md, line by line."""
    head = ("option", "takes", "default", "variable", "older names", "flag", "meaning")
    rows = [head, ("---",) * len(head), *map(_cells, _ROWS)]
    return [f"| {' | '.join(row)} |" for row in rows]


def _cells(option: Option) -> tuple[str, ...]:
    older = ", ".join(f"`{name}`" for name in option.aliases)
    flag = f"`{option.flag}`" if option.flag else ""
    return (
        f"`{option.name}`", option.kind.takes, option.default_shown, f"`{option.variable}`", older, flag, option.help,
    )  # fmt: skip


if __name__ == "__main__":
    click.echo("\n".join(markdown_rows()))
