"""The workspace of the OpenHands SDK: commands, files, git, and agents whose terminal is in the sandbox."""

import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openhands.sdk import Agent, Conversation, Message, TextContent
from openhands.sdk.event import ObservationEvent
from openhands.sdk.git.exceptions import GitPathError, GitRepositoryError
from openhands.sdk.llm import MessageToolCall
from openhands.sdk.testing import TestLLM

from warren import SandboxClient
from warren.integrations.openhands import WarrenWorkspace

HERE = Path(tempfile.mkdtemp())


def commands() -> None:
    with WarrenWorkspace(env={"COLOUR": "red"}, limits={"memory_mb": 256}) as box:
        assert (box.client.info().limits or {})["memory_mb"] == 256
        done = box.execute_command("echo $COLOUR; pwd; echo wrong >&2; exit 3")
        assert (done.stdout, done.stderr, done.exit_code) == ("red\n/workspace\n", "wrong\n", 3)
        assert box.execute_command("pwd", cwd="/tmp").stdout == "/tmp\n"
        box.execute_command("mkdir below")
        assert box.execute_command("pwd", cwd="below").stdout == "/workspace/below\n"
        slow = box.execute_command("echo so far; sleep 60", timeout=1)
        assert (slow.timeout_occurred, slow.exit_code, slow.stdout) == (True, -1, "so far\n")
        assert "stopped after 1 seconds" in slow.stderr
        assert "sleep" not in box.execute_command("ps -eo comm").stdout
        assert len(box.execute_command("head -c 10000000 /dev/zero | tr '\\0' x").stdout) == 10_000_000
        box.pause()
        assert box.client.info().state == "paused"
        box.resume()
        SandboxClient.attach(box.client.session_id).cleanup()
        gone = box.execute_command("true")
        assert gone.exit_code == 125
        assert "files and processes are gone" in gone.stderr


def cancelled() -> None:
    with WarrenWorkspace() as box:
        running = threading.Thread(target=box.execute_command, args=("sleep 1000",), kwargs={"timeout": 900})
        running.start()
        while "sleep" not in box.execute_command("ps -eo comm").stdout:
            time.sleep(0.1)
        box.client.kill_all()
        running.join(60)
        assert not running.is_alive()


def files() -> None:
    data = bytes(range(256)) * 40_000
    (HERE / "data.bin").write_bytes(data)
    with WarrenWorkspace() as box:
        up = box.file_upload(HERE / "data.bin", "deep/down/data.bin")
        assert (up.success, up.file_size) == (True, len(data)), up
        down = box.file_download("/workspace/deep/down/data.bin", HERE / "new/back.bin")
        assert (down.success, down.file_size) == (True, len(data)), down
        assert (HERE / "new/back.bin").read_bytes() == data
        for result in (box.file_download("none", HERE / "x"), box.file_upload(HERE / "none", "x")):
            assert not result.success
            assert "none" in (result.error or "")
        assert "directory" in (box.file_download("deep", HERE / "x").error or "")


def git() -> None:
    with WarrenWorkspace() as box:
        for failing, kind in ((box.git_changes, GitRepositoryError), (box.git_diff, GitRepositoryError)):
            try:
                failing(".")
            except kind:
                continue
            raise AssertionError(failing)
        made = box.execute_command(
            "git init -q . && git config user.email a@b.c && git config user.name a"
            " && echo 1 > 'one file' && echo 2 > two && git add . && git commit -qm first"
            " && echo 3 >> 'one file' && rm two && mkdir sub && echo new > sub/new"
        )
        assert made.exit_code == 0, made
        found = {str(each.path): each.status.value for each in box.git_changes(".")}
        assert found == {"one file": "UPDATED", "two": "DELETED", "sub/new": "ADDED"}
        assert [str(each.path) for each in box.git_changes("sub")] == ["new"]
        for name, before, after in (("one file", "1", "1\n3"), ("two", "2", ""), ("sub/new", "", "new")):
            diff = box.git_diff(name)
            assert (diff.original, diff.modified) == (before, after), diff
        try:
            box.git_diff("none")
        except GitPathError:
            return
        raise AssertionError


def existing() -> None:
    with SandboxClient() as client:
        client.write_file("theirs", "text")
        with WarrenWorkspace(session_id=client.create_session().session_id) as box:
            assert box.execute_command("cat theirs").stdout == "text"
        assert client.execute("cat theirs").output == "text"


def run_agent(number: int) -> str:
    def call(command: str) -> Message:
        arguments = f'{{"command": "{command}"}}'
        tool = MessageToolCall(id=command[:4], name="warren_terminal", arguments=arguments, origin="completion")
        return Message(role="assistant", content=[TextContent(text="")], tool_calls=[tool])

    ending = Message(role="assistant", content=[TextContent(text="Done.")])
    llm = TestLLM.from_messages([call(f"cd /tmp; echo {number} > number"), call("cat number; pwd"), ending])
    seen: list[str] = []

    def note(event: object) -> None:
        if isinstance(event, ObservationEvent):
            seen.append(event.observation.text)

    with WarrenWorkspace() as box:
        agent = Agent(llm=llm, tools=[box.terminal()])
        conversation = Conversation(agent, workspace=HERE / str(number), callbacks=[note], visualizer=None)
        conversation.send_message("Do it.")
        conversation.run()
        conversation.close()
    return seen[-1]


def agents() -> None:
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(run_agent, (7, 8))) == [f"{n}\n/tmp\n[exit code 0]" for n in (7, 8)]


for part in (commands, cancelled, files, git, existing, agents):
    part()
    print(part.__name__, flush=True)
assert SandboxClient.list_sessions() == []
