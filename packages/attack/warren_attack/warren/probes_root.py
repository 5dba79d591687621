"""Attacks as root of the sandbox, where it allows that: root inside may ruin its own sandbox, and nothing else.

Most are the attacks of other groups, with root's rights. The others try what only root can.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from warren.model.errors import WarrenError
from warren.model.operations import Command
from warren.sandboxes.host.isolation import capability_mask
from warren.sandboxes.providers.hardening import ROOT_CAPABILITIES
from warren.sandboxes.providers.oci_bundle import PIDS_RESERVE, UIDS
from warren_attack.probe import Group, Probe, ProbeResult, contained, got_through, judged, within
from warren_attack.warren.arena import Arena

_G = Group.ROOT
_AGENT_UID = UIDS - 1
_CLOSED = "/tmp/attack-closed"

# Those that run as another user than their own, or that root may do in its own sandbox: reading and writing its files,
# becoming another user, sending signals to its processes, reading how many descriptors they have.
_NOT_AS_ROOT = {
    *("namespaces", "user-namespace", "unique-uid", "leaked-descriptors", "overwrite-runtime", "write-system"),
    *("become-root", "capabilities", "signal-agent", "signal-supervisor", "proc-read-agent", "proc-read-supervisor"),
    *("proc-write-agent", "proc-write-supervisor", "agent-uid", "agent-socket", "forged-frames", "shell-state"),
    *("kept-output", "kill-storm", "write-everywhere", "private-files"),
}


def as_root(probe: Probe[Arena]) -> Probe[Arena]:
    async def attack(arena: Arena) -> ProbeResult:
        arena.user = "root"
        try:
            return await probe.attack(arena)
        finally:
            arena.user = ""

    return replace(probe, id=f"root-{probe.id}", group=_G, tries=f"as root: {probe.tries}", attack=attack)


async def _signals(arena: Arena) -> ProbeResult:
    await arena.inside("root:signal_the_agent", timeout_s=20)
    await arena.sandbox.ping()
    result = await arena.sandbox.exec(Command(argv=("echo", "alive"), timeout_s=10))
    alive = arena.host.alive() and result.stdout == "alive\n"
    return judged(alive, f"every signal was sent to the agent; afterwards {result.stdout.strip()!r}")


async def _lost_supervisor(arena: Arena) -> ProbeResult:
    """What has lost its supervisor must be ended like what has one."""
    before = len(arena.host.processes())
    result = await arena.run("root:kill_own_supervisor", timeout_s=20)
    for _ in range(50):
        left = len(arena.host.processes()) - before
        if left <= 0:
            break
        await asyncio.sleep(0.1)
    return judged(left <= 0, f"the command ended by {result.reason}, {max(left, 0)} of its processes were left")


async def _bomb_of_many_users(arena: Arena) -> ProbeResult:
    """It reaches the limit of the whole sandbox: then kill_all, which needs no process, must end it."""
    limit = arena.spec.limits.pids + PIDS_RESERVE
    async with arena.holding(arena.sandbox, "root:bomb_of_many_users", seconds=6):
        await asyncio.sleep(4)
        most = len(arena.host.processes())
        try:
            async with asyncio.timeout(15):
                await arena.sandbox.ping()
                await arena.neighbour.exec(Command(argv=("true",), timeout_s=10))
                await arena.sandbox.kill_all()
        except (TimeoutError, WarrenError) as exc:
            return got_through(f"{most} processes, and then {exc!r}")
        left = len(arena.host.processes())
    evidence = f"{most} processes of many users (limit {limit}), kill_all left {left - 1}"
    return judged(most <= limit and left <= 2, evidence)


async def _links(arena: Arena) -> ProbeResult:
    """File operations have the rights of their own user, wherever a link leads. One may replace the link itself."""
    await arena.inside("root:plant_links")
    tries: dict[str, Callable[[], Awaitable[object]]] = {
        "read": lambda: _first_bytes(arena, "/workspace/attack-file"),
        "write": lambda: arena.sandbox.write("/workspace/attack-file", b"x"),
        "create": lambda: arena.sandbox.write("/workspace/attack-new", b"x"),
        "write below": lambda: arena.sandbox.write("/workspace/attack-folder/x", b"x"),
        "list": lambda: arena.sandbox.list("/workspace/attack-folder/"),
        "remove": lambda: arena.sandbox.remove("/workspace/attack-folder/secret"),
    }
    came: dict[str, object] = {}
    for name, attempt in tries.items():
        with contextlib.suppress(WarrenError):
            came[name] = await attempt()
    kept = await arena.sandbox.exec(Command(shell="ls -A; cat secret", cwd=_CLOSED, user="root", carry_state=False))
    for name in ("file", "new", "folder"):
        await arena.sandbox.remove(f"/workspace/attack-{name}", user="root")
    through = sorted({"read", "write below", "list", "remove"} & set(came))
    evidence = f"let through: {', '.join(through) or 'none'}; root's directory then: {kept.output!r}"
    return judged(not through and kept.output == "secret\nsecret of root", evidence)


async def _first_bytes(arena: Arena, path: str) -> bytes:
    return b"".join([part async for part in arena.sandbox.read(path)])


async def _replaced_shells(arena: Arena) -> ProbeResult:
    if not arena.spec.writable_root:
        return contained("the root is read-only: no program can be replaced")
    await arena.inside("root:replace_shells")
    arena.user = ""
    try:
        result = await arena.sandbox.exec(Command(shell="id", timeout_s=10, carry_state=False))
        direct = await arena.sandbox.exec(Command(argv=("echo", "alive"), timeout_s=10))
    finally:
        arena.user = "root"
        await arena.inside("root:put_shells_back")
    words, alive = result.stdout.split(), direct.stdout == "alive\n"
    evidence = f"what root put in the place of bash ran as {words[1:] or result.output[:80]!r}"
    return judged(alive and "0" not in words[1:], evidence)


def _own() -> Sequence[Probe[Arena]]:
    mask = capability_mask(ROOT_CAPABILITIES)
    return (
        within(
            "capabilities",
            _G,
            "have or gain more capabilities than those of the list",
            "root:capability_sets",
            allowed=mask,
        ),
        within(
            "agent-memory",
            _G,
            "open memory and files of the agent, set its limits, also with its uid",
            "root:agent_memory",
            agent_uid=_AGENT_UID,
        ),
        within("kernel-settings", _G, "write to /proc/sys, other files of /proc, /sys", "root:kernel_settings"),
        within("agent-files", _G, "change or replace the agent's program, and devices", "root:agents_own_files"),
        within("overlay-marks", _G, "write what overlays obey, make whiteouts", "root:overlay_marks"),
        within("setuid-program", _G, "leave a setuid program for a user", "root:setuid_program"),
        Probe("signals", _G, "send every signal to the agent, in four ways", _signals),
        Probe("lost-supervisor", _G, "kill the supervisor of the command, and live on", _lost_supervisor),
        Probe("bomb-of-users", _G, "fork without end, as one user after the other", _bomb_of_many_users),
        Probe("planted-links", _G, "plant links for file operations of others to follow", _links),
        Probe("replaced-shells", _G, "replace the shells that the agent starts", _replaced_shells),
    )


def root_probes(others: Sequence[Probe[Arena]]) -> tuple[Probe[Arena], ...]:
    return tuple(as_root(probe) for probe in (*_own(), *(one for one in others if one.id not in _NOT_AS_ROOT)))
