"""Many machines: membership and leases, failover, placement, and the proxy from coordinators to workers."""
