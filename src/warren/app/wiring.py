"""Builds the parts of a process from its settings. Only this file and cluster_wiring.py choose concrete classes.

Functions import what only a server needs, so that `warren run` does not wait for it.
"""

import platform
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from warren.config.environments import RegistryEnvironments
from warren.config.registry import Registry, packaged_registry
from warren.config.settings import Settings, as_variables, check_provider, environment_with
from warren.images.store.store import ImageStore
from warren.interfaces.environments import Environments
from warren.interfaces.provider import Provider
from warren.interfaces.recorder import NO_RECORDER, Recorder
from warren.kernel.clock import Clock, SystemClock
from warren.kernel.tracing import OFF, Tracing
from warren.model.environment import Environment, PoolSize
from warren.model.errors import InvalidRequest, ProviderUnavailable, UnknownEnvironment, WarrenError
from warren.model.spec import IoLimits
from warren.model.version import __version__

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from starlette.types import ASGIApp

    from warren.access.identity import BindingIdentity, Identity
    from warren.access.tokens import Tokens
    from warren.config.image_recipes import NamedRecipe
    from warren.doctor.reports import DoctorReports
    from warren.governance.metrics.process_metrics import MetricsPage, ProcessMetrics
    from warren.governance.metrics.readings import Readings
    from warren.governance.session_logs.logs import Logs
    from warren.governance.tenancy import Tenancy
    from warren.http.admission import Admission
    from warren.http.context import Context
    from warren.http.dispatch import Dispatcher
    from warren.http.e2b.template_builds import TemplateBuilds
    from warren.http.e2b.tokens import SandboxTokens
    from warren.http.identify import Clients
    from warren.http.pipeline import Entrance, Forward
    from warren.http.request import Stage
    from warren.http.server.http_guard import HttpGuard
    from warren.images.building.on_demand import FetchImage, ImageBuilds
    from warren.images.registry.pull import PullOptions
    from warren.interfaces.artifacts import ArtifactStore
    from warren.interfaces.audit import AuditLog
    from warren.interfaces.cluster import ClusterControl
    from warren.interfaces.records import RecordStore
    from warren.interfaces.store import SessionStore
    from warren.kernel.span_export import SpanExporter
    from warren.model.image import Recipe
    from warren.model.image_pulls import PullRules
    from warren.model.network import EgressPolicy
    from warren.model.spec import Ceilings
    from warren.sandboxes.makers.pool import Makers
    from warren.sandboxes.providers.connection import EgressService
    from warren.sandboxes.providers.gpu_access import GpuAccess
    from warren.sandboxes.providers.host_limits import HostRoom
    from warren.sessions.artifacts import Artifacts
    from warren.sessions.egress import EgressRules
    from warren.sessions.history import History
    from warren.sessions.lifecycle import Lifecycle
    from warren.sessions.manager import Sessions
    from warren.sessions.preview_links import PreviewLinks
    from warren.sessions.reaper import Reaper
    from warren.sessions.snapshots.service import SnapshotOptions, Snapshots
    from warren.sessions.volumes.moving import FetchVolume
    from warren.stores.encryption import Encryption
    from warren.worker.worker import LocalWorker

DATABASE: Final = "sessions.db"
SECRETS_KEY: Final = "secrets.key"
ARTIFACTS: Final = "artifacts"
SEALED_SNAPSHOTS: Final = "sealed-snapshots"
AUDIT: Final = "audit"
SESSION_LOGS: Final = "logs"
AUDIT_FILES: Final = 16
_DOCTOR: Final = (sys.executable, "-m", "warren.cli.main", "doctor", "--json")
_BUILD_IMAGE: Final = (sys.executable, "-m", "warren.cli.main", "image", "build", "--report")
_TEMPLATE_BUILD_S: Final = 3600.0
_MOST_MAKERS: Final = 4  # with more it is the locks of the kernel that bound how many are made

Fault = Callable[[str], None]


def build_registry(settings: Settings) -> Registry:
    return Registry(*recipe_folders(settings))


def read_environment(settings: Settings, name: str) -> Environment:
    """Reads an environment for a command of the operator: the error for an unknown name also says where the operator's
    own files are read from."""
    try:
        return build_registry(settings).read(name)
    except UnknownEnvironment as exc:
        folder = settings.registry_dir
        place = f"{folder}/environments" if folder else "registry_dir, which is not set (WARREN_REGISTRY_DIR)"
        raise UnknownEnvironment(exc.message, remedy=f"{exc.remedy}; files of your own are read from {place}") from None


def recipe_folders(settings: Settings) -> "list[Path]":
    """The directories of the registry, the operator's last."""
    return [packaged_registry(), *([settings.registry_dir] if settings.registry_dir else [])]


def build_images(settings: Settings) -> ImageStore:
    return ImageStore(settings.state_dir)


def build_pull_options(settings: Settings) -> "PullOptions":
    from warren.images.registry.credentials import Credentials
    from warren.images.registry.pull import PullOptions
    from warren.model.addresses import read_networks

    return PullOptions(
        settings.image_registry,
        settings.image_insecure_registries,
        read_networks(settings.image_registry_networks),
        Credentials(environment_with({})),
        mirrors=settings.image_mirrors,
    )


def build_pull_rules(settings: Settings) -> "PullRules":
    from warren.model.image_pulls import PullRules

    return PullRules.read(settings.image_pull, settings.image_pull_allowed, settings.image_registry)


def build_provider(
    settings: Settings,
    name: str = "",
    fault: Fault = lambda _: None,
    *,
    makers: int = 0,
    server: tuple[int, int] | None = None,
) -> Provider:
    """The provider of that name, or the default one of the settings. `makers`: how many processes may make its
    sandboxes; without any this one does. `server`: the process that this one makes sandboxes for."""
    from warren.sandboxes.host.storage import mount_storage

    name = name or settings.providers[0]
    check_provider(name)
    if name in ("oci", "docker"):
        mount_storage(settings.state_dir.absolute())
    if name == "oci":
        from warren.sandboxes.providers.oci import Making, OciProvider

        return OciProvider(
            state_dir=settings.state_dir,
            images=build_images(settings),
            bin_dir=settings.bin_dir,
            runtime=settings.runtime or None,
            making=Making(_build_makers(settings, makers), server),
            fault=fault,
            room=build_host_room(settings),
            egress=_build_network(settings),
            gpus=_build_gpus(settings),
        )
    if name == "docker":
        from warren.sandboxes.providers.docker import DockerProvider

        return DockerProvider(
            state_dir=settings.state_dir,
            images=build_images(settings),
            bin_dir=settings.bin_dir,
            docker_url=settings.docker_url or None,
            fault=fault,
            room=build_host_room(settings),
            egress=_build_network(settings),
            gpus=_build_gpus(settings),
        )
    if name == "e2b":
        return _build_e2b(settings, fault)
    if name == "fake":
        from warren.model.capability import Capability
        from warren.testing.fake_provider import FakeProvider

        able = {Capability.TERMINALS, Capability.SNAPSHOTS, Capability.PAUSE, Capability.VOLUMES}
        return FakeProvider(capabilities=frozenset(able))
    raise ProviderUnavailable(f"the provider {name!r} is not built yet", remedy="use the provider oci")


def makers_of(settings: Settings) -> int:
    """Returns how many processes may make sandboxes for a server with these settings."""
    from warren.sandboxes.host.machine_size import usable_cores

    return settings.makers if settings.makers is not None else max(0, min(_MOST_MAKERS, usable_cores() - 2))


def _build_makers(settings: Settings, count: int) -> "Makers | None":
    if not count:
        return None
    from warren.app.maker import spawn_maker
    from warren.sandboxes.makers.pool import Makers

    return Makers(count, partial(spawn_maker, settings))


def _build_e2b(settings: Settings, fault: Fault) -> Provider:
    from warren.sandboxes.providers.e2b import E2bProvider
    from warren.sandboxes.providers.e2b_api import E2bApi

    return E2bProvider(
        settings.state_dir,
        settings.bin_dir,
        E2bApi(settings.e2b_api_key, settings.e2b_api_url, settings.e2b_sandbox_url, settings.e2b_domain),
        templates=_pairs(settings.e2b_images),
        runtime=settings.e2b_runtime,
        guest_kernel=settings.e2b_guest_kernel,
        fault=fault,
    )


def _build_network(settings: Settings) -> "EgressService | None":
    from warren.sandboxes.network.egress import Egress

    return Egress(build_egress_policy(settings)) if settings.egress else None


def _build_gpus(settings: Settings) -> "GpuAccess":
    from warren.sandboxes.providers.gpu_access import GpuAccess

    return GpuAccess(settings.gpus)


def build_host_room(settings: Settings) -> "HostRoom":
    from warren.sandboxes.providers.host_limits import HostRoom

    return HostRoom(
        min_free_disk_mb=settings.min_free_disk_mb or None,
        disk_overcommit=settings.disk_overcommit,
        total_memory_mb=settings.total_memory_mb or None,
        total_cpus=settings.total_cpus or None,
        total_pids=settings.total_pids or None,
        min_free_memory_mb=settings.min_free_memory_mb or None,
    )


def build_environments(settings: Settings) -> RegistryEnvironments:
    """Environments by name, with what the settings say about limits and the default environment's image."""
    return RegistryEnvironments(build_registry(settings), partial(adapt_environment, settings))


def adapt_environment(settings: Settings, environment: Environment) -> Environment:
    """Returns the environment with the limits of the settings, and if it is the default one with their image."""
    limits: dict[str, Any] = {"memory_mb": settings.memory_mb, "cpus": settings.cpus}
    changes = {name: value for name, value in limits.items() if value is not None}
    image = settings.container_image if environment.name == settings.default_environment else ""
    return replace(
        environment,
        image=image or environment.image,
        recipe=None if image else environment.recipe,
        limits=replace(environment.limits, **changes),
        io=environment.io or IoLimits(settings.io_mbps, settings.io_iops),
    )


async def build_store(settings: Settings) -> "SessionStore":
    from warren.stores.memory import MemoryStore
    from warren.stores.sqlite import SqliteStore

    if settings.store == "memory":
        return MemoryStore()
    encryption = build_encryption(settings)
    return await SqliteStore.open(settings.state_dir / DATABASE, encryption=encryption, alone=True)


def build_encryption(settings: Settings) -> "Encryption":
    from warren.stores.encryption import Encryption

    return Encryption(*secret_keys(settings))


def secret_keys(settings: Settings) -> "list[bytes]":
    """The key of the installation, and those that are accepted as well while it is changed."""
    from warren.stores.encryption import key_in, read_key

    key = read_key(settings.secrets_key) if settings.secrets_key else key_in(settings.state_dir / SECRETS_KEY)
    return [key, *map(read_key, settings.other_secrets_keys)]


def build_metrics(settings: Settings, environments: Environments, role: str) -> "ProcessMetrics | None":
    if not settings.metrics:
        return None
    from warren.governance.metrics.process_metrics import ProcessMetrics

    def is_environment(name: str) -> bool:
        with suppress(WarrenError):
            return environments(name).name == name
        return False

    return ProcessMetrics(role, __version__, is_environment)


def build_metrics_page(
    metrics: "ProcessMetrics | None", read: "Callable[[], Awaitable[Readings]]"
) -> "MetricsPage | None":
    """Returns the page of the process's metrics, if it has any. `read` returns the values of the moment."""
    from warren.governance.metrics.process_metrics import MetricsPage

    return None if metrics is None else MetricsPage(metrics, read)


def recorder_of(metrics: "ProcessMetrics | None") -> Recorder:
    return NO_RECORDER if metrics is None else metrics.recorder


def build_worker(
    settings: Settings,
    providers: Sequence[Provider],
    environments: Environments,
    fault: Fault = lambda _: None,
    tracing: Tracing = OFF,
    recorder: Recorder = NO_RECORDER,
    fetch: "FetchImage | None" = None,
    *,
    is_local: bool = False,
) -> "LocalWorker":
    """`fetch` gets images from other machines of a cluster. `is_local`: the callers are the operator's program."""
    from warren.sandboxes.providers.host_provider import HostProvider
    from warren.worker.guard import MachineGuard
    from warren.worker.options import WorkerOptions
    from warren.worker.worker import LocalWorker

    on_host = [provider for provider in providers if isinstance(provider, HostProvider)]

    options = WorkerOptions(
        clock=build_clock(),
        guard=MachineGuard(
            settings.state_dir,
            min_free_memory_mb=settings.min_free_memory_mb or None,
            min_free_disk_mb=settings.min_free_disk_mb or None,
            max_sandboxes=settings.max_sandboxes,
            freeing=lambda: sum(provider.sandbox_disks.freeing_bytes for provider in on_host),
        ),
        default_environment=settings.default_environment,
        default_pool=PoolSize(settings.pool_size, settings.pool_min, settings.pool_max),
        builds=build_image_builds(settings, fetch, is_local=is_local),
        tracing=tracing,
        recorder=recorder,
        fault=fault,
    )
    return LocalWorker(settings.worker_id, providers, environments, options)


def build_image_builds(
    settings: Settings, fetch: "FetchImage | None" = None, *, is_local: bool = False
) -> "ImageBuilds":
    from warren.images.building.on_demand import ImageBuilds
    from warren.images.trees.own_images import BASE, BASE_RECIPE

    find = build_recipes(settings)

    def recipe_of(image: str) -> "Recipe | None":
        found = find(image)
        return found.recipe if found else BASE_RECIPE if image == BASE else None

    return ImageBuilds(
        recipe_of,
        build_images(settings).source,
        _BUILD_IMAGE,
        _child_variables(settings),
        settings.state_dir / "images",
        fetch,
        pulls=replace(build_pull_rules(settings), is_own=is_local),
        pull_timeout_s=settings.image_build_timeout_s,
    )


def _child_variables(settings: Settings, *more: str) -> dict[str, str]:
    """Returns the environment of a child process that builds images. `more` are the beginnings of the names of further
    options that a child needs for something else."""
    names = ("state_dir", "bin_dir", "runtime", "registry_dir", "image", "egress", "min_free_disk", *more)
    return environment_with(as_variables(settings, names))


def build_template_builds(settings: Settings, store: "SessionStore") -> "TemplateBuilds":
    from warren.http.e2b.template_builds import TemplateBuilds

    return TemplateBuilds(
        settings.state_dir,
        store.records,
        build_images(settings),
        build_clock(),
        _BUILD_IMAGE,
        _child_variables(settings, "provider", "docker_url"),
        timeout_s=max(_TEMPLATE_BUILD_S, settings.image_build_timeout_s),
        max_mb=settings.e2b_template_mb,
        disk_reserve_mb=settings.min_free_disk_mb or 0,
    )


def build_recipes(settings: Settings) -> "Callable[[str], NamedRecipe | None]":
    """Finds the recipe of an image by its name: that of an environment, or one of the registry."""
    from warren.config.image_recipes import ENVIRONMENT_IMAGES, ImageRecipes

    registry = build_registry(settings)
    recipes = ImageRecipes(*recipe_folders(settings))

    def find(image: str) -> "NamedRecipe | None":
        if not image.startswith(ENVIRONMENT_IMAGES):
            return recipes.find(image)
        with suppress(WarrenError):
            return registry.recipe(image.removeprefix(ENVIRONMENT_IMAGES))
        return None

    return find


def build_span_exporter(settings: Settings, role: str) -> "SpanExporter | None":
    """Returns what sends spans to the collector, if there is one. Raises InvalidRequest, so call it before anything is
    started."""
    if not settings.otlp_endpoint:
        return None
    from warren.kernel.span_export import SpanExporter

    resource = {
        "service.name": "warren" if role == "server" else f"warren-{role}",
        "service.instance.id": settings.worker_id,
        "service.version": __version__,
    }
    return SpanExporter(settings.otlp_endpoint, resource)


def build_clock() -> Clock:
    return SystemClock()


async def build_tenancy(
    settings: Settings,
    store: "SessionStore",
    clock: Clock,
    environments: Environments,
    recorder: Recorder = NO_RECORDER,
) -> "Tenancy":
    from warren.governance.tenancy import Tenancy
    from warren.governance.webhooks.outbox import Webhooks
    from warren.governance.webhooks.sender import WebhookSender
    from warren.model.addresses import read_networks

    sender = WebhookSender(read_networks(settings.webhook_networks))
    encryption = None if settings.store == "memory" else build_encryption(settings)
    return Tenancy(
        store.records,
        clock,
        environments,
        audit=await build_audit(settings),
        webhooks=Webhooks(store.records, clock, sender, encryption),
        encryption=encryption,
        recorder=recorder,
    )


async def build_audit(settings: Settings) -> "AuditLog | None":
    if not settings.audit:
        return None
    from warren.governance.audit.files import FileAudit
    from warren.model.audit import CommandText

    commands = CommandText(settings.audit_commands)
    size = settings.audit_mb * 1024 * 1024 // AUDIT_FILES
    return await FileAudit.open(settings.state_dir / AUDIT, commands=commands, max_bytes=size, keep_files=AUDIT_FILES)


async def build_artifact_store(settings: Settings, fault: Fault = lambda _: None) -> "ArtifactStore":
    if settings.artifact_store.startswith("s3://"):
        from warren.stores.artifact_s3 import open_s3

        return open_s3(settings.artifact_store, settings.artifact_s3_endpoint)
    from pathlib import Path

    from warren.stores.artifact_directory import DirectoryArtifacts
    from warren.worker.guard import default_disk_reserve, read_room

    directory = Path(settings.artifact_store or settings.state_dir / ARTIFACTS)
    reserve = settings.min_free_disk_mb or default_disk_reserve(read_room(directory))
    return await DirectoryArtifacts(
        directory, min_free_mb=reserve, shared=bool(settings.artifact_store), fault=fault
    ).open()


def build_artifacts(
    settings: Settings,
    records: "RecordStore",
    store: "ArtifactStore | None",
    tenancy: "Tenancy",
    clock: Clock,
    fault: Fault = lambda _: None,
    *,
    in_cluster: bool = False,
) -> "Artifacts":
    """In a cluster without a shared store, the artifacts in a worker's own directory are reached through that
    worker."""
    from warren.model.artifact import ArtifactRules
    from warren.model.spec import MIB
    from warren.sessions.artifacts import Artifacts

    return Artifacts(
        records,
        store,
        clock,
        rules=ArtifactRules(settings.artifact_max_mb * MIB, settings.artifact_max_count, settings.artifact_ttl_s),
        place=settings.worker_id if in_cluster and not settings.artifact_store else "",
        events=tenancy.events,
        bound_of=tenancy.artifact_bound,
        report_limit=tenancy.report_artifact_limit,
        fault=fault,
    )


async def build_snapshot_store(settings: Settings, fault: Fault = lambda _: None) -> "ArtifactStore | None":
    """Returns None where snapshots are kept as saved disks: without encryption, on the machine itself."""
    from warren.interfaces.artifacts import SNAPSHOTS

    if settings.snapshot_store.startswith("s3://"):
        from warren.stores.artifact_s3 import open_s3

        return open_s3(settings.snapshot_store, settings.snapshot_s3_endpoint, SNAPSHOTS)
    if not (settings.snapshot_store or settings.snapshot_encryption):
        return None
    from pathlib import Path

    from warren.stores.artifact_directory import DirectoryArtifacts
    from warren.worker.guard import default_disk_reserve, read_room

    directory = Path(settings.snapshot_store or settings.state_dir / SEALED_SNAPSHOTS)
    reserve = settings.min_free_disk_mb or default_disk_reserve(read_room(directory))
    is_shared = bool(settings.snapshot_store)
    return await DirectoryArtifacts(
        directory, kind=SNAPSHOTS, min_free_mb=reserve, shared=is_shared, fault=fault
    ).open()


def build_snapshots(
    settings: Settings,
    records: "RecordStore",
    store: "ArtifactStore | None",
    worker: "LocalWorker | None",
    tenancy: "Tenancy",
    environments: Environments,
    clock: Clock,
    fault: Fault = lambda _: None,
    *,
    in_cluster: bool = False,
) -> "Snapshots":
    from warren.sessions.snapshots.records import SnapshotRecords
    from warren.sessions.snapshots.service import Snapshots

    options = replace(
        snapshot_options(settings, store, environments),
        place=settings.worker_id if in_cluster else "",
        bound_of=tenancy.snapshot_bound,
        report_limit=tenancy.report_snapshot_limit,
        fault=fault,
    )
    return Snapshots(SnapshotRecords(records, clock), worker, clock, options, tenancy.events)


def snapshot_options(
    settings: Settings, store: "ArtifactStore | None", environments: Environments
) -> "SnapshotOptions":
    from warren.kernel.signing import Signer
    from warren.model.snapshot import SnapshotRules
    from warren.model.spec import MIB
    from warren.sessions.snapshots.sealing import Sealing
    from warren.sessions.snapshots.service import SnapshotOptions
    from warren.sessions.snapshots.signed_files import MAC, PURPOSE

    keys = _installation_keys(settings)
    return SnapshotOptions(
        store=store,
        sealing=Sealing(keys) if settings.snapshot_encryption else None,
        signer=Signer(keys, PURPOSE, MAC),
        environment_of=environments,
        rules=SnapshotRules(settings.snapshot_max_count, settings.snapshot_ttl_s, settings.snapshot_cache_mb * MIB),
    )


def build_logs(
    settings: Settings,
    store: "SessionStore",
    tenancy: "Tenancy",
    clock: Clock,
    *,
    keeps: bool,
    in_cluster: bool = False,
) -> "Logs":
    """The logs of the sessions of this process. Without `keeps` they are on the workers."""
    from warren.governance.session_logs.logged_sandbox import LoggedSandbox
    from warren.governance.session_logs.logs import ENDS, LogRules, Logs
    from warren.model.spec import MIB
    from warren.worker.guard import default_disk_reserve, read_room

    reserve = settings.min_free_disk_mb or (default_disk_reserve(read_room(settings.state_dir)) if keeps else 0)
    rules = LogRules(
        settings.session_log_mb * MIB,
        settings.session_log_retention_s,
        with_commands=settings.audit_commands != "none",
        min_free=reserve * MIB,
    )
    logs = Logs(
        settings.state_dir / SESSION_LOGS if keeps else None,
        store.records,
        store.get,
        clock,
        rules=rules,
        place=settings.worker_id if in_cluster and keeps else "",
        bound_of=tenancy.log_bound,
        secrets=tenancy.secrets,
    )
    tenancy.metering.logged = partial(LoggedSandbox, logs)
    tenancy.events.subscribe(logs.note_event, kinds=ENDS)
    return logs


def build_lifecycle(
    settings: Settings,
    store: "SessionStore",
    worker: "LocalWorker",
    tenancy: "Tenancy",
    environments: Environments,
    fault: Fault = lambda _: None,
    *,
    clock: Clock,
    artifacts: "Artifacts | None" = None,
    snapshots: "Snapshots | None" = None,
    in_cluster: bool = False,
    recorder: Recorder = NO_RECORDER,
    fetch_volume: "FetchVolume | None" = None,
) -> "Lifecycle":
    from warren.sessions.basis import SessionBasis
    from warren.sessions.lifecycle import Lifecycle, LifecycleOptions
    from warren.sessions.metrics import MetricsMeter
    from warren.sessions.network_meter import NetworkMeter
    from warren.sessions.starting import StartWaits
    from warren.sessions.volumes.service import VolumeRules

    basis = SessionBasis(store, worker, clock, in_cluster, recorder, fault)
    options = LifecycleOptions(
        waits=StartWaits(settings.claim_timeout_s, settings.image_wait_s),
        events=tenancy.events,
        egress=build_egress(settings),
        network_meter=NetworkMeter(clock, tenancy.networks.report, tenancy.networks.bounds_of, recorder=recorder),
        metrics=MetricsMeter(clock, basis.sandbox_of, environments, tenancy.events.publish),
        secrets=tenancy.secrets,
        artifacts=artifacts,
        payer_of=tenancy.payer_of,
        snapshots=snapshots,
        volumes=VolumeRules(
            settings.worker_id if in_cluster else "",
            settings.volume_mb,
            tenancy.metering.report_limit,
            lambda step: fault(f"volume {step}"),
            fetch_volume,
        ),
    )
    return Lifecycle(basis, options)


def build_egress(settings: Settings) -> "EgressRules":
    """Returns what sessions may ask for of the network."""
    from warren.config.presets import PresetReader
    from warren.model.egress import Ceiling
    from warren.sessions.egress import EgressRules

    reader = PresetReader(settings.egress_presets, environment_with({}))
    return EgressRules(Ceiling(settings.egress_allowed), reader, enabled=settings.egress)


def build_egress_policy(settings: Settings) -> "EgressPolicy":
    """Returns the rules for every connection of every sandbox. `egress_allowed` is not among them: it bounds what
    sessions ask for, and an environment may go beyond it."""
    from warren.model.network import EgressPolicy

    return EgressPolicy(
        networks=settings.egress_networks,
        denied=settings.egress_denied,
        connections=settings.egress_connections,
        mbps=settings.egress_mbps,
        authorities=_read_authorities(settings.egress_ca_file),
    )


def _read_authorities(path: "Path | None") -> str:
    if path is None:
        return ""
    import ssl

    try:
        text = path.read_text("ascii")
        ssl.create_default_context(cadata=text)
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        why = getattr(exc, "strerror", "") or "it holds no certificates in PEM"
        raise InvalidRequest(f"the authorities in {path} (egress_ca_file) cannot be used: {why}") from exc
    return text


def build_sessions(
    settings: Settings, lifecycle: "Lifecycle", tenancy: "Tenancy", environments: Environments
) -> "Sessions":
    from warren.model.session import OnIdle
    from warren.model.session_log import LogLevel, read_level, strongest
    from warren.sessions.manager import Sessions
    from warren.sessions.new_rows import Offer
    from warren.sessions.new_session import Defaults

    defaults = Defaults(
        settings.default_environment,
        settings.idle_timeout_s,
        settings.max_lifetime_s,
        OnIdle(settings.on_idle),
        settings.max_paused_s,
        settings.hibernate_after_s,
    )
    default = LogLevel(settings.session_logs)

    async def log_level(tenant: str, environment: Environment, asked: str) -> LogLevel:
        least = (await tenancy.tenants.of(tenant)).logs
        return strongest(read_level(asked) or default, read_level(environment.logs), read_level(least))

    offer = Offer(environments, defaults, build_ceilings(settings), environments.entries, log_level)
    return Sessions(lifecycle, tenancy.metering, offer)


def build_ceilings(settings: Settings) -> "Ceilings":
    from warren.sandboxes.host.machine_size import most_processes, usable_cores
    from warren.worker.guard import default_ceilings, read_room_for_disks

    given = {
        "memory_mb": settings.max_memory_mb,
        "cpus": settings.max_cpus,
        "pids": settings.max_pids,
        "disk_mb": settings.max_disk_mb,
        "open_files": settings.max_open_files,
    }
    usual = default_ceilings(read_room_for_disks(settings.state_dir.absolute()), usable_cores(), most_processes())
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if settings.max_open_files is not None:
        changes["files"] = None
    return replace(usual, **changes)


def build_identity(settings: Settings, tenancy: "Tenancy", tokens: "Tokens | None" = None) -> "BindingIdentity":
    from warren.access.identity import AnonymousIdentity, CredentialIdentity

    if not settings.auth:
        return AnonymousIdentity(tenancy.tenants)
    secret = _installation_keys(settings)[0]
    return CredentialIdentity(
        tenancy.keys, tenancy.tenants, tokens, settings.api_key, secret, revocations=tenancy.revocations
    )


async def build_tokens(settings: Settings) -> "Tokens | None":
    """Returns what recognises tokens, if they are accepted. Raises if the settings are wrong, so call it before
    anything is started."""
    if not (settings.auth and settings.jwt_jwks):
        return None
    from warren.access.tokens import TokenRules, Tokens

    rules = TokenRules(
        settings.jwt_jwks,
        settings.jwt_issuer,
        settings.jwt_audience,
        settings.jwt_tenant_claim,
        settings.jwt_scopes_claim,
    )
    tokens = Tokens(rules, build_clock())
    await tokens.start()
    return tokens


def build_reaper(settings: Settings, sessions: "Sessions", *, rebooted: bool = False) -> "Reaper":
    from warren.sessions.reaper import Reaper

    return Reaper(sessions, retention_s=settings.key_retention_s, rebooted=rebooted)


def build_context(
    settings: Settings,
    environments: Environments,
    sessions: "Sessions",
    tenancy: "Tenancy",
    identity: "Identity",
    cluster: "ClusterControl | None" = None,
    metrics: "MetricsPage | None" = None,
    history: "History | None" = None,
    logs: "Logs | None" = None,
) -> "Context":
    from warren.http.context import Context
    from warren.kernel.answer_memory import MIB, AnswerMemory
    from warren.sessions.contexts import Contexts
    from warren.worker.worker import LocalWorker

    return Context(
        sessions=sessions,
        tenancy=tenancy,
        identity=identity,
        provider=settings.providers[0],
        environments=environments,
        default_environment=settings.default_environment,
        images=build_images(settings),
        worker_id=settings.worker_id,
        version=__version__,
        command_timeout_s=settings.command_timeout_s,
        max_command_timeout_s=settings.max_command_timeout_s,
        keepalive_s=settings.stream_keepalive_s,
        contexts=Contexts(settings.max_contexts, settings.context_idle_timeout_s),
        with_key=settings.auth,
        answer_memory=AnswerMemory(settings.answer_memory_mb * MIB),
        labels=build_labels(settings),
        links=build_links(settings),
        artifacts=sessions.lifecycle.artifacts,
        snapshots=sessions.lifecycle.snapshots,
        cluster=cluster,
        doctor=None if cluster else build_doctor(settings),
        builds=sessions.worker.builds if isinstance(sessions.worker, LocalWorker) else None,
        metrics=metrics,
        history=history,
        logs=logs,
    )


def build_doctor(settings: Settings) -> "DoctorReports":
    from warren.doctor.reports import DoctorReports

    return DoctorReports(_DOCTOR, _child_variables(settings, "provider", "docker", "e2b", "gpus"), settings.state_dir)


def with_pages(settings: Settings, context: "Context") -> "Context":
    """The context of a process that has the dashboard, unless it is switched off."""
    from warren.access.page_sessions import PageSessions
    from warren.access.tickets import Tickets

    if not settings.dashboard:
        return context
    parts = context.sessions.store.records, context.sessions.clock, context.pages_identity
    return replace(context, page_sessions=PageSessions(*parts), tickets=Tickets(*parts))


def build_clients(settings: Settings, context: "Context") -> "Clients":
    """Returns the ways in which the server lets in others than those who send a key."""
    from warren.http.dashboard.access import PageAccess
    from warren.http.dashboard.page_requests import PageRequests
    from warren.http.dashboard.pages import Pages
    from warren.http.e2b.addresses import E2bAddresses
    from warren.http.e2b.callers import E2bCallers
    from warren.http.identify import Clients
    from warren.http.previews.access import PreviewAccess

    assert context.links is not None
    tokens, tenancy, store, clock = (
        build_sandbox_tokens(settings),
        context.tenancy,
        context.sessions.store,
        context.sessions.clock,
    )
    pages, page_access = None, None
    if context.page_sessions is not None and context.tickets is not None:
        pages = PageRequests(Pages(settings.embed_origins), context.tickets)
        page_access = PageAccess(context.page_sessions, context.tickets, with_cookies=settings.auth)
    return Clients(
        E2bAddresses(tokens, settings.preview_domain),
        E2bCallers(tokens, store, tenancy.tenants, tenancy.keys, clock, without_keys=not settings.auth),
        PreviewAccess(
            context.links,
            store,
            tenancy.tenants,
            clock,
            without_keys=not settings.auth,
            all_ports_allowed=settings.e2b_public_ports,
        ),
        pages,
        page_access,
    )


def build_labels(settings: Settings) -> dict[str, str]:
    """The labels of this worker, which a new session may require."""
    given = dict(label.split("=", 1) for label in settings.labels)
    return {"arch": platform.machine(), **given}


def build_tls(settings: Settings) -> "ssl.SSLContext | None":
    from warren.http.server.tls import new_tls_context

    return new_tls_context(settings.tls_cert, settings.tls_key)


def build_app(
    settings: Settings,
    environments: Environments,
    sessions: "Sessions",
    tenancy: "Tenancy",
    identity: "BindingIdentity",
    template_builds: "TemplateBuilds | None" = None,
    tracing: Tracing = OFF,
    metrics: "ProcessMetrics | None" = None,
    history: "History | None" = None,
    logs: "Logs | None" = None,
) -> "ASGIApp":
    from warren.app.readings import server_readings
    from warren.http.previews.proxy import PreviewProxy

    context = build_context(settings, environments, sessions, tenancy, identity, history=history, logs=logs)
    page = build_metrics_page(metrics, server_readings(sessions, context.port_connections))
    context = replace(with_pages(settings, context), metrics=page)
    previews = PreviewProxy(sessions, context.port_connections)
    return build_pipeline(settings, context, tracing, template_builds=template_builds, previews=previews)


def build_pipeline(
    settings: Settings,
    context: "Context",
    tracing: Tracing = OFF,
    *,
    template_builds: "TemplateBuilds | None" = None,
    entrance: "Entrance | None" = None,
    forward: "Forward | None" = None,
    previews: "Stage | None" = None,
) -> "ASGIApp":
    """The pipeline of a process that clients reach."""
    from warren.http.app import create_app
    from warren.http.identify import Identify
    from warren.http.pipeline import Pipeline, Stages
    from warren.http.previews.guard import PreviewGuard
    from warren.http.server.request_origin import TrustedProxies

    clients = build_clients(settings, context)
    return Pipeline(
        Stages(
            guard=build_guard(settings, tracing, context.history or NO_RECORDER),
            preview_guard=PreviewGuard(clients.previews, TrustedProxies(settings.trusted_proxies)),
            identify=Identify(context.identity, clients),
            pages=clients.pages,
            entrance=entrance,
            admission=build_admission(context),
            forward=forward,
            previews=previews,
            dispatch=build_dispatcher(settings, context, template_builds),
            fastapi=create_app(context),
        )
    )


def build_admission(context: "Context", *, counts: bool = True) -> "Admission":
    """Without `counts` neither quotas nor usage are counted."""
    from warren.http.admission import Admission

    tenancy = context.tenancy
    return Admission(
        tenancy.metering.quotas,
        context.sessions.clock,
        audit=tenancy.audit,
        refusals=tenancy.refusals,
        page_reads=tenancy.page_reads,
        add_usage=tenancy.usage.add_request if counts else None,
        counts=counts,
        memory=context.answer_memory,
        is_credential=context.identity.is_credential,
    )


def build_dispatcher(
    settings: Settings, context: "Context", template_builds: "TemplateBuilds | None" = None
) -> "Dispatcher":
    from warren.http.dispatch import Dispatcher
    from warren.http.e2b.call import E2bRules
    from warren.http.e2b.handlers import E2bHandlers

    rules = E2bRules(
        e2b_templates(settings), settings.e2b_public_ports, builds=template_builds, pulls=build_pull_rules(settings)
    )
    return Dispatcher(context, E2bHandlers(context, rules, build_sandbox_tokens(settings)))


def e2b_templates(settings: Settings) -> dict[str, str]:
    """The names of E2B's templates with the environments that they stand for."""
    return _pairs(settings.e2b_templates)


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    parts = (text.partition("=") for text in texts)
    return {name: value for name, _, value in parts}


def build_sandbox_tokens(settings: Settings) -> "SandboxTokens":
    from warren.http.e2b.tokens import SandboxTokens

    return SandboxTokens(_installation_keys(settings))


def _installation_keys(settings: Settings) -> "list[bytes]":
    """Keys that all processes of the installation know, the one in use first."""
    from warren.app.cluster_wiring import cluster_keys

    return cluster_keys(settings) if settings.cluster_secret else secret_keys(settings)


def build_links(settings: Settings) -> "PreviewLinks":
    from warren.sessions.preview_links import PreviewLinks

    return PreviewLinks(_installation_keys(settings), settings.preview_domain, public_allowed=settings.preview_public)


def build_guard(
    settings: Settings, tracing: Tracing = OFF, recorder: Recorder = NO_RECORDER, *, any_host: bool = False
) -> "HttpGuard":
    """With `any_host` the server answers under every host name."""
    from warren.http.server.http_guard import HttpGuard

    return HttpGuard(
        listen_host=settings.host,
        allowed_hosts=("*",) if any_host else settings.allowed_hosts,
        trusted_proxies=settings.trusted_proxies,
        max_body=settings.max_body_mb * 1024 * 1024,
        tracing=tracing,
        recorder=recorder,
    )
