"""E2B's wire: lets the official E2B SDKs use the sessions of this server."""
