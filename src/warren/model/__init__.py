"""The vocabulary: frozen values without I/O that every other package may import."""
