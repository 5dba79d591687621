"""The runner of Python. In a sandbox main.py itself is this package, under the name `_warren`."""
