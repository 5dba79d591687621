"""The sandbox of Deep Agents Code: as a provider, and in the program itself with a scripted model of its own."""

import asyncio
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from deepagents_code.integrations.sandbox_factory import create_sandbox
from deepagents_code.integrations.sandbox_provider import SandboxError, SandboxNotFoundError
from deepagents_code.integrations.sandbox_registry import SandboxRegistry

from warren import SandboxClient
from warren.integrations.deepagents_code import WarrenProvider

CONFIG = """
[models.providers.scripted]
class_path = "deepagents_code._testing_models:ToolCallingIntegrationChatModel"
models = ["writer"]

[sandboxes.providers.small]
class_path = "warren.integrations.deepagents_code:WarrenProvider"
params = { timeout = 1.0, env = { COLOUR = "red" }, limits = { memory_mb = 256 } }
"""


def provider() -> None:
    registry = SandboxRegistry.load()
    assert "warren" in registry.available_providers()
    found = registry.get_metadata("warren")
    assert found is not None
    assert (found.name, found.working_dir, found.supports_snapshot_name) == ("warren", "/workspace", True)
    with create_sandbox("warren") as one, create_sandbox("small") as other:
        assert one.id != other.id
        for number, box in enumerate((one, other)):
            box.execute(f"echo {number} > number")
        assert [box.execute("cat number; echo $COLOUR").output for box in (one, other)] == ["0\n\n", "1\nred\n"]
        [info] = [each for each in SandboxClient.list_sessions() if each.session_id == other.id]
        assert (info.limits or {})["memory_mb"] == 256
        slow = other.execute("echo so far; sleep 60")
        assert slow.exit_code == 124
        assert "stopped after 1 seconds" in slow.output
        data = bytes(range(256)) * 40_000
        assert [each.error for each in one.upload_files([("/workspace/data.bin", data)])] == [None]
        [down, missing] = one.download_files(["/workspace/data.bin", "/workspace/none"])
        assert (down.content, missing.error) == (data, "file_not_found")
        assert len(one.execute("head -c 10000000 /dev/zero | tr '\\0' x").output) > 10_000
        assert asyncio.run(one.aexecute("cat number")).output == "0\n"
        with create_sandbox("warren", sandbox_id=one.id) as again:
            assert again.execute("cat number").output == "0\n"
        assert one.execute("true").exit_code == 0
        running = threading.Thread(target=one.execute, args=("sleep 1000",), kwargs={"timeout": 900})
        running.start()
        time.sleep(1)
        WarrenProvider().delete(sandbox_id=one.id)
        running.join(60)
        assert not running.is_alive()
        assert "gone" in one.execute("true").output
        failure(SandboxNotFoundError, lambda: WarrenProvider().get_or_create(sandbox_id=one.id))
    failure(SandboxError, lambda: WarrenProvider().get_or_create(environment="none"))


async def cancelled() -> None:
    for wait_s in (0.01, 0.1):
        made = WarrenProvider()
        making = asyncio.create_task(made.aget_or_create())
        await asyncio.sleep(wait_s)
        if making.cancel():
            await asyncio.wait([making])
        if not making.cancelled():
            await made.adelete(sandbox_id=making.result().id)


def program() -> None:
    with SandboxClient() as client:
        session_id = client.create_session().session_id
        task = "DCA_TEST_WRITE_FILE=/workspace/made.txt"
        run = ["dcode", "-n", task, "--model", "scripted:writer", "--sandbox", "warren", "--sandbox-id", session_id]
        done = subprocess.run([*run, "-S", "all"], capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert client.read_text("made.txt") == "auto-approved"
    run = ["dcode", "-n", task, "--model", "scripted:writer", "--sandbox", "warren", "-S", "all"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not Path("/workspace/made.txt").exists()
    [left] = SandboxClient.list_sessions(metadata={"deepagents_code": "sandbox"})  # the program ends itself by a signal
    with SandboxClient.attach(left.session_id) as client:
        assert client.read_text("made.txt") == "auto-approved"
        client.cleanup()


def failure(kind: type[Exception], work: Any) -> None:
    try:
        found = work()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}, but {found!r:.200}")


folder = Path.home() / ".deepagents"
folder.mkdir(exist_ok=True)
(folder / "config.toml").write_text(CONFIG)
provider()
print("provider", flush=True)
asyncio.run(cancelled())
print("cancelled", flush=True)
program()
print("program", flush=True)
assert SandboxClient.list_sessions() == []
