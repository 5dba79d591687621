"""Sandboxes as tools of the Model Context Protocol: `warren mcp`."""
