"""The environment and the code executor alone, and with agents; what goes wrong; and sessions that others made."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult, File
from google.adk.tools.environment import EnvironmentToolset
from scripted import code, run, scripted

from warren import AsyncSandboxClient, SandboxClient
from warren.integrations.google_adk import WarrenCodeExecutor, WarrenEnvironment


async def failure(kind: type[Exception], work: Awaitable[Any]) -> str:
    try:
        found = await work
    except kind as exc:
        return str(exc)
    raise AssertionError(f"no {kind.__name__}, but {found!r:.200}")


async def environment_alone() -> None:
    options: dict[str, Any] = {"env": {"PLACE": "here"}, "limits": {"memory_mb": 300}}
    box = WarrenEnvironment(**options)
    assert "not initialized" in await failure(RuntimeError, box.execute("true"))
    await asyncio.gather(box.initialize())
    await box.initialize()
    session = await box.client.info()
    assert session.limits is not None
    assert session.limits["memory_mb"] == 300
    found = await box.execute("echo $PLACE; pwd; cd /tmp; echo wrong >&2; exit 3")
    assert (found.exit_code, found.stdout, found.stderr) == (3, f"here\n{box.working_dir}\n", "wrong\n")
    assert (await box.execute("pwd")).stdout == f"{box.working_dir}\n"
    late = await box.execute("echo so far; sleep 60", timeout=1)
    assert (late.exit_code, late.timed_out, late.stdout) == (124, True, "so far\n")
    assert "stopped after 1 seconds" in late.stderr
    assert len((await box.execute("yes | head -c 10000000")).stdout) == 10_000_000
    assert "missing" in (await box.execute("yes | head -c 90000000")).stderr
    eaten = await box.execute("python3 -c 'x = b\"x\" * 900_000_000'")
    assert eaten.exit_code
    assert "out of memory" in eaten.stderr

    data = bytes(range(256)) * 40_000
    await box.write_file("deep/down/data.bin", data)
    assert await box.read_file(box.working_dir / "deep/down/data.bin") == data
    await box.write_file("text.txt", "é")
    assert await box.read_file("text.txt") == "é".encode()
    assert "nothing" in await failure(FileNotFoundError, box.read_file("nothing"))
    await failure(IsADirectoryError, box.read_file("deep"))
    await failure(PermissionError, box.write_file("/proc/version", ""))

    running = asyncio.create_task(box.execute("sleep 1000"))
    await asyncio.sleep(1)
    running.cancel()
    await asyncio.wait([running])
    for _ in range(100):
        if "sleep" not in (await box.execute("ps -eo comm")).stdout:
            break
        await asyncio.sleep(0.1)
    else:
        raise AssertionError("the command of a caller who has gone still runs")

    first = box.client.session_id
    async with AsyncSandboxClient.attach(first) as client:
        await client.cleanup()
    assert "fresh sandbox" in await failure(ConnectionError, box.execute("true"))
    assert (await box.execute("ls")).stdout == ""
    second = box.client.session_id
    assert second != first
    async with AsyncSandboxClient.attach(second) as client:
        await client.cleanup()
    assert "fresh sandbox" in await failure(ConnectionError, box.read_file("x"))
    await box.close()
    await box.close()


async def cancelled_initialize() -> None:
    for delay_s in (0.001, 0.02, 0.1):
        box = WarrenEnvironment()
        task = asyncio.create_task(box.initialize())
        await asyncio.sleep(delay_s)
        task.cancel()
        await asyncio.wait([task])
        await box.close()
    assert await AsyncSandboxClient.list_sessions() == []


async def environment_of_others() -> None:
    async with AsyncSandboxClient() as client:
        boxes = WarrenEnvironment(client=client), WarrenEnvironment(session_id=client.session_id)
        for number, box in enumerate(boxes):
            await box.initialize()
            await box.write_file(f"of_{number}", "")
        await asyncio.gather(*(box.close() for box in boxes))
        assert (await client.execute("ls")).stdout.split() == ["of_0", "of_1"]
        await boxes[1].initialize()
        await client.cleanup()
        assert "has ended" in await failure(ConnectionError, boxes[1].execute("true"))
        await boxes[1].close()


async def agent_with_tools() -> None:
    async def one(number: int) -> None:
        box = WarrenEnvironment()
        model = scripted(
            ("WriteFile", {"path": "n.txt", "content": f"{number}\n"}),
            ("Execute", {"command": "cat n.txt; ls | wc -l; sleep 1"}),
            ("EditFile", {"path": "n.txt", "old_string": f"{number}", "new_string": "new"}),
            ("ReadFile", {"path": "n.txt"}),
            ("ReadFile", {"path": "missing"}),
            ("Execute", {"command": "exit 4"}),
            "done",
        )
        agent = LlmAgent(name="works", model=model, tools=[EnvironmentToolset(environment=box)])
        runner = await run(agent, "go", session_id=f"s{number}")
        assert f"{number}\\n1\\n" in model.seen[2], model.seen
        assert "new" in model.seen[4]
        assert "File not found" in model.seen[5]
        assert "'exit_code': 4" in model.seen[6]
        await runner.close()
        await box.close()

    await asyncio.gather(one(1), one(2))


RUN = secrets.token_hex(4)  # a thread that had a session before is told so


def of(session_id: str) -> Any:
    return SimpleNamespace(session=SimpleNamespace(app_name="works", user_id=RUN, id=session_id))


Execute = Callable[..., CodeExecutionResult]


def executing(executor: WarrenCodeExecutor, session_id: str = "s") -> Execute:
    def execute(text: str, *files: File) -> CodeExecutionResult:
        return executor.execute_code(of(session_id), CodeExecutionInput(text, [*files], session_id))

    return execute


def executor_alone() -> None:
    executor = WarrenCodeExecutor(env={"PLACE": "here"}, timeout_seconds=60)
    first, other = executing(executor), executing(executor, "other")
    found = first("import os, sys\nprint(os.environ['PLACE'])\nprint('warned', file=sys.stderr)\nx = 6\nx * 7")
    assert (found.stdout, found.stderr) == ("here\nwarned\n42", "")
    assert first("x").stdout == "6"
    assert "NameError" in other("x").stderr
    failed = first("print('before')\n1 / 0")
    assert failed.stderr.startswith("before\nTraceback")
    assert failed.stderr.endswith("ZeroDivisionError: division by zero")
    executor.timeout_seconds = 2
    late = first("import time\ntime.sleep(60)")
    executor.timeout_seconds = 60
    assert "interrupted after 2 seconds" in late.stderr
    assert [getattr(each, "exit_code", code) for each, code in ((found, 0), (failed, 1), (late, 124))] == [0, 1, 124]
    assert "variables are lost" in first("os._exit(3)").stderr
    assert "NameError" in first("x").stderr
    assert "left out" in first("print('y' * 10_000_000)").stdout

    csv = File("data.csv", "YSxiCjEsMgo=", "text/csv")
    shows = "class P:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + bytes(40)\ndisplay(P())\n"
    made = first(shows + "open('out.csv', 'w').write(open('data.csv').read() * 2)", csv, File("b.bin", b"\x00\xff"))
    assert [(each.name, each.mime_type) for each in made.output_files] == [
        ("picture_1.png", "image/png"),
        ("out.csv", "text/csv"),
    ]
    assert made.output_files[1].content == b"a,b\n1,2\na,b\n1,2\n"
    assert first("open('b.bin', 'rb').read()").stdout == r"b'\x00\xff'"

    sessions = SandboxClient.list_sessions()
    assert len(sessions) == 2
    again = executing(WarrenCodeExecutor(env={"PLACE": "here"}))
    again("kept = 5")
    assert first("kept").stdout == "5"  # of another process, for instance
    for session in sessions:
        SandboxClient.attach(session.session_id).cleanup()
    assert "fresh sandbox" in first("1").stdout
    assert first("1").stdout == "1"
    executor.close()
    executor.close()
    assert SandboxClient.list_sessions() == []


def executor_of_others() -> None:
    with SandboxClient() as client:
        for executor in (WarrenCodeExecutor(client=client), WarrenCodeExecutor(session_id=client.session_id)):
            first, other = executing(executor), executing(executor, "other")
            first("x = 1")
            assert first("x").stdout == "1"
            assert "NameError" in other("x").stderr
            assert "variables are lost" in first("import os\nos._exit(3)").stderr
            assert "NameError" in first("x").stderr
            executor.close()
            assert client.list_code_contexts() == []
        fresh = executing(WarrenCodeExecutor(client=client, stateful=False))
        fresh("x = 1")
        assert "NameError" in fresh("x").stderr
        gone = WarrenCodeExecutor(session_id=client.session_id)
        client.cleanup()
        assert "has ended" in executing(gone)("1").stderr
        gone.close()
    with contextlib.suppress(TypeError):
        WarrenCodeExecutor(enviroment="base")
        raise AssertionError("a name that is no option")


async def agent_with_code() -> None:
    executor = WarrenCodeExecutor()
    model = scripted(code("x = 20 + 1"), "set", code("print(x * 2)"), "It is 42.", code("1 / 0"), "failed")
    agent = LlmAgent(name="codes", model=model, code_executor=executor)
    runner = await run(agent, "set x", "double it", "fail")
    assert "42" in model.seen[3]
    assert "ZeroDivisionError" in model.seen[5]
    begun = time.monotonic()
    agents = [
        LlmAgent(name="two", model=scripted(code("import time\ntime.sleep(1)"), "done"), code_executor=executor)
        for _ in "12"
    ]
    await asyncio.gather(*(run(each, "go", session_id=f"{RUN}{number}") for number, each in enumerate(agents)))
    assert time.monotonic() - begun < 60
    await runner.close()
    executor.close()


for check in (environment_alone, cancelled_initialize, environment_of_others, agent_with_tools, agent_with_code):
    asyncio.run(check())
executor_alone()
executor_of_others()
