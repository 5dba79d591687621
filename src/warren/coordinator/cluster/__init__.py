"""Many machines: who is alive (roster, leases), what is done about the dead (warden), who trusts whom (trust)."""
