"""The control plane: sandboxes and templates."""
