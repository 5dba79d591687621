"""Root filesystems: built, imported, listed and removed on this machine."""
