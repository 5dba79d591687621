"""The executor alone, and with agents: steps, tools, variables, what goes wrong, and sessions that others made."""

import signal
import threading
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import PIL.Image
from smolagents import ChatMessage, CodeAgent, Model, Tool, tool
from smolagents.utils import AgentError

from warren import SandboxClient
from warren.integrations.smolagents import WarrenExecutor

ANSWER_CHARS = 5_000_000


class Scripted(Model):
    def __init__(self, *codes: str) -> None:
        super().__init__()
        self.codes, self.seen = [*codes], []

    def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
        self.seen.append(str(messages[-1].content))
        return ChatMessage(role="assistant", content=f"<code>\n{self.codes.pop(0)}\n</code>")


@tool
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: the number
    """
    return 2 * number


def failure(kind: type[BaseException], work: Callable[[], Any]) -> str:
    try:
        found = work()
    except kind as exc:
        return str(exc)
    raise AssertionError(f"no {kind.__name__}, but {found!r:.200}")


def agent(model: Scripted, executor: WarrenExecutor, *tools: Tool) -> CodeAgent:
    return CodeAgent(tools=[*tools], model=model, executor=executor, verbosity_level=0)


def steps() -> None:
    options: dict[str, Any] = {"env": {"PLACE": "here"}, "limits": {"memory_mb": 300}, "metadata": {"of": "steps"}}
    executor = WarrenExecutor(timeout=30, **options)
    assert not executor.client.session_id
    first = executor("import os, sys\nprint(os.environ['PLACE'], file=sys.stderr)\nprint('out')\nx = 6\nx * 7")
    assert (first.output, first.logs, first.is_final_answer) == ("42", "here\nout\n", False)
    session = executor.client.info()
    assert session.limits is not None
    assert (session.limits["memory_mb"], session.metadata) == (300, {"of": "steps"})
    assert repr(executor) == f"<WarrenExecutor {session.session_id}>"

    executor.send_variables({"pair": (1, {2}), "data": bytes(range(256)) * 20_000, "text": "y" * 5_000_000})
    assert executor("pair, len(data), data[:3], len(text)").output == r"((1, {2}), 5120000, b'\x00\x01\x02', 5000000)"
    assert len(executor("print('y' * 10_000_000)").logs) == 10_000_001
    assert executor("None").output is None

    picture = BytesIO()
    PIL.Image.new("RGB", (3, 2), "red").save(picture, "PNG")
    executor.client.write_file("red.png", picture.getvalue())
    shows = "class P:\n    def _repr_png_(self): return open('red.png', 'rb').read()\n"
    for last in ("P()", "display(P())"):
        found = executor(shows + last).output
        assert isinstance(found, PIL.Image.Image)
        assert found.size == (3, 2)
    executor.cleanup()
    executor.cleanup()
    assert session.session_id not in {each.session_id for each in SandboxClient.list_sessions()}


def errors() -> None:
    hurried = WarrenExecutor(timeout=2)
    late = failure(AgentError, lambda: hurried("print('so far')\nimport time\ntime.sleep(60)"))
    assert "so far" in late
    assert "interrupted after 2 seconds" in late
    hurried.cleanup()
    executor = WarrenExecutor(timeout=60)
    assert "ZeroDivisionError: division by zero" in failure(AgentError, lambda: executor("print('first')\n1/0"))
    executor("kept = 1")
    assert executor("kept").output == "1"
    executor.send_variables({"sent": 5})
    assert "variables are lost" in failure(AgentError, lambda: executor("import os\nos._exit(3)"))
    assert executor("sent").output == "5"
    assert "NameError" in failure(AgentError, lambda: executor("kept"))
    assert "could not install" in failure(AgentError, lambda: executor.install_packages(["/nowhere.whl"]))
    executor.client.cleanup()
    executor.cleanup()


def sandbox_gone() -> None:
    with SandboxClient() as client:
        client.create_session()
        executor = WarrenExecutor(session_id=client.session_id)
        assert executor("1").output == "1"
        client.cleanup()
        assert executor.client.session_id in failure(AgentError, lambda: executor("1"))
        executor.cleanup()


def interrupted() -> None:
    """Ctrl-C in the middle of a step: the code ends, the interpreter goes on."""
    executor = WarrenExecutor()
    executor("kept = 1")
    threading.Timer(2, signal.raise_signal, [signal.SIGINT]).start()
    failure(KeyboardInterrupt, lambda: executor("import subprocess\nsubprocess.run(['sleep', '1000'])"))
    assert executor("kept").output == "1"
    for _ in range(100):
        if "sleep" not in executor.client.execute(["ps", "-eo", "comm"]).stdout:
            break
        time.sleep(0.1)
    else:
        raise AssertionError("what the code had started still runs")
    executor.cleanup()


def agents() -> None:
    long = f"final_answer('é' * {ANSWER_CHARS})"
    model = Scripted("print(offset)\ny = double(offset)", "final_answer({'sum': (y, 1)})", long, "final_answer(y)")
    with agent(model, WarrenExecutor(), double) as two:
        assert two.run("double", additional_args={"offset": 21}) == {"sum": (42, 1)}
        assert "21" in model.seen[1]
        assert len(two.run("once more")) == ANSWER_CHARS
        assert two.run("and what was it?", reset=False) == 42
    lost = Scripted(
        "import os\nos._exit(1)",
        "1 / 0",
        "print('a' * 9)",
        "final_answer('b' * 100_000_001)",
        "final_answer(double(4))",
    )
    with agent(lost, WarrenExecutor(), double) as other:
        assert other.run("survive") == 8
    for number, said in enumerate(("variables are lost", "ZeroDivisionError", "aaaaaaaaa", "too long"), 1):
        assert said in lost.seen[number]


def two_at_once() -> None:
    def one(number: int) -> int:
        model = Scripted(f"mine = {number}", "import time\ntime.sleep(1)", "final_answer(mine)")
        with agent(model, WarrenExecutor()) as each:
            found: int = each.run("mine")
            return found

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(one, (1, 2))] == [1, 2]


def existing_session() -> None:
    """Two executors and their owner are in one sandbox, each in an interpreter of its own."""
    with SandboxClient() as client:
        client.write_file("/workspace/tiny-1.0-py3-none-any.whl", wheel())
        client.run_code("x = 'of the owner'")
        guest = WarrenExecutor(["/workspace/tiny-1.0-py3-none-any.whl"], client=client)
        other = WarrenExecutor(session_id=client.session_id)
        assert guest("import tiny\nx = tiny.VALUE\nx").output == "7"
        assert "NameError" in failure(AgentError, lambda: other("x"))
        assert client.run_code("x").text == "'of the owner'"
        assert "lost" in failure(AgentError, lambda: other("import os\nos._exit(1)"))
        assert other("2").output == "2"
        guest.cleanup()
        other.cleanup()
        assert [each.default for each in client.list_code_contexts()] == [True]
        assert client.execute("echo still here").output == "still here\n"


def wheel() -> bytes:
    held = BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("tiny.py", "VALUE = 7\n")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\n")
    return held.getvalue()


for check in (steps, errors, sandbox_gone, interrupted, agents, two_at_once, existing_session):
    check()
managed = agent(Scripted(), WarrenExecutor())
assert "managed agents: other" in failure(ValueError, lambda: managed.python_executor.send_tools({"other": managed}))
