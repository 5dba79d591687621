"""The command `warren`."""
