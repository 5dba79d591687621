"""`warren doctor`: checks whether this machine can run sandboxes, and with which isolation, and names the remedies."""
