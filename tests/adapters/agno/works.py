"""Sandboxes of agno: generations, commands, pauses, checkpoints, agno's own runtime; and its tools for E2B."""

import asyncio
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import agno
from agno.sandbox import Sandbox, SandboxError, SandboxHandle
from agno.sandbox.checkpoint import CheckpointRef, FileCheckpointStore

from warren import AsyncSandboxClient
from warren.integrations.agno import WarrenSandbox

VENV = "/home/sandboxuser/venv"


async def check_generations() -> None:
    sandboxes = WarrenSandbox(limits={"memory_mb": 200}, env={"OF": "harnesses"}, metadata={"mine": "yes"})
    assert isinstance(sandboxes, Sandbox)
    assert await sandboxes.afind("one") is None
    first = await sandboxes.acreate("one", agent_id="a", env={"PLACE": "here"})
    assert first == await sandboxes.acreate("one", agent_id="a", env={"PLACE": "here"})
    assert first == await sandboxes.afind("one", agent_id="a", env={"PLACE": "here"})
    assert first == await WarrenSandbox().aget(first.provider_ref)
    assert (first.state, first.agent_id, first.session_id, first.generation) == ("running", "a", "one", 1)
    await failure(SandboxError, sandboxes.acreate("one", agent_id="a", env={"PLACE": "there"}))
    await failure(SandboxError, WarrenSandbox(namespace="other").aget(first.provider_ref))
    second = await sandboxes.acreate("one", agent_id="a", generation=2)
    assert second.provider_ref != first.provider_ref
    [session] = [each for each in await AsyncSandboxClient.list_sessions() if each.session_id == first.provider_ref]
    assert session.limits is not None
    assert (session.limits["memory_mb"], session.metadata["mine"]) == (200, "yes")

    both = [("echo $PLACE > name; pwd; cat name", first), ("ls; echo $PLACE", second)]
    said = await asyncio.gather(*(sandboxes.aexec(handle, ["bash", "-c", line]) for line, handle in both))
    assert [each.stdout for each in said] == ["/workspace\nhere\n", "\n"], said
    await check_commands(sandboxes, first)

    await sandboxes.apause(first)
    await sandboxes.apause(first)
    paused = await sandboxes.aget(first.provider_ref)
    assert paused is not None
    assert paused.state == "paused"
    for work in (sandboxes.aexec(first, ["true"]), sandboxes.acreate("one", agent_id="a", env={"PLACE": "here"})):
        await failure(SandboxError, work)
    assert await sandboxes.aresume(first) == first
    assert await sandboxes.aresume(first) == first
    assert (await sandboxes.aexec(first, ["cat", "name"])).stdout == "here\n"

    await sandboxes.astop(first)
    await sandboxes.adestroy(first)
    await sandboxes.adestroy(second)
    assert await sandboxes.aget(first.provider_ref) is None
    for work in (sandboxes.aexec(first, ["true"]), sandboxes.apause(first), sandboxes.aresume(first)):
        await failure(SandboxError, work)
    await failure(SandboxError, WarrenSandbox(environment="nowhere").acreate("two"))
    await failure(ValueError, sandboxes.acreate(""))

    for pause_s in (0.0, 0.02, 0.2):
        begun = asyncio.create_task(sandboxes.acreate("three"))
        await asyncio.sleep(pause_s)
        begun.cancel()
        await asyncio.wait([begun])
        if not begun.cancelled():
            await sandboxes.adestroy(begun.result())
    assert await AsyncSandboxClient.list_sessions() == []


async def check_commands(sandboxes: WarrenSandbox, box: SandboxHandle) -> None:
    data = bytes(range(256)) * 20_000
    counted = await sandboxes.aexec(box, ["sh", "-c", "tee data | wc -c"], stdin=data)
    assert counted.stdout.strip() == str(len(data))
    assert await (await sandboxes.client(box)).read_file("data") == data
    failed = await sandboxes.aexec(box, ["sh", "-c", "printf '\\377'; echo bad >&2; exit 3"])
    assert (failed.exit_code, failed.stdout, failed.stderr, failed.timed_out) == (3, "\ufffd", "bad\n", False)
    assert (await sandboxes.aexec(box, ["no-such-program"])).exit_code == 127
    long = await sandboxes.aexec(box, ["seq", "1200000"])
    assert long.output_limited
    assert len(long.stdout) <= 1_048_576
    whole = await sandboxes.aexec(box, ["seq", "500000"], max_output_bytes=4_194_304)
    assert (whole.output_limited, len(whole.stdout)) == (False, 3_388_895)
    slow = await sandboxes.aexec(box, ["sh", "-c", "echo so far; sleep 60"], timeout=1)
    assert (slow.timed_out, slow.exit_code, slow.stdout) == (True, 124, "so far\n")
    for wrong in ({"timeout": 0}, {"max_output_bytes": 5_000_000}):
        await failure(ValueError, sandboxes.aexec(box, ["true"], **wrong))
    await failure(ValueError, sandboxes.aexec(box, "true"))

    running = asyncio.create_task(sandboxes.aexec(box, ["sleep", "1000"]))
    await asyncio.sleep(1)
    running.cancel()
    await asyncio.wait([running])
    for _ in range(100):
        if "sleep" not in (await sandboxes.aexec(box, ["ps", "-eo", "comm"])).stdout:
            break
        await asyncio.sleep(0.1)
    else:
        raise AssertionError("the command of a caller who has gone still runs")


async def new_computer(sandboxes: WarrenSandbox, generation: int) -> SandboxHandle:
    """Makes a sandbox whose Python has agno, as the images of harnesses have."""
    variables = {"PATH": f"{VENV}/bin:/usr/bin:/bin", "AGNO_SANDBOX_TEST_RUNTIME": "1"}
    box = await sandboxes.acreate("chat", agent_id="echo", generation=generation, env=variables)
    made = await sandboxes.aexec(box, ["/usr/bin/python3", "-m", "venv", "--without-pip", VENV])
    assert made.exit_code == 0, made
    found = await sandboxes.aexec(box, ["sh", "-c", f"echo {VENV}/lib/*/site-packages"])
    with tempfile.TemporaryDirectory() as folder:
        for path in Path(agno.__file__).parents[1].iterdir():
            if path.name.startswith(("agno", "pydantic", "typing", "annotated", "dotenv", "rich", "docstring")):
                (shutil.copytree if path.is_dir() else shutil.copy)(path, Path(folder) / path.name)
        await (await sandboxes.client(box)).upload_dir(folder, found.stdout.strip())
    return box


async def poll(sandboxes: WarrenSandbox, box: SandboxHandle, text: str) -> dict[str, Any]:
    """Lets agno's runtime run a turn of its echo, and returns how it ended."""
    identity = {"session_id": "chat", "agent_id": "echo", "execution_id": text, "run_id": text}
    request = {"version": 1, "sdk": "fixture", "input": text, "config": {}, **identity}
    begun = await sandboxes.arpc(box, "start", json.dumps(request).encode())
    assert begun.exit_code == 0, begun
    for _ in range(100):
        asked = {"version": 1, **identity, "cursor": 0, "wait": 1}
        found = await sandboxes.arpc(box, "poll", json.dumps(asked).encode())
        assert found.exit_code == 0, found
        if json.loads(found.stdout).get("result"):
            return json.loads(found.stdout)
        await asyncio.sleep(0.1)
    raise AssertionError(found)


async def check_checkpoints(folder: Path) -> None:
    sandboxes = WarrenSandbox()
    transfer = sandboxes.checkpoint_transfer(FileCheckpointStore(folder))
    first = await new_computer(sandboxes, 1)
    assert "hello" in str(await poll(sandboxes, first, "hello"))
    script = "ln -s /usr/bin/env absolute; mkdir -p deep; echo 1 > deep/file; chmod 700 deep"
    assert (await sandboxes.aexec(first, ["bash", "-c", script])).exit_code == 0
    reference = await transfer.acapture(first, state={"binding": "b"})
    assert isinstance(reference, CheckpointRef)
    await failure(SandboxError, transfer.arestore(first, reference))  # it is not empty, and has ended now
    assert await sandboxes.aget(first.provider_ref) is None

    second = await new_computer(sandboxes, 2)
    assert (await transfer.arestore(second, reference))["binding"] == "b"
    seen = await sandboxes.aexec(second, ["sh", "-c", "cat fixture-effects.txt deep/file; stat -c %a deep; ls /tmp"])
    assert seen.stdout == "hello\n1\n700\n", seen
    assert (await sandboxes.aexec(second, ["cat", "/home/sandboxuser/agno/native/fixture-session"])).exit_code == 0
    await poll(sandboxes, second, "again")
    await sandboxes.adestroy(second)


def check_e2b_tools() -> None:
    from agno.tools.e2b import E2BTools

    tools = E2BTools(timeout=120, sandbox_options={"template": "base"})
    try:
        assert "42" in tools.run_python_code("x = 6\nprint(x * 7)")
        assert "hello" in str(tools.run_command("echo hello > greeting; cat greeting"))
        tools.write_file_content("note.txt", "some text")
        assert tools.read_file_content("note.txt") == "some text"
        assert "note.txt" in tools.list_files(".")
    finally:
        tools.shutdown_sandbox()


async def failure(kind: type[Exception], work: Awaitable[Any]) -> Any:
    try:
        found = await work
    except kind as exc:
        return exc
    raise AssertionError(f"no {kind.__name__}, but {found!r:.200}")


asyncio.run(check_generations())
with tempfile.TemporaryDirectory() as store:
    asyncio.run(check_checkpoints(Path(store)))
blocking = WarrenSandbox()
handle = blocking.create("blocking")
assert blocking.exec(handle, ["echo", "1"]).stdout == "1\n"
blocking.destroy(handle)
if importlib.util.find_spec("e2b_code_interpreter"):
    os.environ["E2B_API_URL"] = os.environ["E2B_SANDBOX_URL"] = os.environ["WARREN_URL"]
    os.environ["E2B_API_KEY"] = os.environ["WARREN_API_KEY"]
    check_e2b_tools()
assert asyncio.run(AsyncSandboxClient.list_sessions()) == []
