"""Connects to a running sandbox: dials its agent, and reads back from the kernel which isolation is in force.

A provider is given both parts. Those here are for sandboxes whose processes and sockets are on this host; a sandbox
with a kernel of its own needs others.
"""

import asyncio
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from warren.kernel.shielding import run_shielded
from warren.model.errors import SandboxLost
from warren.model.spec import AGENT_PROGRAM, MIB, Isolation
from warren.sandboxes.agent.link import AgentLink, Waking, WhyLost
from warren.sandboxes.agent.sandbox import SandboxNetwork
from warren.sandboxes.host import isolation
from warren.sandboxes.host.cgroups import CgroupLimits, Hierarchies
from warren.sandboxes.host.record import SandboxRecord, wait_for_first_process
from warren.sandboxes.host.seccomp_program import SystemCallFilter
from warren.sandboxes.host.uids import RANGE, uid_base
from warren.sandboxes.providers.hardening import (
    CORE_LIMIT,
    MASKED_PATHS,
    MEMLOCK_BYTES,
    MESSAGE_QUEUE_BYTES,
    PENDING_SIGNALS,
    READONLY_PATHS,
    SHOWN_OF_PROC,
    agent_capabilities,
    seccomp_oci,
)
from warren.sandboxes.providers.oci_bundle import PIDS_RESERVE

_ANSWER_S: Final = 0.02  # most agents answer within that time


class AgentDialer(Protocol):
    async def dial(
        self, record: SandboxRecord, directory: Path, timeout_s: float, why_lost: WhyLost, waking: Waking | None = None
    ) -> AgentLink:
        """Connects to the agent that listens in `directory`. Raises SandboxLost when it does not answer. With `waking`
        the sandbox stands still until the agent's greeting is on its way."""


class IsolationReader(Protocol):
    async def read(self, provider: str, record: SandboxRecord, limits: CgroupLimits) -> Isolation:
        """Returns the layers that hold for a running sandbox, each with its evidence. Raises SandboxLost."""


class EgressService(Protocol):
    """Opens the networks of sandboxes. `why_not` says why it cannot do so here; it is empty if it can.

    `try_out` starts everything that needs no sandbox, and ends it again; it raises ProviderUnavailable if that fails.
    `network_of` returns the network of a sandbox, which is closed until it is set. `forget` closes it when the sandbox
    is destroyed; `close` closes all.
    """

    @property
    def why_not(self) -> str: ...
    async def try_out(self) -> None: ...
    def network_of(self, record: SandboxRecord) -> SandboxNetwork: ...
    async def forget(self, sandbox_id: str) -> None: ...
    async def close(self) -> None: ...


class SocketDialer:
    """Dials a unix socket, and stops waiting when the sandbox's first process ends."""

    async def dial(
        self, record: SandboxRecord, directory: Path, timeout_s: float, why_lost: WhyLost, waking: Waking | None = None
    ) -> AgentLink:
        dialling = asyncio.ensure_future(
            AgentLink.dial(directory, timeout_s=timeout_s, why_lost=why_lost, waking=waking)
        )
        try:
            await asyncio.wait({dialling}, timeout=_ANSWER_S)
            if not dialling.done():
                await _wait_while_alive(dialling, record)
            if dialling.done():
                return dialling.result()
            raise SandboxLost("the sandbox's agent ended before it answered")
        except asyncio.CancelledError:
            # It has connected at the moment of the cancellation: nobody else would close the link.
            if dialling.done() and not dialling.exception():
                dialling.result().abort()
            raise
        finally:
            dialling.cancel()


async def _wait_while_alive(dialling: asyncio.Task[AgentLink], record: SandboxRecord) -> None:
    ending: asyncio.Task[None] = asyncio.ensure_future(wait_for_first_process(record))
    try:
        await asyncio.wait([dialling, ending], return_when=asyncio.FIRST_COMPLETED)
    finally:
        ending.cancel()


class ProcIsolationReader:
    """Reads the host's /proc and /sys about the sandbox's first process.

    `closed` are writable mounts of a provider that only its agent may enter. `volumes` is the directory with the
    images of volumes.
    """

    def __init__(self, closed: Iterable[str] = (), volumes: Path | None = None) -> None:
        self._closed, self._volumes = frozenset(closed), volumes

    async def read(self, provider: str, record: SandboxRecord, limits: CgroupLimits) -> Isolation:
        facts, wanted = await isolation.gather(record.pid, limits), self._wanted(record)
        if wanted.system_calls.knows(facts.programs):
            evidence = isolation.judge(facts, wanted)
        else:  # a new filter takes some time to be followed
            evidence = await run_shielded(asyncio.to_thread(isolation.judge, facts, wanted))
        return Isolation(provider, record.runtime, evidence.layers, evidence.missing)

    def _wanted(self, record: SandboxRecord) -> isolation.Wanted:
        base, limits = uid_base(record.uid_index), record.spec.limits
        return isolation.Wanted(
            uids=range(base, base + RANGE),
            capabilities=frozenset(agent_capabilities(sudo=record.spec.sudo)),
            memory=limits.memory_mb * MIB,
            sockets_apart=_cgroup_version() != "v2",
            cpus=limits.cpus,
            pids=limits.pids + PIDS_RESERVE,
            disk=limits.disk_mb * MIB,
            rlimits={
                "Max core file size": CORE_LIMIT,
                "Max open files": limits.open_files,
                "Max file size": limits.disk_mb * MIB,
                "Max locked memory": MEMLOCK_BYTES,
                "Max pending signals": PENDING_SIGNALS,
                "Max msgqueue size": MESSAGE_QUEUE_BYTES,
                "Max nice priority": 0,
                "Max realtime priority": 0,
            },
            shown_of_proc=SHOWN_OF_PROC,
            masked=MASKED_PATHS,
            read_only=READONLY_PATHS,
            system_calls=_filter(record.spec.ptrace),
            program=AGENT_PROGRAM,
            closed=self._closed,
            volumes=self._volumes,
            writable_root=record.spec.writable_root,
        )


@cache
def _filter(ptrace: bool) -> SystemCallFilter:
    return SystemCallFilter(seccomp_oci(ptrace=ptrace)["syscalls"], platform.machine())


@cache
def _cgroup_version() -> str:
    return Hierarchies.here().version
