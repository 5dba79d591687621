"""Runs the program of the page with a scripted model in place of one that needs a key."""

import runpy
import sys

import minisweagent.models
from minisweagent.models.test_models import DeterministicModel, make_output

STEPS = ["ls -a", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; uname -s"]
model = DeterministicModel(outputs=[make_output("Step.", [{"command": step}]) for step in STEPS])
minisweagent.models.get_model = lambda *_, **__: model
found = runpy.run_path(sys.argv[1])
assert found["result"] == {"exit_status": "Submitted", "submission": "Linux\n"}, found["result"]
