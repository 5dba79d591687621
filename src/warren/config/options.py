"""The table of all options: settings, the flags of `warren serve` and docs/configuration.md are made from it.

A row says what the option takes (its Kind), its default, and the names it can be given by. Its variable is WARREN_ and
its name in capitals; `aliases` are variables of older systems; the first that is set counts. Nothing here reads the
environment or a file: warren.config.settings does.

`python -m warren.config.options` prints the table of docs/configuration.md.
"""

import functools
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from warren.model.addresses import canonical_origin
from warren.model.code import CONTEXT_IDLE_S, MOST_CONTEXTS
from warren.model.egress import Ceiling
from warren.model.environment import MOST_POOLED, PoolSize
from warren.model.errors import InvalidRequest
from warren.model.gpus import check_gpus
from warren.model.network import parse_rule
from warren.model.session import IDLE_TIMEOUT_S, LONGEST_S, MAX_LIFETIME_S
from warren.model.spec import MIB, check_image_name

CONFIG_VARIABLE = "WARREN_CONFIG"
WORKER_PORT = 5000  # a worker's default; all others have the one of the table
PROVIDERS = ("oci", "docker", "e2b", "fake")
_MEMORY_UNITS = {"": 1, "k": 1024, "m": MIB, "g": 1024 * MIB, "t": MIB * MIB}
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_QUOTA_PERIOD_US = 100_000  # Docker's CPU quota is microseconds of every 100 ms
LABEL = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}=[A-Za-z0-9._-]{0,63}"
_HOST_NAME = r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*"

_REGISTRY_HOST = r"([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?"


@dataclass(frozen=True, slots=True)
class Kind:
    """What an option takes: `parse` turns a text into the value, and raises ValueError for a text that does not fit."""

    takes: str
    metavar: str
    parse: Callable[[str], Any]


def check_provider(name: str) -> str:
    if name not in PROVIDERS:
        raise InvalidRequest(f"there is no provider {name!r}", remedy=f"there are: {', '.join(PROVIDERS)}")
    return name


def _parse_providers(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(check_provider(part.strip()) for part in text.split(",")))


def _require(holds: object) -> None:
    if not holds:
        raise ValueError


def whole_number(low: int, high: int) -> Kind:
    def parse(text: str) -> int:
        _require(re.fullmatch(r"[0-9]{1,12}", text) and low <= int(text) <= high)
        return int(text)

    return Kind(f"a whole number from {low} to {high}", "N", parse)


def number(low: float, high: float) -> Kind:
    def parse(text: str) -> float:
        _require(re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text) and low <= float(text) <= high)
        return float(text)

    return Kind(f"a number from {low:g} to {high:g}", "N", parse)


def time(low: float, high: float) -> Kind:
    def parse(text: str) -> float:
        match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?) ?([smhd]?)", text)
        if not match:
            raise ValueError
        seconds = float(match[1]) * _UNITS_S[match[2] or "s"]
        _require(low <= seconds <= high)
        return seconds

    return Kind(f"a time from {low:g}s to {high / 86400:g}d (like 90, 30s, 10m or 1h)", "TIME", parse)


def one_of(*names: str) -> Kind:
    def parse(text: str) -> str:
        _require(text.lower() in names)
        return text.lower()

    return Kind(f"one of {', '.join(names)}", "|".join(names), parse)


def matching(pattern: str, takes: str, metavar: str = "NAME") -> Kind:
    def parse(text: str) -> str:
        _require(re.fullmatch(pattern, text))
        return text

    return Kind(takes, metavar, parse)


def _parse_switch(text: str) -> bool:
    _require(text.lower() in _SWITCHES)
    return _SWITCHES[text.lower()]


def _parse_path(text: str) -> Path:
    _require(text and text.isprintable())
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as exc:  # ~ of a user who does not exist
        raise ValueError from exc


def _parse_memory(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15}) ?(?:([kmgt])(?:i?b)?|b)?", text.lower())
    if not match:
        raise ValueError
    megabytes = int(match[1]) * _MEMORY_UNITS[match[2] or ""] // MIB
    _require(64 <= megabytes <= MIB)
    return megabytes


def _parse_quota(text: str) -> float:
    _require(re.fullmatch(r"[0-9]{1,12}", text) and 5000 <= int(text) <= 256 * _QUOTA_PERIOD_US)
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


def _parse_domain(text: str) -> str:
    name = text.lower().removeprefix("*.").removesuffix(".")
    _require(re.fullmatch(_HOST_NAME, name) and "." in name and not re.fullmatch(r"[0-9.]+", name))
    return name


def _parse_hosts(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_parse_host_pattern(part.strip().removesuffix(".")) for part in text.split(",")))


def _parse_host_pattern(text: str) -> str:
    """`example.com`, an address, or `*.example.com` for every name below it."""
    return f"*.{_parse_host(text[2:])}" if text.startswith("*.") else _parse_host(text)


def _parse_origins(text: str) -> tuple[str, ...]:
    origins = [canonical_origin(part.strip()) for part in text.split(",") if part.strip()]
    _require(None not in origins)
    return tuple(origin for origin in origins if origin is not None)


def _parse_networks(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_parse_network(part.strip()) for part in text.split(",")))


def _parse_network(text: str) -> str:
    network = ipaddress.ip_network(text)
    return str(network.network_address if network.num_addresses == 1 else network)


def _parse_rules(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(parse_rule(part.strip())) for part in text.split(",")))


def _parse_ceiling(text: str) -> tuple[str, ...]:
    return Ceiling.read(tuple(part.strip() for part in text.split(","))).texts


def _parse_address(text: str) -> str:
    """A host and a port; older systems write a URL."""
    host, colon, port = text.removeprefix("http://").removesuffix("/").rpartition(":")
    _require(colon and re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 65536)
    host = _parse_host(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parse_addresses(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_parse_address(part.strip()) for part in text.split(",")))


def _parse_keys(text: str) -> tuple[str, ...]:
    keys = [part.strip() for part in text.split(",")]
    _require(all(re.fullmatch(r"[0-9A-Fa-f]{64}", key) for key in keys))
    return tuple(keys)


def _parse_cluster_secrets(text: str) -> tuple[str, ...]:
    """Spaces between them: a secret may have a comma in it."""
    found = text.split()
    _require(found and all(re.fullmatch(r"[!-~]{16,4096}", secret) for secret in found))
    return tuple(found)


def _parse_gpus(text: str) -> tuple[str, ...]:
    if text.strip() == "off":
        return ()
    return ("all",) if text.strip() == "all" else check_gpus(tuple(part.strip() for part in text.split(",")))


def _parse_labels(text: str) -> tuple[str, ...]:
    labels = [part.strip() for part in text.split(",")]
    _require(all(re.fullmatch(LABEL, label) for label in labels))
    return tuple(labels)


def _parse_registries(text: str) -> tuple[str, ...]:
    hosts = [part.strip().lower() for part in text.split(",")]
    _require(all(re.fullmatch(_REGISTRY_HOST, host) for host in hosts))
    return tuple(dict.fromkeys(hosts))


_SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
SWITCH = Kind("one of 1, 0, true, false, yes, no, on, off", "BOOL", _parse_switch)
MEMORY = Kind("an amount of memory from 64m to 1t (like 512m, 1g or 536870912)", "SIZE", _parse_memory)
CORES = number(0.05, 256)
QUOTA = Kind("a number of microseconds in 100 ms from 5000 to 25600000 (50000 is half a core)", "N", _parse_quota)
PREVIEW_DOMAIN = Kind("the name of a domain, such as preview.example.com", "NAME", _parse_domain)
PATH = Kind("a path", "PATH", _parse_path)
IMAGE = Kind("the name of an image", "IMAGE", _parse_image)
HOST = Kind("a name or an address, without a port", "HOST", _parse_host)
HOSTS = Kind(
    "a list of names, patterns such as *.example.com, and addresses without ports, with commas between them",
    "LIST",
    _parse_hosts,
)
ORIGINS = Kind("a list of origins such as https://app.example.com, with commas between them", "LIST", _parse_origins)
NETWORKS = Kind(
    "a list of addresses and networks such as 10.0.0.0/8, with commas between them", "LIST", _parse_networks
)
RULES = Kind("a list of rules such as *.example.com or 10.0.0.0/8:443, with commas between them", "LIST", _parse_rules)
CEILING = Kind("a list of rules and presets, with commas between them; or internet, or none", "LIST", _parse_ceiling)
ADDRESS = Kind("a host and a port, such as 10.0.0.5:5000", "HOST:PORT", _parse_address)
ADDRESSES = Kind("a list of hosts with ports, with commas between them", "LIST", _parse_addresses)
REGISTRY = matching(
    rf"{_REGISTRY_HOST}(/[a-z0-9._-]+)*", "the host of a registry, with a port or a path", "HOST[:PORT][/PATH]"
)
REGISTRIES = Kind("a list of hosts, with or without ports, with commas between them", "LIST", _parse_registries)
GPUS = Kind("off, all, or a list of ids such as 0,1", "LIST", _parse_gpus)
TEMPLATES = Kind("a list such as base=e2b,ml=python", "LIST", _parse_labels)
LABELS = Kind("a list such as gpu=1,zone=a", "LIST", _parse_labels)
PROVIDER_LIST = Kind(f"a list of {', '.join(PROVIDERS)}, with commas between them", "LIST", _parse_providers)
TEXT = matching(r"[!-~]{1,4096}", "a text without spaces")
ENVIRONMENT = matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", "the name of an environment")
WORKER = matching(r"[A-Za-z0-9._-]{1,64}", "a name of 1 to 64 letters, digits, '.', '_' and '-'")
SECRET = matching(r"[!-~]{1,4096}", "a text of ASCII characters without spaces", "KEY")
SECRETS_KEYS = Kind("a list of keys of 64 hexadecimal digits, with commas between them", "LIST", _parse_keys)
CLUSTER_SECRETS = Kind(
    "a list of texts of 16 or more ASCII characters, with spaces between them", "LIST", _parse_cluster_secrets
)
POOL = whole_number(0, MOST_POOLED)
SESSION_TIME = time(1, LONGEST_S)
NETWORK_TIME = time(0.1, 86400)
MEGABYTES = whole_number(0, 2**30)
ARTIFACT_STORE = matching(r"/[!-~]{1,4095}|s3://[a-z0-9][a-z0-9.-]{1,62}(/[A-Za-z0-9!_.*'()/-]{1,900})?",
                          "an absolute path, or s3://BUCKET or s3://BUCKET/PREFIX", "PLACE")  # fmt: skip
ENDPOINT = matching(r"https?://[!-~]{1,1000}", "an address that begins with http:// or https://", "URL")
CLUSTER_SECRET = matching(r"[!-~]{16,4096}", "a text of 16 or more ASCII characters without spaces", "KEY")

# -- the options

_NO_VALUE = "(none)"
_POOL_DEFAULTS = PoolSize()


@dataclass(frozen=True, slots=True)
class Option:
    """A row. `default_text` describes a default that depends on something; `known_as` is another name in Settings.

    An alias with a Kind of its own takes something else than the option does.
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
        """All variables of the option, with what they take; the first that is set counts."""
        return {self.variable: self.kind, **{name: kind or self.kind for name, kind in self.aliases.items()}}

    @property
    def default_shown(self) -> str:
        return self.show(self.default)

    def parse(self, text: str, kind: Kind) -> Any:
        """Raises ValueError, or InvalidRequest with a better message. An empty text means an empty default."""
        if not text and self.default in ("", None, ()):
            return self.default
        return kind.parse(text)

    def show(self, value: Any) -> str:
        if self.default_text and value == self.default:
            return self.default_text
        if value in ("", None, ()):
            return _NO_VALUE
        if self.secret:
            return "(set)"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        return f"{value}m" if self.kind is MEMORY else str(value)


_ROWS = (
    Option("state_dir", PATH, None, "The directory of images, sandboxes and sessions.", flag="--state-dir",
           default_text="/var/lib/warren for root, else ~/.local/state/warren"),
    Option("bin_dir", PATH, None, "The directory of the agent and the launcher.", default_text="inside the package"),
    Option("provider", PROVIDER_LIST, ("oci",), "What makes sandboxes, the default first; fake is for tests.",
           flag="--provider", known_as="providers"),
    Option("runtime", TEXT, "", "What makes sandboxes of oci: direct, which is Warren itself, or crun or runc.",
           flag="--runtime", default_text="the best that works here"),
    Option("registry_dir", PATH, None, "A registry of your own, beside the built-in one.", flag="--registry-dir"),
    Option("docker_url", TEXT, "", "Where the Docker engine listens.", {"DOCKER_HOST": None},
           default_text="unix:///var/run/docker.sock"),
    Option("e2b_api_key", SECRET, "", "The key for E2B, or for a server that speaks as E2B does: the far side.",
           {"E2B_API_KEY": None}, secret=True),
    Option("e2b_api_url", ENDPOINT, "", "The address of the far side.",
           default_text="https://api. and e2b_domain"),
    Option("e2b_sandbox_url", ENDPOINT, "", "Where all sandboxes of the far side are reached.",
           default_text="e2b_api_url, if it is set and e2b_domain is not; else each has a name of its own"),
    Option("e2b_domain", HOST, "", "The domain of the far side.", default_text="e2b.app"),
    Option("e2b_images", TEMPLATES, ("python=code-interpreter-v1", "code-interpreter=code-interpreter-v1"),
           "The templates of the far side that images stand for; other images are templates of that name.",
           default_text="python=code-interpreter-v1,code-interpreter=code-interpreter-v1"),
    Option("e2b_runtime", TEXT, "", "What runs sandboxes on the far side, by your word: it cannot be read from here.",
           default_text="unknown"),
    Option("e2b_guest_kernel", SWITCH, False, "Your word that sandboxes of the far side have kernels of their own."),
    Option("terminal", TEXT, "xterm-256color", "What `warren shell` says the terminal is.", {"TERM": None}),
    Option("debug", SWITCH, False, "Shows stack traces of internal errors.", flag="--debug"),
    Option("host", HOST, "127.0.0.1", "The address the server listens on.", flag="--host"),
    Option("port", whole_number(1, 65535), 8000, "The TCP port the server listens on.", {"PORT": None}, "--port"),
    Option("worker_id", WORKER, "local", "The name of this worker.", {"WORKER_ID": None}, "--worker-id"),
    Option("store", one_of("sqlite", "memory"), "sqlite",
           "Where sessions are stored; memory forgets them when the server stops.",
           flag="--store"),
    Option("default_environment", ENVIRONMENT, "base", "The environment of a session that names none.",
           flag="--environment"),
    Option("container_image", IMAGE, "", "The image of the default environment, instead of its own.",
           {"CONTAINER_IMAGE": None}, "--container-image"),
    Option("pool_size", POOL, _POOL_DEFAULTS.size, "How many sandboxes are made ahead in quiet times.",
           {"POOL_SIZE": None}, "--pool-size"),
    Option("pool_min", POOL, _POOL_DEFAULTS.min, "Below this the pool is refilled at full speed.",
           {"MIN_POOL_SIZE": None, "POOL_MIN": None}, "--pool-min"),
    Option("pool_max", POOL, _POOL_DEFAULTS.max, "How many are made ahead at most, where bursts have come.",
           {"MAX_POOL_SIZE": None}, "--pool-max"),
    Option("idle_timeout_s", SESSION_TIME, IDLE_TIMEOUT_S, "A session ends when it is not used for this long.",
           {"IDLE_TIMEOUT": None, "SESSION_TIMEOUT": None}, "--idle-timeout"),
    Option("max_lifetime_s", SESSION_TIME, MAX_LIFETIME_S, "A session ends after this time in any case.",
           {"SESSION_TIMEOUT": None}, "--max-lifetime"),
    Option("memory_limit", MEMORY, None, "The memory of a sandbox.", {"MEMORY_LIMIT": None}, "--memory-limit",
           default_text="what the environment says, else 512m", known_as="memory_mb"),
    Option("cpus", CORES, None, "The cores of a sandbox.", {"CPU_QUOTA": QUOTA}, "--cpus",
           default_text="what the environment says, else 0.5"),
    Option("claim_timeout_s", NETWORK_TIME, 30.0, "How long a caller waits for a sandbox."),
    Option("command_timeout_s", time(0.1, LONGEST_S), 120.0, "The time-out of a command, if the caller gives none."),
    Option("max_command_timeout_s", time(0.1, LONGEST_S), 86400.0, "The longest time-out that a caller can give."),
    Option("max_contexts", whole_number(1, 256), MOST_CONTEXTS, "How many code contexts a session may have at once."),
    Option("context_idle_timeout_s", time(1, LONGEST_S), CONTEXT_IDLE_S,
           "A code context ends when it runs no cell for this long."),
    Option("min_free_memory_mb", MEGABYTES, 0, "No sandbox is made when the machine has less free memory.",
           default_text="0 (automatic)"),
    Option("min_free_disk_mb", MEGABYTES, 0, "No sandbox is made when the state directory has less free space.",
           default_text="0 (automatic)"),
    Option("disk_overcommit", number(1, 1000), 20.0,
           "How much disk may be promised to sandboxes, in multiples of what there is; 1 makes it certain."),
    Option("max_memory_limit", MEMORY, None, "The most memory that a caller may ask for.",
           default_text="half of the machine's", known_as="max_memory_mb"),
    Option("max_cpus", CORES, None, "The most cores that a caller may ask for.", default_text="the machine's"),
    Option("max_pids", whole_number(8, 32768), None, "The most processes that a caller may ask for.",
           default_text="an eighth of what the machine can have, at most 8192"),
    Option("max_disk_mb", whole_number(16, MIB), None, "The largest disk that a caller may ask for.",
           default_text="half of the state directory's file system"),
    Option("max_open_files", whole_number(64, MIB), None, "The most open files of a process that a caller may ask for.",
           default_text="65536"),
    Option("io_mbps", whole_number(0, MIB), 0,
           "The MiB a second that a sandbox may read from its disk, and write to it; 0 is no limit."),
    Option("io_iops", whole_number(0, 2**30), 0, "The reads and the writes a second of its disk; 0 is no limit."),
    Option("total_memory_mb", MEGABYTES, 0,
           "The memory of all sandboxes together; automatic: the machine's but for what must stay free.",
           default_text="0 (automatic)"),
    Option("total_cpus", number(0, 4096), 0.0, "The cores of all sandboxes together; automatic: no limit.",
           default_text="0 (automatic)"),
    Option("total_pids", whole_number(0, 2**22), 0,
           "The processes of all sandboxes together; automatic: three quarters of what the machine can have.",
           default_text="0 (automatic)"),
    Option("max_sandboxes", whole_number(1, 100_000), 4000, "How many sandboxes may exist at once.",
           flag="--max-sandboxes"),
    Option("max_body_mb", whole_number(1, 1024), 4, "The largest JSON body that is accepted."),
    Option("answer_memory_mb", whole_number(128, 1_000_000), 512,
           "The memory for long answers that their callers have not read yet; one tenant may use half of it."),
    Option("header_timeout_s", NETWORK_TIME, 10.0, "The time a client has to send the head of a request."),
    Option("body_timeout_s", NETWORK_TIME, 30.0, "A client that sends no more of a body for this long is cut off."),
    Option("send_timeout_s", NETWORK_TIME, 60.0, "A client that reads nothing for this long is cut off."),
    Option("keep_alive_s", NETWORK_TIME, 75.0, "An unused connection is closed after this time."),
    Option("max_connections", whole_number(1, 1_000_000), 10_000,
           "How many connections may be open at once; one tenant may use four fifths of them."),
    Option("stream_keepalive_s", NETWORK_TIME, 15.0, "A silent stream gets a keep-alive this often."),
    Option("stop_grace_s", time(0, 86400), 30.0, "The time running requests have when the server stops.",
           flag="--stop-grace"),
    Option("on_stop", one_of("keep", "destroy"), "keep", "What happens to the sandboxes when the server stops.",
           flag="--on-stop"),
    Option("key_retention_s", time(1, 365 * 86400), 86400.0,
           "How long Idempotency-Keys and ended sessions are remembered."),
    Option("allowed_hosts", HOSTS, (), "The names the server may be addressed by, beside those of loopback.",
           flag="--allowed-hosts"),
    Option("auth", SWITCH, True, "Whether requests need a key or a token; without, only loopback is served.",
           flag="--auth/--no-auth"),
    Option("api_key", SECRET, "", "A key that may do everything, beside those made with `warren keys`.", secret=True),
    Option("jwt_jwks", TEXT, "", "Tokens signed by keys of this JWKS (a file or an address) are accepted.",
           flag="--jwt-jwks"),
    Option("jwt_issuer", TEXT, "", "The issuer that a token must have.", flag="--jwt-issuer"),
    Option("jwt_audience", TEXT, "", "The audience that a token must have.", flag="--jwt-audience"),
    Option("jwt_tenant_claim", TEXT, "tenant", "The claim that names the tenant."),
    Option("jwt_scopes_claim", TEXT, "scope", "The claim that lists the scopes."),
    Option("secrets_key", SECRET, "", "The key that seals stored secrets: 64 hexadecimal digits.", secret=True,
           default_text="made at the first start, in the state directory"),
    Option("other_secrets_keys", SECRETS_KEYS, (),
           "Keys that stored secrets may be sealed with as well, while the key is changed.", secret=True),
    Option("audit", SWITCH, True, "Whether the server records who did what.", flag="--audit/--no-audit"),
    Option("audit_commands", one_of("redacted", "none"), "redacted",
           "Whether the record has the text of commands, with what looks like a secret removed."),
    Option("audit_mb", whole_number(1, 1_000_000), 256,
           "How much of the record is kept; the oldest entries are removed first."),
    Option("metrics", SWITCH, True, "Whether Prometheus can read metrics at /metrics.", flag="--metrics/--no-metrics"),
    Option("artifact_store", ARTIFACT_STORE, "",
           "Where artifacts are kept: a directory that all machines share, or s3://BUCKET/PREFIX.",
           default_text="a directory in the state directory"),
    Option("artifact_s3_endpoint", ENDPOINT, "", "The address of an S3-compatible service other than Amazon's."),
    Option("artifact_max_mb", whole_number(0, 2**30), 1024, "How many MiB one session may save as artifacts."),
    Option("artifact_max_count", whole_number(0, 20_000), 1000, "How many files one session may save as artifacts."),
    Option("artifact_ttl_s", time(1, 10 * 366 * 86400), 30 * 86400.0, "How long an artifact is kept."),
    Option("preview_domain", PREVIEW_DOMAIN, "",
           "The domain below which every preview has a name of its own; all names below it must lead here.",
           default_text="previews have names below localhost, and paths"),
    Option("preview_public", SWITCH, False, "Whether callers may make previews public, for everybody to open."),
    Option("dashboard", SWITCH, True, "Whether the server has a dashboard: web pages, at / and /ui.",
           flag="--dashboard/--no-dashboard"),
    Option("embed_origins", ORIGINS, (),
           "The sites that may show embedded terminals in a frame, beside those that a ticket names."),
    Option("e2b_templates", TEMPLATES, ("base=e2b", "code-interpreter-v1=e2b-code-interpreter"),
           "The environments that E2B's templates stand for; other templates are environments of that name.",
           default_text="base=e2b,code-interpreter-v1=e2b-code-interpreter"),
    Option("e2b_template_mb", whole_number(0, 2**30), 10240,
           "How many MiB the templates may take that one tenant builds; with 0 nobody builds any."),
    Option("e2b_public_ports", SWITCH, True,
           "Whether ports of sandboxes that E2B's clients make are public, as they are at E2B."),
    Option("webhook_networks", NETWORKS, (), "Networks that webhooks may call although they are not public."),
    Option("image_registry", REGISTRY, "", "Where `warren image pull` looks for names without a host."),
    Option("image_insecure_registries", REGISTRIES, (),
           "Registries that are spoken to without TLS, beside those on this machine."),
    Option("image_registry_networks", NETWORKS, (),
           "Networks that a registry may send a pull to although they are not public."),
    Option("egress", SWITCH, True, "Whether sessions may ask for a network at all.", flag="--egress/--no-egress"),
    Option("egress_allowed", CEILING, (), "The most that a session may open; a tenant's own bound is in its quota.",
           default_text="everything that is public"),
    Option("egress_denied", RULES, (), "What no sandbox may reach, whatever its session allows."),
    Option("egress_networks", NETWORKS, (), "Networks that sandboxes may reach although they are not public."),
    Option("egress_presets", PATH, None, "A YAML file that says what the presets of network rules stand for.",
           default_text="what pip, npm and apt of this machine use"),
    Option("egress_connections", whole_number(1, 100_000), 1000, "How many connections a sandbox may have open."),
    Option("egress_mbps", whole_number(0, MIB), 0,
           "The megabits a second that a sandbox may send, and receive, over its network; 0 is no limit."),
    Option("egress_ca_file", PATH, None,
           "Authorities, in PEM, that vouch for hosts of secrets, beside those of the system."),
    Option("image_network", CEILING, ("python-packages", "node-packages", "debian-packages"),
           "What the steps of image builds may reach; presets that this machine does not know are left out."),
    Option("image_cache_mb", MEGABYTES, 10240, "The disk space for layers that image builds keep for the next build."),
    Option("image_build_memory_mb", whole_number(64, MIB), None, "The memory of a step of an image build, in MiB.",
           default_text="2048, at most half of the machine's"),
    Option("image_build_cpus", CORES, None, "The cores of a step of an image build.", default_text="all"),
    Option("image_build_disk_mb", whole_number(16, MIB), None, "The disk space that one step may write, in MiB.",
           default_text="10240, at most 80 % of what is free"),
    Option("image_wait_s", time(0, LONGEST_S), 240.0,
           "How long a request for a session without an Idempotency-Key waits while the image is built."),
    Option("image_build_timeout_s", time(1, LONGEST_S), 1800.0, "How long a step of an image build may run."),
    Option("gpus", GPUS, (), "The graphics processors of this machine that sandboxes may have, each one at a time.",
           flag="--gpus", default_text="off"),
    Option("tls_cert", PATH, None, "The server's certificate, in PEM; with it and its key the server speaks HTTPS.",
           flag="--tls-cert"),
    Option("tls_key", PATH, None, "The key of the certificate, in PEM and without a password.", flag="--tls-key"),
    Option("trusted_proxies", NETWORKS, (), "The proxies whose X-Forwarded-For and X-Forwarded-Proto are believed.",
           flag="--trusted-proxies"),
    Option("redis_url", TEXT, "", "The address of the cluster's Redis.", {"REDIS_URL": None}, secret=True,
           default_text="made of redis_host, redis_port and redis_password"),
    Option("redis_host", HOST, "127.0.0.1", "The host of Redis.", {"REDIS_HOST": None}),
    Option("redis_port", whole_number(1, 65535), 6379, "The port of Redis.", {"REDIS_PORT": None}),
    Option("redis_password", SECRET, "", "The password of Redis.", {"REDIS_PASSWORD": None}, secret=True),
    Option("redis_namespace", WORKER, "warren", "The prefix of all keys in Redis: another one for each cluster."),
    Option("cluster_secret", CLUSTER_SECRET, "",
           "The secret that coordinators and workers share; the same in the whole cluster.", secret=True),
    Option("other_cluster_secrets", CLUSTER_SECRETS, (),
           "Secrets that are accepted as well, while the cluster's secret is changed.", secret=True),
    Option("cluster_ca", PATH, None, "The authority that signed the certificates of coordinators and workers."),
    Option("cluster_cert", PATH, None, "The certificate of this process, for connections to coordinators and workers."),
    Option("cluster_key", PATH, None, "The key of that certificate."),
    Option("advertise", ADDRESS, "", "The address at which the other processes of the cluster reach this one.",
           flag="--advertise", default_text="its own address towards Redis, and its port"),
    Option("workers", ADDRESSES, (), "The addresses of workers, if they differ from those that workers publish.",
           {"WORKERS": None}),
    Option("labels", LABELS, (), "Labels of this worker that sessions can ask for, such as gpu=1; arch is known.",
           flag="--labels"),
    Option("log_level", one_of("debug", "info", "warning", "error"), "info", "How much is logged.",
           flag="--log-level"),
    Option("log_format", one_of("text", "json"), "text", "How log lines look.", flag="--log-format"),
    Option("log_file", PATH, None, "The file of the log, in at most 5 parts of 10 MiB.", flag="--log-file",
           default_text="stderr"),
    Option("otlp_endpoint", ENDPOINT, "", "The collector that spans are sent to, by OTLP over HTTP.",
           default_text="no spans are recorded"),
    Option("trace_sample", number(0, 1), 1.0,
           "The share of the traces that begin here and are recorded; callers decide about theirs."),
)  # fmt: skip

OPTIONS: Mapping[str, Option] = MappingProxyType({option.name: option for option in _ROWS})


def worker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a worker, which has another port."""
    return serve_options(command, WORKER_PORT)


def serve_options(command: Callable[..., Any], port: int | None = None) -> Callable[..., Any]:
    """Gives `command` the flags of the table, and --config. `port` is its default port, if it has another.

    The command is called with its other arguments and `flags`: a dict of the flags that were given, by the option's
    name, as text (--config as "config"), for `read_settings(flags=flags)`.
    """
    flagged = [option for option in _ROWS if option.flag]
    names = ("config", *(option.name for option in flagged))

    @functools.wraps(command)
    def call(*positional: Any, **arguments: Any) -> Any:
        given = {name: arguments.pop(name) for name in names}
        return command(*positional, flags={k: v for k, v in given.items() if v is not None}, **arguments)

    decorated: Callable[..., Any] = call
    for option in reversed(flagged):
        if port is not None and option.name == "port":
            option = replace(option, default=port)
        decorated = _click_option(option)(decorated)
    return click.option("--config", metavar="FILE", help="A TOML file with options.")(decorated)


def _click_option(option: Option) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    help_text = option.help if option.default_shown == _NO_VALUE else f"{option.help}  [{option.default_shown}]"
    if option.kind is SWITCH and "/" in option.flag:
        return click.option(option.flag, option.name, default=None, callback=_switch_text, help=help_text)
    if option.kind is SWITCH:
        return click.option(option.flag, option.name, is_flag=True, flag_value="true", type=str, help=help_text)
    return click.option(option.flag, option.name, metavar=option.kind.metavar, help=help_text)


def _switch_text(context: click.Context, parameter: click.Parameter, value: bool | None) -> str | None:
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
