"""Every option there is, one row each: settings, flags of `warren serve` and docs/configuration.md are made from it.

A row says what the option takes, what it is when nobody says anything, and under which names it can be given.
Its variable is WARREN_ and its name in capitals; `aliases` are variables of older systems, the first that is set
counts. Nothing here reads the environment or a file: that is warren.config.settings.

`python -m warren.config.options` prints the table of docs/configuration.md.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import click

from warren.config.option_kinds import (
    ADDRESS,
    ADDRESSES,
    CLUSTER_SECRET,
    CORES,
    ENVIRONMENT,
    HOST,
    HOSTS,
    IMAGE,
    LABELS,
    MEGABYTES,
    MEMORY,
    NETWORK_TIME,
    NETWORKS,
    PATH,
    POOL,
    PROVIDER_LIST,
    QUOTA,
    SECRET,
    SESSION_TIME,
    SWITCH,
    TEXT,
    WORKER,
    Kind,
    one_of,
    time,
    whole,
)
from warren.model.environment import PoolSize
from warren.model.session import IDLE_TIMEOUT_S, LONGEST_S, MAX_LIFETIME_S

CONFIG_VARIABLE = "WARREN_CONFIG"
_NOTHING = "(none)"
_POOLED = PoolSize()


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


_ROWS = (
    Option("state_dir", PATH, None, "Where images, sandboxes and sessions live.", flag="--state-dir",
           default_text="/var/lib/warren for root, else ~/.local/state/warren"),
    Option("bin_dir", PATH, None, "Where the agent and the launcher are.", default_text="inside the package"),
    Option("provider", PROVIDER_LIST, ("oci",), "What makes sandboxes, the default first; fake is for tests.",
           flag="--provider", known_as="providers"),
    Option("runtime", TEXT, "", "The OCI runtime: crun, runc, runsc or a path.", flag="--runtime",
           default_text="the best that works here"),
    Option("registry_dir", PATH, None, "A registry of your own, beside the built-in one.", flag="--registry-dir"),
    Option("docker_url", TEXT, "", "Where the Docker engine listens.", {"DOCKER_HOST": None},
           default_text="unix:///var/run/docker.sock"),
    Option("terminal", TEXT, "xterm-256color", "What `warren shell` says the terminal is.", {"TERM": None}),
    Option("debug", SWITCH, False, "Shows stack traces of internal errors.", flag="--debug"),
    Option("host", HOST, "127.0.0.1", "The address the server listens on.", flag="--host"),
    Option("port", whole(1, 65535), 8000, "The TCP port the server listens on.", {"PORT": None}, "--port"),
    Option("worker_id", WORKER, "local", "The name of this worker.", {"WORKER_ID": None}, "--worker-id"),
    Option("store", one_of("sqlite", "memory"), "sqlite", "Where sessions are kept; memory forgets them at the end.",
           flag="--store"),
    Option("default_environment", ENVIRONMENT, "base", "The environment of a session that asks for none.",
           flag="--environment"),
    Option("container_image", IMAGE, "", "The image of the default environment, instead of its own.",
           {"CONTAINER_IMAGE": None}, "--container-image"),
    Option("pool_size", POOL, _POOLED.size, "How many sandboxes are made ahead in quiet times.",
           {"POOL_SIZE": None}, "--pool-size"),
    Option("pool_min", POOL, _POOLED.min, "Below this the pool is refilled at full speed.",
           {"MIN_POOL_SIZE": None, "POOL_MIN": None}, "--pool-min"),
    Option("pool_max", POOL, _POOLED.max, "How many are made ahead at most, when they are in demand.",
           {"MAX_POOL_SIZE": None}, "--pool-max"),
    Option("idle_timeout_s", SESSION_TIME, IDLE_TIMEOUT_S, "A session that is not used for this long ends.",
           {"IDLE_TIMEOUT": None}, "--idle-timeout"),
    Option("max_lifetime_s", SESSION_TIME, MAX_LIFETIME_S, "A session ends after this time in any case.",
           {"SESSION_TIMEOUT": None}, "--max-lifetime"),
    Option("memory_limit", MEMORY, None, "The memory of a sandbox.", {"MEMORY_LIMIT": None}, "--memory-limit",
           default_text="what the environment says, else 512m", known_as="memory_mb"),
    Option("cpus", CORES, None, "The cores of a sandbox.", {"CPU_QUOTA": QUOTA}, "--cpus",
           default_text="what the environment says, else 0.5"),
    Option("claim_timeout_s", NETWORK_TIME, 30.0, "How long a caller waits for a sandbox."),
    Option("command_timeout_s", time(0.1, LONGEST_S), 120.0, "The time a command has, if the caller does not say."),
    Option("max_command_timeout_s", time(0.1, LONGEST_S), 86400.0, "The most time a caller can ask for."),
    Option("min_free_memory_mb", MEGABYTES, 0, "No sandbox is made when the machine has less free memory.",
           default_text="0 (automatic)"),
    Option("min_free_disk_mb", MEGABYTES, 0, "No sandbox is made when the state directory has less free space.",
           default_text="0 (automatic)"),
    Option("max_sandboxes", whole(1, 100_000), 4000, "How many sandboxes there may be at once.",
           flag="--max-sandboxes"),
    Option("max_body_mb", whole(1, 1024), 4, "The largest JSON body that is taken."),
    Option("header_timeout_s", NETWORK_TIME, 10.0, "The time a client has to send the head of a request."),
    Option("body_timeout_s", NETWORK_TIME, 30.0, "A client that sends no more of a body for this long is cut off."),
    Option("send_timeout_s", NETWORK_TIME, 60.0, "A client that takes nothing for this long is cut off."),
    Option("keep_alive_s", NETWORK_TIME, 75.0, "An unused connection is closed after this time."),
    Option("max_connections", whole(1, 1_000_000), 10_000, "How many connections there may be at once."),
    Option("stream_keepalive_s", NETWORK_TIME, 15.0, "A silent stream gets a sign of life this often."),
    Option("stop_grace_s", time(0, 86400), 30.0, "The time running requests have when the server is stopped.",
           flag="--stop-grace"),
    Option("on_stop", one_of("keep", "destroy"), "keep", "What becomes of the sandboxes when the server is stopped.",
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
    Option("jwt_issuer", TEXT, "", "Who must have issued a token.", flag="--jwt-issuer"),
    Option("jwt_audience", TEXT, "", "Whom a token must be for.", flag="--jwt-audience"),
    Option("jwt_tenant_claim", TEXT, "tenant", "The claim that names the tenant."),
    Option("jwt_scopes_claim", TEXT, "scope", "The claim that lists the scopes."),
    Option("secrets_key", SECRET, "", "What stored secrets are sealed with: 64 hexadecimal digits.", secret=True,
           default_text="made at the first start, in the state directory"),
    Option("audit", SWITCH, True, "Whether it is written down who did what.", flag="--audit/--no-audit"),
    Option("audit_commands", one_of("redacted", "none"), "redacted",
           "Whether the record has the text of commands, without what looks like a secret."),
    Option("audit_mb", whole(1, 1_000_000), 256, "How much of the record is kept; the oldest goes first."),
    Option("webhook_networks", NETWORKS, (), "Networks that webhooks may call although they are not public."),
    Option("tls_cert", PATH, None, "The server's certificate, in PEM; with it and its key the server speaks HTTPS.",
           flag="--tls-cert"),
    Option("tls_key", PATH, None, "The key of the certificate, in PEM and without a password.", flag="--tls-key"),
    Option("trusted_proxies", NETWORKS, (), "The proxies whose X-Forwarded-For and X-Forwarded-Proto are believed.",
           flag="--trusted-proxies"),
    Option("redis_url", TEXT, "", "Where the Redis of the cluster is.", {"REDIS_URL": None}, secret=True,
           default_text="made of redis_host, redis_port and redis_password"),
    Option("redis_host", HOST, "127.0.0.1", "The machine Redis runs on.", {"REDIS_HOST": None}),
    Option("redis_port", whole(1, 65535), 6379, "The port of Redis.", {"REDIS_PORT": None}),
    Option("redis_password", SECRET, "", "The password of Redis.", {"REDIS_PASSWORD": None}, secret=True),
    Option("redis_namespace", WORKER, "warren", "What the keys in Redis begin with: one for each cluster."),
    Option("cluster_secret", CLUSTER_SECRET, "",
           "What coordinators and workers know each other by; the same for all of a cluster.", secret=True),
    Option("cluster_ca", PATH, None, "The authority that signed the certificates of coordinators and workers."),
    Option("cluster_cert", PATH, None, "The certificate of this process, for its talk with coordinators and workers."),
    Option("cluster_key", PATH, None, "The key of that certificate."),
    Option("advertise", ADDRESS, "", "Where the other processes of the cluster reach this one.", flag="--advertise",
           default_text="its own address towards Redis, and its port"),
    Option("workers", ADDRESSES, (), "Where workers are, if they are reached elsewhere than they say themselves.",
           {"WORKERS": None}),
    Option("labels", LABELS, (), "What can be asked for of this worker, such as gpu=1; arch is known.",
           flag="--labels"),
    Option("log_level", one_of("debug", "info", "warning", "error"), "info", "How much is logged.",
           flag="--log-level"),
    Option("log_format", one_of("text", "json"), "text", "How log lines look.", flag="--log-format"),
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
