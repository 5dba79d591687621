"""Ways out of the sandbox that only the host can see."""

import os
from pathlib import Path

from warren.model.operations import Command
from warren.model.spec import Layer
from warren_attack.probe import Group, Probe, ProbeResult, judged, not_applicable
from warren_attack.warren.arena import Arena
from warren_attack.warren.host_view import NAMESPACES

_E = Group.ESCAPE
_LEAST_UID = 100_000


async def _namespaces(arena: Arena) -> ProbeResult:
    ours = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in NAMESPACES}
    theirs, others = arena.host.namespaces(), arena.neighbour_host.namespaces()
    shared = [kind for kind in NAMESPACES if kind != "user" and theirs[kind] in (ours[kind], others[kind])]
    return judged(not shared, f"shared with the host or the neighbour: {', '.join(shared) or 'none'}")


async def _user_namespace(arena: Arena) -> ProbeResult:
    ours, theirs = os.readlink("/proc/self/ns/user"), arena.host.namespaces()["user"]
    if ours == theirs and Layer.USER_NAMESPACE in arena.sandbox.isolation.missing:
        return not_applicable(f"the provider {arena.provider.name} has none for each sandbox, and says so itself")
    return judged(theirs not in (ours, arena.neighbour_host.namespaces()["user"]), f"{theirs}, the host's is {ours}")


async def _uids(arena: Arena) -> ProbeResult:
    first = [int(word) for word in arena.host.status("Uid").split()]
    mine, other = (
        {arena.host.uid, *first},
        {arena.neighbour_host.uid, int(arena.neighbour_host.status("Uid").split()[0])},
    )
    evidence = f"on the host: agent {first[0]}, user {arena.host.uid}; the neighbour's user {arena.neighbour_host.uid}"
    return judged(min(mine) >= _LEAST_UID and not mine & other and arena.host.uid not in first, evidence)


async def _leaked_descriptors(arena: Arena) -> ProbeResult:
    """CVE-2024-21626: a descriptor of the host's tree left open in the first process is a way out."""
    names = arena.host.descriptors()
    paths = [name for name in names if name.startswith("/") and not name.startswith(("/dev/null", "/dev/pts"))]
    return judged(not paths, f"PID 1 holds {len(names)} descriptors; of files: {', '.join(paths) or 'none'}")


async def _host_programs(arena: Arena) -> ProbeResult:
    """CVE-2019-5736: overwrite the runtime, or our agent, through /proc/1/exe."""
    exe = Path(f"/proc/{arena.host.first_pid}/exe")
    before = exe.read_bytes()
    outcome = await arena.inside("agent:write_proc", who="agent")
    line = "for p in /proc/1/exe /.warren/agent; do echo x >> $p || echo x > $p; done"
    result = await arena.sandbox.exec(Command(shell=line, timeout_s=10))
    same = exe.read_bytes() == before
    return judged(
        same and result.exit_code != 0, f"the agent's file is {'unchanged' if same else 'CHANGED'}; {outcome.evidence}"
    )


PROBES: tuple[Probe[Arena], ...] = (
    Probe("namespaces", _E, "share a namespace with the host or the neighbour (seen from the host)", _namespaces),
    Probe("user-namespace", _E, "share the user namespace of host or neighbour (seen from the host)", _user_namespace),
    Probe("unique-uid", _E, "run as root or as the neighbour's uid on the host (seen from the host)", _uids),
    Probe(
        "leaked-descriptors",
        _E,
        "find a descriptor of the host in PID 1 (CVE-2024-21626; from the host)",
        _leaked_descriptors,
    ),
    Probe(
        "overwrite-runtime",
        _E,
        "overwrite the runtime or the agent through /proc/1/exe (CVE-2019-5736)",
        _host_programs,
    ),
)
