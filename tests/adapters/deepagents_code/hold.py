"""A command that takes long, to be interrupted."""

from deepagents_code.integrations.sandbox_factory import create_sandbox

with create_sandbox("warren") as sandbox:
    sandbox.execute("sleep 600", timeout=900)
