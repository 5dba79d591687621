"""`warren doctor --attack`: attacks a sandbox of this installation from inside, and looks from the host whether it held."""
