"""Composition roots: which process is made of which parts."""
