"""The owner of one host's sandboxes: makes them ahead, hands them out, destroys them."""
