"""A command that runs for long in a sandbox of agno."""

from warren.integrations.agno import WarrenSandbox

sandboxes = WarrenSandbox()
handle = sandboxes.create("held")
try:
    sandboxes.exec(handle, ["sleep", "600"], timeout=700)
finally:
    sandboxes.destroy(handle)
