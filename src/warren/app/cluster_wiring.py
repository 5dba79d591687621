"""Puts the parts of a cluster together: what coordinators and workers have in common."""

import asyncio
import hashlib
import json
import logging
import os
import platform
import secrets
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from warren.app.wiring import build_environments
from warren.clock import Clock, ClusterClock, boot_time
from warren.cluster.auth import ClusterAuth, sealing_key
from warren.cluster.http_client.client import WorkerClient
from warren.config.settings import Settings
from warren.interfaces.store import SessionStore
from warren.model.audit import CommandText
from warren.model.errors import InvalidRequest, Unavailable, WarrenError
from warren.stores.redis_address import read_address
from warren.stores.redis_link import RedisLink, connect
from warren.stores.redis_store import check_it_is_ours
from warren.stores.sealing import Sealer, read_key
from warren.tenancy.audit.redis import RedisAudit
from warren.tenancy.shared_counts import shared_storage
from warren.tenancy.tenancy import Tenancy
from warren.tenancy.webhooks.addresses import read_networks
from warren.tenancy.webhooks.outbox import Webhooks
from warren.tenancy.webhooks.post import Poster

WORKER_PORT: Final = 5000
_CLOCK: Final = "clock.json"
_HOME: Final = "home"
_AGAIN_S: Final = 1.0

_log = logging.getLogger("warren.cluster")


def of_worker(settings: Settings) -> Settings:
    """With the defaults of a worker."""
    _check(settings)
    port = WORKER_PORT if settings.sources["port"] == "default" else settings.port
    return replace(_named(settings), port=port)


def of_coordinator(settings: Settings) -> Settings:
    _check(settings)
    return _named(settings)


def _check(settings: Settings) -> None:
    if not settings.cluster_secret:
        raise InvalidRequest(
            "coordinators and workers need a secret to know each other by",
            remedy="give all of them the same WARREN_CLUSTER_SECRET, such as `openssl rand -hex 32` prints",
        )
    read_address(redis_url(settings))
    given = [settings.cluster_ca, settings.cluster_cert, settings.cluster_key]
    if any(given) and not all(given):
        raise InvalidRequest("TLS between coordinators and workers needs cluster_ca, cluster_cert and cluster_key")


def _named(settings: Settings) -> Settings:
    if settings.sources["worker_id"] != "default":
        return settings
    return replace(settings, worker_id=platform.node()[:64] or "worker")


def redis_url(settings: Settings) -> str:
    if settings.redis_url:
        return settings.redis_url
    password = f":{_quoted(settings.redis_password)}@" if settings.redis_password else ""
    host = f"[{settings.redis_host}]" if ":" in settings.redis_host else settings.redis_host
    return f"redis://{password}{host}:{settings.redis_port}/0"


def _quoted(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if not char.isalnum() else char for char in text)


def advertised(settings: Settings) -> str:
    """Where the others reach this process."""
    if settings.advertise:
        return settings.advertise
    host = settings.host
    if host in ("0.0.0.0", "::"):
        host = _own_address(settings)
    return f"[{host}]:{settings.port}" if ":" in host else f"{host}:{settings.port}"


def _own_address(settings: Settings) -> str:
    """The address that this machine has towards Redis. Nothing is sent."""
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
            f"it is not known under which address the others reach this process: {exc}",
            remedy="give it with --advertise",
        ) from exc


def build_link(settings: Settings) -> RedisLink:
    return connect(redis_url(settings), namespace=settings.redis_namespace)


def build_sealer(settings: Settings) -> Sealer:
    return Sealer(read_key(settings.secrets_key or sealing_key(settings.cluster_secret)))


def build_trust(settings: Settings) -> ClusterAuth:
    return ClusterAuth(settings.cluster_secret)


def build_links(settings: Settings) -> WorkerClient:
    return WorkerClient(tls=build_client_tls(settings))


def build_client_tls(settings: Settings) -> ssl.SSLContext | None:
    if settings.cluster_ca is None:
        return None
    context = ssl.create_default_context(cafile=settings.cluster_ca)
    _show_certificate(context, settings)
    return context


def build_worker_tls(settings: Settings) -> ssl.SSLContext | None:
    """A worker speaks TLS only with those who show a certificate of the cluster's own authority."""
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
    _show_certificate(context, settings)
    return context


def _show_certificate(context: ssl.SSLContext, settings: Settings) -> None:
    assert settings.cluster_cert is not None
    try:
        context.load_cert_chain(settings.cluster_cert, settings.cluster_key)
    except (OSError, ssl.SSLError) as exc:
        raise InvalidRequest(f"the certificate {settings.cluster_cert} cannot be used with its key: {exc}") from exc


async def build_tenancy(settings: Settings, store: SessionStore, link: RedisLink, clock: Clock) -> Tenancy:
    poster = Poster(read_networks(settings.webhook_networks))
    audit = None
    if settings.audit:
        commands = CommandText(settings.audit_commands)
        audit = await RedisAudit.open(link, commands=commands, max_bytes=settings.audit_mb * 1024 * 1024)
    return Tenancy(
        store.records,
        clock,
        build_environments(settings),
        audit=audit,
        webhooks=Webhooks(store.records, clock, poster, build_sealer(settings)),
        storage=shared_storage(redis_url(settings), settings.redis_namespace),
    )


async def time_of_redis(link: RedisLink) -> float:
    """How far the time of day of Redis is ahead of this machine's count. Waits for Redis: nothing is known without."""
    told = ""
    while True:
        try:
            await check_it_is_ours(link, take=False)
            return link.time_of_day() - boot_time()
        except Unavailable as exc:
            if exc.message != told:
                _log.warning("waiting for Redis: %s", exc)
            told = exc.message
        await asyncio.sleep(_AGAIN_S)


def kept_clock(state_dir: Path, offset_s: float) -> tuple[ClusterClock, bool]:
    """The clock of a worker, the same for as long as its machine runs; and whether that was started anew since."""
    path, clock = state_dir / _CLOCK, ClusterClock(offset_s)
    try:
        known = json.loads(path.read_text())
        if known["boot"] == clock.boot:
            return ClusterClock(float(known["offset_s"])), False
        rebooted = True
    except FileNotFoundError:
        rebooted = False
    except (OSError, ValueError, KeyError, TypeError):
        rebooted = False
    _write(path, json.dumps({"boot": clock.boot, "offset_s": offset_s}))
    return clock, rebooted


def home_of(state_dir: Path) -> str:
    """A name for this state directory that no other has."""
    path = state_dir / _HOME
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        _write(path, secrets.token_hex(16))
        return path.read_text().strip()


def _write(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)


def coordinator_id(settings: Settings) -> str:
    """Unlike a worker's, a coordinator's name need not last."""
    return f"{settings.worker_id}-{hashlib.sha256(advertised(settings).encode()).hexdigest()[:8]}"


def build_provider_of(settings: Settings) -> Callable[[str], str]:
    """Which provider an environment names; empty if it names none, or if this coordinator does not have it."""
    environments = build_environments(settings)

    def find(environment: str) -> str:
        try:
            return environments(environment).provider
        except WarrenError:
            return ""

    return find
