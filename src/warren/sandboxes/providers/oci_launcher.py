"""Starts the launcher of a sandbox: what the runtime reads, which descriptors it is given, and what comes back."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from warren.interfaces.images import RootFs
from warren.sandboxes.host import orphans
from warren.sandboxes.host.cgroups import Hierarchies
from warren.sandboxes.host.network_settings import network_sysctls
from warren.sandboxes.host.proc_top import top_of_proc
from warren.sandboxes.host.processes import Finished, run
from warren.sandboxes.host.record import SandboxRecord
from warren.sandboxes.host.seccomp_program import Unreadable, read_programs
from warren.sandboxes.host.uids import uid_base
from warren.sandboxes.providers import direct, oci_bundle, oci_launch
from warren.sandboxes.providers.gpu_access import GpuAccess
from warren.sandboxes.providers.hardening import MEMLOCK_BYTES
from warren.sandboxes.providers.host_provider import HostPrograms
from warren.sandboxes.providers.oci_runtime import Runtimes


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """`home` has the directories of the sandboxes. With `keep_changes` what is written to a writable root can be had
    after the sandbox was destroyed."""

    home: Path
    start_timeout_s: float
    has_loop_disk: Callable[[], bool]
    keep_changes: bool


class OciLauncher:
    """`changes` are descriptors of what was written to the roots of sandboxes, by sandbox id."""

    def __init__(
        self,
        programs: HostPrograms,
        runtimes: Runtimes,
        hierarchies: Hierarchies,
        gpus: GpuAccess,
        options: LaunchOptions,
    ) -> None:
        self._programs = programs
        self._runtimes = runtimes
        self._hierarchies = hierarchies
        self._gpus = gpus
        self._options = options
        self._agent_layers: dict[bool, Path] = {}  # by whether `sudo` is in it
        self._filters: dict[bool, bytes] = {}  # by whether tracing is allowed
        self.changes: dict[str, int] = {}

    def make_agent_layers(self, directory: Path) -> None:
        for sudo in (False, True):
            self._agent_layers[sudo] = oci_launch.agent_layer(self._programs.agent, directory, sudo=sudo)

    async def launch(
        self,
        record: SandboxRecord,
        rootfs: RootFs,
        pass_fds: dict[int, int],
        stdin: int,
        *,
        gpu_tree: Path | None = None,
        detached: bool = True,
    ) -> Finished:
        """Runs the launcher, and the runtime if there is one, until the sandbox is made. Not `detached`: until it has
        ended. `gpu_tree` has the libraries for its graphics processors."""
        sends_changes = detached and self._options.keep_changes and record.spec.writable_root
        argv = self.argv(record, rootfs, gpu_tree=gpu_tree, detached=detached, sends_changes=sends_changes)
        filter_fds = self._filter_fds(record)
        if not sends_changes:
            pass_fds = {**pass_fds, **filter_fds}
            return await self._run(argv, record.runtime, stdin, pass_fds)
        with oci_launch.changes_socket() as (ours, theirs):
            pass_fds = {**pass_fds, theirs: oci_launch.CHANGES_FD, **filter_fds}
            outcome = await self._run(argv, record.runtime, stdin, pass_fds)
            if outcome.code == 0:
                self.changes[record.sandbox_id] = oci_launch.received_descriptor(ours)
        return outcome

    async def _run(self, argv: list[str], runtime: str, stdin: int, pass_fds: dict[int, int]) -> Finished:
        orphans.expect_from(str(self._programs.launcher), self._runtimes.program(runtime))
        outcome = await run(argv, stdin=stdin, pass_fds=pass_fds, timeout_s=self._options.start_timeout_s)
        if runtime != direct.NAME:  # crun does not reap all of its children
            orphans.reap_strays(after=outcome.pid)
        return outcome

    def drop_changes(self, sandbox_id: str) -> None:
        if (fd := self.changes.pop(sandbox_id, -1)) >= 0:
            os.close(fd)

    async def keep_filter(self, record: SandboxRecord) -> None:
        """Keeps what the runtime has compiled the rules for system calls to, from a sandbox that was found good:
        compiling them is a good part of its work. What the next sandboxes load is read back and judged all the same."""
        if record.runtime == "crun" and record.spec.ptrace not in self._filters:
            self._filters[record.spec.ptrace] = b""
            with suppress(Unreadable, ProcessLookupError):
                programs = await read_programs(record.pid)
                self._filters[record.spec.ptrace] = programs[0] if len(programs) == 1 else b""

    def _filter_fds(self, record: SandboxRecord) -> dict[int, int]:
        if record.runtime != direct.NAME:
            return {}
        return {direct.compiled_filter(record.spec.ptrace).fd: direct.FILTER_FD}

    def config(self, record: SandboxRecord, *, rootfs: RootFs, argv: Sequence[str] = ()) -> str:
        """Returns what the runtime reads. With `argv` the sandbox runs that instead of its agent."""
        if record.runtime == direct.NAME:
            plan = direct.plan(
                self._oci_config(record, oci_bundle.ANY_ID, rootfs),
                self._hierarchies,
                sandbox_id=record.sandbox_id,
                digest=direct.compiled_filter(record.spec.ptrace).digest,
                limits_io=bool(record.spec.io),
            )
            return direct.with_command(plan, argv) if argv else plan
        config = self._oci_config(record, record.sandbox_id, rootfs)
        return oci_bundle.with_command(config, argv) if argv else config

    def _oci_config(self, record: SandboxRecord, sandbox_id: str, rootfs: RootFs) -> str:
        grant = self._gpus.granted(record.spec.gpus)
        return oci_bundle.config_json(
            record.spec,
            sandbox_id=sandbox_id,
            uid_base=0 if record.runtime == direct.NAME else uid_base(record.uid_index),  # direct gets it elsewhere
            swap_limit=self._hierarchies.limits_swap,
            top_of_proc=top_of_proc(),
            program=self._filters.get(record.spec.ptrace, b""),
            network_sysctls=network_sysctls(),
            seeded=bool(rootfs.seeded),
            image=rootfs.config,
            memlock=MEMLOCK_BYTES if oci_launch.leaves_memlock(record.runtime) else 0,
            devices=tuple((node.major, node.minor) for node in grant.nodes) if grant else (),
        )

    def argv(
        self,
        record: SandboxRecord,
        rootfs: RootFs,
        *,
        gpu_tree: Path | None = None,
        detached: bool = True,
        sends_changes: bool = False,
    ) -> list[str]:
        grant = self._gpus.granted(record.spec.gpus)
        agent = self._agent_layers[record.spec.sudo and oci_launch.has_room_for_sudo(rootfs)]
        return oci_launch.argv(
            record,
            oci_launch.Programs(self._programs.launcher, agent, self._runtimes.program(record.runtime)),
            rootfs=rootfs,
            devices=[f"{node.path}:{node.name}" for node in grant.nodes] if grant else (),
            gpu_tree=gpu_tree if grant else None,
            directory=self._options.home / record.sandbox_id,
            loop_disk=self._options.has_loop_disk(),
            hide=self._hierarchies.hybrid,
            move=self._hierarchies.processes_file(oci_bundle.PARENT),
            detached=detached,
            send_changes=sends_changes,
        )

    def close(self) -> None:
        for sandbox_id in [*self.changes]:
            self.drop_changes(sandbox_id)
