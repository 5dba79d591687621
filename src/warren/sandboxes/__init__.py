"""Makes sandboxes and talks to them: providers, the agent's protocol, networks, egress, and the host below them."""
