"""E2B_API_URL alone: the SDK speaks TLS to a server that speaks plain HTTP, and hears what is missing when it looks at
the sandbox."""

import os

from checks import done, refused
from e2b import Sandbox, SandboxException

missing = f"set E2B_SANDBOX_URL={os.environ['E2B_API_URL']} beside E2B_API_URL"
sandbox = Sandbox.create(timeout=120)
try:
    with refused(Exception):
        sandbox.commands.run("true")
    with refused(SandboxException, says=missing):
        sandbox.get_info()
    with refused(SandboxException, says=missing):
        Sandbox.connect(sandbox.sandbox_id)
    os.environ["E2B_SANDBOX_URL"] = os.environ["E2B_API_URL"]
    with Sandbox.create(timeout=120) as other:
        assert other.commands.run("echo reached").stdout == "reached\n"
        assert other.get_info().sandbox_id == other.sandbox_id
finally:
    assert sandbox.kill() is True
done()
