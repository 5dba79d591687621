"""`warren doctor --attack`: attacks a sandbox from inside, and looks from the host whether it held."""
