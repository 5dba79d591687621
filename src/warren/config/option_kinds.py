"""What options take: an OptionKind turns the text of an option into its value, and says in words what is expected."""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warren.model.addresses import canonical_origin
from warren.model.egress import Ceiling
from warren.model.environment import MAX_POOLED
from warren.model.errors import InvalidRequest
from warren.model.gpus import check_gpus
from warren.model.image_pulls import read_pattern
from warren.model.image_reference import canonical_host
from warren.model.network import parse_rule
from warren.model.session import LONGEST_S
from warren.model.spec import MIB, check_image_name

PROVIDERS = ("oci", "docker", "e2b", "fake")
_MEMORY_UNITS = {"": 1, "k": 1024, "m": MIB, "g": 1024 * MIB, "t": MIB * MIB}
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_QUOTA_PERIOD_US = 100_000  # Docker's CPU quota is microseconds of every 100 ms
LABEL = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}=[A-Za-z0-9._-]{0,63}"
_HOST_NAME = r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*"

_REGISTRY_HOST = r"([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?"
_REGISTRY_PLACE = rf"{_REGISTRY_HOST}(/[a-z0-9._-]+)*"


@dataclass(frozen=True, slots=True)
class OptionKind:
    """What an option takes: `parse` turns a text into the value, and raises ValueError for a text that does not fit.
    The text of a list has `separator` between its items."""

    takes: str
    metavar: str
    parse: Callable[[str], Any]
    separator: str = ","


def check_provider(name: str) -> str:
    if name not in PROVIDERS:
        raise InvalidRequest(f"there is no provider {name!r}", remedy=f"there are: {', '.join(PROVIDERS)}")
    return name


def _parse_providers(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(check_provider(part.strip()) for part in text.split(",")))


def _require(holds: object) -> None:
    if not holds:
        raise ValueError


def whole_number(low: int, high: int) -> OptionKind:
    def parse(text: str) -> int:
        _require(re.fullmatch(r"[0-9]{1,12}", text) and low <= int(text) <= high)
        return int(text)

    return OptionKind(f"a whole number from {low} to {high}", "N", parse)


def number(low: float, high: float) -> OptionKind:
    def parse(text: str) -> float:
        _require(re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text) and low <= float(text) <= high)
        return float(text)

    return OptionKind(f"a number from {low:g} to {high:g}", "N", parse)


def parse_seconds(text: str) -> float:
    """Reads a time such as 90, 30s, 10m or 1h. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?) ?([smhd]?)", text)
    if not match:
        raise ValueError
    return float(match[1]) * _UNITS_S[match[2] or "s"]


def time(low: float, high: float) -> OptionKind:
    def parse(text: str) -> float:
        seconds = parse_seconds(text)
        _require(low <= seconds <= high)
        return seconds

    return OptionKind(f"a time from {low:g}s to {high / 86400:g}d (like 90, 30s, 10m or 1h)", "TIME", parse)


def one_of(*names: str) -> OptionKind:
    def parse(text: str) -> str:
        _require(text.lower() in names)
        return text.lower()

    return OptionKind(f"one of {', '.join(names)}", "|".join(names), parse)


def matching(pattern: str, takes: str, metavar: str = "NAME") -> OptionKind:
    def parse(text: str) -> str:
        _require(re.fullmatch(pattern, text))
        return text

    return OptionKind(takes, metavar, parse)


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
    name, colon, port = text.rpartition(":")
    if colon and port.isascii() and port.isdigit() and (":" not in name or name.endswith("]")):
        raise InvalidRequest(f"the host {text[:100]!r} has a port", remedy=f"write {name[:100]}, for every port")
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
    """Returns HOST:PORT; a URL, as some systems write it, is read too."""
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
    """Splits at spaces: a secret may have a comma in it."""
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


def _parse_mirrors(text: str) -> tuple[str, ...]:
    mirrors = [part.strip() for part in text.split(",")]
    pairs = [mirror.partition("=") for mirror in mirrors]
    for host, _, place in pairs:
        _require(re.fullmatch(_REGISTRY_HOST, host) and re.fullmatch(_REGISTRY_PLACE, place))
    return tuple(f"{canonical_host(host)}={place}" for host, _, place in pairs)


def _parse_patterns(text: str) -> tuple[str, ...]:
    patterns = [part.strip() for part in text.split(",")]
    for pattern in patterns:
        read_pattern(pattern)
    return tuple(dict.fromkeys(patterns))


_SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
SWITCH = OptionKind("one of 1, 0, true, false, yes, no, on, off", "BOOL", _parse_switch)
MEMORY = OptionKind("an amount of memory from 64m to 1t (like 512m, 1g or 536870912)", "SIZE", _parse_memory)
CORES = number(0.05, 256)
QUOTA = OptionKind("a number of microseconds in 100 ms from 5000 to 25600000 (50000 is half a core)", "N", _parse_quota)
PREVIEW_DOMAIN = OptionKind("the name of a domain, such as preview.example.com", "NAME", _parse_domain)
PATH = OptionKind("a path", "PATH", _parse_path)
IMAGE = OptionKind("the name of an image", "IMAGE", _parse_image)
HOST = OptionKind("a name or an address, without a port", "HOST", _parse_host)
HOSTS = OptionKind(
    "a list of names, patterns such as *.example.com, and addresses without ports, with commas between them",
    "LIST",
    _parse_hosts,
)
ORIGINS = OptionKind(
    "a list of origins such as https://app.example.com, with commas between them", "LIST", _parse_origins
)
NETWORKS = OptionKind(
    "a list of addresses and networks such as 10.0.0.0/8, with commas between them", "LIST", _parse_networks
)
RULES = OptionKind(
    "a list of rules such as *.example.com or 10.0.0.0/8:443, with commas between them", "LIST", _parse_rules
)
CEILING = OptionKind(
    "a list of rules and presets, with commas between them; or internet, or none", "LIST", _parse_ceiling
)
ADDRESS = OptionKind("a host and a port, such as 10.0.0.5:5000", "HOST:PORT", _parse_address)
ADDRESSES = OptionKind("a list of hosts with ports, with commas between them", "LIST", _parse_addresses)
REGISTRY = matching(_REGISTRY_PLACE, "the host of a registry, with a port or a path", "HOST[:PORT][/PATH]")
REGISTRIES = OptionKind("a list of hosts, with or without ports, with commas between them", "LIST", _parse_registries)
MIRRORS = OptionKind("a list such as docker.io=mirror.example.com:5000/hub", "LIST", _parse_mirrors)
IMAGE_PATTERNS = OptionKind("a list of names of images, such as python:3.* and ghcr.io/team/*", "LIST", _parse_patterns)
GPUS = OptionKind("off, all, or a list of ids such as 0,1", "LIST", _parse_gpus)
TEMPLATES = OptionKind("a list such as base=e2b,ml=python", "LIST", _parse_labels)
LABELS = OptionKind("a list such as gpu=1,zone=a", "LIST", _parse_labels)
PROVIDER_LIST = OptionKind(f"a list of {', '.join(PROVIDERS)}, with commas between them", "LIST", _parse_providers)
TEXT = matching(r"[!-~]{1,4096}", "a text without spaces")
ENVIRONMENT = matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", "the name of an environment")
WORKER = matching(r"[A-Za-z0-9._-]{1,64}", "a name of 1 to 64 letters, digits, '.', '_' and '-'")
SECRET = matching(r"[!-~]{1,4096}", "a text of ASCII characters without spaces", "KEY")
SECRETS_KEYS = OptionKind("a list of keys of 64 hexadecimal digits, with commas between them", "LIST", _parse_keys)
CLUSTER_SECRETS = OptionKind(
    "a list of texts of 16 or more ASCII characters, with spaces between them", "LIST", _parse_cluster_secrets, " "
)
POOL = whole_number(0, MAX_POOLED)
SESSION_TIME = time(1, LONGEST_S)
NETWORK_TIME = time(0.1, 86400)
MEGABYTES = whole_number(0, 2**30)
ARTIFACT_STORE = matching(r"/[!-~]{1,4095}|s3://[a-z0-9][a-z0-9.-]{1,62}(/[A-Za-z0-9!_.*'()/-]{1,900})?",
                          "an absolute path, or s3://BUCKET or s3://BUCKET/PREFIX", "PLACE")  # fmt: skip
ENDPOINT = matching(r"https?://[!-~]{1,1000}", "an address that begins with http:// or https://", "URL")
CLUSTER_SECRET = matching(r"[!-~]{16,4096}", "a text of 16 or more ASCII characters without spaces", "KEY")
