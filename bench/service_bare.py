"""The bare runtime in a plain loop, for bench/service.py: what no service on top of it can exceed without a pool.

So many loops at once; each runs the same bundle again and again, from a start by the launcher as our sandboxes have
it: everything is mounted and written before the clock starts.
"""

import asyncio
import re
import secrets
import shutil
import tempfile
from pathlib import Path

from sandboxes import SPEC
from service_server import IMAGES, ROOT

from warren.interfaces.images import RootFs
from warren.worker.host.processes import boot_id, run
from warren.worker.images.store import ImageStore
from warren.worker.providers import oci_launch
from warren.worker.providers.oci import OciProvider
from warren.worker.providers.record import Record

_LOOP_S = 300.0
_LOOP = 'for i in $(seq "$0"); do a=$EPOCHREALTIME; "$@" || exit; echo "took $a $EPOCHREALTIME"; done >&2'


async def bare_rate(parallel: int, times: int) -> tuple[str, float]:
    """The runtime's name, and containers per second: made, run to their end and deleted."""
    state = Path(tempfile.mkdtemp(prefix="warren-bench-", dir="/var/tmp"))
    (state / "images").symlink_to(IMAGES)
    provider = OciProvider(state, ImageStore(state), ROOT / "src" / "warren" / "bin")
    made: list[str] = []
    try:
        runtime = (await provider.runtime_report()).chosen
        loops = [await _prepared(provider, state, runtime, times, made) for _ in range(parallel)]
        outcomes = await asyncio.gather(*(run(argv, timeout_s=_LOOP_S) for argv in loops))
        spans = [span for outcome in outcomes for span in re.findall(r"took (\S+) (\S+)", outcome.stderr)]
        if len(spans) != parallel * times:
            raise RuntimeError(f"{runtime}: {len(spans)} of {parallel * times} ran: {outcomes[0].stderr[-300:]}")
        starts, ends = zip(*((float(start), float(end)) for start, end in spans), strict=True)
        return runtime, len(spans) / (max(ends) - min(starts))
    finally:
        for sandbox_id in made:
            await provider._unmake(sandbox_id)
        await provider.close()
        shutil.rmtree(state, ignore_errors=True)


async def _prepared(provider: OciProvider, state: Path, runtime: str, times: int, made: list[str]) -> list[str]:
    """The command that runs one loop."""
    sandbox_id = secrets.token_hex(16)
    directory = state / "sandboxes" / sandbox_id
    directory.mkdir(mode=0o700, parents=True)
    made.append(sandbox_id)
    record = Record(sandbox_id, boot_id(), runtime, provider._uids.claim(directory), SPEC)
    record.save(directory)
    config = provider._config(record)
    config["process"]["args"] = ["/usr/bin/true"]
    oci_launch.write_bundle(directory / "bundle", config)
    await provider._take_disk(SPEC, directory)
    rootfs = ImageStore(state).rootfs("base")
    argv = provider._launch_argv(record, RootFs(rootfs.path, rootfs.host_usr), detached=False)
    split = argv.index("--") + 1
    return [*argv[:split], "bash", "-c", _LOOP, str(times), *argv[split:]]
