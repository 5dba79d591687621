"""A program that uses the clients as their signatures say. Type checkers must find nothing in it."""

import asyncio
from pathlib import Path
from typing import assert_type

from warren import (
    AsyncBatchSandboxClient,
    AsyncProcess,
    AsyncSandboxClient,
    BatchSandboxClient,
    CodeContext,
    ExecuteResult,
    Execution,
    FileEntry,
    OutputChunk,
    Process,
    SandboxClient,
    SessionInfo,
    WarrenError,
)
from warren.sdk.options import ClientOptions, CommandOptions

OPTIONS: ClientOptions = {"environment": "base", "limits": {"memory_mb": 256}, "timeout": 30}
IN_TMP: CommandOptions = {"cwd": "/tmp", "env": {"A": "b"}}


def blocking(url: str) -> int:
    with SandboxClient(url, thread_id="t", mode="remote", metadata={"user": "u-7"}, require=["seccomp"]) as sandbox:
        assert_type(sandbox, SandboxClient)
        result = sandbox.execute(["ls", "-l"], timeout=5, **IN_TMP)
        assert_type(result, ExecuteResult)
        for chunk in sandbox.stream("make", stdin=b"y\n", cwd="/workspace", keep_bytes=1000):
            assert_type(chunk, OutputChunk)
        process = sandbox.spawn("sleep 1", name="p", user="root", carry_state=False)
        assert_type(process, Process)
        assert_type(process.wait(3).stdout_bytes, bytes)
        assert_type(sandbox.upload_file(Path("a"), "b", mode=0o600), FileEntry)
        assert_type(sandbox.change(idle_timeout_s=60, metadata={"user": None}), SessionInfo)
        context = sandbox.create_code_context("python", cwd="/tmp", env={"A": "b"}, idle_timeout=60)
        assert_type(context, CodeContext)
        execution = sandbox.run_code("1", context=context, timeout=3, on_stdout=print, on_result=lambda each: each.png)
        assert_type(execution, Execution)
        assert_type(execution.text, str | None)
        assert_type(execution.results[0].save(Path("a.png")), Path)
        with sandbox.terminal(rows=30) as terminal:
            terminal.write("ls\n")
            assert_type(terminal.read_until("$"), str)
    SandboxClient(url, "t", environment="base", network={"allow": ["example.com"]}, gpus=1, on_image_progress=print)
    SandboxClient(server_url=url, session_id="s-1", api_key="k", timeout=30, labels=None, agent_config={"name": "a"})
    with SandboxClient.attach("s-1", url, api_key="k", timeout=3.5) as again:
        assert_type(again, SandboxClient)
    assert_type(SandboxClient.list_sessions(url, states=["running"], api_key="k"), list[SessionInfo])
    assert_type(SandboxClient.delete_thread("t", url, mode="remote"), bool)
    results = BatchSandboxClient(url, **OPTIONS).execute_batch(["a", ["b", "c"]], parallel=2)
    return sum(result.exit_code for result in results)


async def asynchronous(url: str) -> str:
    async with AsyncSandboxClient(url, idle_timeout_s=60, exactly_once=True) as sandbox:
        result = await sandbox.execute("true", **IN_TMP)
        async for chunk in sandbox.stream("make", timeout=3, env={"A": "b"}):
            assert_type(chunk.data, bytes)
        process = await sandbox.spawn("sleep 1", cwd="/tmp")
        assert_type(process, AsyncProcess)
        await process.kill(grace_s=1)
        await sandbox.change(max_lifetime_s=3600)
        async for match in sandbox.search_files("x", glob="*.py"):
            assert_type(match.line, int)
    try:
        await AsyncBatchSandboxClient(url, image="base").execute_batch(["a"])
    except WarrenError as exc:
        return exc.remedy
    return result.output


if __name__ == "__main__":
    blocking("http://localhost:8000")
    asyncio.run(asynchronous("http://localhost:8000"))
