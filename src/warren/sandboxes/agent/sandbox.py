"""The sandbox of interfaces/sandbox.py, over the link to its agent."""

import asyncio
import contextlib
import posixpath
import socket
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from warren.interfaces.sandbox import Process
from warren.kernel.logs import get_log
from warren.kernel.shielding import run_shielded
from warren.model.capability import Capability, lacks
from warren.model.errors import (
    FileExists,
    FileNotFound,
    IsDirectory,
    NotADirectory,
    PermissionDenied,
    SandboxLost,
    Unavailable,
)
from warren.model.metrics import SandboxMetrics
from warren.model.network import NO_NETWORK, EgressBound, ListeningPort, NetworkRules, NetworkUse
from warren.model.operations import Command, ExecResult, ProcessStatus
from warren.model.secrets import CA_BUNDLE, BoundSecret
from warren.model.spec import Isolation
from warren.sandboxes.agent.files import AgentFiles
from warren.sandboxes.agent.link import AgentLink
from warren.sandboxes.agent.process import Commands
from warren.sandboxes.agent.wire import ControlOp, WireRequest, WireTag, fields
from warren.sandboxes.egress.broker import BrokerSetup
from warren.sandboxes.egress.certificates import Certificates, new_certificates
from warren.sandboxes.network.ports import SandboxPorts

_IMAGE_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_MAX_BUNDLE: Final = 4 * 1024 * 1024
_log = get_log(__name__)


class SandboxNetwork(Protocol):
    """The way of one sandbox to the outside. `adapt` says in its isolation what is open now."""

    async def set(
        self, rules: NetworkRules, broker: BrokerSetup | None = None, bounds: Sequence[EgressBound] = ()
    ) -> None: ...
    async def use(self) -> NetworkUse: ...
    def adapt(self, isolation: Isolation) -> Isolation: ...


class AgentSandbox(AgentFiles):
    """`oom_kills` counts the processes of the sandbox that the kernel killed for want of memory; `metrics` reads what
    it uses, but for its network. Without a `network` it reaches nothing outside; without `ports` the provider cannot
    reach servers inside. `frozen` says whether it stands still now."""

    def __init__(
        self,
        sandbox_id: str,
        link: AgentLink,
        isolation: Isolation,
        *,
        env: Mapping[str, str],
        oom_kills: Callable[[], int],
        metrics: Callable[[], Awaitable[SandboxMetrics]],
        network: SandboxNetwork | None = None,
        ports: SandboxPorts | None = None,
        frozen: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(link)
        self._id = sandbox_id
        self._isolation = isolation
        self._network = network
        self._certificates: tuple[list[str], Certificates] | None = None
        self._commands = Commands(link, env, oom_kills, frozen)
        self._ports = ports
        self._metrics = metrics
        self._frozen = frozen

    def __repr__(self) -> str:
        return f"<AgentSandbox {self._id} {self._link!r}>"

    @property
    def id(self) -> str:
        return self._id

    @property
    def isolation(self) -> Isolation:
        return self._isolation if self._network is None else self._network.adapt(self._isolation)

    async def exec(
        self, command: Command, stdin: bytes | AsyncIterable[bytes] = b"", *, process_id: str = ""
    ) -> ExecResult:
        return await self._commands.exec(command, stdin, process_id)

    async def start(self, command: Command, *, process_id: str = "", follow: bool = False) -> Process:
        return await self._commands.start(command, process_id, follow=follow)

    async def process(self, process_id: str) -> Process:
        return await self._commands.find(process_id)

    async def processes(self) -> Sequence[ProcessStatus]:
        return await self._commands.all()

    async def forget(self, process_id: str) -> None:
        await self._commands.forget(process_id)

    async def kill_all(self) -> int:
        channel = await self._link.open(WireRequest.CONTROL, fields([(WireTag.OP, int(ControlOp.KILL_ALL))]))
        try:
            end = (await channel.last()).fields
        finally:
            channel.close()
        if survivors := end.number(WireTag.SURVIVORS):
            raise Unavailable(f"{survivors} processes could not be ended", remedy="try again, or delete the session")
        return end.number(WireTag.KILLED)

    async def set_network(
        self, rules: NetworkRules, secrets: Sequence[BoundSecret] = (), bounds: Sequence[EgressBound] = ()
    ) -> None:
        network = self._open_network()
        granted = {host for secret in secrets for host in secret.hosts}
        headers = rules.headers_in_force(granted)
        hosts = sorted(granted | {each.host for each in headers})
        if not hosts:
            return await network.set(rules, None, bounds)
        if self._certificates is None or self._certificates[0] != hosts:
            try:
                certificates = await asyncio.to_thread(new_certificates, hosts)
                await self._trust(certificates)
            except BaseException:
                # The sandbox user can make this fail, which must not keep the rules and secrets of before.
                with contextlib.suppress(SandboxLost):
                    await run_shielded(network.set(NO_NETWORK))
                raise
            self._certificates = hosts, certificates
        await network.set(rules, BrokerSetup(tuple(secrets), self._certificates[1], headers), bounds)

    async def _trust(self, certificates: Certificates) -> None:
        """Writes the bundle that the variables of `broker_variables` name: the image's authorities, and this one. The
        sandbox user may change it, to nobody's loss but its own."""
        bundle = b""
        for path in _IMAGE_BUNDLES:
            with contextlib.suppress(FileNotFound, IsDirectory, NotADirectory, PermissionDenied):
                async for data in self.read(path, length=_MAX_BUNDLE):
                    bundle += data
                break
        with contextlib.suppress(FileExists):
            await self.mkdir(posixpath.dirname(CA_BUNDLE))
        await self.write(CA_BUNDLE, bundle + b"\n" + certificates.authority.encode(), mode=0o644)

    async def network_use(self) -> NetworkUse:
        return await self._open_network().use()

    def _open_network(self) -> SandboxNetwork:
        if self._network is None:
            raise lacks(self._isolation.provider, Capability.EGRESS)
        return self._network

    async def ports(self) -> Sequence[ListeningPort]:
        return await self._check_ports().ports()

    async def dial(self, port: int) -> socket.socket:
        return await self._check_ports().dial(port)

    def _check_ports(self) -> SandboxPorts:
        if self._ports is None:
            raise lacks(self._isolation.provider, Capability.PORTS)
        return self._ports

    async def metrics(self) -> SandboxMetrics:
        self._link.check()
        metrics = await self._metrics()
        if self._network is None:
            return metrics
        use = await self._network.use()
        return replace(metrics, sent_bytes=use.bytes_sent, received_bytes=use.bytes_received)

    async def ping(self) -> None:
        channel = await self._link.open(WireRequest.PING)
        try:
            await channel.last()
        finally:
            channel.close()

    def is_frozen(self) -> bool:
        return self._frozen()

    def note_pause(self, paused_s: float) -> None:
        if self._link.controls < ControlOp.RESUMED:  # made by an earlier release: it answers an error, to nobody
            _log.info("pause_not_known", sandbox=self._id, paused_s=round(paused_s, 3))
        self._commands.note_pause(paused_s)
        self._link.note_pause(paused_s)

    def when_lost(self, call: Callable[[str], None]) -> None:
        self._link.when_lost(call)

    async def close(self) -> None:
        await self._link.close()
