"""The service inside a sandbox: commands and files."""
