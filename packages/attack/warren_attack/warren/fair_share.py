"""Measures two sandboxes at once: what the neighbour loses while the sandbox under attack does its worst.

The neighbour does a little of everything, again and again: commands, terminals and files through its agent, and inside
computing, memory, disk, small files, loopback. Its fair share is what it gets beside an honest neighbour, one that
computes (or saves its work, for attacks on the disk) in a single process. During an attack it may lose a fifth of that.

Figures of a machine that does other things as well prove little. So the fair share is measured right before and right
after each attack, by medians, and the worse one counts; what looks like a breach is measured once more. A loss in both
rounds is a breach if nothing else kept the machine busy, and UNDECIDED if other programs did, or if the fair share
itself moved as much.
"""

import asyncio
import contextlib
import json
import os
import statistics
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from warren.interfaces.sandbox import Process, Sandbox
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
_HELD_S = 60.0

ON_DISK = frozenset({"page_cache", "writes", "documents", "fsyncs", "syncs", "truncates", "inodes", "inotify", "locks"})
"""Loads that leave files."""

Speeds = Mapping[str, float]
Measure = Callable[[], Awaitable[Speeds]]
"""Does each kind of work once and returns the seconds that each took."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Seconds for each kind of work, and how many cores programs other than the attack and its neighbour used."""

    seconds: Speeds
    others: float = 0.0


@dataclass(frozen=True, slots=True)
class Round:
    """The neighbour's work beside an honest neighbour before, under attack, and beside an honest one after.

    `uncharged_mib` is the memory that the kernel took meanwhile and that the attacker was not charged.
    """

    before: Phase
    during: Phase
    after: Phase
    uncharged_mib: int = 0

    def loss(self, work: str) -> float:
        """The part of its fair share that the neighbour lost; negative if it got more."""
        return 1 - max(self.before.seconds[work], self.after.seconds[work]) / self.during.seconds[work]

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
    what = f"the kernel took {uncharged} MiB that the sandbox was not charged: {figures}"
    if breaches:
        part = _percent(max(lost.values()))
        what = f"the neighbour loses {part} of its fair share, in each of {len(rounds)} rounds: {figures}"
    if others > _OTHERS:
        return undecided(f"{what}; but other programs use {others:.1f} cores: try again when they do not")
    if not all(each.steady(work) for each in rounds for work in breaches):
        return undecided(f"{what}; but its fair share moves as much: try again on a quiet machine")
    return got_through(what)


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
    return Round(before, during, await _fair(arena, measure, neighbour, least), max(0, uncharged))


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
    started, others, samples = time.monotonic(), _others_s(arena), list[Speeds]()
    while time.monotonic() < started + seconds or len(samples) < least:
        samples.append(await measure())
        await asyncio.sleep(_PAUSE_S)
    medians = {work: statistics.median(sample[work] for sample in samples) for work in samples[0]}
    return Phase(medians, (_others_s(arena) - others) / (time.monotonic() - started))


def _others_s(arena: Arena) -> float:
    return processor_s() - (arena.host.cpu_s() or 0) - (arena.neighbour_host.cpu_s() or 0)


def processor_s() -> float:
    """Processor time of everything on this machine but this process and what it started."""
    user, nice, system, _, _, *more = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:8])
    return (user + nice + system + sum(more)) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


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
        yield lambda: _work(arena.neighbour, process, lines)
    finally:
        await lines.aclose()
        with contextlib.suppress(WarrenError):
            await process.kill(0)
            await process.wait()
            await arena.neighbour.forget(process.id)


async def _work(sandbox: Sandbox, process: Process, lines: AsyncIterator[str]) -> Speeds:
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
        return {**seconds, **json.loads(await anext(lines))}


async def _create(arena: Arena) -> Speeds:
    started = time.monotonic()
    sandbox = await arena.provider.create(arena.other_spec)
    try:
        await sandbox.exec(Command(argv=("true",)))
        return {"create": time.monotonic() - started}
    finally:
        await arena.provider.destroy(sandbox.id)


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
