"""A command that takes long, to be interrupted."""

from warren.integrations.openhands import WarrenWorkspace

with WarrenWorkspace() as workspace:
    workspace.execute_command("sleep 600", timeout=900)
