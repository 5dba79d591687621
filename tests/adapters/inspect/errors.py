"""What goes wrong has the errors that Inspect names, and what is big, binary or at the same time goes right."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import inspect_ai.util
from inspect_ai.util import OutputLimitExceededError, SandboxEnvironment

from warren import AsyncSandboxClient
from warren.integrations.inspect_ai import SandboxConfig, WarrenSandboxEnvironment, read_config

Unavailable = getattr(inspect_ai.util, "SandboxUnavailableError", RuntimeError)
CONFIG = SandboxConfig(limits={"memory_mb": 256}, env={"PLACE": "here"}, more={"other": SandboxConfig()})


@contextlib.asynccontextmanager
async def sandboxes() -> AsyncIterator[dict[str, SandboxEnvironment]]:
    made = await WarrenSandboxEnvironment.sample_init("errors", CONFIG, {})
    yield made
    await WarrenSandboxEnvironment.sample_cleanup("errors", CONFIG, made, False)


async def main() -> None:
    async with sandboxes() as made:
        box, other = made["default"], made["other"]
        assert (await box.exec(["sh", "-c", "echo $PLACE"])).stdout == "here\n"
        assert (await other.exec(["sh", "-c", "echo $PLACE"])).stdout == "\n"

        data = bytes(range(256)) * 40_000
        await box.write_file("deep/down/data.bin", data)
        assert await box.read_file("deep/down/data.bin", text=False) == data
        for name, error in (("none", FileNotFoundError), ("deep", IsADirectoryError)):
            assert name in str(await failure(error, box.read_file(name)))
        await failure(UnicodeDecodeError, box.read_file("deep/down/data.bin"))

        both = await asyncio.gather(*(each.exec(["sh", "-c", "seq 500000"]) for each in (box, other)))
        assert all(len(each.stdout) == 3_388_895 for each in both)
        too_much = await failure(OutputLimitExceededError, box.exec(["sh", "-c", "yes | head -c 30000000"]))
        assert too_much.truncated_output.startswith("y\ny\n")
        slow = box.exec(["sh", "-c", "echo so far; sleep 60"], timeout=1, timeout_retry=False)
        assert (await failure(TimeoutError, slow)).truncated_output == "so far\n"

        running = asyncio.create_task(box.exec(["sleep", "1000"]))
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.wait([running])
        for _ in range(100):
            if "sleep" not in (await box.exec(["ps", "-eo", "comm"])).stdout:
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("the command of a caller who has gone still runs")

        session_id = box.as_type(WarrenSandboxEnvironment).client.session_id
        assert (await box.connection()).command == f"warren shell {session_id}"
        async with AsyncSandboxClient.attach(session_id) as client:
            await client.cleanup()
        for gone in (box.exec(["true"]), box.read_file("x"), box.write_file("x", "")):
            assert session_id in str(await failure(Unavailable, gone))
        await failure(ConnectionError, box.connection())
    assert await AsyncSandboxClient.list_sessions() == []
    for wrong in ({"enviroment": "base"}, {"limits": 3}):
        with contextlib.suppress(ValueError):
            WarrenSandboxEnvironment.config_deserialize(wrong)
            raise AssertionError(wrong)
    assert read_config(None) == SandboxConfig()


async def failure(kind: type[Exception], work: Awaitable[Any]) -> Any:
    try:
        found = await work
    except kind as exc:
        return exc
    raise AssertionError(f"no {kind.__name__}, but {found!r:.200}")


asyncio.run(main())
