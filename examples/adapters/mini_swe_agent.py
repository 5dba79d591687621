"""mini-swe-agent in a sandbox of Warren: a scripted model mends a program and submits the difference.

warren serve &
python examples/adapters/mini_swe_agent.py
"""

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output

CONFIG = """
environment:
  environment_class: warren.integrations.mini_swe_agent.WarrenEnvironment
  cwd: /workspace
  timeout: 30
  limits: {memory_mb: 512}
agent:
  system_template: You are a helpful assistant on {{system}} {{machine}}.
  instance_template: "{{task}}"
"""
CODE = "def mean(numbers):\n    return sum(numbers) / len(numbers) + 1\n"
STEPS = [
    f"cat > mean.py <<'END'\n{CODE}END\ncp mean.py before.py",
    "python3 -c 'from mean import mean; assert mean([1, 3]) == 2, mean([1, 3])' 2>&1 | tail -n 1",
    "sed -i 's/ + 1$//' mean.py && python3 -c 'from mean import mean; print(mean([1, 3]))'",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; diff before.py mean.py || true",
]


def main() -> None:
    config = yaml.safe_load(CONFIG)
    model = DeterministicModel(outputs=[make_output("", [{"command": step}]) for step in STEPS])
    environment = get_environment(config["environment"])
    agent = DefaultAgent(model, environment, **config["agent"])
    result = agent.run("Mend mean.py.")
    for message in agent.messages:
        if message["role"] == "user":
            print(message["content"])
    print(result["exit_status"], result["submission"], sep="\n")


if __name__ == "__main__":
    main()
