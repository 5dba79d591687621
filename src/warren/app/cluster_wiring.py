"""Builds the parts that coordinators and workers of a cluster have in common: settings in, objects out.

`coordinator_process` and `worker_process` put them together; `cli/serve` prepares the settings.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import secrets
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from warren.app.one_machine import make_secret, worker_directory
from warren.cluster.auth import sealing_key
from warren.cluster.demand import DemandGoal
from warren.cluster.problem_log import ProblemLog
from warren.config.settings import WORKER_PORT, Settings
from warren.governance.audit.redis import RedisAudit
from warren.governance.redis_counters import RedisCounters
from warren.governance.shared_events import SharedEvents
from warren.governance.tenancy import Tenancy
from warren.governance.webhooks.outbox import Webhooks
from warren.governance.webhooks.sender import WebhookSender
from warren.http.client.client import WorkerClient
from warren.interfaces.environments import Environments
from warren.interfaces.recorder import NO_RECORDER, Recorder
from warren.interfaces.store import SessionStore
from warren.kernel.clock import Clock, ClusterClock, boot_time
from warren.kernel.logs import get_log
from warren.model.addresses import read_networks
from warren.model.audit import CommandText
from warren.model.environment import Environment
from warren.model.errors import InvalidRequest, Unavailable, WarrenError
from warren.stores.encryption import Encryption, read_key
from warren.stores.redis_address import read_address
from warren.stores.redis_link import RedisLink, connect
from warren.stores.redis_scripts import OPEN
from warren.stores.redis_store import check_it_is_ours

_CLOCK_FILE: Final = "clock.json"
_STATE_DIR_ID_FILE: Final = "home"
_RETRY_S: Final = 1.0
_TIME_SAMPLES: Final = 8

_log = get_log(__name__)


def demand_goal(settings: Settings) -> DemandGoal:
    return DemandGoal(settings.demand_fill, settings.demand_least, settings.demand_most, settings.demand_settle_s)


def worker_settings(settings: Settings) -> Settings:
    """Returns the settings with the defaults of a worker. Raises InvalidRequest."""
    if settings.direct_clients and settings.cluster_ca:
        raise InvalidRequest(
            "with cluster_ca workers answer nobody but coordinators", remedy="leave out direct_clients, or cluster_ca"
        )
    port = WORKER_PORT if settings.sources["port"] == "default" else settings.port
    found = replace(coordinator_settings(settings), port=port)
    if settings.cluster_secret or settings.sources["worker_id"] == "default":
        return found
    # Workers that share a secret by their state directory have the same one, which only one of them can use.
    return replace(found, state_dir=worker_directory(settings.state_dir, settings.worker_id))


def coordinator_settings(settings: Settings) -> Settings:
    """Returns the settings with the defaults of a coordinator. Raises InvalidRequest."""
    if not settings.cluster_secret:
        settings = replace(settings, cluster_secret=make_secret(settings.state_dir, _hosts(settings)))
    read_address(redis_url(settings))
    tls_options = [settings.cluster_ca, settings.cluster_cert, settings.cluster_key]
    if any(tls_options) and not all(tls_options):
        raise InvalidRequest("TLS between coordinators and workers needs cluster_ca, cluster_cert and cluster_key")
    if settings.sources["worker_id"] != "default":
        return settings
    return replace(settings, worker_id=platform.node()[:64] or "worker")


def _hosts(settings: Settings) -> Iterator[str]:
    """The hosts of Redis, by which all processes of a cluster meet, and of the workers that were named."""
    yield from (host for host, _ in read_address(redis_url(settings)).hosts)
    yield from (each.rpartition(":")[0].strip("[]") for each in (*settings.workers, settings.advertise) if each)


def redis_url(settings: Settings) -> str:
    if settings.redis_url:
        return settings.redis_url
    password = f":{quote(settings.redis_password, safe='')}@" if settings.redis_password else ""
    host = f"[{settings.redis_host}]" if ":" in settings.redis_host else settings.redis_host
    return f"redis://{password}{host}:{settings.redis_port}/0"


def advertised_address(settings: Settings) -> str:
    """Returns the address at which the other processes reach this one."""
    if settings.advertise:
        return settings.advertise
    host = settings.host
    if host in ("0.0.0.0", "::"):
        host = _address_towards_redis(settings)
    return f"[{host}]:{settings.port}" if ":" in host else f"{host}:{settings.port}"


def _address_towards_redis(settings: Settings) -> str:
    """Returns the address from which this machine reaches Redis. Sends nothing."""
    hosts = read_address(redis_url(settings)).hosts
    if not hosts:
        return "127.0.0.1"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(*hosts[0], type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as exc:
        raise InvalidRequest(
            f"the address at which the others reach this process is not known: {exc}",
            remedy="give it with --advertise",
        ) from exc


def build_redis_link(settings: Settings) -> RedisLink:
    return connect(redis_url(settings), namespace=settings.redis_namespace)


def build_encryption(settings: Settings) -> Encryption:
    return Encryption(*cluster_keys(settings))


def cluster_keys(settings: Settings) -> list[bytes]:
    others = (*settings.other_secrets_keys, *map(sealing_key, settings.other_cluster_secrets))
    if settings.secrets_key:
        others = (*others, sealing_key(settings.cluster_secret))  # for what was sealed before there was a key
    key = settings.secrets_key or sealing_key(settings.cluster_secret)
    return [read_key(key), *map(read_key, others)]


def build_worker_client(settings: Settings) -> WorkerClient:
    return WorkerClient(tls=build_client_tls(settings))


def build_client_tls(settings: Settings) -> ssl.SSLContext | None:
    if settings.cluster_ca is None:
        return None
    context = ssl.create_default_context(cafile=settings.cluster_ca)
    _load_certificate(context, settings)
    return context


def build_worker_tls(settings: Settings) -> ssl.SSLContext | None:
    """A worker accepts TLS only from processes with a certificate of the cluster's own authority."""
    if settings.cluster_ca is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(settings.cluster_ca)
    except (OSError, ssl.SSLError) as exc:
        raise InvalidRequest(f"the authority {settings.cluster_ca} cannot be read: {exc}") from exc
    _load_certificate(context, settings)
    return context


def _load_certificate(context: ssl.SSLContext, settings: Settings) -> None:
    assert settings.cluster_cert is not None
    try:
        context.load_cert_chain(settings.cluster_cert, settings.cluster_key)
    except (OSError, ssl.SSLError) as exc:
        raise InvalidRequest(f"the certificate {settings.cluster_cert} cannot be used with its key: {exc}") from exc


async def build_tenancy(
    settings: Settings,
    store: SessionStore,
    link: RedisLink,
    clock: Clock,
    environments: Environments,
    recorder: Recorder = NO_RECORDER,
) -> Tenancy:
    sender = WebhookSender(read_networks(settings.webhook_networks))
    encryption = build_encryption(settings)
    audit = None
    if settings.audit:
        commands = CommandText(settings.audit_commands)
        audit = await RedisAudit.open(link, commands=commands, max_bytes=settings.audit_mb * 1024 * 1024)
    return Tenancy(
        store.records,
        clock,
        environments,
        audit=audit,
        webhooks=Webhooks(store.records, clock, sender, encryption),
        encryption=encryption,
        counters=RedisCounters(redis_url(settings), settings.redis_namespace),
        shared_events=SharedEvents(link),
        recorder=recorder,
    )


async def wait_for_redis_time(link: RedisLink) -> float:
    """Waits for Redis, and returns how far its time of day is ahead of this machine's boot clock.

    Of several answers the fastest counts: a late one would make the clock late for as long as the machine runs, and
    sessions are listed in the order of their workers' clocks.
    """
    problems = ProblemLog(_log)
    while True:
        try:
            await check_it_is_ours(link, take=False)
            return min([await _measure_offset(link) for _ in range(_TIME_SAMPLES)])[1]
        except Unavailable as exc:
            problems.report("redis", "waiting_for_redis", exc.message)
        await asyncio.sleep(_RETRY_S)


async def _measure_offset(link: RedisLink) -> tuple[float, float]:
    """Returns how long Redis took to tell its time, and how far that time was ahead in the middle of the call."""
    asked = boot_time()
    await link.run(OPEN, "")
    told = link.time_of_day()
    answered = boot_time()
    return answered - asked, told - (asked + answered) / 2


def open_clock(state_dir: Path, offset_s: float) -> tuple[ClusterClock, bool]:
    """Returns the clock of a worker, whose offset stays the same while its machine runs, and whether the machine was
    rebooted since the last start."""
    path, clock = state_dir / _CLOCK_FILE, ClusterClock(offset_s)
    rebooted = False
    try:
        saved = json.loads(path.read_text())
        if saved["boot"] == clock.boot:
            return ClusterClock(float(saved["offset_s"])), False
        rebooted = True
    except (OSError, ValueError, KeyError, TypeError):
        pass  # a new state directory, or a damaged file
    _replace_file(path, json.dumps({"boot": clock.boot, "offset_s": offset_s}))
    return clock, rebooted


def state_dir_id(state_dir: Path) -> str:
    """Returns a random name of this state directory, made at the first call."""
    path = state_dir / _STATE_DIR_ID_FILE
    if not path.exists():
        _replace_file(path, secrets.token_hex(16))
    return path.read_text().strip()


def _replace_file(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)


def coordinator_id(settings: Settings) -> str:
    """Returns the name of a coordinator, made from `worker_id` and its address. Unlike that of a worker it need not
    outlast a restart."""
    return f"{settings.worker_id}-{hashlib.sha256(advertised_address(settings).encode()).hexdigest()[:8]}"


def build_environment_of(environments: Environments) -> Callable[[str], Environment | None]:
    """Returns a function that finds an environment, and returns None for one that this coordinator does not have."""

    def find(environment: str) -> Environment | None:
        try:
            return environments(environment)
        except WarrenError:
            return None

    return find


def build_agent_of(environments: Environments) -> Callable[[object], Mapping[str, Any]]:
    """Returns a function that finds the settings of the agent that a session is made for: by its name in the registry,
    or as the request has them. It checks nothing: the worker does."""

    def find(config: object) -> Mapping[str, Any]:
        if isinstance(config, str) and config:
            with contextlib.suppress(WarrenError):
                return environments.entries.agents.get(config).as_mapping()
        return config if isinstance(config, dict) else {}

    return find
