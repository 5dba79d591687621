"""The sandbox of interfaces/sandbox.py, over the link to its agent."""

import socket
from collections.abc import AsyncIterable, Callable, Mapping, Sequence

from warren.interfaces.sandbox import Process
from warren.model.capability import Capability, lacks
from warren.model.network import ListeningPort
from warren.model.operations import Command, ExecResult, ProcessInfo
from warren.model.spec import Isolation
from warren.worker.agent.files import AgentFiles
from warren.worker.agent.link import AgentLink
from warren.worker.agent.process import Commands
from warren.worker.agent.wire import Request
from warren.worker.network.ports import SandboxPorts


class AgentSandbox(AgentFiles):
    """`oom_kills` counts the processes of the sandbox that the kernel killed for want of memory; `why_lost` explains
    what became of a sandbox whose agent is gone; without `ports` the provider cannot reach servers inside."""

    def __init__(
        self,
        sandbox_id: str,
        link: AgentLink,
        isolation: Isolation,
        *,
        env: Mapping[str, str],
        oom_kills: Callable[[], int],
        why_lost: Callable[[], str],
        ports: SandboxPorts | None = None,
    ) -> None:
        super().__init__(link)
        self._id = sandbox_id
        self._isolation = isolation
        self._commands = Commands(link, env, oom_kills)
        self._ports = ports
        link.why_lost = why_lost

    def __repr__(self) -> str:
        return f"<AgentSandbox {self._id} {self._link!r}>"

    @property
    def id(self) -> str:
        return self._id

    @property
    def isolation(self) -> Isolation:
        return self._isolation

    async def exec(
        self, command: Command, stdin: bytes | AsyncIterable[bytes] = b"", *, process_id: str = ""
    ) -> ExecResult:
        return await self._commands.exec(command, stdin, process_id)

    async def start(self, command: Command, *, process_id: str = "", follow: bool = False) -> Process:
        return await self._commands.start(command, process_id, follow=follow)

    async def process(self, process_id: str) -> Process:
        return await self._commands.find(process_id)

    async def processes(self) -> Sequence[ProcessInfo]:
        return await self._commands.all()

    async def forget(self, process_id: str) -> None:
        await self._commands.forget(process_id)

    async def kill_all(self) -> int:
        return await self._commands.kill_all()

    async def ports(self) -> Sequence[ListeningPort]:
        return await self._check_ports().ports()

    async def dial(self, port: int) -> socket.socket:
        return await self._check_ports().dial(port)

    def _check_ports(self) -> SandboxPorts:
        if self._ports is None:
            raise lacks(self._isolation.provider, Capability.PORTS)
        return self._ports

    async def ping(self) -> None:
        channel = await self._link.open(Request.PING)
        try:
            await channel.last()
        finally:
            channel.close()

    def when_lost(self, call: Callable[[str], None]) -> None:
        self._link.when_lost(call)

    async def close(self) -> None:
        await self._link.close()
