"""Keeper and cell client under their contract: in sandboxes of direct and Docker, and built with the sanitizers."""

from pathlib import Path

from contract.contexts_contract import ContextsContract
from contract.test_docker import DockerHooks
from contract.test_oci import OciHooks

import warren
from warren.interfaces.sandbox import Sandbox

BIN = Path(warren.__file__).parent / "bin"


class TestDirectContexts(OciHooks, ContextsContract):
    runtime = "direct"


class TestDockerContexts(DockerHooks, ContextsContract):
    pass


class TestSanitizedContexts(OciHooks, ContextsContract):
    """The program is a file of the user's that can be executed, but not read, as the agent's own."""

    runtime = "direct"
    most_memory_kb = 100_000  # of which the sanitizers have the most

    async def program_in(self, sandbox: Sandbox) -> str:
        await sandbox.write("/workspace/agent", (BIN / "warren-agent-sanitized").read_bytes(), mode=0o111)
        return "/workspace/agent"
