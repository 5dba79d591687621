"""The bare runtime in a plain loop, for bench/service.py: no service on top of it can be faster without a pool.

Several loops run at once. Each runs the same bundle again and again, started by the launcher as our sandboxes are:
everything is mounted and written before the clock starts.
"""

import asyncio
import re
import shutil
import tempfile
from pathlib import Path

from sandboxes import run_bare_loop
from service_server import IMAGES, ROOT

from warren.images.store.store import ImageStore
from warren.sandboxes.providers.oci import OciProvider


async def bare_rate(parallel: int, times: int) -> tuple[str, float]:
    """Returns the runtime's name, and how many containers per second it made, ran and deleted."""
    state = Path(tempfile.mkdtemp(prefix="warren-bench-", dir="/var/tmp"))
    (state / "images").symlink_to(IMAGES)
    provider = OciProvider(state, ImageStore(state), ROOT / "src" / "warren" / "bin")
    sandbox_ids: list[str] = []
    try:
        runtimes = (await provider.runtime_report()).runtimes
        runtime = next(one.name for one in runtimes if one.works and one.name != "direct")
        loops = (run_bare_loop(provider, state, runtime, times, sandbox_ids) for _ in range(parallel))
        outcomes = await asyncio.gather(*loops)
        spans = [span for outcome in outcomes for span in re.findall(r"took (\S+) (\S+)", outcome.stderr)]
        if len(spans) != parallel * times:
            raise RuntimeError(f"{runtime}: {len(spans)} of {parallel * times} ran: {outcomes[0].stderr[-300:]}")
        starts, ends = zip(*((float(start), float(end)) for start, end in spans), strict=True)
        return runtime, len(spans) / (max(ends) - min(starts))
    finally:
        for sandbox_id in sandbox_ids:
            await provider._unmake(sandbox_id)
        await provider.close()
        shutil.rmtree(state, ignore_errors=True)
