"""Measures two sandboxes at once: what the neighbour loses while the sandbox under attack does its worst.

The neighbour does a little of everything, again and again: commands, terminals and files through its agent, and inside
computing, memory, disk, small files, loopback. Its fair share is what it gets beside an honest neighbour, one that
computes (or saves its work, for attacks on the disk) in a single process. During an attack it may lose a fifth of that.

Figures of a machine that does other things as well prove little. So the fair share is measured right before and right
after each attack, by medians, and the worse one counts; what looks like a breach is measured once more. A loss in both
rounds is a breach if nothing else kept the machine busy.

If other programs did, or if the fair share itself moved as much, time on the clock proves nothing, and processor time
decides: what the neighbour's work uses, what the attacker is charged, and what threads of the kernel use more than
before. Waits prove nothing then, not even those for a disk or a terminal: threads of the kernel end them, and wait for
a processor themselves. Memory that nobody is charged for stays UNDECIDED.
"""

import asyncio
import contextlib
import json
import os
import resource
import statistics
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from warren.interfaces.sandbox import Process
from warren.model.errors import WarrenError
from warren.model.operations import Chunk, Command, TerminalSize
from warren_attack.probe import Group, Probe, ProbeResult, ProbeVerdict, contained, got_through, undecided
from warren_attack.warren.arena import Arena, attack_command

MAY_LOSE = 0.2
_STEADY = 1.3  # the fair share before and after an attack differ by no more than this
_PAUSE_S = 0.004
_ANSWER_S = 30.0
_FAIR_S, _ATTACK_S, _SETTLE_S, _FRESH_S = 0.7, 1.0, 0.2, 4.0
_LEAST_SAMPLES = 7
_UNCHARGED_MIB = 64
_OTHERS = 0.4  # cores
_UNCHARGED_CORES = 0.3
_ABOVE_LIMIT = 1.1
_CHARGED = "processor time"
_HELD_S = 60.0

ON_DISK = frozenset({"page_cache", "writes", "documents", "fsyncs", "syncs", "truncates", "inodes", "inotify", "locks"})
"""Loads that leave files."""

Speeds = Mapping[str, float]
Measure = Callable[[], Awaitable[tuple[Speeds, Speeds]]]
"""Does each kind of work once. Returns the seconds that each took, and the processor time."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Seconds for each kind of work, and how many cores programs other than the attack and its neighbour used.

    `worked` is the neighbour's processor time for each kind of work, and what it was charged. `attacker` and `kernel`
    are cores: what the attacker was charged, and what threads of the kernel used.
    """

    seconds: Speeds
    others: float = 0.0
    worked: Speeds = field(default_factory=dict)
    attacker: float = 0.0
    kernel: float = 0.0


@dataclass(frozen=True, slots=True)
class Round:
    """The neighbour's work beside an honest neighbour before, under attack, and beside an honest one after.

    `uncharged_mib` is the memory that the kernel took meanwhile and that the attacker was not charged. `limit` is the
    number of cores that the attacker may use.
    """

    before: Phase
    during: Phase
    after: Phase
    uncharged_mib: int = 0
    limit: float = 1.0

    def loss(self, work: str) -> float:
        """The part of its fair share that the neighbour lost; negative if it got more."""
        return 1 - max(self.before.seconds[work], self.after.seconds[work]) / self.during.seconds[work]

    def needs_more(self) -> Mapping[str, float]:
        """By which part each kind of work used more processor time than beside an honest neighbour."""
        before, during, after = (phase.worked for phase in (self.before, self.during, self.after))
        return {work: during[work] / max(before[work], after[work], 1e-9) - 1 for work in during}

    @property
    def uncharged_cores(self) -> float:
        """What threads of the kernel used during the attack and not otherwise."""
        return self.during.kernel - max(self.before.kernel, self.after.kernel)

    def steady(self, work: str) -> bool:
        low, high = sorted((self.before.seconds[work], self.after.seconds[work]))
        return high <= low * _STEADY

    @property
    def others(self) -> float:
        """Not those during the attack: it may itself be the reason for what the kernel does then."""
        return max(self.before.others, self.after.others)


def judge(rounds: Sequence[Round]) -> ProbeResult:
    """A breach is what every round shows."""
    lost = {work: min(each.loss(work) for each in rounds) for work in rounds[0].during.seconds}
    figures = ", ".join(_figure(work, rounds[-1]) for work in sorted(lost, key=lambda work: -lost[work])[:3])
    uncharged = min(each.uncharged_mib for each in rounds)
    others = max(each.others for each in rounds)
    breaches = [work for work, part in lost.items() if part > MAY_LOSE]
    if uncharged <= _UNCHARGED_MIB and not breaches:
        return contained(f"the neighbour keeps its fair share: {figures}")
    if uncharged > _UNCHARGED_MIB:
        what = f"the kernel took {uncharged} MiB that the sandbox was not charged: {figures}"
        if others > _OTHERS:
            return undecided(f"{what}; but other programs use {others:.1f} cores: try again when they do not")
        return got_through(what)
    what = f"the neighbour loses {_percent(max(lost.values()))} of its fair share, in each of {len(rounds)} rounds"
    if others <= _OTHERS and all(each.steady(work) for each in rounds for work in breaches):
        return got_through(f"{what}: {figures}")
    return _judge_by_processor_time(rounds, f"{figures}; other programs use {others:.1f} cores")


def _judge_by_processor_time(rounds: Sequence[Round], figures: str) -> ProbeResult:
    needs_more = {work: min(each.needs_more()[work] for each in rounds) for work in rounds[0].needs_more()}
    if not needs_more:
        return undecided(f"processor time is not known: {figures}")
    work, part = max(needs_more.items(), key=lambda item: item[1])
    uncharged = min(each.uncharged_cores for each in rounds)
    used = min(each.during.attacker / each.limit for each in rounds)
    if part > MAY_LOSE / (1 - MAY_LOSE):
        return got_through(f"the neighbour's work needs {_percent(part)} more ({work}): {figures}")
    if uncharged > _UNCHARGED_CORES:
        return got_through(f"the kernel uses {uncharged:.1f} cores that the sandbox is not charged: {figures}")
    if used > _ABOVE_LIMIT:
        return got_through(f"the sandbox uses {_percent(used)} of its processor limit: {figures}")
    return contained(
        f"by processor time: the neighbour's work needs {_percent(max(part, 0.0))} more ({work}), the sandbox uses "
        f"{_percent(used)} of its limit, the kernel {max(uncharged, 0.0):.1f} cores more: {figures}"
    )


def _figure(work: str, last: Round) -> str:
    before, during, after = (phase.seconds[work] * 1000 for phase in (last.before, last.during, last.after))
    return f"{work} {during:.1f} ms (fair {before:.1f} and {after:.1f}, loss {_percent(last.loss(work))})"


def _percent(part: float) -> str:
    return f"{part * 100:.0f} %"


def beside(
    id: str, tries: str, kind: str, *, count: int = 4, honest: str = "busy", memory: float = 0.0, creates: bool = False
) -> Probe[Arena]:
    """A probe of a load of `inside/load.py` in `count` processes. `memory` is the part of the limit that they use.

    With `creates` the neighbour's work is making and destroying another sandbox.
    """

    async def run(arena: Arena) -> ProbeResult:
        mib = int(arena.spec.limits.memory_mb * memory)
        storm = _Storm(arena, kind, count, mib)
        async with _worker(arena, creates) as measure:
            rounds: list[Round] = []
            while True:
                rounds.append(await _round(arena, measure, storm, "" if creates else honest))
                outcome = judge(rounds)
                if outcome.verdict is ProbeVerdict.CONTAINED or len(rounds) == 2:
                    return outcome

    return Probe(id, Group.FAIRNESS, tries, run)


@dataclass(frozen=True, slots=True)
class _Storm:
    arena: Arena
    kind: str
    count: int
    mib: int

    @contextlib.asynccontextmanager
    async def raging(self) -> AsyncIterator[None]:
        arguments = {"kind": self.kind, "count": self.count, "mib": self.mib, "seconds": _HELD_S}
        async with self.arena.holding(self.arena.sandbox, "load:storm", **arguments):
            await asyncio.sleep(_SETTLE_S)
            yield
        if self.kind in ON_DISK:
            await self.arena.run("load:clear", kind=self.kind)


async def _round(arena: Arena, measure: Measure, storm: _Storm, honest: str) -> Round:
    least = _LEAST_SAMPLES if honest else 3
    neighbour = _Storm(arena, honest or "busy", 1, 0)
    before = _just_measured(arena, neighbour.kind, least) or await _fair(arena, measure, neighbour, least)
    kernel, charged = _kernel_mib(), arena.host.memory_mib()
    async with storm.raging():
        during = await _phase(arena, measure, _ATTACK_S, least)
        uncharged = _kernel_mib() - kernel - max(0, arena.host.memory_mib() - charged)
    after = await _fair(arena, measure, neighbour, least)
    return Round(before, during, after, max(0, uncharged), arena.spec.limits.cpus)


_recent: "weakref.WeakKeyDictionary[Arena, tuple[float, str, int, Phase]]" = weakref.WeakKeyDictionary()


def _just_measured(arena: Arena, kind: str, least: int) -> Phase | None:
    """What was measured after one attack is also what holds before the next one."""
    at, *name, phase = _recent.get(arena, (0.0, "", 0, Phase({})))
    return phase if name == [kind, least] and time.monotonic() - at < _FRESH_S else None


async def _fair(arena: Arena, measure: Measure, neighbour: _Storm, least: int) -> Phase:
    async with neighbour.raging():
        phase = await _phase(arena, measure, _FAIR_S, least)
    _recent[arena] = (time.monotonic(), neighbour.kind, least, phase)
    return phase


async def _phase(arena: Arena, measure: Measure, seconds: float, least: int) -> Phase:
    started, others, samples, worked = time.monotonic(), _others_s(arena), list[Speeds](), list[Speeds]()
    attacker, kernel = arena.host.cpu_s() or 0.0, _kernel_threads_s()
    while time.monotonic() < started + seconds or len(samples) < least:
        took, used = await measure()
        samples.append(took)
        worked.append(used)
        await asyncio.sleep(_PAUSE_S)
    lasted = time.monotonic() - started
    return Phase(
        _medians(samples), (_others_s(arena) - others) / lasted, _medians(worked),
        ((arena.host.cpu_s() or 0.0) - attacker) / lasted, (_kernel_threads_s() - kernel) / lasted,
    )  # fmt: skip


def _medians(samples: Sequence[Speeds]) -> Speeds:
    return {work: statistics.median(sample[work] for sample in samples) for work in samples[0]}


def _kernel_threads_s() -> float:
    """Processor time that the threads of the kernel have used so far. No cgroup is charged for them."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[1] == "2":  # the parent of all of them
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _others_s(arena: Arena) -> float:
    return processor_s() - (arena.host.cpu_s() or 0) - (arena.neighbour_host.cpu_s() or 0)


def processor_s() -> float:
    """Processor time of everything on this machine but this process and what it started."""
    user, nice, system, _, _, *more = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:8])
    return (user + nice + system + sum(more)) / os.sysconf("SC_CLK_TCK") - _own_s()


@contextlib.asynccontextmanager
async def _worker(arena: Arena, creates: bool) -> AsyncIterator[Measure]:
    if creates:
        yield lambda: _create(arena)
        return
    process = await arena.neighbour.start(attack_command("victim:measure", {}, None))
    lines = _lines(process.output())
    try:
        async with asyncio.timeout(_ANSWER_S):
            await anext(lines)
        yield lambda: _work(arena, process, lines)
    finally:
        await lines.aclose()
        with contextlib.suppress(WarrenError):
            await process.kill(0)
            await process.wait()
            await arena.neighbour.forget(process.id)


async def _work(arena: Arena, process: Process, lines: AsyncIterator[str]) -> tuple[Speeds, Speeds]:
    sandbox, charged = arena.neighbour, arena.neighbour_host.cpu_s()
    async with asyncio.timeout(_ANSWER_S):
        seconds: dict[str, float] = {}
        started = time.monotonic()
        await sandbox.exec(Command(argv=("true",)))
        seconds["command"] = time.monotonic() - started
        started = time.monotonic()
        await sandbox.write("/workspace/victim-file", b"x" * 4096)
        async for _ in sandbox.read("/workspace/victim-file"):
            pass
        seconds["file API"] = time.monotonic() - started
        started = time.monotonic()
        await sandbox.exec(Command(argv=("true",), terminal=TerminalSize()))
        seconds["terminal API"] = time.monotonic() - started
        await process.write(b"\n")
        inside = json.loads(await anext(lines))
    worked = {work: used for work, (_, used) in inside.items()}
    if charged is not None:
        worked[_CHARGED] = (arena.neighbour_host.cpu_s() or 0.0) - charged
    return {**seconds, **{work: took for work, (took, _) in inside.items()}}, worked


async def _create(arena: Arena) -> tuple[Speeds, Speeds]:
    started, charged = time.monotonic(), _own_s()
    sandbox = await arena.provider.create(arena.other_spec)
    try:
        await sandbox.exec(Command(argv=("true",)))
        took = time.monotonic() - started
    finally:
        await arena.provider.destroy(sandbox.id)
    return {"create": took}, {_CHARGED: _own_s() - charged}


def _own_s() -> float:
    """Processor time of this process and of those that it has reaped. `os.times` counts in hundredths of a second, and
    a sandbox is made in less."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


async def _lines(chunks: AsyncIterator[Chunk]) -> AsyncGenerator[str, None]:
    text = ""
    async for chunk in chunks:
        text += chunk.data.decode(errors="replace")
        *whole, text = text.split("\n")
        for line in whole:
            if line:
                yield line


def _kernel_mib() -> int:
    """Memory of the machine that is neither free, nor a cache, nor a process's own: the kernel's, and buffers of it."""
    values = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    names = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "SReclaimable")
    used = _kib(values["MemTotal"]) - sum(_kib(values[name]) for name in names)
    return used // 1024


def _kib(value: str) -> int:
    return int(value.split()[0])
