"""A deployment of SWE-ReX in sandboxes of Warren: bash sessions, commands, files, and what goes wrong."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

from swerex.deployment.config import get_deployment
from swerex.deployment.hooks.abstract import DeploymentHook
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    DeploymentStartupError,
    NoExitCodeError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SessionNotInitializedError,
    SwerexException,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

from warren import AsyncSandboxClient
from warren.integrations.swe_rex import WarrenDeployment, WarrenDeploymentConfig, WarrenRuntime


@contextlib.asynccontextmanager
async def started(**options: Any) -> AsyncIterator[WarrenRuntime]:
    deployment = WarrenDeployment(**options)
    try:
        await deployment.start()
        yield deployment.runtime
    finally:
        await deployment.stop()


async def act(runtime: WarrenRuntime, command: str, **how: Any) -> BashObservation:
    return await runtime.run_in_session(BashAction(command=command, **{"timeout": 30, **how}))


async def bash_sessions(runtime: WarrenRuntime) -> None:
    await runtime.write_file(WriteFileRequest(path="start.sh", content="GREETING=hi; PS1='$ '; echo sourced"))
    made = await runtime.create_session(CreateBashSessionRequest(startup_source=["start.sh"], startup_timeout=30))
    assert made.output == "sourced\n", made
    assert "default" in str(await failure(SessionExistsError, runtime.create_session(CreateBashSessionRequest())))

    await act(runtime, "mkdir -p /tmp/here && cd /tmp/here; count=1; twice() { echo $1 $1; }; shopt -s extglob")
    assert (await act(runtime, "pwd; twice $GREETING; echo $((count + 1))")).output == "/tmp/here\nhi hi\n2\n"
    assert (await act(runtime, "PS1='(venv) '; true")).output == ""
    assert (await act(runtime, "printf 'no end'")).output == "no end"
    assert (await act(runtime, "printf '\\n  x\\n\\n'")).output == "\n  x\n\n"
    assert (
        await act(runtime, "cat <<END\n$GREETING \\$5 'it''s' \"!x\"\nEND\n\n# a comment")
    ).output == "hi $5 'it''s' \"!x\"\n"
    assert (
        await act(runtime, "for i in 1 2; do\n  echo $i\ndone\n[[ a == a ]]\nA=(b c); echo ${A[1]}")
    ).output == "1\n2\nc\n"
    for nothing in ("", "\n \n", "# only this"):
        assert (await act(runtime, nothing)).output == ""
    assert (await act(runtime, "echo ünï; printf '\\xff\\n'")).output == "ünï\n\\xff\n"
    long = "x" * 300_000
    assert (await act(runtime, f"cat <<END | wc -c\n{long}\nEND")).output == "300001\n"
    assert len((await act(runtime, "yes 123456789 | head -c 10000000")).output) == 10_000_000
    assert (await act(runtime, "stty echo; tput rmcr 2>/dev/null; true")).exit_code == 0
    assert (await act(runtime, "echo after")).output == "after\n"

    assert (await act(runtime, "(exit 7)", check="silent")).exit_code == 7
    assert (await act(runtime, "nosuchprogram", check="silent")).exit_code == 127
    assert (await act(runtime, "false", check="ignore")).exit_code is None
    failed = await failure(NonZeroExitCodeError, act(runtime, "echo why; false", error_msg="it broke"))
    assert str(failed).startswith("it broke")
    assert "exit code 1" in str(failed)
    assert "why" in str(failed)
    for wrong in ("(a", "for", "a='"):
        error = await failure(BashIncorrectSyntaxError, act(runtime, wrong))
        assert "syntax" in error.extra_info["bash_stderr"] or "unexpected" in error.extra_info["bash_stderr"]
        assert error.extra_info["bash_stdout"] == ""
    assert (await runtime.execute(Command(command="ls -a /tmp | grep REX", shell=True))).stdout == ""


async def interactive_programs(runtime: WarrenRuntime) -> None:
    python = {"is_interactive_command": True, "expect": [">>> "]}
    await act(runtime, "python3 -q", **python)
    seen = await act(runtime, "print('so', 6 * 7)", **python)
    assert (seen.output, seen.exit_code, seen.expect_string) == ("so 42", 0, ">>> "), seen
    assert (await act(runtime, "1 +", **python)).output.endswith("invalid syntax")
    await act(runtime, "quit()", is_interactive_quit=True)
    assert (await act(runtime, "echo and on")).output == "and on\n"

    asked = await act(runtime, "read -p 'Name? ' name", expect=[r"Name\? "], check="ignore")
    assert (asked.expect_string, asked.exit_code) == (r"Name\? ", None)
    await act(runtime, "Ada", is_interactive_quit=True)
    assert (await act(runtime, "echo $name")).output == "Ada\n"
    asking = act(runtime, "echo go; sleep 60", expect=["go"])
    await failure(NoExitCodeError, asking)
    await runtime.run_in_session(BashInterruptAction())


async def time_outs_and_interrupts(runtime: WarrenRuntime) -> None:
    error = await failure(CommandTimeoutError, act(runtime, "echo slow; sleep 60; echo late", timeout=0.5))
    assert isinstance(error, TimeoutError)
    assert "0.5 seconds" in str(error)
    stopped = await runtime.run_in_session(BashInterruptAction(timeout=5))
    assert (stopped.output[:4], stopped.exit_code) == ("slow", 0)
    assert (await act(runtime, "echo on")).output == "on\n"

    await failure(CommandTimeoutError, act(runtime, "sleep 1; echo LATE", timeout=0.3))
    assert (await act(runtime, "echo next")).output == "next\n", "the output of what came late is dropped"
    await failure(CommandTimeoutError, act(runtime, "trap '' INT; while :; do sleep 60; done", timeout=0.5))
    await runtime.close_session(CloseBashSessionRequest())
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=30))
    await failure(CommandTimeoutError, act(runtime, "sh -c 'trap \"\" INT; sleep 61'", timeout=0.5))
    await runtime.run_in_session(BashInterruptAction())
    assert (await act(runtime, "echo on")).output == "on\n"
    await until_gone(runtime, "sleep 61")

    other = asyncio.create_task(act(runtime, "echo begun; sleep 62", timeout=60, check="silent"))
    await asyncio.sleep(2)
    await runtime.run_in_session(BashInterruptAction(timeout=5))
    seen = await other
    assert (seen.exit_code, seen.output[:6]) == (130, "begun\n")

    for command in ("sleep 63", "sh -c 'trap \"\" INT; sleep 63'"):
        running = asyncio.create_task(act(runtime, command, timeout=None))
        await asyncio.sleep(2)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        await until_gone(runtime, "sleep 63")
    assert "has ended" in str(await failure(SessionNotInitializedError, act(runtime, "true")))
    await runtime.close_session(CloseBashSessionRequest())

    await runtime.create_session(CreateBashSessionRequest(session="short", startup_timeout=30))
    ended = await failure(SessionNotInitializedError, act(runtime, "echo bye; exit 3", session="short"))
    assert "exit code 3, after 'bye" in str(ended)
    await runtime.close_session(CloseBashSessionRequest(session="short"))
    for gone in (
        act(runtime, "true", session="short"),
        runtime.close_session(CloseBashSessionRequest(session="short")),
        runtime.run_in_session(BashInterruptAction(session="short")),
    ):
        await failure(SessionDoesNotExistError, gone)
    slow_start = CreateBashSessionRequest(session="slow", startup_source=["slow.sh"], startup_timeout=0.5)
    await runtime.write_file(WriteFileRequest(path="slow.sh", content="sleep 64"))
    await failure(CommandTimeoutError, runtime.create_session(slow_start))
    await until_gone(runtime, "sleep 64")
    assert (await runtime.execute(Command(command=["true"]))).exit_code == 0


async def sessions_beside_each_other(runtime: WarrenRuntime) -> None:
    names = ["one", "two", "three"]
    await asyncio.gather(
        *(runtime.create_session(CreateBashSessionRequest(session=n, startup_timeout=30)) for n in names)
    )
    await asyncio.gather(*(act(runtime, f"me={n}; sleep 0.3", session=n) for n in names))
    seen = await asyncio.gather(*(act(runtime, "echo $me", session=n) for n in names))
    assert [each.output for each in seen] == ["one\n", "two\n", "three\n"]
    await asyncio.gather(*(act(runtime, f"echo {n} >> turns", session="one") for n in range(5)))
    assert len((await runtime.read_file(ReadFileRequest(path="turns"))).content.split()) == 5


async def commands(runtime: WarrenRuntime) -> None:
    run = runtime.execute
    assert (await run(Command(command=["echo", "two  spaces"]))).stdout == "two  spaces\n"
    assert (await run(Command(command="echo $PLACE $HERE; pwd", shell=True, env={"HERE": "x"}, cwd="/tmp"))).stdout == (
        "there x\n/tmp\n"
    )
    assert (await run(Command(command="pwd"))).stdout == "/workspace\n"
    both = await run(Command(command="echo out; echo err >&2; exit 3", shell=True))
    assert (both.stdout, both.stderr, both.exit_code) == ("out\n", "err\n", 3)
    if "merge_output_streams" in Command.model_fields:
        merged = Command(command="echo 1; echo 2 >&2; echo 3", shell=True, merge_output_streams=True)
        assert (await run(merged)).stdout == "1\n2\n3\n"
    assert (await run(Command(command="", shell=True, check=True))).exit_code == 0
    assert len((await run(Command(command="yes | head -c 10000000", shell=True))).stdout) == 10_000_000
    assert (await run(Command(command="printf '\\xff'", shell=True))).stdout == "\\xff"
    failed = await failure(NonZeroExitCodeError, run(Command(command="false", check=True, error_msg="no")))
    assert str(failed).startswith("no: Command 'false' failed with exit code 1")
    await failure(CommandTimeoutError, run(Command(command=["sleep", "65"], timeout=0.5)))
    await until_gone(runtime, "sleep 65")
    running = asyncio.create_task(run(Command(command=["sleep", "66"])))
    await asyncio.sleep(1)
    running.cancel()
    await asyncio.wait([running])
    await until_gone(runtime, "sleep 66")


async def files(runtime: WarrenRuntime) -> None:
    await runtime.write_file(WriteFileRequest(path="new/dir/ü.txt", content="hällo\n"))
    assert (await runtime.read_file(ReadFileRequest(path="/workspace/new/dir/ü.txt"))).content == "hällo\n"
    error = await failure(FileNotFoundError, runtime.read_file(ReadFileRequest(path="nothing")))
    assert "nothing" in str(error)
    await failure(IsADirectoryError, runtime.read_file(ReadFileRequest(path="new")))
    await failure(PermissionError, runtime.write_file(WriteFileRequest(path="/etc/x/y", content="")))

    data = os.urandom(10_000_000)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        (tree / "below").mkdir(parents=True)
        (tree / "below" / "data.bin").write_bytes(data)
        (tree / "run").write_text("#!/bin/sh\necho ran\n")
        (tree / "run").chmod(0o755)
        await runtime.upload(UploadRequest(source_path=str(tree), target_path="/workspace/tree"))
        await runtime.upload(UploadRequest(source_path=str(tree / "below" / "data.bin"), target_path="copies/data.bin"))
        await failure(ValueError, runtime.upload(UploadRequest(source_path=folder + "/none", target_path="x")))
    same = Command(command="cmp tree/below/data.bin copies/data.bin && wc -c < copies/data.bin; tree/run", shell=True)
    assert (await runtime.execute(same)).stdout == "10000000\nran\n"
    await failure(UnicodeDecodeError, runtime.read_file(ReadFileRequest(path="copies/data.bin")))
    text = await runtime.read_file(ReadFileRequest(path="copies/data.bin", encoding="latin-1", errors="strict"))
    assert len(text.content.encode("latin-1")) <= len(data)


async def options_and_errors() -> None:
    deployment = WarrenDeployment(limits={"memory_mb": 200}, metadata={"who": "rex"})
    steps: list[str] = []

    class Steps(DeploymentHook):
        def on_custom_step(self, message: str) -> None:
            steps.append(message)

    deployment.add_hook(Steps())
    await failure(DeploymentNotStartedError, deployment.is_alive())
    await deployment.stop()
    await deployment.start()
    await deployment.start()
    [session] = await AsyncSandboxClient.list_sessions(metadata={"who": "rex"})
    assert session.limits is not None
    assert session.limits["memory_mb"] == 200
    assert steps == ["Starting sandbox"]
    assert await deployment.is_alive(timeout=30)
    async with AsyncSandboxClient.attach(session.session_id) as client:
        await client.cleanup()
    dead = await deployment.is_alive()
    assert not dead
    assert dead.message
    for work in (
        deployment.runtime.execute(Command(command="true")),
        deployment.runtime.create_session(CreateBashSessionRequest()),
        deployment.runtime.read_file(ReadFileRequest(path="x")),
    ):
        assert session.session_id in str(await failure(SwerexException, work))
    await deployment.stop()
    await deployment.start()
    assert await deployment.is_alive()
    await deployment.stop()

    assert "nowhere" in str(await failure(DeploymentStartupError, WarrenDeployment(environment="nowhere").start()))
    await failure(TypeError, WarrenDeployment(enviroment="base").start())  # type: ignore[call-arg]
    starting = asyncio.create_task(WarrenDeployment(limits={"memory_mb": 222}).start())
    await asyncio.sleep(0.02)
    starting.cancel()
    await asyncio.wait([starting])
    config = WarrenDeploymentConfig(environment="workshop", user="root")
    as_root = get_deployment(config)  # type: ignore[arg-type]
    await as_root.start()
    try:
        await as_root.runtime.create_session(CreateBashSessionRequest(startup_timeout=30))
        await as_root.runtime.write_file(WriteFileRequest(path="/root/tools/x", content="1"))
        assert (await act(as_root.runtime, "id -u; cat /root/tools/x")).output == "0\n1"
    finally:
        await as_root.stop()


async def an_existing_session() -> None:
    async with AsyncSandboxClient() as client:
        await client.write_file("word", "mine")
        for _ in range(2):
            async with started(session_id=client.session_id) as runtime:
                await runtime.create_session(CreateBashSessionRequest(startup_timeout=30))
                assert (await act(runtime, "cat word")).output == "mine"
        assert (await client.execute("pgrep -c bash || true")).output.strip() in ("0", "1")


async def until_gone(runtime: WarrenRuntime, command: str) -> None:
    pattern = f"[{command[0]}]{command[1:]}"
    for _ in range(100):
        found = await runtime.execute(Command(command=f"ps -eo args | grep '^{pattern}'", shell=True))
        if not found.stdout:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"it still runs: {found.stdout}")


async def failure(kind: type[Exception], work: Awaitable[Any]) -> Any:
    try:
        found = await work
    except kind as exc:
        return exc
    raise AssertionError(f"no {kind.__name__}, but {found!r:.200}")


async def in_one_sandbox() -> None:
    async with started(env={"PLACE": "there"}) as runtime, started() as other:
        await asyncio.gather(commands(runtime), commands_of_another(other))
        await bash_sessions(runtime)
        await interactive_programs(runtime)
        await time_outs_and_interrupts(runtime)
        await sessions_beside_each_other(runtime)
        await files(runtime)


async def commands_of_another(runtime: WarrenRuntime) -> None:
    assert (await runtime.execute(Command(command="echo $PLACE; ls", shell=True))).stdout == "\n"


def as_swe_agent_calls_it() -> None:
    deployment = WarrenDeployment()
    asyncio.run(deployment.start())
    asyncio.run(deployment.runtime.create_session(CreateBashSessionRequest(startup_timeout=30)))
    asyncio.run(act(deployment.runtime, "x=1"))
    assert asyncio.run(act(deployment.runtime, "echo $x")).output == "1\n"
    asyncio.run(deployment.stop())


asyncio.run(in_one_sandbox())
asyncio.run(options_and_errors())
asyncio.run(an_existing_session())
as_swe_agent_calls_it()
assert asyncio.run(AsyncSandboxClient.list_sessions()) == []
