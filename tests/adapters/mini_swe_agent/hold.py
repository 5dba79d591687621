"""An agent runs something long, to be interrupted."""

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output

spec = {"environment_class": "warren.integrations.mini_swe_agent.WarrenEnvironment", "timeout": 700}
model = DeterministicModel(outputs=[make_output("Wait.", [{"command": "sleep 600"}])])
DefaultAgent(model, get_environment(spec), system_template="s", instance_template="{{task}}").run("Wait.")
