"""Runs on the host of the sandboxes: makes them, talks to the agents inside, unmakes them."""
