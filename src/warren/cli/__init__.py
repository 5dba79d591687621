"""The command `warren`: runs in the user's shell."""
