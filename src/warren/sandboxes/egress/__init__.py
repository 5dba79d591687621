"""`warren-egress`, the process that relays all traffic between sandboxes and the outside, and may do nothing else."""
