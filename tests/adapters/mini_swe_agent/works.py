"""Environments of mini-swe-agent in sandboxes of Warren: commands, an agent's run from YAML, and what goes wrong."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
os.environ.setdefault("MSWEA_COST_TRACKING", "ignore_errors")

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output

from warren import SandboxClient
from warren.integrations.mini_swe_agent import WarrenEnvironment
from warren.model.errors import WarrenError

CONFIG = """
environment:
  environment_class: warren.integrations.mini_swe_agent.WarrenEnvironment
  cwd: /tmp
  timeout: 20
  env: {PAGER: cat}
  forward_env: [FORWARDED, NOT_THERE]
  limits: {memory_mb: 200}
  metadata: {who: mini}
agent:
  system_template: You are on {{system}} {{machine}}, in {{cwd}}.
  instance_template: "{{task}}"
  step_limit: 5
"""


def run(environment: WarrenEnvironment, command: str, **how: Any) -> dict[str, Any]:
    return environment.execute({"command": command}, **how)


def commands() -> None:
    environment = WarrenEnvironment(env={"PLACE": "here"})
    assert run(environment, "echo $PLACE; pwd; echo err >&2; exit 3") == {
        "output": "here\n/workspace\nerr\n",
        "returncode": 3,
        "exception_info": "",
    }
    run(environment, "cd /tmp; export LEFT=1")
    assert run(environment, "pwd; echo [$LEFT]")["output"] == "/workspace\n[]\n"
    assert run(environment, "pwd", cwd="/tmp")["output"] == "/tmp\n"
    assert run(environment, "nosuchprogram")["returncode"] == 127
    assert run(environment, "shopt login_shell | cut -f 2")["output"] == "on\n"
    assert run(environment, "cat <<'END' > made.bin\n$x 'y'\nEND\ncat made.bin")["output"] == "$x 'y'\n"
    assert len(run(environment, "yes 123456789 | head -c 10000000")["output"]) == 10_000_000
    assert run(environment, "printf '\\xff' | cat")["output"] == "\N{REPLACEMENT CHARACTER}"
    environment.client.write_file("data.bin", bytes(range(256)))
    assert run(environment, "sha256sum < data.bin | cut -c 1-8")["output"] == "40aff2e9\n"

    late = run(environment, "echo so far; sleep 61", timeout=1)
    assert (late["output"], late["returncode"]) == ("so far\n", -1), late
    assert late["extra"]["exception_type"] == "TimeoutExpired"
    assert "timed out after 1 seconds" in late["exception_info"]
    until_gone(environment, "sleep 61")
    nowhere = run(environment, "true", cwd="/nowhere")
    assert nowhere["returncode"] != 0, nowhere
    assert "/nowhere" in nowhere["output"] + nowhere["exception_info"]

    def interrupt() -> None:
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        run(environment, "sleep 62")
        raise AssertionError("Ctrl-C did not end it")
    except KeyboardInterrupt:
        until_gone(environment, "sleep 62")

    submitted: list[Any] = []
    try:
        run(environment, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo one; echo two")
    except Submitted as exc:
        submitted += exc.messages
    assert [each["extra"] for each in submitted] == [{"exit_status": "Submitted", "submission": "one\ntwo\n"}]
    assert run(environment, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; false")["returncode"] == 1
    system = environment.get_template_vars(more=1)
    assert (system["system"], system["more"], system["env"]) == ("Linux", 1, {"PLACE": "here"})

    with SandboxClient.attach(environment.client.session_id) as client:
        client.cleanup()
    gone = run(environment, "true")
    assert (gone["returncode"], gone["output"]) == (-1, ""), gone
    assert gone["exception_info"].startswith("An error occurred while executing the command: ")
    assert gone["extra"]["exception_type"] in ("SessionNotFound", "SessionEnded")
    environment.cleanup()
    environment.cleanup()
    assert "cleaned up" in run(environment, "true")["exception_info"]


def an_agent_from_yaml() -> None:
    os.environ["FORWARDED"] = "yes"
    config = yaml.safe_load(CONFIG)
    environment: Any = get_environment(config["environment"])
    [session] = SandboxClient.list_sessions(metadata={"who": "mini"})
    assert session.limits is not None
    assert session.limits["memory_mb"] == 200
    outputs = [
        make_output("Look.", [{"command": "echo $PAGER $FORWARDED > note; pwd"}, {"command": "cat note"}]),
        make_output("Wrong.", [{"command": "false"}]),
        make_output("Done.", [{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat note"}]),
    ]
    agent = DefaultAgent(DeterministicModel(outputs=outputs), environment, **config["agent"])
    assert agent.run("Write a note.") == {"exit_status": "Submitted", "submission": "cat yes\n"}
    assert agent.messages[0]["content"].startswith("You are on Linux ")
    told = json.dumps(agent.messages)
    assert "/tmp\\n" in told, told
    assert "<returncode>1</returncode>" in told, told
    saved = agent.save(Path("run.traj.json"))
    assert saved["info"]["config"]["environment_type"] == "warren.integrations.mini_swe_agent.WarrenEnvironment"
    assert saved["info"]["config"]["environment"]["limits"] == {"memory_mb": 200}
    del agent, environment
    gc.collect()
    assert SandboxClient.list_sessions() == [], "the session ends when its environment is dropped"


def the_key_is_not_shown() -> None:
    key = os.environ["WARREN_API_KEY"]
    environment = WarrenEnvironment(api_key=key)
    assert key not in json.dumps(environment.serialize())
    assert key not in json.dumps(environment.get_template_vars())
    environment.cleanup()


def an_existing_session() -> None:
    with SandboxClient() as client:
        client.write_file("word", "mine")
        for _ in range(2):
            environment = WarrenEnvironment(session_id=client.create_session().session_id)
            assert run(environment, "cat word")["output"] == "mine"
            environment.cleanup()
        assert client.execute("cat word").output == "mine"


def many_at_once() -> None:
    def work(number: int) -> str:
        environment = WarrenEnvironment()
        run(environment, f"echo {number} > mine; sleep 0.5")
        text: str = run(environment, "cat mine; ls | wc -l")["output"]
        environment.cleanup()
        return text

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(work, range(4))] == [f"{number}\n1\n" for number in range(4)]


def wrong_options_and_root() -> None:
    for wrong, kind in (({"enviroment": "base"}, TypeError), ({"environment": "nowhere"}, WarrenError)):
        try:
            WarrenEnvironment(**wrong)
            raise AssertionError(f"{wrong} was taken")
        except kind:
            pass
    environment = WarrenEnvironment(environment="workshop", user="root")
    assert run(environment, "id -u")["output"] == "0\n"
    environment.cleanup()


def the_end_of_the_program_ends_it() -> None:
    program = f"from {WarrenEnvironment.__module__} import WarrenEnvironment; e = WarrenEnvironment(); 1 / 0"
    assert subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL, check=False).returncode == 1
    assert SandboxClient.list_sessions() == []


def until_gone(environment: WarrenEnvironment, command: str) -> None:
    for _ in range(100):
        found = run(environment, f"ps -eo args | grep '^[{command[0]}]{command[1:]}'")["output"]
        if not found:
            return
        time.sleep(0.1)
    raise AssertionError(f"it still runs: {found}")


commands()
an_agent_from_yaml()
the_key_is_not_shown()
an_existing_session()
many_at_once()
wrong_options_and_root()
the_end_of_the_program_ends_it()
