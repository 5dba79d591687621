"""The environment for E2B that ADK has, as it is, with a sandbox of Warren."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from google.adk.integrations.e2b import E2BEnvironment

os.environ |= dict.fromkeys(("E2B_API_URL", "E2B_SANDBOX_URL"), os.environ["WARREN_URL"])
warren = Path(sys.executable).with_name("warren")
os.environ["E2B_API_KEY"] = subprocess.check_output([warren, "keys", "create", "e2b", "--e2b", "-q"], text=True).strip()


async def main() -> None:
    environment = E2BEnvironment(env_vars={"PLACE": "here"})
    await environment.initialize()
    try:
        found = await environment.execute("echo $PLACE; pwd; echo wrong >&2; exit 3")
        assert (found.exit_code, found.stdout, found.stderr) == (3, "here\n/home/user\n", "wrong\n")
        assert str(environment.working_dir) == "/home/user"
        assert (await environment.execute("sleep 60", timeout=1)).timed_out
        data = bytes(range(256)) * 1000
        await environment.write_file("deep/down/data.bin", data)
        assert await environment.read_file("deep/down/data.bin") == data
        try:
            await environment.read_file("nothing")
        except FileNotFoundError:
            pass
        else:
            raise AssertionError("there is no such file")
    finally:
        await environment.close()


asyncio.run(main())
