"""State directories for the servers that the frameworks use."""

from e2e.conftest import new_state

__all__ = ["new_state"]
