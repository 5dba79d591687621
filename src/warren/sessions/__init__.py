"""Sessions: their lifecycle, and the operations on them."""
