"""Uses a graphics processor in sandboxes of this machine, and says what it saw: `make gpu-test`.

It needs root, an NVIDIA GPU with its driver, a runtime, and an image with python3 (`base`, or what --image names). Each
line is one thing that was tried. It ends with 1 if one of them was not as it should be, or if the machine lacks
something.
"""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn

from warren.app.wiring import build_images
from warren.config.settings import read_settings
from warren.interfaces.sandbox import Sandbox
from warren.model.errors import NoCapacity, WarrenError
from warren.model.operations import Command
from warren.model.spec import Limits, SandboxSpec
from warren.sandboxes.host import gpus
from warren.sandboxes.providers.gpu_access import ALL, GpuAccess
from warren.sandboxes.providers.oci import OciProvider

PROGRAM = Path(__file__).with_name("gpu_program.py")
LIMITS = Limits(memory_mb=8192, cpus=4, pids=512, disk_mb=2048, open_files=4096)
LEASE_S, LOOK_S = 15.0, 0.05
CREATES = 5
Step = Callable[[], Awaitable[str]]


class Failed(Exception):
    """A test failed; the message says what was wrong."""


class Test:
    def __init__(self, state: Path, image: str, runtime: str) -> None:
        self.settings = read_settings()
        self.state, self.runtime = state, runtime
        self.spec = SandboxSpec(image=image, limits=LIMITS, gpus=("any",))
        self.plain = SandboxSpec(image=image, limits=LIMITS)
        self.failed = 0
        self.provider = self.new_provider()

    def new_provider(self) -> OciProvider:
        return OciProvider(
            state_dir=self.state,
            images=build_images(self.settings),
            bin_dir=self.settings.bin_dir,
            runtime=self.runtime or None,
            gpus=GpuAccess((ALL,)),
        )

    async def step(self, name: str, work: Step) -> None:
        began = time.monotonic()
        try:
            verdict, text = "ok", await work()
        except (Failed, WarrenError, OSError) as exc:
            verdict, text = "FAIL", f"{type(exc).__name__}: {exc}"
            self.failed += 1
        say(f"{verdict:5} {name:32} {text} [{time.monotonic() - began:.2f} s]")

    async def run(self) -> int:
        try:
            await self.step("runtime", self.runtime_works)
            await self.step("CUDA in a sandbox", self.cuda)
            await self.step("nvidia-smi in a sandbox", self.smi)
            await self.step("one GPU, two sandboxes", self.refusal)
            await self.step("a sandbox without gpus", self.without)
            await self.step("after the sandbox is destroyed", self.after_destroy)
            await self.step("after kill -9 of the maker", self.after_kill)
            await self.step("after kill -9 of the sandbox", self.after_death)
            await self.step("a restart of the maker", self.restart)
            await self.step("how long a create takes", self.creates)
        finally:
            for sandbox_id in await self.provider.list_ids():
                await self.provider.destroy(sandbox_id)
            await self.provider.close()
        say(f"\n{'all as it should be' if not self.failed else f'{self.failed} failed'}")
        return 1 if self.failed else 0

    async def runtime_works(self) -> str:
        sandbox = await self.provider.create(self.plain)
        try:
            return f"{sandbox.isolation.runtime}; missing: {describe(sandbox.isolation.missing)}"
        finally:
            await self.provider.destroy(sandbox.id)

    async def cuda(self) -> str:
        sandbox = await self.provider.create(self.spec)
        try:
            say("      layers that were read back:")
            for layer, evidence in sandbox.isolation.layers.items():
                say(f"        {layer:18} {evidence}")
            for layer, why in sandbox.isolation.missing.items():
                say(f"        {layer:18} MISSING: {why}")
            for gpu, evidence in sandbox.isolation.gpus.items():
                say(f"        gpu {gpu:14} {evidence}")
            return await run_cuda(sandbox)
        finally:
            await self.provider.destroy(sandbox.id)

    async def smi(self) -> str:
        sandbox = await self.provider.create(self.spec)
        try:
            result = await sandbox.exec(Command(argv=("nvidia-smi", "-L"), timeout_s=60))
            if result.exit_code != 0:
                raise Failed(f"exit code {result.exit_code}: {result.output.strip()[:300]}")
            return result.output.strip()[:300]
        finally:
            await self.provider.destroy(sandbox.id)

    async def refusal(self) -> str:
        wanted = SandboxSpec(image=self.spec.image, limits=LIMITS, gpus=tuple(await self.all_ids()))
        sandbox = await self.provider.create(wanted)
        try:
            began = time.monotonic()
            try:
                other = await self.provider.create(self.spec)
            except NoCapacity as exc:
                taken_s = time.monotonic() - began
                if taken_s > 1:
                    raise Failed(f"the refusal took {taken_s:.1f} s") from exc
                return f"the second is refused after {taken_s * 1000:.0f} ms with {exc.http_status}: {exc.message}"
            await self.provider.destroy(other.id)
            raise Failed("a second sandbox got the GPU of the first")
        finally:
            await self.provider.destroy(sandbox.id)

    async def without(self) -> str:
        holder = await self.provider.create(self.spec)
        sandbox = await self.provider.create(self.plain)
        try:
            tried = "ls -d /dev/nvidia* /.warren/gpu; ls /proc/driver/nvidia; " + " ".join(
                ("mknod", "/tmp/n", "c", *map(str, (await self.numbers())))
            )
            listed = await sandbox.exec(Command(argv=("sh", "-c", tried), timeout_s=30))
            result = await sandbox.exec(Command(argv=("python3", "-c", PROGRAM.read_text()), timeout_s=120))
            if result.exit_code == 0 or "/dev/nvidia" in listed.stdout:
                raise Failed(f"it sees one: {listed.stdout} {result.stdout}")
            return f"sees none: {last_line(result.stderr)}; {' | '.join(listed.output.split(chr(10)))[:300]}"
        finally:
            await self.provider.destroy(sandbox.id)
            await self.provider.destroy(holder.id)

    async def after_destroy(self) -> str:
        sandbox = await self.provider.create(self.spec)
        await self.provider.destroy(sandbox.id)
        return f"free: {', '.join(self.provider.list_gpus()[1])}; the next one: {await self.once()}"

    async def after_kill(self) -> str:
        """Kills the maker of an ephemeral sandbox, and checks that the sandbox ends by itself."""
        argv = [sys.executable, __file__, "--hold", str(self.state), "--image", self.spec.image]
        child = await asyncio.create_subprocess_exec(*argv, "--runtime", self.runtime, stdout=asyncio.subprocess.PIPE)
        try:
            assert child.stdout is not None
            line = (await child.stdout.readline()).decode()
            if not line.startswith("holding"):
                raise Failed(f"the other process did not get one: {line}")
            held = len(self.provider.list_gpus()[1])
        finally:
            child.kill()
            await child.wait()
        waited = await self.wait_until_free(held + 1)
        return f"free again after {waited:.1f} s; the next one: {await self.once()}"

    async def after_death(self) -> str:
        sandbox = await self.provider.create(self.spec)
        record = self.provider.load_record(sandbox.id)
        assert record is not None
        held = len(self.provider.list_gpus()[1])
        os.kill(record.pid, signal.SIGKILL)
        waited = await self.wait_until_free(held + 1)
        shown = await self.once()
        await self.provider.destroy(sandbox.id)
        return f"free again after {waited:.1f} s; the next one: {shown}"

    async def restart(self) -> str:
        """Checks that a sandbox which another process takes over keeps its GPU."""
        wanted = SandboxSpec(image=self.spec.image, limits=LIMITS, gpus=tuple(await self.all_ids()))
        sandbox = await self.provider.create(wanted)
        sandbox_id = sandbox.id
        await self.provider.close()
        self.provider = self.new_provider()
        adopted = await self.provider.adopt(sandbox_id)
        try:
            await self.provider.create(self.spec)
        except NoCapacity as exc:
            shown = await run_cuda(adopted)
            await self.provider.destroy(sandbox_id)
            return f"{exc.message}; it goes on: {shown}"
        raise Failed("after the restart another sandbox got it too")

    async def creates(self) -> str:
        times = dict[str, list[float]]()
        for name, spec in (("without", self.plain), ("with", self.spec)):
            for _ in range(CREATES):
                began = time.monotonic()
                sandbox = await self.provider.create(spec)
                times.setdefault(name, []).append(time.monotonic() - began)
                await self.provider.destroy(sandbox.id)
        return ", ".join(f"{name} a GPU {sorted(each)[CREATES // 2] * 1000:.1f} ms" for name, each in times.items())

    async def once(self) -> str:
        sandbox = await self.provider.create(self.spec)
        try:
            return await run_cuda(sandbox)
        finally:
            await self.provider.destroy(sandbox.id)

    async def wait_until_free(self, count: int) -> float:
        began = time.monotonic()
        for _ in range(round(LEASE_S / LOOK_S)):
            if len(self.provider.list_gpus()[1]) >= count:
                return time.monotonic() - began
            await asyncio.sleep(LOOK_S)
        raise Failed(f"not free after {LEASE_S:.0f} s")

    async def all_ids(self) -> list[str]:
        return [gpu.id for gpu in (await self.provider.gpus.found()).gpus]

    async def numbers(self) -> tuple[int, int]:
        node = (await self.provider.gpus.found()).gpus[0].nodes[0]
        return node.major, node.minor


async def run_cuda(sandbox: Sandbox) -> str:
    result = await sandbox.exec(Command(argv=("python3", "-c", PROGRAM.read_text()), timeout_s=120))
    if result.exit_code != 0:
        raise Failed(f"{result.reason}, exit code {result.exit_code}: {result.output.strip()[-600:]}")
    return result.stdout.strip()


async def hold(state: Path, image: str, runtime: str) -> NoReturn:
    test = Test(state, image, runtime)
    sandbox = await test.provider.create(SandboxSpec(image=image, limits=LIMITS, gpus=("any",), ephemeral=True))
    say(f"holding {sandbox.id}")
    await asyncio.Event().wait()
    raise AssertionError


def describe(missing: object) -> str:
    return str(missing) if missing else "nothing"


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def report(found: gpus.Found) -> bool:
    say(f"driver {found.driver or 'unknown'}, from {found.source}")
    for gpu in found.gpus:
        nodes = ", ".join(map(str, (*gpu.nodes, *found.shared)))
        say(f"GPU {gpu.id}: {gpu.model or 'NVIDIA'}, {', '.join(sorted(gpu.names))}; {nodes}")
    say(f"files: {', '.join(str(file) for file in found.files) or 'none'}")
    for why in found.missing:
        say(f"MISSING: {why}")
    return not found.missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", default="base")
    parser.add_argument("--runtime", default="", help="crun or runc; the best that works here if left out")
    parser.add_argument("--hold", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        asyncio.run(hold(Path(options.hold), options.image, options.runtime))
    if os.geteuid() != 0:
        sys.exit("sandboxes need root: sudo make gpu-test")
    if not report(gpus.find()):
        return 1
    state = Path(tempfile.mkdtemp(prefix="warren-gpu-"))
    try:
        return asyncio.run(Test(state, options.image, options.runtime).run())
    finally:
        shutil.rmtree(state, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
