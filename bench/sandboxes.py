"""Measures the speed and memory of sandboxes, beside docker, bare runtimes and bubblewrap, in one run.

    sudo .venv/bin/python bench/sandboxes.py            everything, some minutes
    sudo .venv/bin/python bench/sandboxes.py exec files  only these parts: exec create stream files many rate

Absolute times depend on the machine; compare the ratios. Each row ends with its target and whether this run met it.
"""

import asyncio
import json
import os
import re
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from docker_engine import DockerEngine  # noqa: E402

from warren.images.store.store import ImageStore  # noqa: E402
from warren.model.operations import Command  # noqa: E402
from warren.model.spec import Limits, SandboxSpec  # noqa: E402
from warren.sandboxes.agent.sandbox import AgentSandbox  # noqa: E402
from warren.sandboxes.host.processes import Finished, boot_id, run  # noqa: E402
from warren.sandboxes.host.record import SandboxRecord  # noqa: E402
from warren.sandboxes.providers import oci_launch  # noqa: E402
from warren.sandboxes.providers.oci import OciProvider  # noqa: E402

MIB = 1024 * 1024
TRUE = Command(argv=("true",))
SPEC = SandboxSpec(image="base")
_LOOP = 'for i in $(seq "$0"); do a=$EPOCHREALTIME; "$@" || exit; echo "took $a $EPOCHREALTIME"; done >&2'

Count = Callable[[int, int], int]


@dataclass
class Table:
    rows: list[tuple[str, str, str, str]] = field(default_factory=list)

    def add(self, what: str, figure: str, target: str = "", met: bool | None = None) -> None:
        verdict = "" if met is None else "yes" if met else "NO"
        self.rows.append((what, figure, target, verdict))
        print(f"  {what:<68} {figure:>14}  {target:<12} {verdict}", flush=True)

    @property
    def missed(self) -> int:
        return sum(row[3] == "NO" for row in self.rows)


Part = Callable[[Table, Count], Awaitable[None]]


def ms(values: list[float]) -> float:
    return statistics.median(values) * 1000


async def timed(times: int, work: Callable[[], Awaitable[object]]) -> list[float]:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        await work()
        found.append(time.perf_counter() - start)
    return found


def timed_command(times: int, *argv: str) -> list[float]:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found.append(time.perf_counter() - start)
    return found


async def run_bare_loop(
    provider: OciProvider, state: Path, runtime: str, times: int, sandbox_ids: list[str]
) -> Finished:
    """Runs the bare runtime `times` times. The caller removes the sandboxes in `sandbox_ids`."""
    sandbox_id = secrets.token_hex(16)
    directory = provider.directory(sandbox_id)
    await provider._make_directory(directory)
    sandbox_ids.append(sandbox_id)
    record = SandboxRecord(sandbox_id, boot_id(), runtime, provider._uids.claim(directory), SPEC)
    record.save(directory)
    rootfs = ImageStore(state).rootfs("base")
    config = json.loads(provider._launcher.config(record, rootfs=rootfs))
    config["process"]["args"] = ["/usr/bin/true"]
    record, rootfs, disk = await provider._take_disk(record, rootfs)
    argv = provider._launcher.argv(record, rootfs, detached=False)
    split = argv.index("--") + 1
    with oci_launch.in_memory(json.dumps(config)) as stdin:
        return await run(
            [*argv[:split], "bash", "-c", _LOOP, str(times), *argv[split:]], stdin=stdin, pass_fds=disk, timeout_s=300
        )


async def run_parts(parts: Mapping[str, Part], words: list[str]) -> int:
    """Runs the parts that `words` name, or all, and returns the exit code. --quick makes all counts small."""
    quick = "--quick" in words
    names = [word for word in words if word != "--quick"]
    if unknown := [name for name in names if name not in parts]:
        print(f"there is no part {', '.join(unknown)}; there are: {', '.join(parts)}", file=sys.stderr)
        return 2
    print(f"\n{os.cpu_count()} cores, {os.uname().machine}, Linux {os.uname().release}")
    table, failed = Table(), []
    for name, part in parts.items():
        if not names or name in names:
            print(f"\n{name}", flush=True)
            try:
                await part(table, lambda full, small: small if quick else full)
            except Exception:
                traceback.print_exc()
                failed.append(name)
    print(f"\n{table.missed} targets missed" + (f"; parts that failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


@dataclass
class Bench:
    provider: OciProvider
    engine: DockerEngine
    state: Path
    table: Table = field(default_factory=Table)

    # -- one command

    async def exec(self) -> None:
        box = await self.provider.create(SPEC)
        self.engine.docker("run", "--detach", "--name", "bench", "--network", "none", "warren-bench", "sleep", "1000")
        await timed(50, lambda: box.exec(TRUE))
        ours: list[float] = []
        rival: list[float] = []
        for _ in range(10):  # in turns, so that a slow moment of the machine affects both
            ours += await timed(30, lambda: box.exec(TRUE))
            rival += timed_command(3, "docker", "--host", self.engine.url, "exec", "bench", "true")
        plain = await timed(200, lambda: box.exec(Command(shell="true", carry_state=False)))
        carried = await timed(200, lambda: box.exec(Command(shell="true")))
        self.engine.docker("rm", "--force", "bench")
        await self.provider.destroy(box.id)
        self.table.add("exec true, through the worker, p50", f"{ms(ours):.2f} ms", "<= 1.5 ms", ms(ours) <= 1.5)
        self.table.add("exec true, p95", f"{statistics.quantiles(ours, n=20)[18] * 1000:.2f} ms")
        self.table.add("shell line `true`, no state carried, p50 (bash itself is most of it)", f"{ms(plain):.2f} ms")
        self.table.add("shell line `true`, directory and exports carried, p50", f"{ms(carried):.2f} ms")
        self.table.add("docker exec true, p50", f"{ms(rival):.1f} ms")
        ratio = ms(rival) / ms(ours)
        self.table.add("times faster than docker exec", f"{ratio:.0f} x", ">= 30 x", ratio >= 30)

    # -- a fresh sandbox

    async def create(self) -> None:
        runtimes = (await self.provider.runtime_report()).runtimes
        bare_name = next(runtime.name for runtime in runtimes if runtime.works and runtime.name != "direct")
        ours, gone, bare, row = [], [], [], []
        for _ in range(8):
            for _ in range(3):
                start = time.perf_counter()
                box = await self.provider.create(SPEC)
                await box.exec(TRUE)
                ours.append(time.perf_counter() - start)
                start = time.perf_counter()
                await self.provider.destroy(box.id)
                gone.append(time.perf_counter() - start)
            bare += (await self.bare_runs(bare_name, 1)) + (await self.bare_runs(bare_name, 1))
            row += (await self.bare_runs(bare_name, 3))[1:]
        self.table.add("cold create to first command done, p50", f"{ms(ours):.1f} ms")
        self.table.add(f"bare {bare_name} run of the same bundle, p50", f"{ms(bare):.1f} ms")
        ratio = ms(ours) / ms(bare)
        self.table.add("cold create / bare run", f"{ratio:.2f} x", "<= 1.7 x", ratio <= 1.7)
        # After a pause the first move into a cgroup waits for the kernel; the runs that follow do not.
        self.table.add(f"bare {bare_name} run right after another one, p50", f"{ms(row):.1f} ms")
        self.table.add("destroy, p50", f"{ms(gone):.1f} ms")
        for other in ("crun", "runc"):
            if other != bare_name and shutil.which(other):
                other_ms = ms([(await self.bare_runs(other, 1))[0] for _ in range(8)])
                self.table.add(f"bare {other} run of the same bundle, p50", f"{other_ms:.1f} ms")
        docker = ("docker", "--host", self.engine.url, "run", "--rm", "--network", "none", "warren-bench", "true")
        self.table.add("docker run --rm true, p50", f"{ms(timed_command(7, *docker)):.0f} ms")
        if shutil.which("bwrap"):
            root = str(ImageStore(self.state).rootfs("base").path)
            bwrap = ("bwrap", "--unshare-all", "--ro-bind", root, "/", "--proc", "/proc", "--dev", "/dev", "true")
            self.table.add("bubblewrap --unshare-all true, p50", f"{ms(timed_command(20, *bwrap)):.1f} ms")

    async def bare_runs(self, runtime: str, times: int) -> list[float]:
        """Times the runtime alone, on a bundle like ours, with everything mounted before the clock starts."""
        sandbox_ids: list[str] = []
        try:
            outcome = await run_bare_loop(self.provider, self.state, runtime, times, sandbox_ids)
            found = re.findall(r"took (\S+) (\S+)", outcome.stderr)
            if len(found) != times:
                raise RuntimeError(f"{runtime}: {outcome.stderr}")
            return [float(end) - float(start) for start, end in found]
        finally:
            for sandbox_id in sandbox_ids:
                await self.provider._unmake(sandbox_id)

    # -- bytes

    async def stream(self) -> None:
        box = await self.provider.create(SandboxSpec(limits=Limits(cpus=2)))
        rates = []
        for _ in range(3):
            start, total = time.perf_counter(), 0
            process = await box.start(Command(shell="head -c 1G /dev/zero"))
            async for chunk in process.output():
                total += len(chunk.data)
            rates.append(total / MIB / (time.perf_counter() - start))
        await self.provider.destroy(box.id)
        best = max(rates)
        self.table.add("1 GiB of stdout to the worker (two cores)", f"{best:.0f} MiB/s", ">= 400", best >= 400)

    async def files(self) -> None:
        box = await self.provider.create(SandboxSpec(limits=Limits(cpus=2)))
        data = os.urandom(10 * MIB)

        async def fetch() -> None:
            got = b"".join([part async for part in box.read("big")])
            assert got == data

        into = ms(await timed(20, lambda: box.write("big", data)))
        out = ms(await timed(20, fetch))
        await self.provider.destroy(box.id)
        self.table.add("10 MiB file in (two cores), p50", f"{into:.1f} ms", "<= 30 ms", into <= 30)
        self.table.add("10 MiB file out (two cores), p50", f"{out:.1f} ms", "<= 30 ms", out <= 30)

    # -- many sandboxes

    async def rate(self) -> None:
        boxes = await self.create_many(50, SPEC)
        stop = time.perf_counter() + 5
        done = 0

        async def loop(box: AgentSandbox) -> None:
            nonlocal done
            while time.perf_counter() < stop:
                await box.exec(TRUE)
                done += 1

        start = time.perf_counter()
        await asyncio.gather(*(loop(box) for box in boxes))
        rate = done / (time.perf_counter() - start)
        await self.destroy_all(boxes)
        self.table.add("commands/s over 50 sandboxes", f"{rate:.0f}/s", ">= 1500/s", rate >= 1500)

    async def many(self) -> None:
        count = 1000
        first = await self.provider.create(SPEC)
        await timed(50, lambda: first.exec(TRUE))
        alone = ms(await timed(200, lambda: first.exec(TRUE)))
        boxes = await self.create_many(100, SPEC)
        early, more = await self.create_rate(100)
        boxes += more
        settle()
        available = meminfo("MemAvailable")
        at = len(boxes)
        boxes += await self.create_many(count - at - 100, SPEC)
        late, more = await self.create_rate(100)
        boxes += more
        settle()
        fall = (available - meminfo("MemAvailable")) / (len(boxes) - at)
        pss = statistics.mean(agent_pss(box, self.state) for box in boxes[:100])
        crowded = ms(await timed(200, lambda: first.exec(TRUE)))
        table = Path("/proc/self/mountinfo").read_text().splitlines()
        mounts = sum(str(self.state) in line or "/run/warren" in line for line in table)
        mounts -= any(" /run/warren/sandboxes " in line for line in table)  # shared by all, where /run is on a disk
        start = time.perf_counter()
        await self.destroy_all([first, *boxes])
        took = time.perf_counter() - start
        self.table.add(f"{len(boxes)} idle: PSS of our processes, each", f"{pss:.3f} MiB", "<= 0.1", pss <= 0.1)
        self.table.add("fall of MemAvailable, each", f"{fall:.2f} MiB", "<= 2", fall <= 2)
        figure = f"{alone:.2f} / {crowded:.2f}"
        self.table.add("exec true p50, alone / among them", figure, "no slower", crowded <= alone * 1.15)
        self.table.add("creates/s (4 at once), at 100 live", f"{early:.1f}/s")
        self.table.add(f"creates/s (4 at once), at {count - 100} live", f"{late:.1f}/s")
        self.table.add("create rate kept", f"{late / early:.0%}", ">= 70 %", late / early >= 0.7)
        self.table.add("mounts of ours in the host's mount table", str(mounts), "0", mounts == 0)
        self.table.add("destroying them", f"{(len(boxes) + 1) / took:.0f}/s")

    async def create_rate(self, count: int) -> tuple[float, list[AgentSandbox]]:
        start = time.perf_counter()
        boxes = await self.create_many(count, SPEC)
        return count / (time.perf_counter() - start), boxes

    async def create_many(self, count: int, spec: SandboxSpec) -> list[AgentSandbox]:
        slots = asyncio.Semaphore(4)

        async def one() -> AgentSandbox:
            async with slots:
                return await self.provider.create(spec)

        return list(await asyncio.gather(*(one() for _ in range(count))))

    async def destroy_all(self, boxes: list[AgentSandbox]) -> None:
        await asyncio.gather(*(self.provider.destroy(box.id) for box in boxes))


def settle() -> None:
    """Drops the caches, which are not part of what a sandbox costs, and waits for the memory to settle."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
    time.sleep(1)


def meminfo(name: str) -> float:
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def agent_pss(box: AgentSandbox, state: Path) -> float:
    record = SandboxRecord.load(state / "sandboxes" / box.id)
    assert record is not None
    rollup = Path(f"/proc/{record.pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


PARTS = ("exec", "create", "stream", "files", "rate", "many")


async def main(parts: list[str]) -> int:
    if unknown := set(parts) - set(PARTS):
        print(f"there is no part {', '.join(unknown)}; there are: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    state = Path(tempfile.mkdtemp(prefix="warren-bench-", dir="/var/tmp"))
    (state / "images").symlink_to(ROOT / "build" / "test-state" / "images")
    provider = OciProvider(state, ImageStore(state), ROOT / "src" / "warren" / "bin")
    engine = DockerEngine()
    try:
        engine.start()
        engine.import_rootfs(ImageStore(state).rootfs("base").path, "warren-bench")
        bench = Bench(provider, engine, state)
        report = await provider.runtime_report()
        print(f"\n{os.cpu_count()} cores, {os.uname().machine}, Linux {os.uname().release}, runtime {report.chosen}\n")
        for part in PARTS:
            if not parts or part in parts:
                await getattr(bench, part)()
        print(f"\n{bench.table.missed} targets missed")
        return 1 if bench.table.missed else 0
    finally:
        for sandbox_id in await provider.list_ids():
            await provider.destroy(sandbox_id)
        await provider.close()
        engine.close()
        shutil.rmtree(state, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
