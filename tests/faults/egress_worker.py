"""A worker that opens a sandbox's network and waits to be killed: `egress_worker.py STATE BIN COMMAND...`, where the
command runs another one in the network that sandboxes reach."""

import asyncio
import sys
from pathlib import Path

from warren.images.store.store import ImageStore
from warren.model.network import NetworkRules
from warren.model.spec import SandboxSpec
from warren.sandboxes.network.egress import Egress
from warren.sandboxes.providers.oci import OciProvider


async def main(state: Path, bin_dir: Path, *within: str) -> None:
    egress = Egress(within=within)
    provider = OciProvider(state, ImageStore(state), bin_dir, egress=egress)
    sandbox = await provider.create(SandboxSpec(image="host"))
    await sandbox.set_network(NetworkRules(allow=("web.example",)))
    print(sandbox.id, egress.pid, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
