"""The program that carries all that sandboxes exchange with the outside, and may do nothing else."""
