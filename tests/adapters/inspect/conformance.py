"""The suite that Inspect has for its sandboxes; it is a function in old releases, and tests for pytest in new ones."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator

from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox import self_check

from warren.integrations.inspect_ai import SandboxConfig, WarrenSandboxEnvironment

WITH_ROOT = SandboxConfig(environment="workshop")


@contextlib.asynccontextmanager
async def sandbox() -> AsyncIterator[SandboxEnvironment]:
    made = await WarrenSandboxEnvironment.sample_init("conformance", WITH_ROOT, {})
    yield made["default"]
    await WarrenSandboxEnvironment.sample_cleanup("conformance", WITH_ROOT, made, False)


async def by_function() -> int:
    async with sandbox() as made:
        found = await self_check.self_check(made)
    failed = {name: said for name, said in found.items() if said is not True}
    print(json.dumps(failed, indent=1))
    print(f"{len(found) - len(failed)} passed")
    return len(failed)


if hasattr(self_check, "self_check"):
    if __name__ == "__main__":
        sys.exit(asyncio.run(by_function()))
else:
    import pytest
    from inspect_ai.util._sandbox.self_check import *  # noqa: F403

    @pytest.fixture
    async def sandbox_env() -> AsyncIterator[SandboxEnvironment]:
        async with sandbox() as made:
            yield made

    if __name__ == "__main__":
        sys.exit(
            pytest.main(
                ["-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "-c", "/dev/null", "--noconftest", __file__]
            )
        )
