"""`warren mcp --local`: no server; the sandbox is there again when the client comes back."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from frameworks.mcp_world import Tools, connected, stdio
from server_process import clean_environ
from this_run import new_state_dir

_END = "from warren import SandboxClient; print(SandboxClient.delete_thread('mine', mode='local'))"


@pytest.mark.anyio
@pytest.mark.extended
async def test_local_sandboxes_outlive_the_process_that_made_them(image_cache: Path) -> None:
    state_dir = new_state_dir(image_cache)
    environ = {"WARREN_STATE_DIR": str(state_dir), "WARREN_POOL_SIZE": "0"}
    place = stdio("", "--local", "--thread", "mine", **environ)
    try:
        async with connected("stdio", place) as client:
            assert await Tools(client).said("bash", command="echo kept | tee kept.txt; export KEPT=too") == "kept\n"
        async with connected("stdio", place) as client:
            assert await Tools(client).said("bash", command="cat kept.txt; echo $KEPT") == "kept\ntoo\n"
    finally:
        command, environment = [sys.executable, "-c", _END], {**clean_environ(), **environ}
        done = await asyncio.to_thread(
            subprocess.run, command, env=environment, capture_output=True, text=True, timeout=60
        )
        left = list((state_dir / "sandboxes").glob("*"))
        shutil.rmtree(state_dir)
    assert (done.stdout, left) == ("True\n", []), done.stderr
