"""All options of the server, each written once: as a field of `Settings`.

A field says what the option takes (its OptionKind), its default, what it means, and the names it can be given by. Its
variable is WARREN_ and its name in capitals; `aliases` are variables of other systems; the first that is set counts.
`OPTIONS`, the flags of `warren serve` and the table of docs/configuration.md are made from the fields. Nothing here
reads the environment or a file: warren.config.settings does.

`python -m warren.config.options` prints the table of docs/configuration.md.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from warren.config.option_kinds import (
    ADDRESS,
    ADDRESSES,
    ARTIFACT_STORE,
    CEILING,
    CLUSTER_SECRET,
    CLUSTER_SECRETS,
    CORES,
    ENDPOINT,
    ENVIRONMENT,
    GPUS,
    HOST,
    HOSTS,
    IMAGE,
    IMAGE_PATTERNS,
    LABELS,
    MEGABYTES,
    MEMORY,
    MIRRORS,
    NETWORK_TIME,
    NETWORKS,
    ORIGINS,
    PATH,
    POOL,
    PREVIEW_DOMAIN,
    PROVIDER_LIST,
    QUOTA,
    REGISTRIES,
    REGISTRY,
    RULES,
    SECRET,
    SECRETS_KEYS,
    SESSION_TIME,
    SWITCH,
    TEMPLATES,
    TEXT,
    WORKER,
    OptionKind,
    number,
    one_of,
    time,
    whole_number,
)
from warren.model.code import CONTEXT_IDLE_S, MAX_CONTEXTS
from warren.model.environment import PoolSize
from warren.model.image_pulls import MODES, OFF
from warren.model.session import IDLE_TIMEOUT_S, LONGEST_S, MAX_LIFETIME_S, MAX_PAUSED_S
from warren.model.spec import MIB

CONFIG_VARIABLE = "WARREN_CONFIG"
WORKER_PORT = 5000  # a worker's default; all others have the one of the table
_NO_VALUE = "(none)"
_POOL_DEFAULTS = PoolSize()
_OPTION = "option"  # where the metadata of a field has its Option


@dataclass(frozen=True, slots=True)
class Option:
    """`default_text` describes a default that depends on something. An alias with a kind of its own takes something
    else than the option does. `attribute` is the field of Settings."""

    kind: OptionKind
    default: Any
    help: str
    aliases: Mapping[str, OptionKind | None] = field(default_factory=dict)
    flag: str = ""
    secret: bool = False
    default_text: str = ""
    name: str = ""
    attribute: str = ""

    @property
    def variable(self) -> str:
        return f"WARREN_{self.name.upper()}"

    @property
    def variables(self) -> dict[str, OptionKind]:
        """All variables of the option, with what they take; the first that is set counts."""
        return {self.variable: self.kind, **{name: kind or self.kind for name, kind in self.aliases.items()}}

    @property
    def default_shown(self) -> str:
        return self.show(self.default)

    def parse(self, text: str, kind: OptionKind) -> Any:
        """Returns the value of a text; for an empty one the default, if that is empty. Raises ValueError, or
        InvalidRequest with a better message."""
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


def option(kind: OptionKind, default: Any, help: str, **more: Any) -> Any:
    """Returns a field of Settings. `name` is the option's name if it differs from the field's; see Option for the
    rest."""
    found = Option(kind, default, help, **more)
    return field(repr=not found.secret, metadata={_OPTION: found})


@dataclass(frozen=True, slots=True)
class Settings:
    """The value of every option. `sources` has the source of each value, `warnings` what is odd but harmless."""

    # fmt: off
    state_dir: Path = option(PATH, None, "The directory of images, sandboxes and sessions.", flag="--state-dir",
        default_text="/var/lib/warren for root, else ~/.local/state/warren")
    bin_dir: Path = option(PATH, None, "The directory of the agent and the launcher.",
        default_text="inside the package")
    providers: tuple[str, ...] = option(PROVIDER_LIST, ("oci",),
        "What makes sandboxes, the default first; fake is for tests.", name="provider", flag="--provider")
    runtime: str = option(TEXT, "", "What makes sandboxes of oci: direct, which is Warren itself, or crun or runc.",
        flag="--runtime", default_text="the best that works here")
    registry_dir: Path | None = option(PATH, None, "A registry of your own, beside the built-in one.",
        flag="--registry-dir")
    docker_url: str = option(TEXT, "", "Where the Docker engine listens.", aliases={"DOCKER_HOST": None},
        default_text="unix:///var/run/docker.sock")
    e2b_api_key: str = option(SECRET, "", "The key for E2B, or for a server that speaks as E2B does: the far side.",
        aliases={"E2B_API_KEY": None}, secret=True)
    e2b_api_url: str = option(ENDPOINT, "", "The address of the far side.", aliases={"E2B_API_URL": None},
        default_text="https://api. and e2b_domain")
    e2b_sandbox_url: str = option(ENDPOINT, "", "Where all sandboxes of the far side are reached.",
        aliases={"E2B_SANDBOX_URL": None},
        default_text="e2b_api_url, if it is set and e2b_domain is not; else each has a name of its own")
    e2b_domain: str = option(HOST, "", "The domain of the far side.", aliases={"E2B_DOMAIN": None},
        default_text="e2b.app")
    e2b_images: tuple[str, ...] = option(TEMPLATES,
        ("python=code-interpreter-v1", "code-interpreter=code-interpreter-v1"),
        "The templates of the far side that images stand for; other images are templates of that name.",
        default_text="python=code-interpreter-v1,code-interpreter=code-interpreter-v1")
    e2b_runtime: str = option(TEXT, "",
        "What runs sandboxes on the far side, by your word: it cannot be read from here.", default_text="unknown")
    e2b_guest_kernel: bool = option(SWITCH, False,
        "Your word that sandboxes of the far side have kernels of their own.")
    terminal: str = option(TEXT, "xterm-256color", "What `warren shell` says the terminal is.", aliases={"TERM": None})
    debug: bool = option(SWITCH, False, "Shows stack traces of internal errors.", flag="--debug")
    host: str = option(HOST, "127.0.0.1", "The address the server listens on.", flag="--host")
    port: int = option(whole_number(1, 65535), 8000, "The TCP port the server listens on.", aliases={"PORT": None},
        flag="--port")
    serve_workers: int = option(whole_number(1, 256), 1,
        "How many workers serve behind one address (serve --workers); more than one need a redis-server here.")
    share_port: bool = option(SWITCH, False,
        "Lets other processes of this user listen on the same port; the kernel shares the connections out.")
    worker_id: str = option(WORKER, "local", "The name of this worker.", aliases={"WORKER_ID": None},
        flag="--worker-id")
    store: str = option(one_of("sqlite", "memory"), "sqlite",
        "Where sessions are stored; memory forgets them when the server stops.", flag="--store")
    default_environment: str = option(ENVIRONMENT, "base", "The environment of a session that names none.",
        flag="--environment")
    container_image: str = option(IMAGE, "", "The image of the default environment, instead of its own.",
        aliases={"CONTAINER_IMAGE": None}, flag="--container-image")
    pool_size: int = option(POOL, _POOL_DEFAULTS.size, "How many sandboxes are made ahead in quiet times.",
        aliases={"POOL_SIZE": None}, flag="--pool-size")
    pool_min: int = option(POOL, _POOL_DEFAULTS.min, "Below this the pool is refilled at full speed.",
        aliases={"MIN_POOL_SIZE": None, "POOL_MIN": None}, flag="--pool-min")
    pool_max: int = option(POOL, _POOL_DEFAULTS.max, "How many are made ahead at most, where bursts have come.",
        aliases={"MAX_POOL_SIZE": None}, flag="--pool-max")
    idle_timeout_s: float = option(SESSION_TIME, IDLE_TIMEOUT_S, "A session ends when it is not used for this long.",
        aliases={"IDLE_TIMEOUT": None, "SESSION_TIMEOUT": None}, flag="--idle-timeout")
    max_lifetime_s: float = option(SESSION_TIME, MAX_LIFETIME_S, "A session ends after this time in any case.",
        aliases={"SESSION_TIMEOUT": None}, flag="--max-lifetime")
    on_idle: str = option(one_of("end", "pause", "hibernate"), "end",
        "What becomes of a session that is not used for its idle_timeout_s; providers that cannot do it do less.",
        flag="--on-idle")
    max_paused_s: float = option(SESSION_TIME, MAX_PAUSED_S, "A session ends when it is paused for this long.")
    hibernate_after_s: float = option(time(0, LONGEST_S), 86400.0,
        "A session that is paused for this long is saved to disk, and gives its sandbox back; 0: never.")
    memory_mb: int | None = option(MEMORY, None, "The memory of a sandbox.", aliases={"MEMORY_LIMIT": None},
        flag="--memory-limit", name="memory_limit", default_text="what the environment says, else 512m")
    cpus: float | None = option(CORES, None, "The cores of a sandbox.", aliases={"CPU_QUOTA": QUOTA}, flag="--cpus",
        default_text="what the environment says, else 0.5")
    claim_timeout_s: float = option(NETWORK_TIME, 30.0, "How long a caller waits for a sandbox.")
    command_timeout_s: float = option(time(0.1, LONGEST_S), 120.0,
        "The time-out of a command, if the caller gives none.")
    max_command_timeout_s: float = option(time(0.1, LONGEST_S), 86400.0, "The longest time-out that a caller can give.")
    max_contexts: int = option(whole_number(1, 256), MAX_CONTEXTS,
        "How many code contexts a session may have at once.")
    context_idle_timeout_s: float = option(time(1, LONGEST_S), CONTEXT_IDLE_S,
        "A code context ends when it runs no cell for this long.")
    min_free_memory_mb: int = option(MEGABYTES, 0, "No sandbox is made when the machine has less free memory.",
        default_text="0 (automatic)")
    min_free_disk_mb: int = option(MEGABYTES, 0, "No sandbox is made when the state directory has less free space.",
        default_text="0 (automatic)")
    disk_overcommit: float = option(number(1, 1000), 20.0,
        "How much disk may be promised to sandboxes, in multiples of what there is; 1 makes it certain.")
    max_memory_mb: int | None = option(MEMORY, None, "The most memory that a caller may ask for.",
        name="max_memory_limit", default_text="half of the machine's")
    max_cpus: float | None = option(CORES, None, "The most cores that a caller may ask for.",
        default_text="the machine's")
    max_pids: int | None = option(whole_number(8, 32768), None, "The most processes that a caller may ask for.",
        default_text="an eighth of what the machine can have, at most 8192")
    max_disk_mb: int | None = option(whole_number(16, MIB), None, "The largest disk that a caller may ask for.",
        default_text="half of the state directory's file system")
    max_open_files: int | None = option(whole_number(64, MIB), None,
        "The most open files of a process that a caller may ask for.", default_text="65536")
    io_mbps: int = option(whole_number(0, MIB), 0,
        "The MiB a second that a sandbox may read from its disk, and write to it; 0 is no limit.")
    io_iops: int = option(whole_number(0, 2**30), 0, "The reads and the writes a second of its disk; 0 is no limit.")
    total_memory_mb: int = option(MEGABYTES, 0,
        "The memory of all sandboxes together; automatic: the machine's but for what must stay free.",
        default_text="0 (automatic)")
    total_cpus: float = option(number(0, 4096), 0.0, "The cores of all sandboxes together; automatic: no limit.",
        default_text="0 (automatic)")
    total_pids: int = option(whole_number(0, 2**22), 0,
        "The processes of all sandboxes together; automatic: three quarters of what the machine can have.",
        default_text="0 (automatic)")
    max_sandboxes: int = option(whole_number(1, 100_000), 4000, "How many sandboxes may exist at once.",
        flag="--max-sandboxes")
    makers: int | None = option(whole_number(0, 256), None,
        "How many processes make the sandboxes of the provider oci, so that it uses every core; 0: the server itself.",
        flag="--makers", default_text="the cores but two, from 0 to 4")
    max_body_mb: int = option(whole_number(1, 1024), 4, "The largest JSON body that is accepted.")
    answer_memory_mb: int = option(whole_number(128, 1_000_000), 512,
        "The memory for long answers that their callers have not read yet; one tenant may use half of it.")
    header_timeout_s: float = option(NETWORK_TIME, 10.0, "The time a client has to send the head of a request.")
    body_timeout_s: float = option(NETWORK_TIME, 30.0,
        "A client that sends no more of a body for this long is cut off.")
    send_timeout_s: float = option(NETWORK_TIME, 60.0, "A client that reads nothing for this long is cut off.")
    keep_alive_s: float = option(NETWORK_TIME, 75.0, "An unused connection is closed after this time.")
    max_connections: int = option(whole_number(1, 1_000_000), 10_000,
        "How many connections may be open at once; one tenant may use four fifths of them.")
    stream_keepalive_s: float = option(NETWORK_TIME, 15.0, "A silent stream gets a keep-alive this often.")
    stop_grace_s: float = option(time(0, 86400), 30.0, "The time running requests have when the server stops.",
        flag="--stop-grace")
    on_stop: str = option(one_of("keep", "destroy"), "keep", "What happens to the sandboxes when the server stops.",
        flag="--on-stop")
    key_retention_s: float = option(time(1, 365 * 86400), 86400.0,
        "How long Idempotency-Keys and ended sessions are remembered.")
    allowed_hosts: tuple[str, ...] = option(HOSTS, (),
        "The names the server may be addressed by, beside those of loopback.", flag="--allowed-hosts")
    auth: bool = option(SWITCH, True, "Whether requests need a key or a token; without, only loopback is served.",
        flag="--auth/--no-auth")
    api_key: str = option(SECRET, "", "A key that may do everything, beside those made with `warren keys`.",
        secret=True)
    jwt_jwks: str = option(TEXT, "", "Tokens signed by keys of this JWKS (a file or an address) are accepted.",
        flag="--jwt-jwks")
    jwt_issuer: str = option(TEXT, "", "The issuer that a token must have.", flag="--jwt-issuer")
    jwt_audience: str = option(TEXT, "", "The audience that a token must have.", flag="--jwt-audience")
    jwt_tenant_claim: str = option(TEXT, "tenant", "The claim that names the tenant.")
    jwt_scopes_claim: str = option(TEXT, "scope", "The claim that lists the scopes.")
    secrets_key: str = option(SECRET, "", "The key that seals stored secrets: 64 hexadecimal digits.", secret=True,
        default_text="made at the first start, in the state directory")
    other_secrets_keys: tuple[str, ...] = option(SECRETS_KEYS, (),
        "Keys that stored secrets may be sealed with as well, while the key is changed.", secret=True)
    audit: bool = option(SWITCH, True, "Whether the server records who did what.", flag="--audit/--no-audit")
    audit_commands: str = option(one_of("redacted", "none"), "redacted",
        "Whether the record has the text of commands, with what looks like a secret removed.")
    audit_mb: int = option(whole_number(1, 1_000_000), 256,
        "How much of the record is kept; the oldest entries are removed first.")
    session_logs: str = option(one_of("off", "commands", "output"), "off",
        "How much is kept of what a session does, if it does not say.")
    session_log_mb: int = option(whole_number(1, 1_000_000), 10,
        "What the log of one session may take; the oldest output is removed first.")
    session_log_retention_s: float = option(time(1, 10 * 366 * 86400), 7 * 86400.0,
        "How long the log of a session is kept after the session's end.")
    metrics: bool = option(SWITCH, True, "Whether Prometheus can read metrics at /metrics.",
        flag="--metrics/--no-metrics")
    artifact_store: str = option(ARTIFACT_STORE, "",
        "Where artifacts are kept: a directory that all machines share, or s3://BUCKET/PREFIX.",
        default_text="a directory in the state directory")
    artifact_s3_endpoint: str = option(ENDPOINT, "", "The address of an S3-compatible service other than Amazon's.")
    artifact_max_mb: int = option(whole_number(0, 2**30), 1024, "How many MiB one session may save as artifacts.")
    artifact_max_count: int = option(whole_number(0, 20_000), 1000, "How many files one session may save as artifacts.")
    artifact_ttl_s: float = option(time(1, 10 * 366 * 86400), 30 * 86400.0, "How long an artifact is kept.")
    snapshot_store: str = option(ARTIFACT_STORE, "",
        "Where snapshots are kept: a directory that all machines share, or s3://BUCKET/PREFIX.",
        default_text="with the disks of each machine, in its state directory")
    snapshot_s3_endpoint: str = option(ENDPOINT, "", "The same as artifact_s3_endpoint, for snapshots.")
    snapshot_encryption: bool = option(SWITCH, False,
        "Whether snapshots are encrypted with secrets_key where they are kept; each use then unpacks one anew.")
    snapshot_ttl_s: float = option(time(0, 10 * 366 * 86400), 30 * 86400.0,
        "How long a snapshot is kept that asks for no other time; 0: for ever.")
    snapshot_max_count: int = option(whole_number(0, 20_000), 1000, "How many snapshots a tenant may have.")
    snapshot_cache_mb: int = option(whole_number(0, 2**30), 10240,
        "How many MiB of a snapshot_store a machine keeps ready for sessions.")
    volume_mb: int = option(whole_number(16, 2**20), 1024, "The size in MiB of a volume that is made without one.")
    preview_domain: str = option(PREVIEW_DOMAIN, "",
        "The domain below which every preview has a name of its own; all names below it must lead here.",
        default_text="previews have names below localhost, and paths")
    preview_public: bool = option(SWITCH, False, "Whether callers may make previews public, for everybody to open.")
    dashboard: bool = option(SWITCH, True, "Whether the server has a dashboard: web pages, at / and /ui.",
        flag="--dashboard/--no-dashboard")
    embed_origins: tuple[str, ...] = option(ORIGINS, (),
        "The sites that may show embedded terminals in a frame, beside those that a ticket names.")
    e2b_templates: tuple[str, ...] = option(TEMPLATES, ("base=e2b", "code-interpreter-v1=e2b-code-interpreter"),
        "The environments that E2B's templates stand for; other templates are environments of that name.",
        default_text="base=e2b,code-interpreter-v1=e2b-code-interpreter")
    e2b_template_mb: int = option(whole_number(0, 2**30), 10240,
        "How many MiB the templates may take that one tenant builds; with 0 nobody builds any.")
    e2b_public_ports: bool = option(SWITCH, True,
        "Whether ports of sandboxes that E2B's clients make are public, as they are at E2B.")
    webhook_networks: tuple[str, ...] = option(NETWORKS, (),
        "Networks that webhooks may call although they are not public.")
    image_registry: str = option(REGISTRY, "", "Where images whose names have no host are pulled from.",
        default_text="docker.io, which is Docker Hub")
    image_mirrors: tuple[str, ...] = option(MIRRORS, (),
        "Where the images of a registry are pulled from instead, such as a cache of Docker Hub's.")
    image_pull: str = option(one_of(*MODES), OFF,
        "Whether the server pulls images that are missing: what environments name, and what tenants name if it is on, "
        "or with allow-list if image_pull_allowed names it.")
    image_pull_allowed: tuple[str, ...] = option(IMAGE_PATTERNS, (),
        "The images that tenants may have pulled, with your passwords where a registry asks for one.")
    image_pull_mb: int = option(whole_number(1, 2**30), 10240,
        "How many MiB the images may take that are pulled for one tenant; those used longest ago are removed.")
    image_insecure_registries: tuple[str, ...] = option(REGISTRIES, (),
        "Registries that are spoken to without TLS, beside those on this machine.")
    image_registry_networks: tuple[str, ...] = option(NETWORKS, (),
        "Networks that a registry may send a pull to although they are not public.")
    egress: bool = option(SWITCH, True, "Whether sessions may ask for a network at all.", flag="--egress/--no-egress")
    egress_allowed: tuple[str, ...] = option(CEILING, (),
        "The most that a session may open; a tenant's own bound is in its quota.",
        default_text="everything that is public")
    egress_denied: tuple[str, ...] = option(RULES, (), "What no sandbox may reach, whatever its session allows.")
    egress_networks: tuple[str, ...] = option(NETWORKS, (),
        "Networks that sandboxes may reach although they are not public, if a rule of their session names them.")
    egress_presets: Path | None = option(PATH, None,
        "A YAML file that says what the presets of network rules stand for.",
        default_text="what pip, npm and apt of this machine use")
    egress_connections: int = option(whole_number(1, 100_000), 1000, "How many connections a sandbox may have open.")
    egress_mbps: int = option(whole_number(0, MIB), 0,
        "The megabits a second that a sandbox may send, and receive, over its network; 0 is no limit.")
    egress_ca_file: Path | None = option(PATH, None,
        "Authorities, in PEM, that vouch for hosts of secrets, beside those of the system.")
    image_network: tuple[str, ...] = option(CEILING, ("python-packages", "node-packages", "debian-packages"),
        "What the steps of image builds may reach; presets that this machine does not know are left out.")
    image_cache_mb: int = option(MEGABYTES, 10240,
        "The disk space for layers that image builds keep for the next build.")
    image_build_memory_mb: int | None = option(whole_number(64, MIB), None,
        "The memory of a step of an image build, in MiB.", default_text="2048, at most half of the machine's")
    image_build_cpus: float | None = option(CORES, None, "The cores of a step of an image build.", default_text="all")
    image_build_disk_mb: int | None = option(whole_number(16, MIB), None,
        "The disk space that one step may write, in MiB.", default_text="10240, at most 80 % of what is free")
    image_wait_s: float = option(time(0, LONGEST_S), 240.0,
        "How long a request for a session without an Idempotency-Key waits while the image is built.")
    image_build_timeout_s: float = option(time(1, LONGEST_S), 1800.0, "How long a step of an image build may run.")
    gpus: tuple[str, ...] = option(GPUS, (),
        "The graphics processors of this machine that sandboxes may have, each one at a time.", flag="--gpus",
        default_text="off")
    tls_cert: Path | None = option(PATH, None,
        "The server's certificate, in PEM; with it and its key the server speaks HTTPS.", flag="--tls-cert")
    tls_key: Path | None = option(PATH, None, "The key of the certificate, in PEM and without a password.",
        flag="--tls-key")
    trusted_proxies: tuple[str, ...] = option(NETWORKS, (),
        "The proxies whose X-Forwarded-For and X-Forwarded-Proto are believed.", flag="--trusted-proxies")
    redis_url: str = option(TEXT, "", "The address of the cluster's Redis.", aliases={"REDIS_URL": None}, secret=True,
        default_text="made of redis_host, redis_port and redis_password")
    redis_host: str = option(HOST, "127.0.0.1", "The host of Redis.", aliases={"REDIS_HOST": None})
    redis_port: int = option(whole_number(1, 65535), 6379, "The port of Redis.", aliases={"REDIS_PORT": None})
    redis_password: str = option(SECRET, "", "The password of Redis.", aliases={"REDIS_PASSWORD": None}, secret=True)
    redis_namespace: str = option(WORKER, "warren", "The prefix of all keys in Redis: another one for each cluster.")
    cluster_secret: str = option(CLUSTER_SECRET, "",
        "The secret that coordinators and workers share; the same in the whole cluster.", secret=True)
    worker_away_s: float = option(time(0, LONGEST_S), 0.0,
        "How long sessions of a silent worker are kept for it, beyond its lease of 8 s (`serve --workers`: 600).")
    direct_clients: bool = option(SWITCH, False,
        "This worker also answers clients themselves, with their keys, about the sessions it has (`worker_url`).")
    demand_fill: float = option(number(0.05, 1), 0.75,
        "How full the workers of a cluster should be, for the number that is wanted (GET /api/cluster/demand).")
    demand_least: int = option(whole_number(0, 100_000), 1, "As many workers are wanted at least.")
    demand_most: int = option(whole_number(0, 100_000), 0, "As many workers are wanted at most; 0: no such bound.")
    demand_settle_s: float = option(time(0, LONGEST_S), 300.0,
        "Fewer workers are wanted when no more were needed for this long.")
    other_cluster_secrets: tuple[str, ...] = option(CLUSTER_SECRETS, (),
        "Secrets that are accepted as well, while the cluster's secret is changed.", secret=True)
    cluster_ca: Path | None = option(PATH, None,
        "The authority that signed the certificates of coordinators and workers.")
    cluster_cert: Path | None = option(PATH, None,
        "The certificate of this process, for connections to coordinators and workers.")
    cluster_key: Path | None = option(PATH, None, "The key of that certificate.")
    advertise: str = option(ADDRESS, "", "The address at which the other processes of the cluster reach this one.",
        flag="--advertise", default_text="its own address towards Redis, and its port")
    workers: tuple[str, ...] = option(ADDRESSES, (),
        "The addresses of workers, if they differ from those that workers publish.", aliases={"WORKERS": None})
    labels: tuple[str, ...] = option(LABELS, (),
        "Labels of this worker that sessions can ask for, such as gpu=1; arch is known.", flag="--labels")
    log_level: str = option(one_of("debug", "info", "warning", "error"), "info", "How much is logged.",
        flag="--log-level")
    log_format: str = option(one_of("text", "json"), "text", "How log lines look.", flag="--log-format")
    log_file: Path | None = option(PATH, None, "The file of the log, in at most 5 parts of 10 MiB.", flag="--log-file",
        default_text="stderr")
    otlp_endpoint: str = option(ENDPOINT, "", "The collector that spans are sent to, by OTLP over HTTP.",
        default_text="no spans are recorded")
    trace_sample: float = option(number(0, 1), 1.0,
        "The share of the traces that begin here and are recorded; callers decide about theirs.")
    # fmt: on
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    warnings: tuple[str, ...] = ()


def _table() -> Mapping[str, Option]:
    found = ((each.name, each.metadata[_OPTION]) for each in fields(Settings) if _OPTION in each.metadata)
    named = [replace(option, name=option.name or attribute, attribute=attribute) for attribute, option in found]
    return MappingProxyType({option.name: option for option in named})


OPTIONS = _table()


def worker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Does what `serve_options` does, for a worker, which has another default port."""
    return serve_options(command, WORKER_PORT)


def serve_options(command: Callable[..., Any], port: int | None = None) -> Callable[..., Any]:
    """Gives `command` the flags of the table, and --config. `port` is its default port, if it has another.

    The command is called with its other arguments and `flags`: a dict of the flags that were given, by the option's
    name, as text (--config as "config"), for `read_settings(flags=flags)`.
    """
    flagged = [option for option in OPTIONS.values() if option.flag]
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
    rows = [head, ("---",) * len(head), *map(_cells, OPTIONS.values())]
    return [f"| {' | '.join(row)} |" for row in rows]


def _cells(option: Option) -> tuple[str, ...]:
    older = ", ".join(f"`{name}`" for name in option.aliases)
    flag = f"`{option.flag}`" if option.flag else ""
    return (
        f"`{option.name}`", option.kind.takes, option.default_shown, f"`{option.variable}`", older, flag, option.help,
    )  # fmt: skip


if __name__ == "__main__":
    click.echo("\n".join(markdown_rows()))
