"""The seams: small protocols whose docstrings are contracts."""
